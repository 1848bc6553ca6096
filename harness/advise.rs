//! Which allocator setting needs least for an operation, from its program alone.

use headroom_base::{AllocatorKind, Case};
use headroom_device::replay::Requests;
use headroom_family::Architecture;
use headroom_runners::programs::{self, Execution, PredictionError, Run};
use headroom_runners::requests;
use rayon::prelude::*;
use serde::Serialize;

use crate::replay::{NamedSetting, Terms, what_if};

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// The model.
    pub architecture: &'a Architecture,
    /// The operation.
    pub case: Case,
    /// How it runs.
    pub execution: Execution,
    /// What the process takes from the device before it allocates anything.
    pub context_bytes: u64,
    /// The card's memory.
    pub memory_bytes: Option<u64>,
}

/// What one setting needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingAdvice {
    /// The kind of allocator, with its default settings.
    pub allocator: AllocatorKind,
    /// The most handed out at once beyond what was before the operation.
    pub allocated_peak_bytes: u64,
    /// The most taken from the driver beyond what was before: an upper bound for the stream-ordered pool.
    pub reserved_peak_bytes: u64,
    /// The least card on which the operation completes, retries allowed: context and weights are in it. An upper bound
    /// for the stream-ordered pool.
    pub least_capacity_bytes: u64,
    /// Whether the card that was asked about is large enough; none where none was.
    pub fits: Option<bool>,
    /// The line that sets it.
    pub environment: String,
    /// Whether the figures are upper bounds.
    pub is_bound: bool,
}

/// What every setting needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// The kinds of allocator, the default first.
    pub settings: Vec<SettingAdvice>,
    /// The one that needs the smallest card; of equal ones the first.
    pub least: AllocatorKind,
    /// Weights and inputs that are on the device before the operation.
    pub weights_bytes: u64,
    /// What is reckoned for the process's context.
    pub context_bytes: u64,
}

/// Runs the operation's program under every kind of allocator.
///
/// The peaks are those of any run after the first, as windows measure them. The least card must do for the first run,
/// in which libraries set themselves up, and for a later one.
///
/// # Errors
/// When there is no program for the case, or it exceeds every card.
pub fn advise(question: &Question<'_>) -> Result<Advice, PredictionError> {
    let program = programs::program(question.architecture, &question.case, &question.execution)?;
    let stored = question.execution.stored.unwrap_or(question.case.dtype);
    let weights = programs::weights(question.architecture, stored);
    let runs = [Run::First, Run::Later].map(|run| requests(&program, &weights, run));
    let settings: Result<Vec<_>, PredictionError> = AllocatorKind::ALL
        .par_iter()
        .map(|&kind| {
            let setting = NamedSetting::of_kind(kind);
            let peaks = programs::predict(question.architecture, &question.case, &question.execution, kind)?.later;
            let least_capacity_bytes = question.context_bytes + least_for_all(&runs, &setting);
            Ok(SettingAdvice {
                allocator: kind,
                allocated_peak_bytes: peaks.allocated_peak_bytes,
                reserved_peak_bytes: peaks.reserved_peak_bytes,
                least_capacity_bytes,
                fits: question.memory_bytes.map(|memory| least_capacity_bytes <= memory),
                environment: setting.environment(),
                is_bound: setting.is_bound(),
            })
        })
        .collect();
    let settings = settings?;
    let least = settings.iter().min_by_key(|setting| setting.least_capacity_bytes);
    Ok(Advice {
        least: least.map_or(AllocatorKind::Native, |setting| setting.allocator),
        weights_bytes: weights.iter().chain(&program.inputs).map(|piece| piece.bytes).sum(),
        context_bytes: question.context_bytes,
        settings,
    })
}

/// The least memory that does for every one of the runs.
fn least_for_all(runs: &[Requests], setting: &NamedSetting) -> u64 {
    let least = runs.iter().map(|requests| what_if(requests, setting, Terms::default()));
    // A program that was just run on an ample card completes on one.
    least.map(|answer| answer.least_capacity_bytes.unwrap_or(answer.reserved_peak_bytes)).max().unwrap_or(0)
}
