//! Recorded windows of a real card in the place of programs: what is shipped covers them, and so does their own fit.

use headroom_base::{AllocatorKind, Bytes, DEFAULT_DEVICE_WORKING_BYTES, Environment, Origin, Source, Window};
use headroom_calibration::{Attempt, Basis, BuiltIns, Context, Costs, EstimatorVersions, Knowledge, Record, Uncounted};
use headroom_reports::{EstimateRecord, FamilySummary, FitRecord, Report, WindowRecord};

use headroom_family::Family;

use super::left_out::left_out_sizes;
use super::{CheckError, Evidence, ensure, reserved_and_needed};
use crate::pricing::predicted_bytes;

/// The device's name in the trial's.
pub const RECORDED_DEVICE: &str = "h200";

/// The recorded windows that a family's models were measured by, attempts and all; empty where there are none.
pub fn windows_of(report: &Report, family: &str) -> Vec<WindowRecord> {
    let prefix = format!("{family}:");
    report.windows.iter().filter(|record| record.window.model.starts_with(&prefix)).cloned().collect()
}

/// Checks the recorded windows of a family against the shipped lines and against a fit of their own.
///
/// # Errors
/// The first window that is not covered, or does not count without a reason.
pub fn recorded(
    report: &Report,
    family: &Family,
    built_ins: &BuiltIns,
    versions: &EstimatorVersions,
) -> Result<Evidence, CheckError> {
    let windows = windows_of(report, &family.name);
    let mut evidence = Evidence::default();
    for allocator in AllocatorKind::ALL {
        let of_allocator: Vec<WindowRecord> =
            windows.iter().filter(|record| record.window.environment.hard.allocator == allocator).cloned().collect();
        let Some(first) = of_allocator.first() else { continue };
        let environment = first.window.environment.clone();
        let other = of_allocator.iter().find(|record| record.window.environment.hard != environment.hard);
        ensure(other.is_none(), || format!("{}: windows of several environments are mixed", family.name))?;
        let usual = of_allocator;
        let knowledge = knowledge_of(report, &usual, &environment, versions);
        let summary = summary_of(family, &usual, &knowledge, &environment, built_ins)?;
        fitted_lines_are_shipped(&knowledge, &environment, built_ins)?;
        evidence.notes.extend(summary.estimates.iter().filter_map(short));
        evidence.notes.extend(left_out_sizes(&family.name, allocator, &usual, knowledge.verdicts())?);
        evidence.summaries.push(summary);
        evidence.seen += usual.len();
        evidence.windows.extend(usual);
    }
    let named = |record: &headroom_reports::AttemptRecord| {
        evidence.windows.iter().any(|kept| kept.window.attempt_id.as_ref() == Some(&record.attempt.id))
    };
    evidence.attempts = report.attempts.iter().filter(|record| named(record)).cloned().collect();
    evidence.devices.clone_from(&report.devices);
    Ok(evidence)
}

fn knowledge_of(
    report: &Report,
    windows: &[WindowRecord],
    environment: &Environment,
    versions: &EstimatorVersions,
) -> Knowledge {
    let device = windows[0].window.device.clone();
    let mut record = Record::empty(device.clone());
    let attempts = report.attempts.iter().map(|kept| kept.attempt.clone());
    let ours = |attempt: &Attempt| windows.iter().any(|kept| kept.window.attempt_id.as_ref() == Some(&attempt.id));
    attempts.filter(ours).for_each(|attempt| record.keep_attempt(attempt));
    record.windows = windows.iter().map(|kept| kept.window.clone()).collect();
    let context = Context { device, hard: environment.hard.clone(), versions: versions.clone() };
    Knowledge::new(record, context, environment.soft.clone())
}

