//! What a plan promises: every size it lists ends fully resident and valid on the card it was made for.

use headroom_base::{CapacityTerms, DEFAULT_DEVICE_WORKING_BYTES, MIB, Plan, Reading, Residency, Verdict};
use headroom_calibration::{PlanTerms, Record};
use headroom_device::driver::RetainedPool;

use super::stage::{PAGE_BYTES, Stage};
use crate::bench::{Bench, MEASURING_ALLOWANCE_BYTES, Setup, weights_bytes};
use crate::checks::{CheckError, Claim};

super::invariants![
    a_plan_leaves_room_for_others_to_grow,
    a_plan_leaves_room_for_what_the_driver_keeps,
    a_planned_size_never_costs_its_model_the_card,
    a_plan_keeps_the_cards_own_working_memory_free,
    a_plan_is_priced_by_the_fits_of_now,
];

/// What other processes or the driver take in these stories: less than lies between two sizes.
const LEFT_TO_OTHERS: u64 = 64 * MIB;

/// A bench on a card that holds the largest size with its model and nothing else. No floor hides how sizes differ.
fn tight<'a>(stage: &Stage<'a>, setup: Setup) -> Result<Bench<'a>, CheckError> {
    let largest = stage.largest();
    let knowledge = stage.knowledge(&stage.record());
    let costs = headroom_calibration::Costs {
        units: largest.units,
        analytic_bytes: largest.analytic_bytes,
        predicted_bytes: None,
    };
    let estimate = knowledge.price(&stage.key, &costs, stage.ground().built_ins, 0);
    let asked = estimate.reservation_bytes + MEASURING_ALLOWANCE_BYTES;
    let place = stage.subject.place;
    let taken = place.context_bytes() + place.outside_bytes() + weights_bytes(stage.model) + asked;
    let memory_bytes = Some(in_pages_of(stage, taken));
    let floor_bytes = Some(0);
    stage.bench_with(Setup { memory_bytes, floor_bytes, ..setup }, |scene| scene.take(scene.need_bytes))
}

/// So much and up to a page more, so that what a card has beyond it is whole pages: those alone can be taken away, and a card
/// that is no whole number of them would be left with more than a plan for it knows of.
fn in_pages_of(stage: &Stage<'_>, bytes: u64) -> u64 {
    bytes + stage.subject.place.memory_bytes().saturating_sub(bytes) % PAGE_BYTES
}

/// The plan that a calibration on this bench shows.
fn planned(
    stage: &Stage<'_>,
    bench: &Bench<'_>,
    record: &Record,
    change: impl FnOnce(CapacityTerms) -> CapacityTerms,
) -> Result<Plan, CheckError> {
    let usual = stage.plan_terms(bench);
    let terms = PlanTerms { capacity: change(usual.capacity), ..usual };
    Ok(stage.plan(&mut stage.knowledge(record), record, terms)?)
}

/// Runs what a plan says fits, on a card that has become as full as the plan had to expect.
fn run_planned(stage: &Stage<'_>, bench: &Bench<'_>, plan: &Plan) -> Result<(), CheckError> {
    for planned in plan.cases.iter().filter(|planned| planned.verdict == Verdict::Fits) {
        let scope = headroom_device::Scope::new(plan.measuring_allowance_bytes);
        let request = headroom_runners::StepRequest {
            model: &stage.model.key,
            with: &[],
            case: planned.priced.case,
            working_bytes: Some(planned.priced.estimate.reservation_bytes),
        };
        let claim = Claim::PlannedSizeEndsResidentAndValid;
        let what = || format!("{} was planned", planned.priced.case);
        let report = match bench.session.measure(&scope, &request) {
            Ok(report) => report,
            Err(error) if error.is_out_of_memory() => return claim.holds(false, || format!("{}: {error}", what())),
            Err(error) => return Err(error.into()),
        };
        let measurement = report.measurement.ok_or_else(|| CheckError::violated("no window"))?;
        let residency = measurement.residency;
        claim.holds(residency == Residency::Full, || format!("{} and ended {residency:?}", what()))?;
        let validity = measurement.validity;
        claim.holds(validity.is_valid(), || format!("{} and ended {validity:?}", what()))?;
    }
    Ok(())
}

