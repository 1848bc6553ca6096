//! Calibrate, fit, estimate: what was measured is covered, inside the range by exactly the fit, and by not much more.

use std::collections::BTreeSet;

use headroom_base::plan::LEAST_SIZES;
use headroom_base::{
    AllocatorKind, Bytes, Case, Estimate, LineKey, Measurement, Residency, Source, Validity, Verdict, mutant,
};
use headroom_calibration::{Coefficients, Counted, Record, Uncounted};
use headroom_device::probe::Scope;
use headroom_family::Model;
use headroom_reports::{AttemptRecord, EstimateRecord, FamilySummary, FitRecord, WindowRecord};
use headroom_runners::StepRequest;

use super::apart::{measure_apart, resident, undisturbed};
use super::beside_built_in::ratios;
use super::{CheckError, Claim, Evidence, ensure, place, reserved_and_needed};
use crate::bench::{
    Bench, Calibration, Ground, MEASURING_ALLOWANCE_BYTES, MeasuredModel, Setup, Subject, calibrate, describe, lines_of,
};
use crate::pricing::price_case;
use crate::trials::NOTHING_TO_SEE;

/// Calibrates every measured model of the family on one device and checks what follows from it.
///
/// # Errors
/// The first thing that does not hold.
pub fn calibration(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let mut evidence = Evidence::default();
    for (model, lines) in lines_of(subject) {
        evidence.absorb_all(of_a_model(subject, MeasuredModel { model, lines: &lines }, ground))?;
    }
    evidence.notes.extend(nothing_fits(subject, &evidence));
    Ok(evidence)
}

/// What is said of calibrations on an attached card that holds none of their sizes. No file lists whatever card somebody
/// has; on the simulated ones that files list, a calibration has something to run.
pub(super) fn nothing_fits(subject: &Subject<'_>, evidence: &Evidence) -> Option<String> {
    let plans = || evidence.summaries.iter().flat_map(|summary| &summary.plans);
    let mut planned = plans().flat_map(|plan| &plan.cases).peekable();
    let is_planned = planned.peek().is_some();
    let none = is_planned && evidence.seen == 0 && planned.all(|planned| planned.verdict != Verdict::Fits);
    (none && !subject.place.is_simulated())
        .then(|| format!("{NOTHING_TO_SEE}: {}: no size fits on this card", place(subject)))
}

/// The windows are seen, whatever is wrong with them.
fn of_a_model(subject: &Subject<'_>, measured: MeasuredModel<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let bench = subject.bench(&Setup::default())?;
    let calibration = calibrate(&bench, measured, Record::empty(subject.class()), ground, |_, _| {})?;
    let mut summary = summary_of(subject, &calibration, ground);
    let mut held_out = Vec::new();
    let mut look = || {
        windows_count(subject, &calibration)?;
        calibrated_sizes_are_covered(subject, measured, &calibration, ground, &mut summary)?;
        held_out_sizes_are_covered(&bench, measured, &calibration, ground, (&mut summary, &mut held_out))
    };
    let outcome = look();
    let mut notes = flagged_above_what_is_reserved(subject, &calibration, &summary);
    if !subject.place.is_simulated() {
        notes.extend(ratios(subject, &summary, ground));
    }
    let mut evidence = evidence_of(subject, calibration, summary);
    evidence.windows.extend(held_out);
    evidence.notes.extend(notes);
    match outcome {
        Ok(()) => Ok(evidence),
        Err(error) => Err(error.after(evidence)),
    }
}

/// Every window is valid and its model fully resident; the measured ones count.
fn windows_count(subject: &Subject<'_>, calibration: &Calibration) -> Result<(), CheckError> {
    for (window, counted) in calibration.windows.iter().zip(&calibration.verdicts) {
        let what = || format!("{}: {}", place(subject), describe(window));
        Claim::UndisturbedWindowIsValid.holds(window.measurement.validity == Validity::Valid, what)?;
        let whole = window.measurement.residency == Residency::Full;
        Claim::MeasuredModelIsResident.holds(whole, || format!("{}: partly resident", what()))?;
        // A false flag is a stated limit of the rule: the line falls back, and must be covered all the same.
        let expected = window.kind == headroom_base::RunKind::Measured && !is_fragmented(counted);
        Claim::MeasuredWindowsCount.holds(counted.counts() == expected, || {
            let reason = counted.reason().map_or_else(|| "it counts".to_owned(), ToString::to_string);
            format!("{}: {reason}", what())
        })?;
    }
    Ok(())
}