fn summary_of(
    family: &Family,
    windows: &[WindowRecord],
    knowledge: &Knowledge,
    environment: &Environment,
    built_ins: &BuiltIns,
) -> Result<FamilySummary, CheckError> {
    let mut estimates: Vec<EstimateRecord> = Vec::new();
    for (kept, counted) in windows.iter().zip(knowledge.verdicts()) {
        let window = &kept.window;
        let what = || format!("recorded {} {}", environment.hard.allocator, window.case);
        if let Some(reason) = counted.reason() {
            let expected = matches!(reason, Uncounted::WarmUp | Uncounted::Fragmented(_));
            ensure(expected, || format!("{} does not count: {reason}", what()))?;
            continue;
        }
        let demand = window.measurement.demand_bytes;
        if let Some(shipped) = built_ins.find(&environment.hard, &window.line) {
            let line = shipped.estimate(window.cost_units, window.analytic_bytes);
            let without_margin = line.analytic_bytes + line.empirical_bytes;
            ensure(demand <= without_margin, || {
                format!("{} lies over its shipped line ({})", what(), reserved_and_needed(without_margin, demand))
            })?;
        }
        let predicted_bytes = predicted(family, window);
        let costs = Costs { units: window.cost_units, analytic_bytes: window.analytic_bytes, predicted_bytes };
        let estimate = knowledge.price(&window.line, &costs, built_ins, DEFAULT_DEVICE_WORKING_BYTES);
        // A prediction comes within its own tolerance of what is measured, and promises no more; what every cache keeps
        // free has to cover that.
        let kept = if estimate.source == Source::Predicted { DEFAULT_DEVICE_WORKING_BYTES } else { 0 };
        ensure(demand <= estimate.reservation_bytes.max(kept), || {
            format!("{} is under-reserved ({})", what(), reserved_and_needed(estimate.reservation_bytes, demand))
        })?;
        match estimates.iter_mut().find(|known| known.case == window.case && known.line == window.line) {
            Some(known) => known.demand_bytes = known.demand_bytes.max(Some(demand)),
            None => estimates.push(EstimateRecord {
                case: window.case,
                line: window.line.clone(),
                cost_units: window.cost_units,
                environment: environment.clone(),
                estimate,
                demand_bytes: Some(demand),
                demand_origin: Some(Origin::Recorded),
            }),
        }
    }
    Ok(FamilySummary {
        family: family.name.clone(),
        device: RECORDED_DEVICE.to_owned(),
        class: windows[0].window.device.clone(),
        simulated: false,
        plans: Vec::new(),
        fits: fits_of(knowledge, environment, built_ins),
        estimates,
    })
}

/// A line that these windows suffice for is shipped for just this environment, or nothing above was compared with it.
fn fitted_lines_are_shipped(
    knowledge: &Knowledge,
    environment: &Environment,
    built_ins: &BuiltIns,
) -> Result<(), CheckError> {
    knowledge.fits().lines().try_for_each(|(line, _)| {
        let shipped = built_ins.find(&environment.hard, line);
        let same = shipped.is_some_and(|built_in| built_in.basis() == Basis::SameEnvironment);
        ensure(same, || format!("{line} under {} is not shipped", environment.hard.allocator))
    })
}

/// What the report says of a case whose prediction is short of what was recorded.
fn short(record: &EstimateRecord) -> Option<String> {
    let reserved = record.estimate.reservation_bytes;
    let demand = record.demand_bytes.filter(|demand| *demand > reserved)?;
    let short = Bytes(demand - reserved);
    let allocator = record.environment.hard.allocator;
    Some(format!("{allocator} {} is {short} short of what was recorded, priced by its program alone", record.case))
}

/// What the program of a recorded case needs. Recorded models were built in the element type they ran in.
fn predicted(family: &Family, window: &Window) -> Option<u64> {
    let key = window.model.strip_prefix(&format!("{}:", family.name))?;
    let mut model = family.model(key)?.clone();
    model.dtype = window.case.dtype;
    predicted_bytes(&model, &window.case, &window.environment.hard)
}

fn fits_of(knowledge: &Knowledge, environment: &Environment, built_ins: &BuiltIns) -> Vec<FitRecord> {
    let mut fits: Vec<FitRecord> = knowledge
        .fits()
        .lines()
        .map(|(line, user)| FitRecord {
            line: line.clone(),
            environment: environment.clone(),
            range: user.fit.range,
            user: Some(user.fit.coefficients),
            built_in: built_ins
                .find(&environment.hard, line)
                .and_then(|built_in| built_in.lines().next().map(|shipped| shipped.coefficients)),
        })
        .collect();
    fits.sort_by(|left, right| left.line.cmp(&right.line));
    fits
}
