//! What is reserved after a calibration on a card, beside what each size turned out to need.

use std::collections::BTreeMap;

use headroom::catalogue::Catalogue;
use headroom_base::{AllocatorKind, Case, LineKey, RunKind, Source};
use headroom_calibration::BuiltIns;
use headroom_reports::{Report, WindowRecord};

use super::kept::Runs;

/// One price of a case.
#[derive(Clone, Debug)]
pub(crate) struct Priced {
    pub(crate) family: String,
    pub(crate) allocator: AllocatorKind,
    pub(crate) case: Case,
    /// The most that a window of it needed, counted or not; 0 where there is none.
    pub(crate) demand_bytes: u64,
    pub(crate) reserved_bytes: u64,
    /// What the price rests on.
    pub(crate) source: Source,
    /// Whether the family's plan measures it, rather than leaving it out to try the fit on.
    pub(crate) is_calibrated: bool,
    /// Whether windows of it were taken for fragmented.
    pub(crate) is_flagged: bool,
    /// The price, as a share of the one that is shipped; none where nothing is.
    pub(crate) of_shipped: Option<f64>,
}

impl Priced {
    /// Bytes that the need lies above what is reserved.
    pub(crate) fn short_bytes(&self) -> u64 {
        self.demand_bytes.saturating_sub(self.reserved_bytes)
    }

    /// Whether that is as much as a step in which reserved memory grows.
    pub(crate) fn is_short_by_a_step(&self) -> bool {
        self.short_bytes() >= self.allocator.growth_step_bytes()
    }
}

/// Whether a window is of an undisturbed calibration.
pub(crate) fn is_of_a_calibration(record: &WindowRecord) -> bool {
    record.window.attempt_id.is_some() && record.trial.as_deref().is_some_and(|trial| trial.ends_with("::calibration"))
}

/// Whether it is one of its measured windows.
pub(crate) fn is_clean(record: &WindowRecord) -> bool {
    record.window.kind == RunKind::Measured && is_of_a_calibration(record)
}

/// Whether a window was taken for fragmented.
pub(crate) fn is_flagged(record: &WindowRecord) -> bool {
    record.excluded_reason.as_deref().is_some_and(|reason| reason.starts_with("fragmented"))
}

/// Every price of every family after its calibration, each line and case once an allocator.
pub(crate) fn priced(catalogue: &Catalogue, runs: &Runs) -> Vec<Priced> {
    runs.iter().flat_map(|(family, report)| of_family(catalogue, family, report)).collect()
}

fn of_family(catalogue: &Catalogue, family: &str, report: &Report) -> Vec<Priced> {
    let mut prices: BTreeMap<(AllocatorKind, &LineKey, Case), Priced> = BTreeMap::new();
    for record in report.families.iter().flat_map(|summary| &summary.estimates) {
        let hard = &record.environment.hard;
        let shipped = BuiltIns::compiled_in().find(hard, &record.line);
        let shipped = shipped.map(|line| line.estimate(record.cost_units, record.estimate.analytic_bytes));
        let reserved_bytes = record.estimate.reservation_bytes;
        let price = Priced {
            family: family.to_owned(),
            allocator: hard.allocator,
            case: record.case,
            demand_bytes: record.demand_bytes.unwrap_or(0),
            reserved_bytes,
            source: record.estimate.source,
            is_calibrated: is_calibrated(catalogue, family, &record.case),
            is_flagged: false,
            of_shipped: shipped.map(|shipped| reserved_bytes as f64 / shipped.reservation_bytes as f64),
        };
        prices.entry((hard.allocator, &record.line, record.case)).or_insert(price);
    }
    // A size that was left out of its fit has a window and no demand beside its price.
    for record in report.windows.iter().filter(|record| is_clean(record)) {
        let window = &record.window;
        if let Some(price) = prices.get_mut(&(window.environment.hard.allocator, &window.line, window.case)) {
            price.demand_bytes = price.demand_bytes.max(window.measurement.demand_bytes);
            price.is_flagged |= is_flagged(record);
        }
    }
    prices.into_values().collect()
}

fn is_calibrated(catalogue: &Catalogue, family: &str, case: &Case) -> bool {
    catalogue.family(family).unwrap().calibration.lines.iter().any(|line| line.cases.as_slice().contains(case))
}
