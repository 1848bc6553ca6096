//! Predictions held against windows that were recorded on a real device.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use headroom_base::{AllocatorKind, Bytes, DType, Operation};
use headroom_device::Settings;
use headroom_family::Architecture;

use super::derive::{program, weights};
use super::execution::{Execution, Library};
use super::predict::{Peaks, PredictionError, Start, predict_program};
use super::program::{Piece, Program};
pub use super::recordings::{Recorded, RecordedWindow, RecordingError, read_windows, recorded_case};

/// A case's windows on one allocator beside what was predicted.
#[derive(Clone, Debug)]
pub struct Compared {
    /// What ran.
    pub recorded: Recorded,
    /// On which allocator.
    pub allocator: AllocatorKind,
    /// Whether these are first runs of the case.
    pub warmup: bool,
    /// How many windows there are.
    pub windows: usize,
    /// Smallest and largest recorded peak of allocated memory.
    pub allocated_bytes: (u64, u64),
    /// Smallest and largest recorded peak of reserved memory.
    pub reserved_bytes: (u64, u64),
    /// Smallest and largest recorded baseline of allocated memory.
    pub baseline_bytes: (u64, u64),
    /// Smallest and largest recorded baseline of reserved memory.
    pub baseline_reserved_bytes: (u64, u64),
    /// What was predicted.
    pub predicted: Peaks,
}

/// A case's program and weights, or why there are none.
type Derived = Result<(Program, Vec<Piece>), String>;

/// How far a prediction lies outside the recorded range: 0 inside it, negative below.
fn outside(predicted: u64, (least, most): (u64, u64)) -> i64 {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    if predicted > most {
        signed(predicted - most)
    } else if predicted < least {
        -signed(least - predicted)
    } else {
        0
    }
}

impl Compared {
    /// Predicted less recorded peak of allocated memory, 0 within the recorded range.
    pub fn allocated_error_bytes(&self) -> i64 {
        outside(self.predicted.allocated_peak_bytes, self.allocated_bytes)
    }

    /// Predicted less recorded peak of reserved memory, 0 within the recorded range.
    pub fn reserved_error_bytes(&self) -> i64 {
        outside(self.predicted.reserved_peak_bytes, self.reserved_bytes)
    }

    /// The error of the allocated peak as a share of the largest recorded one.
    pub fn allocated_error(&self) -> f64 {
        self.allocated_error_bytes() as f64 / self.allocated_bytes.1.max(1) as f64
    }

    /// The error of the reserved peak as a share of the largest recorded one, or of a growth step where nothing grew.
    pub fn reserved_error(&self) -> f64 {
        let whole = match self.reserved_bytes.1 {
            0 => self.allocator.growth_step_bytes(),
            recorded => recorded,
        };
        self.reserved_error_bytes() as f64 / whole as f64
    }

    /// Whether the allocated peak is within 2 %.
    pub fn allocated_holds(&self) -> bool {
        self.allocated_error().abs() <= 0.02
    }

    /// Whether the reserved peak is within 5 % or one growth step, whichever is larger; for the stream-ordered pool,
    /// whether it is never under.
    pub fn reserved_holds(&self) -> bool {
        let error = self.reserved_error_bytes();
        match self.allocator {
            AllocatorKind::CudaMallocAsync => error >= 0,
            kind => self.reserved_error().abs() <= 0.05 || error.unsigned_abs() <= kind.growth_step_bytes(),
        }
    }
}

/// Compares every window with what the programs predict, one entry per case, allocator and kind of run.
///
/// `architecture` says what was recorded; where it knows none, or there is no program, the case is
/// left out and counted in the second value, with the reason.
pub fn compare(
    windows: &[RecordedWindow],
    architecture: impl Fn(&Recorded) -> Option<Architecture>,
) -> (Vec<Compared>, BTreeMap<String, usize>) {
    let mut groups: BTreeMap<(Recorded, AllocatorKind, bool), Vec<&RecordedWindow>> = BTreeMap::new();
    for window in windows {
        groups.entry((window.recorded.clone(), window.allocator, window.warmup)).or_default().push(window);
    }
    let starts = starts(windows, &architecture);
    let mut compared = Vec::new();
    let mut left_out = BTreeMap::new();
    let mut derived: Option<(Recorded, Derived)> = None;
    for ((recorded, allocator, warmup), windows) in groups {
        if derived.as_ref().is_none_or(|(other, _)| *other != recorded) {
            derived = Some((recorded.clone(), derive(&recorded, &windows[0].execution, &architecture)));
        }
        let Some((_, outcome)) = &derived else { continue };
        let predicted = outcome.as_ref().map_err(Clone::clone).and_then(|(program, weights)| {
            let least = windows.iter().map(|window| window.baseline_allocated_bytes).min().unwrap_or(0);
            let start = starts.get(&(recorded.family.clone(), recorded.case.operation, recorded.case.dtype, allocator));
            let start = start.copied().unwrap_or(Start::Fresh);
            predicted_peaks(program, weights, allocator, warmup, (start, least)).map_err(|error| error.to_string())
        });
        match predicted {
            Ok(predicted) => compared.push(Compared {
                recorded,
                allocator,
                warmup,
                windows: windows.len(),
                allocated_bytes: range(windows.iter().map(|window| window.allocated_peak_bytes)),
                baseline_bytes: range(windows.iter().map(|window| window.baseline_allocated_bytes)),
                baseline_reserved_bytes: range(windows.iter().map(|window| window.baseline_reserved_bytes)),
                reserved_bytes: range(windows.iter().map(|window| window.reserved_peak_bytes)),
                predicted,
            }),
            Err(reason) => *left_out.entry(reason).or_default() += windows.len(),
        }
    }
    (compared, left_out)
}

