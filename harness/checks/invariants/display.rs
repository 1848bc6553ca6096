//! What people are shown of a line: its state of now, its rows with their reasons, and whose calibration it is.

use headroom_base::{AllocatorKind, HardEnvironment, InvalidReason, SoftEnvironment, Validity};
use headroom_calibration::{Facts, Platform, Record, State, state, summarize_line};

use super::attempt::keep;
use super::stage::{Stage, neighbour};
use crate::bench::Setup;
use crate::checks::{CheckError, Claim};

super::invariants![
    a_failure_goes_when_a_newer_attempt_succeeds,
    a_failure_under_other_software_is_not_shown,
    a_size_that_joined_no_fit_is_shown_as_such,
    a_model_on_a_shared_line_is_shown_its_calibration,
    the_outdated_mark_clears_when_measured_again,
    a_store_that_cannot_be_read_is_said,
];

/// A machine on which everything can be measured.
const GOOD: Platform = Platform { supported: true, generation_devices: 1, method_verified: true };

fn shown(stage: &Stage<'_>, record: &Record, model: &str) -> State {
    let knowledge = stage.knowledge(record);
    state(&Facts::gather(Some(&knowledge), &stage.key, model, GOOD)).state
}

/// Adds an attempt that failed after its first run.
fn fail(stage: &Stage<'_>, record: &mut Record, id: &str) -> Result<(), CheckError> {
    let bench = stage.bench()?;
    let mut attempt = stage.begin(&bench, record, id)?;
    let first = attempt.plan.runs()[0];
    attempt.run(&first, 0)?;
    let (attempt, windows) = attempt.running.fail("the device is gone", 1);
    keep(record, attempt, windows);
    Ok(())
}

fn a_failure_goes_when_a_newer_attempt_succeeds(stage: &Stage<'_>) -> Result<(), CheckError> {
    let mut record = stage.record();
    fail(stage, &mut record, "failed")?;
    let failed = matches!(shown(stage, &record, &stage.model.key), State::Failed { .. });
    Claim::FailureGoesWithANewerSuccess.holds(failed, || "a failed calibration is not shown as failed".to_owned())?;
    let bench = stage.bench()?;
    stage.calibrate(&bench, &mut record, "succeeded")?;
    let now = shown(stage, &record, &stage.model.key);
    Claim::FailureGoesWithANewerSuccess.equal("the state after a newer success", now, State::InUse)
}

fn a_failure_under_other_software_is_not_shown(stage: &Stage<'_>) -> Result<(), CheckError> {
    let mut record = stage.record();
    fail(stage, &mut record, "failed elsewhere")?;
    let hard = &mut record.attempts[0].environment.hard;
    *hard = HardEnvironment { allocator: AllocatorKind::ExpandableSegments, ..hard.clone() };
    for window in &mut record.windows {
        window.environment.hard.allocator = AllocatorKind::ExpandableSegments;
    }
    let now = shown(stage, &record, &stage.model.key);
    Claim::OtherSoftwareIsNotShown.holds(!matches!(now, State::Failed { .. }), || {
        format!("the line is shown as {now:?} for a failure under another allocator")
    })
}

/// Another lock disturbs every run of the largest size.
fn a_size_that_joined_no_fit_is_shown_as_such(stage: &Stage<'_>) -> Result<(), CheckError> {
    let largest = stage.largest().clone();
    let need = largest.need_bytes;
    let bench = stage.bench_with(Setup::default(), move |scene| {
        if scene.need_bytes == need {
            scene.foreign_lock("other")?;
        }
        scene.take(scene.need_bytes)
    })?;
    bench.session.cache().add(neighbour("other", 100))?;
    let mut record = stage.record();
    stage.calibrate(&bench, &mut record, "disturbed")?;
    let disturbed = record.windows.iter().filter(|window| window.cost_units == largest.units);
    let invalid = Validity::Invalid(InvalidReason::ForeignLockDuring);
    let all = disturbed.clone().all(|window| window.measurement.validity == invalid);
    Claim::ForeignLockIsSeen.holds(all, || "a disturbed window is valid".to_owned())?;
    let knowledge = stage.knowledge(&record);
    let summary = summarize_line(&knowledge, &stage.key, &stage.model.key, GOOD, stage.ground().built_ins);
    let rows = summary.sizes.iter().filter(|row| row.cost_units == largest.units);
    let rows: Vec<_> = rows.map(|row| (row.counted, row.excluded_reason.is_some())).collect();
    let says_so = !rows.is_empty() && rows.iter().all(|row| *row == (false, true));
    Claim::UncountedSizeSaysSo.holds(says_so, || format!("(counted, has a reason) of the disturbed size: {rows:?}"))
}

fn a_model_on_a_shared_line_is_shown_its_calibration(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench()?;
    let mut record = stage.record();
    stage.calibrate(&bench, &mut record, "first")?;
    let knowledge = stage.knowledge(&record);
    let summary = summarize_line(&knowledge, &stage.key, "another model", GOOD, stage.ground().built_ins);
    Claim::SharedLineShowsItsCalibration.equal("windows of its own", summary.own_windows, 0)?;
    let calibrated = summary.sizes.iter().filter(|row| row.calibrated.is_some()).count();
    Claim::SharedLineShowsItsCalibration.equal("sizes shown calibrated", calibrated, summary.sizes.len())
}

fn the_outdated_mark_clears_when_measured_again(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench()?;
    let mut record = stage.record();
    stage.calibrate(&bench, &mut record, "before the update")?;
    for window in &mut record.windows {
        window.environment.soft = SoftEnvironment { driver: "an older driver".to_owned() };
    }
    let before = shown(stage, &record, &stage.model.key);
    Claim::OutdatedMarkClears.equal("the state after a driver update", before, State::MayBeOutdated)?;
    stage.calibrate(&bench, &mut record, "after the update")?;
    let after = shown(stage, &record, &stage.model.key);
    Claim::OutdatedMarkClears.equal("the state after measuring again", after, State::InUse)
}

fn a_store_that_cannot_be_read_is_said(stage: &Stage<'_>) -> Result<(), CheckError> {
    let facts = Facts::gather(None, &stage.key, &stage.model.key, GOOD);
    Claim::UnreadableStoreIsSaid.equal("the state", state(&facts).state, State::StoreUnreadable)
}
