//! Which allocator setting to take for an operation, from its program alone.

use std::str::FromStr;

use headroom_base::{AllocatorKind, Case};
use headroom_device::Settings;
use headroom_device::cache::WeightsSource;
use headroom_device::replay::Requests;
use headroom_family::{Architecture, Model};
use headroom_runners::programs::{self, Execution, Piece, PredictionError, Role, Run, Start};
use headroom_runners::{model_spec, requests};
use rayon::prelude::*;
use serde::Serialize;

use crate::bench::weights_bytes;
use crate::replay::{Candidate, Choice, NamedSetting, Terms, what_if};

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// The model.
    pub architecture: &'a Architecture,
    /// The operation.
    pub case: Case,
    /// How it runs.
    pub execution: Execution,
    /// The model's own weights, as they are loaded.
    pub own: Vec<Piece>,
    /// Weights of other models that are on the device already.
    pub beside: Vec<Piece>,
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
    /// The same in the first run, in which libraries take workspaces that they keep.
    pub first_reserved_peak_bytes: u64,
    /// Free before the operation in what weights and workspaces had taken from the driver: it is used first.
    pub room_before_bytes: u64,
    /// The least card on which the operation completes, retries allowed: context and weights are in it. An upper bound
    /// for the stream-ordered pool.
    pub least_capacity_bytes: u64,
    /// Whether the card that was asked about is large enough; none where none was, and where it is smaller than an upper
    /// bound and has room for what is certainly needed.
    pub fits: Option<bool>,
    /// Retries on that card, of the run with more of them: what is cached has to be given back to go on.
    pub retries: Option<u64>,
    /// The line that sets it.
    pub environment: String,
    /// Whether the figures are upper bounds.
    pub is_bound: bool,
}

impl SettingAdvice {
    /// What is weighed against other settings.
    fn candidate(&self) -> Candidate<'_> {
        Candidate {
            name: self.allocator.name(),
            environment: &self.environment,
            least_capacity_bytes: self.least_capacity_bytes,
            reserved_peak_bytes: self.reserved_peak_bytes,
            // What may run out stands behind what fits. Where no card was asked about, all are alike.
            runs_out: self.fits != Some(true),
            retries: self.retries.is_some_and(|retries| retries > 0),
            is_bound: self.is_bound,
        }
    }
}

/// The least card for something, and what of it is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeastCard {
    /// What does for sure.
    pub bytes: u64,
    /// Less than this certainly does not. It is the same, but for an upper bound.
    pub certain_bytes: u64,
}

impl LeastCard {
    /// Whether a card is large enough; none where what is known does not say.
    pub fn fits(self, memory_bytes: u64) -> Option<bool> {
        match memory_bytes {
            memory if memory < self.certain_bytes => Some(false),
            memory if memory < self.bytes => None,
            _ => Some(true),
        }
    }
}

/// What every setting needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// The kinds of allocator, the default first.
    pub settings: Vec<SettingAdvice>,
    /// The one to take: of those whose least card is within 2 % of the smallest, one that fits, without retries, with the
    /// lowest reserved peak.
    pub least: AllocatorKind,
    /// Weights and inputs that are on the device before the operation.
    pub weights_bytes: u64,
    /// What libraries take in the first run and keep.
    pub workspaces_bytes: u64,
    /// What is reckoned for the process's context.
    pub context_bytes: u64,
}

impl Advice {
    /// The setting to take, and those as good as equal; none only where there is no setting.
    pub fn choice(&self) -> Option<Choice<'_>> {
        Choice::of(&self.settings.iter().map(SettingAdvice::candidate).collect::<Vec<_>>())
    }

    /// The least card of one of its settings.
    ///
    /// Under an upper bound what is in use at once is certain: context, weights, workspaces, and what the operation has
    /// allocated at its peak.
    pub fn least_card(&self, setting: &SettingAdvice) -> LeastCard {
        let bytes = setting.least_capacity_bytes;
        let held_bytes = self.context_bytes + self.weights_bytes + self.workspaces_bytes + setting.allocated_peak_bytes;
        LeastCard { bytes, certain_bytes: if setting.is_bound { held_bytes.min(bytes) } else { bytes } }
    }
}