/// What a recorded model's process had done before: where even its first window has more allocated than weights and
/// input come to, other models had run, and every library held its workspace.
fn starts(
    windows: &[RecordedWindow],
    architecture: impl Fn(&Recorded) -> Option<Architecture>,
) -> HashMap<(String, Operation, DType, AllocatorKind), Start> {
    let mut starts = HashMap::new();
    for window in windows {
        let Recorded { family, case, .. } = &window.recorded;
        let key = (family.clone(), case.operation, case.dtype, window.allocator);
        let model = window.execution.workspaces;
        starts.entry(key).or_insert_with(|| {
            let held = architecture(&window.recorded).map(|found| {
                weights(&found, case.dtype).iter().map(|piece| piece.bytes.next_multiple_of(512)).sum::<u64>()
            });
            let libraries: u64 = Library::ALL.iter().map(|library| model.persistent_bytes(*library)).sum();
            match held {
                Some(held) if window.baseline_allocated_bytes >= held + libraries => Start::LibrariesReady(model),
                _ => Start::Fresh,
            }
        });
    }
    starts
}

fn derive(
    recorded: &Recorded,
    execution: &Execution,
    architecture: impl Fn(&Recorded) -> Option<Architecture>,
) -> Derived {
    let Recorded { family, case, .. } = recorded;
    let found = architecture(recorded);
    let found = found.ok_or_else(|| format!("no architecture is known for {family} {}", case.operation))?;
    let program = program(&found, case, execution).map_err(|error| error.to_string())?;
    Ok((program, weights(&found, case.dtype)))
}

/// The peaks of the run that these windows are: the first of a process where library workspaces were not there yet.
fn predicted_peaks(
    program: &Program,
    weights: &[Piece],
    allocator: AllocatorKind,
    warmup: bool,
    state: (Start, u64),
) -> Result<Peaks, PredictionError> {
    let (start, least_baseline_bytes) = state;
    let prediction = predict_program(program, weights, &Settings::of_kind(allocator), start)?;
    let held = prediction.first.allocated_baseline_bytes + program.persistent_bytes();
    let fresh = warmup && start == Start::Fresh && least_baseline_bytes < held;
    Ok(if fresh { prediction.first } else { prediction.later })
}

fn range(values: impl Iterator<Item = u64>) -> (u64, u64) {
    values.fold((u64::MAX, 0), |(least, most), value| (least.min(value), most.max(value)))
}

/// The distribution of errors per family, operation, dtype, options and allocator as a Markdown table, worst first.
pub fn table(compared: &[Compared]) -> String {
    let mut lines: BTreeMap<(String, AllocatorKind), Vec<&Compared>> = BTreeMap::new();
    for entry in compared {
        let Recorded { family, case, options } = &entry.recorded;
        let tiling = case.tiling.map_or(String::new(), |tiling| format!(" tile {}", tiling.tile_pixels));
        let name = format!("{family} {} {}{tiling} {options}", case.operation, case.dtype);
        lines.entry((name.trim_end().to_owned(), entry.allocator)).or_default().push(entry);
    }
    let worst = |entries: &[&Compared], error: fn(&Compared) -> f64| {
        entries.iter().map(|entry| error(entry)).max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0)
    };
    let mut rows: Vec<_> = lines
        .into_iter()
        .map(|((name, allocator), entries)| {
            let allocated = worst(&entries, Compared::allocated_error);
            let reserved = worst(&entries, Compared::reserved_error);
            let mut sorted: Vec<f64> = entries.iter().map(|entry| entry.reserved_error()).collect();
            sorted.sort_by(f64::total_cmp);
            let windows: usize = entries.iter().map(|entry| entry.windows).sum();
            (name, allocator, windows, allocated, reserved, sorted[sorted.len() / 2])
        })
        .collect();
    rows.sort_by(|a, b| b.4.abs().total_cmp(&a.4.abs()).then_with(|| a.0.cmp(&b.0)));
    let mut text = String::from(
        "| line | allocator | windows | allocated, worst | reserved, worst | reserved, median |\n|---|---|---:|---:|---:|---:|\n",
    );
    for (name, allocator, windows, allocated, reserved, median) in rows {
        let percent = |share: f64| format!("{:+.2} %", 100.0 * share);
        let _ = writeln!(
            text,
            "| {name} | {allocator} | {windows} | {} | {} | {} |",
            percent(allocated),
            percent(reserved),
            percent(median)
        );
    }
    text
}

/// One comparison for people, with sizes.
pub fn describe(entry: &Compared) -> String {
    let Recorded { family, case, options } = &entry.recorded;
    format!(
        "{family} {case} {options} {} {}: baseline {} predicted, {} recorded; allocated {} predicted, {} recorded ({:+.2} %); reserved {} predicted, {} recorded ({:+.2} %)",
        entry.allocator,
        if entry.warmup { "warm-up" } else { "measured" },
        Bytes(entry.predicted.allocated_baseline_bytes),
        Bytes(entry.baseline_bytes.1),
        Bytes(entry.predicted.allocated_peak_bytes),
        Bytes(entry.allocated_bytes.1),
        100.0 * entry.allocated_error(),
        Bytes(entry.predicted.reserved_peak_bytes),
        Bytes(entry.reserved_bytes.1),
        100.0 * entry.reserved_error(),
    )
}
