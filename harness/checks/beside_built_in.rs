//! What a calibration on an attached card reserves for each size, beside what is shipped for it.

use headroom_base::Bytes;
use headroom_reports::FamilySummary;

use super::place;
use crate::bench::{Ground, Subject};

/// A line for each size of a calibration: what it needed, what is shipped for it, what is reserved now, and the ratio.
pub(super) fn ratios(subject: &Subject<'_>, summary: &FamilySummary, ground: Ground<'_>) -> Vec<String> {
    let hard = subject.environment().hard;
    let line = |record: &headroom_reports::EstimateRecord| {
        let reserved = record.estimate.reservation_bytes;
        let built_in = ground.built_ins.find(&hard, &record.line);
        let built_in = built_in.map(|built_in| built_in.estimate(record.cost_units, record.estimate.analytic_bytes));
        let needed = record.demand_bytes.map_or_else(|| "unknown".to_owned(), |bytes| Bytes(bytes).to_string());
        let beside = built_in.map_or_else(
            || "nothing shipped".to_owned(),
            |built_in| {
                let shipped = built_in.reservation_bytes;
                let permille = u128::from(reserved) * 1000 / u128::from(shipped.max(1));
                let (whole, part) = (permille / 1000, permille % 1000);
                format!("{} built-in, calibrated ÷ built-in {whole}.{part:03}", Bytes(shipped))
            },
        );
        let source = record.estimate.source.name();
        format!(
            "{}: {}: {needed} needed, {} reserved ({source}), {beside}",
            place(subject),
            record.case,
            Bytes(reserved)
        )
    };
    summary.estimates.iter().map(line).collect()
}