/// Whether a window was taken for fragmentation.
pub(super) fn is_fragmented(counted: &Counted) -> bool {
    matches!(counted.reason(), Some(Uncounted::Fragmented(_)))
}

/// What the subject reserves for a case after a calibration.
pub(super) fn price_after(
    subject: &Subject<'_>,
    model: &Model,
    case: &Case,
    calibration: &Calibration,
    ground: Ground<'_>,
) -> Result<(Estimate, EstimateRecord), CheckError> {
    let hard = subject.environment().hard;
    let priced = price_case(model, case, &hard, ground.built_ins)
        .ok_or_else(|| CheckError::violated(format!("{case} of `{}` has no price", model.key)))?;
    let floor = headroom_base::DEFAULT_DEVICE_WORKING_BYTES;
    let estimate = calibration.knowledge.price(&priced.line, &priced.costs, ground.built_ins, floor);
    let record = EstimateRecord {
        case: *case,
        line: priced.line,
        cost_units: priced.costs.units,
        environment: subject.environment(),
        estimate,
        demand_bytes: None,
        demand_origin: None,
    };
    Ok((estimate, record))
}

/// Inside the range the estimate is the fit with the margin on its empirical part, never under a demand, and not far
/// over it.
fn calibrated_sizes_are_covered(
    subject: &Subject<'_>,
    measured: MeasuredModel<'_>,
    calibration: &Calibration,
    ground: Ground<'_>,
    summary: &mut FamilySummary,
) -> Result<(), CheckError> {
    let limit_percent = u64::from(subject.family.checks.over_reservation.percent(subject.allocator));
    for planned in calibration.plan.cases.iter().filter(|planned| planned.verdict == Verdict::Fits) {
        let priced = &planned.priced;
        let (estimate, mut record) = price_after(subject, measured.model, &priced.case, calibration, ground)?;
        let windows = calibration.windows.iter().zip(&calibration.verdicts);
        let windows: Vec<_> = windows.filter(|(window, _)| window.case == priced.case).collect();
        let binding = windows.iter().filter(|(_, counted)| must_be_covered(subject, counted));
        let Some(demand) = binding.map(|(window, _)| window.measurement.demand_bytes).max() else {
            // All of them taken for fragmented: the line does without this size.
            let is_flagged = windows.iter().any(|(_, counted)| is_fragmented(counted));
            ensure(is_flagged, || format!("{} has no window that counts", priced.case))?;
            summary.estimates.push(record);
            continue;
        };
        record.demand_bytes = Some(demand);
        record.demand_origin = Some(subject.place.origin());
        summary.estimates.push(record);
        let what = || {
            let numbers = reserved_and_needed(estimate.reservation_bytes, demand);
            format!("{}: {} ({numbers})", place(subject), priced.case)
        };
        // Whatever prices it: a line that lost too many sizes to false flags, or has too few that fit, has no fit of its own.
        Claim::DemandIsCovered.holds(demand <= estimate.reservation_bytes, || {
            format!("{} is under-reserved by {}", what(), estimate.source.name())
        })?;
        let Some(user) = calibration.knowledge.fits().get(&priced.line) else {
            let sizes = counted_sizes(calibration, &priced.line);
            ensure(sizes < LEAST_SIZES, || format!("{}: {sizes} sizes count, and there is no fit", what()))?;
            continue;
        };
        let source = estimate.source;
        Claim::ReservationIsTheFits
            .holds(source == Source::User, || format!("{} is priced by {}", what(), source.name()))?;
        let promised = with_margin(&user.fit.coefficients, priced.cost_units);
        let reserved = estimate.reservation_bytes.checked_sub(window_terms(calibration, &priced.case));
        Claim::MarginOnTheMeasuredPartOnce.holds(reserved.map(u128::from) == Some(promised), || {
            format!("{}: not the fit with its margin on the empirical part alone", what())
        })?;
        let over = estimate.reservation_bytes.saturating_sub(demand);
        // Reserved memory grows in steps; below one of them a share says nothing.
        let allowed = (demand / 100 * limit_percent).max(subject.allocator.growth_step_bytes());
        let within = mutant!(
            "over_reservation_not_limited",
            "a fit that asks for twice what is needed passes, and models leave the card for nothing",
            right: over <= allowed,
            wrong: true,
        );
        Claim::OverReservationIsLimited
            .holds(within, || format!("{} is over the family's limit of {limit_percent} %", what()))?;
    }
    Ok(())
}

