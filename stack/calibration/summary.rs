//! What a model's page shows: a row per size of each line, who measured it, and why a row does not count.

use std::collections::BTreeMap;

use headroom_base::{Case, Estimate, LineKey, RunKind, Window, mutant};
use serde::Serialize;

use crate::built_in::BuiltIns;
use crate::counting::{Counted, Uncounted};
use crate::estimate::Costs;
use crate::knowledge::Knowledge;
use crate::reset::MeasuredBy;
use crate::states::{Facts, Platform, Shown, state};

/// One line of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineSummary {
    /// The line.
    pub line: LineKey,
    /// Its state.
    #[serde(flatten)]
    pub shown: Shown,
    /// Whose windows count on it, each with their number, by name.
    pub measured_by: Vec<MeasuredBy>,
    /// Windows of this model on it, counted or not: what a reset would remove.
    pub own_windows: usize,
    /// Its sizes, smallest first.
    pub sizes: Vec<SizeRow>,
}

/// One size of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SizeRow {
    /// The size, for people.
    pub size: String,
    /// Its cost units.
    pub cost_units: u64,
    /// The most that a counted window needed; where none counts, the most that any measured one did.
    pub measured_bytes: Option<u64>,
    /// What is reserved without a calibration.
    pub built_in: Option<Estimate>,
    /// What is reserved with the line's calibration, whoever measured it.
    pub calibrated: Option<Estimate>,
    /// Whether a window of this size counts.
    pub counted: bool,
    /// Why none does.
    pub excluded_reason: Option<String>,
}

/// The windows of one size, each with its verdict.
type Group<'a> = Vec<(&'a Window, &'a Counted)>;

/// Summarizes one line for one model's page; sizes are those that somebody measured.
pub fn summarize_line(
    knowledge: &Knowledge,
    line: &LineKey,
    model: &str,
    platform: Platform,
    built_ins: &BuiltIns,
) -> LineSummary {
    let judged = knowledge.record().windows.iter().zip(knowledge.verdicts());
    let on_line: Group<'_> = judged.filter(|(window, _)| window.line == *line).collect();
    let mut measured_by: BTreeMap<&str, usize> = BTreeMap::new();
    let mut by_size: BTreeMap<(u64, Case), Group<'_>> = BTreeMap::new();
    for (window, verdict) in &on_line {
        if verdict.counts() {
            *measured_by.entry(&window.model).or_default() += 1;
        }
        by_size.entry((window.cost_units, window.case)).or_default().push((window, verdict));
    }
    let own_windows = on_line.iter().filter(|(window, _)| window.model == model).count();
    let is_calibrated = mutant!(
        "shared_line_shown_as_built_in",
        "a model that prices by what another one measured is shown the shipped figures",
        right: knowledge.fits().get(line).is_some(),
        wrong: knowledge.fits().get(line).is_some() && own_windows > 0,
    );
    let sizes = by_size
        .into_iter()
        .map(|((units, case), group)| row(knowledge, line, built_ins, is_calibrated, (units, &case, group)))
        .collect();
    LineSummary {
        line: line.clone(),
        shown: state(&Facts::gather(Some(knowledge), line, model, platform)),
        measured_by: measured_by
            .into_iter()
            .map(|(model, windows)| MeasuredBy { model: model.to_owned(), windows })
            .collect(),
        own_windows,
        sizes,
    }
}

fn row(
    knowledge: &Knowledge,
    line: &LineKey,
    built_ins: &BuiltIns,
    is_calibrated: bool,
    (units, case, group): (u64, &Case, Group<'_>),
) -> SizeRow {
    let any_counts = group.iter().any(|(_, verdict)| verdict.counts());
    let counted = mutant!(
        "uncounted_row_shown_as_counted",
        "a person trusts a size that joined no fit",
        right: any_counts,
        wrong: true,
    );
    let analytic_bytes = group.iter().map(|(window, _)| window.analytic_bytes).max().unwrap_or(0);
    let shows = |(window, verdict): &&(&Window, &Counted)| {
        if any_counts { verdict.counts() } else { window.kind == RunKind::Measured }
    };
    let measured_bytes = group.iter().filter(shows).map(|(window, _)| window.measurement.demand_bytes).max();
    let built_in = built_ins.find(&knowledge.context().hard, line);
    let costs = Costs { units, analytic_bytes, predicted_bytes: None };
    SizeRow {
        size: case.size_label(),
        cost_units: units,
        measured_bytes,
        built_in: built_in.map(|built_in| built_in.estimate(units, analytic_bytes)),
        calibrated: is_calibrated.then(|| knowledge.price(line, &costs, built_ins, 0)),
        counted,
        excluded_reason: if counted { None } else { newest_reason(&group).map(ToString::to_string) },
    }
}

/// The reason of the newest window; that of a warm-up only where there is nothing else.
fn newest_reason<'a>(group: &Group<'a>) -> Option<&'a Uncounted> {
    let reasons = || group.iter().rev().filter_map(|(_, verdict)| verdict.reason());
    reasons().find(|reason| **reason != Uncounted::WarmUp).or_else(|| reasons().next())
}
