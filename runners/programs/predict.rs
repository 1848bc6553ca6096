//! Runs programs on the caching allocator: what an operation needs, with no GPU.

use std::collections::HashMap;

use headroom_base::{AllocatorKind, Bytes, Case, GIB};
use headroom_device::{Allocation, AllocationError, Allocator, Settings, SimulatedCard, SimulatedDriver};
use headroom_family::Architecture;

use super::derive::{Unsupported, program, weights};
use super::execution::{Execution, Library};
use super::program::{Piece, Program, Role, Step};
use super::workspaces::WorkspaceModel;

/// Memory of the card on which predictions run: more than any operation asks for.
const CARD_GIB: u64 = 1 << 12;

/// The peaks of one run above what was there before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peaks {
    /// What was allocated before.
    pub allocated_baseline_bytes: u64,
    /// What was reserved before.
    pub reserved_baseline_bytes: u64,
    /// Peak of allocated memory above the baseline.
    pub allocated_peak_bytes: u64,
    /// Peak of reserved memory above the baseline.
    pub reserved_peak_bytes: u64,
}

/// What an operation needs on an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prediction {
    /// The first run of a process, in which libraries set themselves up.
    pub first: Peaks,
    /// Any later run.
    pub later: Peaks,
}

impl Prediction {
    /// Working memory of a run after the first: the larger of its peaks.
    pub fn demand_bytes(&self) -> u64 {
        self.later.allocated_peak_bytes.max(self.later.reserved_peak_bytes)
    }
}

/// Why nothing was predicted.
#[derive(Debug, thiserror::Error)]
pub enum PredictionError {
    /// There is no program.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The operation needs more than the card of the prediction has, which is far beyond any real one.
    #[error("the operation does not fit a card of {card}: {0}; ask for a smaller case", card = Bytes(CARD_GIB * GIB))]
    TooLarge(#[from] AllocationError),
}

/// What an operation needs on an allocator of this kind with its default settings.
///
/// # Errors
/// When there is no program for the case, or it exceeds every card.
pub fn predict(
    architecture: &Architecture,
    case: &Case,
    execution: &Execution,
    kind: AllocatorKind,
) -> Result<Prediction, PredictionError> {
    let (program, weights) = loaded(architecture, case, execution)?;
    predict_program(&program, &weights, &Settings::of_kind(kind), Start::Fresh)
}

/// A case's program, and the weights that it finds loaded.
fn loaded(
    architecture: &Architecture,
    case: &Case,
    execution: &Execution,
) -> Result<(Program, Vec<Piece>), Unsupported> {
    let stored = execution.stored.unwrap_or(case.dtype);
    Ok((program(architecture, case, execution)?, weights(architecture, stored)))
}

/// What to price an operation by where nothing was measured: its working memory after the first run, in a process of which
/// nothing is known. A process that ran other models has the libraries' workspaces in its pools already, which decides what
/// is left of the last segments; so the larger of both is taken.
///
/// # Errors
/// As [`predict`].
pub fn predicted_demand_bytes(
    architecture: &Architecture,
    case: &Case,
    execution: &Execution,
    kind: AllocatorKind,
) -> Result<u64, PredictionError> {
    let (program, weights) = loaded(architecture, case, execution)?;
    let settings = Settings::of_kind(kind);
    let starts = [Start::Fresh, Start::LibrariesReady(execution.workspaces)];
    let demands = starts.map(|start| predict_program(&program, &weights, &settings, start));
    demands.into_iter().try_fold(0, |most, predicted| Ok(predicted?.demand_bytes().max(most)))
}

/// What a process did before the weights were loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// Nothing.
    Fresh,
    /// It ran other models: every library holds its own workspace already.
    LibrariesReady(WorkspaceModel),
}

/// What a program needs beside these weights on an allocator with these settings.
///
/// The weights are loaded in order, then the inputs; each of the two runs starts from an emptied cache and reset peaks,
/// as a measured window does.
///
/// # Errors
/// When it exceeds every card.
pub fn predict_program(
    program: &Program,
    weights: &[Piece],
    settings: &Settings,
    start: Start,
) -> Result<Prediction, PredictionError> {
    let card = SimulatedCard::with_gib(CARD_GIB);
    let mut process =
        Process { allocator: Allocator::new(card.driver(), settings.clone()), persistent: HashMap::new() };
    if let Start::LibrariesReady(model) = start {
        for library in Library::ALL {
            let held = process.allocator.allocate(model.persistent_bytes(library))?;
            process.persistent.insert(library.name(), held);
        }
    }
    for piece in weights.iter().chain(&program.inputs) {
        process.allocator.allocate(piece.bytes)?;
    }
    let first = process.run(program)?;
    let later = process.run(program)?;
    Ok(Prediction { first, later })
}

/// A simulated process: its allocator and the library workspaces that stay in it.
struct Process {
    allocator: Allocator<SimulatedDriver>,
    persistent: HashMap<&'static str, Allocation>,
}

impl Process {
    fn run(&mut self, program: &Program) -> Result<Peaks, AllocationError> {
        self.allocator.empty_cache()?;
        self.allocator.reset_peaks();
        let before = self.allocator.counters();
        let mut live = HashMap::new();
        for step in &program.steps {
            match step {
                Step::Allocate { bytes, label, role: Role::Persistent, .. } => {
                    if !self.persistent.contains_key(label.operator) {
                        let held = self.allocator.allocate(*bytes)?;
                        self.persistent.insert(label.operator, held);
                    }
                }
                Step::Allocate { tensor, bytes, .. } => {
                    live.insert(*tensor, self.allocator.allocate(*bytes)?);
                }
                Step::Free { tensor } => {
                    if let Some(held) = live.remove(tensor) {
                        self.release(held);
                    }
                }
            }
        }
        let after = self.allocator.counters();
        let mut outputs: Vec<_> = live.into_iter().collect();
        outputs.sort_by_key(|(tensor, _)| *tensor);
        for (_, held) in outputs {
            self.release(held);
        }
        Ok(Peaks {
            allocated_baseline_bytes: before.allocated.current,
            reserved_baseline_bytes: before.reserved.current,
            allocated_peak_bytes: after.allocated.peak - before.allocated.current,
            reserved_peak_bytes: after.reserved.peak - before.reserved.current,
        })
    }

    /// A program frees what it allocated and nothing else, so this cannot fail.
    fn release(&mut self, held: Allocation) {
        let freed = self.allocator.free(held);
        debug_assert!(freed.is_ok(), "a program freed what it did not hold");
    }
}