/// Whether a reservation must cover what a window needed. A window that is taken for fragmented is no measure of a line;
/// a simulated card has nothing that could fragment an undisturbed calibration, and is held to all of them.
fn must_be_covered(subject: &Subject<'_>, counted: &Counted) -> bool {
    counted.counts() || (subject.place.is_simulated() && is_fragmented(counted))
}

/// Windows that are taken for fragmented and are not covered, told each time: the limits of that rule. They stand beside no
/// estimate as its demand.
fn flagged_above_what_is_reserved(
    subject: &Subject<'_>,
    calibration: &Calibration,
    summary: &FamilySummary,
) -> Vec<String> {
    let windows = calibration.windows.iter().zip(&calibration.verdicts);
    let above = windows.filter(|(_, counted)| is_fragmented(counted)).filter_map(|(window, _)| {
        let record = summary.estimates.iter().find(|record| record.case == window.case)?;
        let (reserved, needed) = (record.estimate.reservation_bytes, window.measurement.demand_bytes);
        let numbers = reserved_and_needed(reserved, needed);
        let text = "taken for fragmented, and above what is reserved";
        (needed > reserved).then(|| format!("{}: {}: {text} ({numbers})", place(subject), describe(window)))
    });
    above.collect()
}

/// How many sizes of a line have a window that counts.
fn counted_sizes(calibration: &Calibration, line: &LineKey) -> usize {
    let windows = calibration.windows.iter().zip(&calibration.verdicts);
    let counted = windows.filter(|(window, counted)| counted.counts() && window.line == *line);
    counted.map(|(window, _)| window.cost_units).collect::<BTreeSet<_>>().len()
}

/// What a case of the calibration needs by terms that are known exactly, as its windows carry it.
fn window_terms(calibration: &Calibration, case: &Case) -> u64 {
    calibration.windows.iter().find(|window| window.case == *case).map_or(0, |window| window.analytic_bytes)
}

/// The fit's value with 5 % on it, rounded up once. Written here a second time on purpose: a margin that is left out,
/// or put on terms that are known exactly, is found by not agreeing with this.
fn with_margin(coefficients: &Coefficients, units: u64) -> u128 {
    (coefficients.numerator_at(units) * 105).div_ceil(u128::from(coefficients.denominator()) * 100)
}

/// Sizes that were left out: covered inside the measured range, as many of them as the family wants. Outside it, and for
/// the driver's own pool, of which only a bound is known, the report says how many are not.
fn held_out_sizes_are_covered(
    bench: &Bench<'_>,
    measured: MeasuredModel<'_>,
    calibration: &Calibration,
    ground: Ground<'_>,
    (summary, windows): (&mut FamilySummary, &mut Vec<WindowRecord>),
) -> Result<(), CheckError> {
    let subject = &bench.subject;
    let (mut under, mut looked_at) = (Vec::new(), 0);
    for case in measured.lines.iter().flat_map(|line| &line.held_out) {
        let (estimate, mut record) = price_after(subject, measured.model, case, calibration, ground)?;
        if super::verdict(bench, measured.model, case, estimate, ground) != Verdict::Fits {
            continue;
        }
        let measurement = run_alone(bench, measured.model, case, estimate, ground, windows)?;
        let what = || format!("{}: {case}, which was left out", place(subject));
        let demand = resident(measurement, what)?.demand_bytes;
        let inside = calibration
            .knowledge
            .fits()
            .get(&record.line)
            .is_some_and(|user| user.fit.range.contains(record.cost_units));
        let holds = demand <= estimate.reservation_bytes;
        let hard = inside && subject.allocator != AllocatorKind::CudaMallocAsync;
        // Reserved memory grows in steps. Where the margin is less than one, a line through other sizes can be short by
        // less than one, and the working memory that every cache keeps free is a hundred times that.
        let step = subject.allocator.growth_step_bytes();
        let short = demand.saturating_sub(estimate.reservation_bytes);
        let within_a_step = estimate.margin_bytes < step && short < step;
        if hard {
            looked_at += 1;
            if !holds && !within_a_step {
                let numbers = reserved_and_needed(estimate.reservation_bytes, demand);
                under.push(format!("{}, is under-reserved ({numbers})", what()));
            }
        }
        record.demand_bytes = Some(demand);
        record.demand_origin = Some(subject.place.origin());
        summary.estimates.push(record);
    }
    are_covered(&under, looked_at, subject.family.checks.coverage_percent)
}