fn a_plan_leaves_room_for_others_to_grow(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = tight(stage, Setup::default())?;
    let floor = stage.subject.place.outside_bytes() + LEFT_TO_OTHERS;
    let outside_floor = |terms| CapacityTerms { outside_floor_bytes: floor, ..terms };
    let plan = planned(stage, &bench, &stage.record(), outside_floor)?;
    bench.card.others_grow(LEFT_TO_OTHERS)?;
    run_planned(stage, &bench, &plan)
}

/// The driver keeps three GiB of what was freed, as HIP was seen to do, and an earlier calibration has recorded it.
fn a_plan_leaves_room_for_what_the_driver_keeps(stage: &Stage<'_>) -> Result<(), CheckError> {
    let keeps = |settings: &mut headroom_device::driver::CardSettings| {
        settings.retained = Some(RetainedPool { most_bytes: LEFT_TO_OTHERS, reused: false });
    };
    let bench = tight(stage, Setup { card: Some(keeps), ..Setup::default() })?;
    let device = bench.session.cache().device();
    let failed = |error: &dyn std::fmt::Display| CheckError::violated(error.to_string());
    let held = device.allocate(LEFT_TO_OTHERS).map_err(|error| failed(&error))?;
    device.free(held).map_err(|error| failed(&error))?;
    device.empty_cache().map_err(|error| failed(&error))?;
    let mut record = stage.record();
    record.note_retained(bench.card.simulated()?.retained_bytes());
    let unknown = |terms| CapacityTerms { retained_bytes: Reading::Unknown, ..terms };
    let plan = planned(stage, &bench, &record, unknown)?;
    run_planned(stage, &bench, &plan)
}

/// On a card that lacks one page for its largest size, that size is not planned: its model would have to give way.
fn a_planned_size_never_costs_its_model_the_card(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = tight(stage, Setup::default())?;
    bench.card.shrink(2 * PAGE_BYTES)?;
    let plan = planned(stage, &bench, &stage.record(), |terms| terms)?;
    run_planned(stage, &bench, &plan)
}

/// A card with a gibibyte beside the weights, of which it keeps three free whatever an estimate says.
fn a_plan_keeps_the_cards_own_working_memory_free(stage: &Stage<'_>) -> Result<(), CheckError> {
    let place = stage.subject.place;
    let taken = place.context_bytes() + place.outside_bytes() + weights_bytes(stage.model);
    let beside = stage.smallest().need_bytes * 2 + MEASURING_ALLOWANCE_BYTES;
    let memory_bytes = Some(in_pages_of(stage, taken + beside.min(DEFAULT_DEVICE_WORKING_BYTES - MIB)));
    let setup = Setup { memory_bytes, ..Setup::default() };
    let bench = stage.bench_with(setup, |scene| scene.take(scene.need_bytes))?;
    let plan = planned(stage, &bench, &stage.record(), |terms| terms)?;
    run_planned(stage, &bench, &plan)
}

/// A page was opened before a calibration ended elsewhere; the plan it then shows is priced by that calibration.
fn a_plan_is_priced_by_the_fits_of_now(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench()?;
    let mut record = stage.record();
    let mut opened_earlier = stage.knowledge(&record);
    stage.calibrate(&bench, &mut record, "elsewhere")?;
    let plan = stage.plan(&mut opened_earlier, &record, stage.plan_terms(&bench))?;
    let of_now = stage.plan(&mut stage.knowledge(&record), &record, stage.plan_terms(&bench))?;
    let prices = |plan: &Plan| -> Vec<_> { plan.cases.iter().map(|case| case.priced.estimate).collect() };
    Claim::PlanIsPricedByTheFitsOfNow.equal("prices of the plan", prices(&plan), prices(&of_now))
}