/// The weights of a model as they are loaded; those of a file as one piece.
pub fn weights_pieces(model: &Model) -> Vec<Piece> {
    let piece = |name: String, bytes| Piece { name, bytes, floating: true };
    match model_spec(model).weights {
        WeightsSource::Synthetic(pieces) => pieces.into_iter().map(|held| piece(held.name, held.bytes)).collect(),
        WeightsSource::Safetensors { .. } => vec![piece(model.key.clone(), weights_bytes(model))],
    }
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
    let weights: Vec<Piece> = question.beside.iter().chain(&question.own).cloned().collect();
    let runs = [Run::First, Run::Later].map(|run| requests(&program, &weights, run));
    let settings: Result<Vec<_>, PredictionError> = AllocatorKind::ALL
        .par_iter()
        .map(|&kind| {
            let setting = NamedSetting::of_kind(kind);
            let peaks = programs::predict_program(&program, &weights, &Settings::of_kind(kind), Start::Fresh)?;
            let (first, later) = (peaks.first, peaks.later);
            // Of a card that the context alone fills nothing is left.
            let left_bytes = question.memory_bytes.map(|memory| memory.saturating_sub(question.context_bytes));
            let (least, retries) = least_and_retries(&runs, &setting, left_bytes);
            let least_capacity_bytes = question.context_bytes + least;
            Ok(SettingAdvice {
                allocator: kind,
                allocated_peak_bytes: later.allocated_peak_bytes,
                reserved_peak_bytes: later.reserved_peak_bytes,
                first_reserved_peak_bytes: first.reserved_peak_bytes,
                room_before_bytes: later.reserved_baseline_bytes.saturating_sub(later.allocated_baseline_bytes),
                least_capacity_bytes,
                fits: None,
                retries,
                environment: setting.environment(),
                is_bound: setting.is_bound(),
            })
        })
        .collect();
    let kept = program.allocations().filter(|made| made.role == Role::Persistent);
    let mut advice = Advice {
        settings: settings?,
        least: AllocatorKind::Native,
        workspaces_bytes: kept.map(|made| made.bytes).sum(),
        weights_bytes: weights.iter().chain(&program.inputs).map(|piece| piece.bytes).sum(),
        context_bytes: question.context_bytes,
    };
    if let Some(memory) = question.memory_bytes {
        let fits: Vec<_> = advice.settings.iter().map(|setting| advice.least_card(setting).fits(memory)).collect();
        advice.settings.iter_mut().zip(fits).for_each(|(setting, fits)| setting.fits = fits);
    }
    let least = advice.choice().and_then(|choice| AllocatorKind::from_str(choice.best.name).ok());
    Ok(Advice { least: least.unwrap_or(AllocatorKind::Native), ..advice })
}

/// The least memory that does for every one of the runs, and the most retries of one on the memory that is left.
fn least_and_retries(runs: &[Requests], setting: &NamedSetting, left_bytes: Option<u64>) -> (u64, Option<u64>) {
    let terms = Terms { memory_bytes: left_bytes, ..Terms::default() };
    let answers: Vec<_> = runs.iter().map(|requests| what_if(requests, setting, terms)).collect();
    // A program that was just run on an ample card completes on one.
    let least = answers.iter().map(|answer| answer.least_capacity_bytes.unwrap_or(answer.reserved_peak_bytes)).max();
    (least.unwrap_or(0), answers.iter().filter_map(|answer| answer.retries).max())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(allocator: AllocatorKind, [least, reserved]: [u64; 2], fits: Option<bool>) -> SettingAdvice {
        SettingAdvice {
            allocator,
            allocated_peak_bytes: 1,
            reserved_peak_bytes: reserved,
            first_reserved_peak_bytes: reserved,
            room_before_bytes: 0,
            least_capacity_bytes: least,
            fits,
            retries: None,
            environment: String::new(),
            is_bound: allocator == AllocatorKind::CudaMallocAsync,
        }
    }

    #[test]
    fn of_a_tie_what_fits_is_taken_before_what_may_not_though_it_reserves_more() {
        let best = |known: Option<bool>| {
            let native = setting(AllocatorKind::Native, [1_000, 900], known);
            let pool = setting(AllocatorKind::CudaMallocAsync, [1_010, 500], None);
            let least = AllocatorKind::Native;
            let (weights_bytes, workspaces_bytes, context_bytes) = (0, 0, 0);
            let settings = vec![native, pool];
            let advice = Advice { settings, least, weights_bytes, workspaces_bytes, context_bytes };
            advice.choice().and_then(|choice| AllocatorKind::from_str(choice.best.name).ok())
        };
        assert_eq!(best(Some(true)), Some(AllocatorKind::Native));
        // Where no card was asked about, the lower reserved peak decides.
        assert_eq!(best(None), Some(AllocatorKind::CudaMallocAsync));
    }
}