/// So many of the left-out sizes inside the measured range are covered as the family wants: all, where its file does not say
/// otherwise.
fn are_covered(under: &[String], looked_at: usize, wanted_percent: u32) -> Result<(), CheckError> {
    let covered = looked_at.saturating_sub(under.len());
    ensure(covered * 100 >= looked_at * wanted_percent as usize, || {
        let each = under.join("; ");
        format!("{covered} of {looked_at} left-out sizes are covered, {wanted_percent} % are wanted: {each}")
    })
}

/// Runs a case once to see what it needs, in a window of its own, which is kept.
pub(super) fn run_alone(
    bench: &Bench<'_>,
    model: &Model,
    case: &Case,
    estimate: Estimate,
    ground: Ground<'_>,
    kept: &mut Vec<WindowRecord>,
) -> Result<Measurement, CheckError> {
    let scope = Scope::new(MEASURING_ALLOWANCE_BYTES);
    let working_bytes = Some(estimate.reservation_bytes);
    let beside = bench.subject.locked_beside(model);
    let request = StepRequest { model: &model.key, with: &beside, case: *case, working_bytes };
    let report = measure_apart(bench, &scope, &request, ground, kept)?;
    undisturbed(report, || format!("{}: {case}", place(&bench.subject)))
}

pub(super) fn summary_of(subject: &Subject<'_>, calibration: &Calibration, ground: Ground<'_>) -> FamilySummary {
    let hard = subject.environment().hard;
    let fits = calibration.knowledge.fits().lines().map(|(line, user)| FitRecord {
        line: line.clone(),
        environment: subject.environment(),
        range: user.fit.range,
        user: Some(user.fit.coefficients),
        built_in: ground
            .built_ins
            .find(&hard, line)
            .and_then(|built_in| built_in.lines().next().map(|shipped| shipped.coefficients)),
    });
    let mut fits: Vec<FitRecord> = fits.collect();
    fits.sort_by(|left, right| left.line.cmp(&right.line));
    FamilySummary {
        family: subject.family.name.clone(),
        device: subject.place.name().to_owned(),
        class: subject.class(),
        simulated: subject.place.is_simulated(),
        plans: vec![calibration.plan.clone()],
        fits,
        estimates: Vec::new(),
    }
}

/// What the report keeps of a calibration.
pub(super) fn evidence_of(subject: &Subject<'_>, calibration: Calibration, summary: FamilySummary) -> Evidence {
    let seen = calibration.windows.len();
    let windows = calibration.windows.into_iter().zip(calibration.verdicts);
    let windows = windows.map(|(window, counted): (_, Counted)| WindowRecord::new(window, counted)).collect();
    let attempt = AttemptRecord {
        attempt: calibration.attempt,
        report_id: String::new(),
        device_uuid_hash: subject.place.uuid_hash(),
        note: subject.place.is_simulated().then(|| format!("simulated {}", place(subject))),
    };
    let under = summary
        .estimates
        .iter()
        .filter(|record| record.demand_bytes.is_some_and(|demand| demand > record.estimate.reservation_bytes));
    // Whether that may be is the check's to say: a bound on the driver's own pool, less than one step, a size out of range.
    let notes = under
        .map(|record| {
            let demand = record.demand_bytes.unwrap_or(0);
            let short = Bytes(demand - record.estimate.reservation_bytes);
            format!("{}: {} is {short} short of its need", place(subject), record.case)
        })
        .collect();
    let devices = vec![subject.place.record()];
    Evidence { attempts: vec![attempt], windows, devices, summaries: vec![summary], notes, seen }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_left_out_sizes_are_covered_as_the_family_wants_and_no_more_are_asked_for() {
        let under = ["a size, is under-reserved".to_owned()];
        assert!(are_covered(&under, 4, 75).is_ok());
        let error = are_covered(&under, 4, 76).unwrap_err().to_string();
        assert!(error.contains("3 of 4") && error.contains("a size, is under-reserved"), "{error}");
        assert!(are_covered(&[], 4, 100).is_ok() && are_covered(&[], 0, 100).is_ok());
    }
}
