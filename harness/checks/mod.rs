//! What is checked of a family on a device. Each check says what holds, or the first thing that does not.

mod apart;
mod beside_built_in;
mod calibration;
mod capacity;
mod claim;
mod computes;
pub mod invariants;
mod left_out;
mod out_of_memory;
mod perturbed;
mod pipeline;
mod plan;
mod reconcile;
mod recorded;
mod same_counters;
mod scenario;
mod scripted;
mod warm_server;

use headroom_base::{Bytes, Case, Estimate, Verdict};
use headroom_calibration::CaseToPlan;
use headroom_device::cache::CacheError;
use headroom_family::Model;
use headroom_reports::{AttemptRecord, DeviceRecord, FamilySummary, WindowRecord};
use headroom_runners::StepError;

use crate::bench::{Bench, BenchError, CalibrationError, Ground, MEASURING_ALLOWANCE_BYTES, Subject};
use crate::pricing::price_case;

pub use calibration::calibration;
pub use capacity::capacity;
pub use claim::Claim;
pub use computes::computes;
pub use out_of_memory::out_of_memory;
pub use perturbed::perturbed;
pub use pipeline::pipeline;
pub use plan::plan;
pub use reconcile::reconcile;
pub use recorded::{RECORDED_DEVICE, recorded, windows_of};
pub use same_counters::same_counters;
pub use scenario::scenario;
pub use scripted::scripted;
pub(crate) use warm_server::is_decode;
pub use warm_server::warm_server;

/// What a check saw, for the report.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Attempts, with the windows that belong to them.
    pub attempts: Vec<AttemptRecord>,
    /// Windows with their verdicts.
    pub windows: Vec<WindowRecord>,
    /// The devices they were measured on.
    pub devices: Vec<DeviceRecord>,
    /// Plans, fits and estimates.
    pub summaries: Vec<FamilySummary>,
    /// Things a reader should know that are no failure.
    pub notes: Vec<String>,
    /// How many windows, runs or figures the check looked at: a check that saw none has failed.
    pub seen: usize,
}

impl Evidence {
    /// Adds what another part of the same check saw.
    pub fn absorb(&mut self, other: Self) {
        self.attempts.extend(other.attempts);
        self.windows.extend(other.windows);
        self.devices.extend(other.devices);
        self.summaries.extend(other.summaries);
        self.notes.extend(other.notes);
        self.seen += other.seen;
    }

    /// The same, of a part that may have failed: what was seen until then goes with the error.
    pub(crate) fn absorb_all(&mut self, part: Result<Self, CheckError>) -> Result<(), CheckError> {
        match part {
            Ok(seen) => {
                self.absorb(seen);
                Ok(())
            }
            Err(error) => Err(error.after(std::mem::take(self))),
        }
    }
}

/// Why a check does not hold.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Something is not as it must be.
    #[error("{0}")]
    Violated(String),
    /// A claim that has a name is broken.
    #[error("{text}")]
    Broken {
        /// Which.
        claim: Claim,
        /// How.
        text: String,
    },
    /// A calibration did not run to its end.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// A step did not run to its end.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The cache refused something.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A card could not be made what the check wants.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// One of these, after something was seen that belongs in the report.
    #[error("{error}")]
    After {
        /// Which.
        error: Box<CheckError>,
        /// What was seen before.
        evidence: Box<Evidence>,
    },
}

impl CheckError {
    /// A violated claim, in words.
    pub fn violated(text: impl Into<String>) -> Self {
        Self::Violated(text.into())
    }

    /// This error, after that was seen.
    pub(crate) fn after(self, mut seen: Evidence) -> Self {
        let (error, evidence) = self.split();
        seen.absorb(evidence);
        Self::After { error: Box::new(error), evidence: Box::new(seen) }
    }

    /// The error itself, and what was seen before it.
    pub(crate) fn split(self) -> (Self, Evidence) {
        match self {
            Self::After { error, evidence } => (*error, *evidence),
            error => (error, Evidence::default()),
        }
    }
}

/// Fails with the text unless the claim holds.
pub(crate) fn ensure(holds: bool, text: impl FnOnce() -> String) -> Result<(), CheckError> {
    if holds { Ok(()) } else { Err(CheckError::Violated(text())) }
}

/// The price of a model's case on a subject, with no fit of its own.
pub(crate) fn built_in_price(
    subject: &Subject<'_>,
    model: &Model,
    case: &Case,
    ground: Ground<'_>,
    floor_bytes: u64,
) -> Option<(CaseToPlan, Estimate)> {
    let hard = subject.environment().hard;
    let priced = price_case(model, case, &hard, ground.built_ins)?;
    let built_in = ground.built_ins.find(&hard, &priced.line);
    let estimate = headroom_calibration::resolve(&priced.costs, None, built_in.as_ref(), floor_bytes);
    Some((CaseToPlan { case: *case, line: priced.line, costs: priced.costs }, estimate))
}

/// Whether a case fits on a bench's card beside its own model's weights, by the rule of the plan.
pub(crate) fn verdict(
    bench: &Bench<'_>,
    model: &Model,
    case: &Case,
    estimate: Estimate,
    ground: Ground<'_>,
) -> Verdict {
    verdict_on(&bench.subject, (bench.card.total_bytes(), bench.floor_bytes), (model, case), estimate, ground)
}

/// Whether a case fits on a card of this much memory and this floor, by the rule of the plan.
pub(crate) fn verdict_on(
    subject: &Subject<'_>,
    (total_bytes, floor_bytes): (u64, u64),
    (model, case): (&Model, &Case),
    estimate: Estimate,
    ground: Ground<'_>,
) -> Verdict {
    let terms = subject.capacity_terms(total_bytes, subject.locked_weights_bytes(model));
    let capacity = headroom_base::Capacity::new(terms);
    let Some((to_plan, _)) = built_in_price(subject, model, case, ground, floor_bytes) else {
        return Verdict::Fits;
    };
    let priced =
        headroom_base::PricedCase { case: *case, line: to_plan.line, cost_units: to_plan.costs.units, estimate };
    let plan = headroom_base::Plan::new(capacity, vec![priced], MEASURING_ALLOWANCE_BYTES, floor_bytes);
    plan.cases[0].verdict
}

/// `12gib native`, for messages.
pub(crate) fn place(subject: &Subject<'_>) -> String {
    format!("{} {}", subject.place.name(), subject.allocator)
}

/// `X reserved, Y needed`, for messages.
pub(crate) fn reserved_and_needed(reserved_bytes: u64, needed_bytes: u64) -> String {
    format!("{} reserved, {} needed", Bytes(reserved_bytes), Bytes(needed_bytes))
}
