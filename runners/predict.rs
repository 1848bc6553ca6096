//! What an operation's program needs under an allocator setting, with no GPU.

use headroom_base::{AllocatorKind, Case, DType};
use headroom_device::Settings;
use headroom_device::replay::{Request, Requests, run_requests};
use headroom_family::Architecture;

use crate::programs::{Execution, Program, Role, Run, Step, Unsupported, program, weights};

/// A device large enough for every operation that anybody runs: what is predicted is need, not fit.
const AMPLE_BYTES: u64 = 1 << 44;

/// Peaks over the baseline, as a measured window has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// Peak allocated.
    pub allocated_peak_bytes: u64,
    /// Peak reserved.
    pub reserved_peak_bytes: u64,
}

impl Prediction {
    /// What a reservation must cover.
    pub fn demand_bytes(&self) -> u64 {
        self.allocated_peak_bytes.max(self.reserved_peak_bytes)
    }
}

/// Predicts a run after the first: the libraries' own workspaces are there already.
///
/// # Errors
/// When there is no program for the case.
pub fn predict(
    architecture: &Architecture,
    case: &Case,
    execution: &Execution,
    allocator: AllocatorKind,
) -> Result<Prediction, Unsupported> {
    predict_run(architecture, case, execution, allocator, Run::Later)
}

/// Predicts the first run of a process, or a later one.
///
/// # Errors
/// When there is no program for the case.
pub fn predict_run(
    architecture: &Architecture,
    case: &Case,
    execution: &Execution,
    allocator: AllocatorKind,
    run: Run,
) -> Result<Prediction, Unsupported> {
    let requests = operation_requests(architecture, case, execution, run)?;
    let run = run_requests(&requests, &Settings::of_kind(allocator), AMPLE_BYTES)
        .expect("weights and inputs fit on a device of 16 TiB");
    Ok(Prediction {
        allocated_peak_bytes: run.allocated_peak_delta_bytes(),
        reserved_peak_bytes: run.reserved_peak_delta_bytes(),
    })
}

/// An operation as requests: weights, inputs and (after a first run) library workspaces live when it begins.
///
/// # Errors
/// When there is no program for the case.
pub fn operation_requests(
    architecture: &Architecture,
    case: &Case,
    execution: &Execution,
    run: Run,
) -> Result<Requests, Unsupported> {
    let program = program(architecture, case, execution)?;
    let stored: DType = execution.stored.unwrap_or(case.dtype);
    let mut live: Vec<u64> = weights(architecture, stored).iter().map(|piece| piece.bytes).collect();
    live.extend(program.inputs.iter().map(|piece| piece.bytes));
    if run == Run::Later {
        live.extend(program.allocations().filter(|made| made.role == Role::Persistent).map(|made| made.bytes));
    }
    let first = live.len() as u64;
    let operation = operation_of(&program, run, first);
    Ok(Requests { live: live.into_iter().enumerate().map(|(id, bytes)| (id as u64, bytes)).collect(), operation })
}

fn operation_of(program: &Program, run: Run, first: u64) -> Vec<Request> {
    program
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::Allocate { role: Role::Persistent, .. } if run == Run::Later => None,
            Step::Allocate { tensor, bytes, .. } => {
                Some(Request::Allocate { id: first + u64::from(tensor.0), bytes: *bytes })
            }
            Step::Free { tensor } => Some(Request::Free { id: first + u64::from(tensor.0) }),
        })
        .collect()
}
