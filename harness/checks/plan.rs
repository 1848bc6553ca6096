//! The plan: every case is in it, its runs follow from it, and the family knows which steps a device cannot hold.

use headroom_base::plan::MEASURED_RUNS;
use headroom_base::{Bytes, Capacity, Plan, PlanNote, SignedBytes, Verdict};
use headroom_family::PartlyResident;

use super::{CheckError, Evidence, built_in_price, ensure, place, verdict};
use crate::bench::MEASURING_ALLOWANCE_BYTES;
use crate::bench::{Bench, Ground, MeasuredModel, Setup, Subject, cases_to_plan, lines_of, not_fitting};

/// Checks the plans of every measured model on one device.
///
/// # Errors
/// The first thing that does not hold.
pub fn plan(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let mut evidence = Evidence::default();
    for (model, lines) in lines_of(subject) {
        let measured = MeasuredModel { model, lines: &lines };
        let planned: usize = lines.iter().map(|line| line.cases.len()).sum();
        let plan = plan_of(subject, measured, ground)?;
        ensure(plan.cases.len() == planned, || {
            format!("{}: {} cases planned of {planned} in the file", place(subject), plan.cases.len())
        })?;
        evidence.seen += plan.cases.len();
        check_runs(subject, &plan)?;
        check_notes(subject, &plan)?;
        evidence.notes.extend(not_fitting(&plan).into_iter().map(|text| format!("{}: {text}", place(subject))));
    }
    evidence.absorb(steps_fit_or_are_listed(subject, ground)?);
    Ok(evidence)
}

/// The plan a calibration of a model would show on this device, with nothing measured yet.
pub(crate) fn plan_of(
    subject: &Subject<'_>,
    measured: MeasuredModel<'_>,
    ground: Ground<'_>,
) -> Result<Plan, CheckError> {
    let bench = subject.bench(&Setup::default())?;
    let mut knowledge = headroom_calibration::Knowledge::new(
        headroom_calibration::Record::empty(subject.class()),
        subject.context(ground.versions),
        subject.environment().soft,
    );
    let terms = headroom_calibration::PlanTerms {
        capacity: subject.capacity_terms(subject.place.memory_bytes(), subject.locked_weights_bytes(measured.model)),
        measuring_allowance_bytes: MEASURING_ALLOWANCE_BYTES,
        floor_bytes: bench.floor_bytes,
    };
    let record = headroom_calibration::Record::empty(subject.class());
    Ok(knowledge.plan(record, cases_to_plan(subject, measured, ground)?, ground.built_ins, terms))
}

fn check_runs(subject: &Subject<'_>, plan: &Plan) -> Result<(), CheckError> {
    let fitting = plan.cases.iter().filter(|planned| planned.verdict == Verdict::Fits).count();
    let expected = fitting * (1 + MEASURED_RUNS as usize);
    let runs = plan.runs().len();
    ensure(runs == expected, || format!("{}: {runs} runs for {fitting} cases that fit", place(subject)))?;
    for planned in &plan.cases {
        let asked = planned.priced.estimate.reservation_bytes.saturating_add(plan.measuring_allowance_bytes);
        let needed = i128::from(asked.max(plan.floor_bytes));
        let capacity = i128::from(plan.capacity.capacity_bytes);
        let holds = match planned.verdict {
            Verdict::Fits => needed <= capacity,
            Verdict::DoesNotFit { short_bytes, .. } => needed - capacity == i128::from(short_bytes),
        };
        ensure(holds, || format!("{}: {} is judged wrongly", place(subject), planned.priced.case))?;
    }
    Ok(())
}

fn check_notes(subject: &Subject<'_>, plan: &Plan) -> Result<(), CheckError> {
    let notes = plan.notes();
    for planned in &plan.cases {
        let line = &planned.priced.line;
        let too_few = plan.fitting_sizes(line) < headroom_base::plan::LEAST_SIZES;
        let said = notes.iter().any(|note| matches!(note, PlanNote::TooFewSizes { line: of, .. } if of == line));
        ensure(too_few == said, || format!("{}: too few sizes of {line} are not said", place(subject)))?;
    }
    Ok(())
}

/// A pipeline step that a device cannot hold must be listed in the family's checks.
fn steps_fit_or_are_listed(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let mut evidence = Evidence::default();
    let bench = subject.bench(&Setup::default())?;
    let checks = &subject.family.checks;
    for step in &subject.family.pipeline {
        let Some(model) = subject.family.model(&step.model) else { continue };
        let Some((_, estimate)) = built_in_price(subject, model, &step.case, ground, bench.floor_bytes) else {
            continue;
        };
        evidence.seen += 1;
        let tiles = checks
            .tiling_needed
            .iter()
            .any(|need| need.is_about(&step.model, &step.case, subject.place.name(), subject.allocator));
        let partly = |part: &PartlyResident| {
            part.model == step.model && part.devices.iter().any(|device| device == subject.place.name())
        };
        let partly = checks.partly_resident.iter().any(partly);
        let fits = verdict(&bench, model, &step.case, estimate, ground) == Verdict::Fits;
        let capacity =
            Capacity::new(subject.capacity_terms(subject.place.memory_bytes(), subject.locked_weights_bytes(model)));
        let (reserved, capacity) = (Bytes(estimate.reservation_bytes), SignedBytes(capacity.capacity_bytes));
        let text = format!(
            "{}: {} of `{}` does not fit ({reserved} reserved, capacity {capacity})",
            place(subject),
            step.case,
            step.model
        );
        if !fits && !subject.place.is_simulated() {
            // No file lists whatever card somebody has.
            evidence.notes.push(text);
            continue;
        }
        ensure(fits || partly || tiles, || {
            format!("{text}: list the device under `tiling_needed` or `partly_resident` of the family's checks")
        })?;
    }
    evidence.absorb(listed_tiles_are_needed_and_fit(&bench, ground)?);
    Ok(evidence)
}

/// What is listed as needing tiles does not fit without them and fits with them; the report says how much that takes.
fn listed_tiles_are_needed_and_fit(bench: &Bench<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let subject = &bench.subject;
    let mut evidence = Evidence::default();
    for need in &subject.family.checks.tiling_needed {
        if !need.is_about(&need.model, &need.case, subject.place.name(), subject.allocator) {
            continue;
        }
        let Some(model) = subject.family.model(&need.model) else { continue };
        let price = |case| {
            let price = built_in_price(subject, model, case, ground, bench.floor_bytes);
            price.map(|(_, estimate)| estimate).ok_or_else(|| CheckError::violated(format!("{case} has no price")))
        };
        let (whole, tiled) = (price(&need.case)?, price(&need.tiled())?);
        let fits = |case, estimate| verdict(bench, model, case, estimate, ground) == Verdict::Fits;
        ensure(!fits(&need.case, whole), || {
            format!("{}: {} fits untiled and is listed as needing tiles", place(subject), need.case)
        })?;
        let takes = Bytes(tiled.reservation_bytes);
        ensure(fits(&need.tiled(), tiled), || {
            format!("{}: {} does not fit either ({takes})", place(subject), need.tiled())
        })?;
        let tile = need.tiling.tile_pixels;
        evidence.seen += 1;
        evidence.notes.push(format!(
            "{}: {} needs tiles of {tile} pixels, which take {takes}",
            place(subject),
            need.case
        ));
    }
    Ok(evidence)
}
