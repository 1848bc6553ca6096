//! What a program knows of its device class at one moment: the record, what counts in it, and the fits.

use headroom_base::{
    Capacity, CapacityTerms, Case, Estimate, LineKey, Plan, PricedCase, Reading, SoftEnvironment, mutant,
};

use crate::built_in::BuiltIns;
use crate::counting::{Context, Counted, count};
use crate::estimate::{Costs, resolve};
use crate::store::Record;
use crate::user_fits::UserFits;

/// A record together with what follows from it. Prices are lookups here; only [`refresh`](Self::refresh) fits.
#[derive(Clone, Debug)]
pub struct Knowledge {
    context: Context,
    soft: SoftEnvironment,
    record: Record,
    verdicts: Vec<Counted>,
    fits: UserFits,
}

/// A case that a calibration could measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseToPlan {
    /// The case.
    pub case: Case,
    /// What it prices on.
    pub line: LineKey,
    /// What is known of it.
    pub costs: Costs,
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug)]
pub struct PlanTerms {
    /// What the device can hold. The record's figure for retained bytes is taken where it is the larger.
    pub capacity: CapacityTerms,
    /// What a measured lock asks beyond its estimate.
    pub measuring_allowance_bytes: u64,
    /// The device's working memory.
    pub floor_bytes: u64,
}

impl Knowledge {
    /// What follows from a record in the environment of now.
    pub fn new(record: Record, context: Context, soft: SoftEnvironment) -> Self {
        let verdicts = count(&record.windows, &record.attempts, &context);
        let fits = UserFits::of(&record.windows, &record.attempts, &context, &soft);
        Self { context, soft, record, verdicts, fits }
    }

    /// Takes over a record that was read anew.
    pub fn refresh(&mut self, record: Record) {
        *self = Self::new(record, self.context.clone(), self.soft.clone());
    }

    /// The environment of now, as far as it decides what counts.
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// The record.
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// Whether each window of the record counts, in its order.
    pub fn verdicts(&self) -> &[Counted] {
        &self.verdicts
    }

    /// The fits.
    pub const fn fits(&self) -> &UserFits {
        &self.fits
    }

    /// The reservation for a case; see [`resolve`].
    pub fn price(&self, line: &LineKey, costs: &Costs, built_ins: &BuiltIns, floor_bytes: u64) -> Estimate {
        let user = self.fits.get(line).map(|user| &user.fit);
        resolve(costs, user, built_ins.find(&self.context.hard, line).as_ref(), floor_bytes)
    }

    /// The plan of a calibration. `record` is what the store holds now: fits are refreshed from it first.
    pub fn plan(&mut self, record: Record, cases: Vec<CaseToPlan>, built_ins: &BuiltIns, terms: PlanTerms) -> Plan {
        mutant!(
            "plan_from_stale_fits",
            "a plan is priced by what was known when the page was opened, and shows sizes that no longer fit",
            right: self.refresh(record),
            wrong: drop(record),
        );
        let priced = cases
            .into_iter()
            .map(|CaseToPlan { case, line, costs }| {
                let estimate = self.price(&line, &costs, built_ins, terms.floor_bytes);
                PricedCase { case, line, cost_units: costs.units, estimate }
            })
            .collect();
        let retained_bytes = larger(terms.capacity.retained_bytes, self.record.retained());
        let capacity = Capacity::new(CapacityTerms { retained_bytes, ..terms.capacity });
        Plan::new(capacity, priced, terms.measuring_allowance_bytes, terms.floor_bytes)
    }
}

/// The larger of two figures; unknown only where both are.
fn larger(left: Reading, right: Reading) -> Reading {
    left.known().max(right.known()).into()
}
