//! What of an attempt counts, and when: nothing before all of it, nothing of one that did not end well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headroom_base::{
    AllocatorKind, DeviceClass, HardEnvironment, InvalidReason, MIB, Residency, RunKind, Validity, Window,
};
use headroom_calibration::{AttemptError, Context, Record, Uncounted, count};
use headroom_device::cache::ModelKey;

use super::attempt::{UnderWay, keep};
use super::stage::{Stage, neighbour};
use crate::bench::Setup;
use crate::checks::{CheckError, Claim};

super::invariants![
    nothing_joins_before_every_run_has_finished,
    an_attempt_is_priced_by_the_plan_it_showed,
    a_stopped_attempt_never_joins,
    a_failed_attempt_never_joins,
    an_attempt_that_broke_off_never_joins,
    an_attempt_with_runs_missing_cannot_finish,
    of_a_run_that_was_tried_again_the_last_try_counts,
    a_warm_up_never_counts,
    a_window_that_another_lock_disturbed_never_counts,
    a_window_of_a_partly_resident_model_never_counts,
    windows_of_other_software_cards_and_estimators_never_count,
];

/// Whether anything of a record joined a fit.
fn joined(stage: &Stage<'_>, record: &Record) -> usize {
    stage.knowledge(record).verdicts().iter().filter(|verdict| verdict.counts()).count()
}

fn nothing_joins_before_every_run_has_finished(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench()?;
    let mut record = stage.record();
    let mut attempt = stage.begin(&bench, &record, "live")?;
    for run in attempt.plan.runs() {
        attempt.run(&run, 0)?;
        let joined = joined(stage, &attempt.so_far(&record));
        Claim::NothingJoinsBeforeItsAttemptHasFinished
            .holds(joined == 0, || format!("{joined} windows count after run {} of a live attempt", run.run))?;
    }
    attempt.finish_into(&mut record)?;
    let counted = joined(stage, &record);
    let measured = record.windows.iter().filter(|window| window.kind == RunKind::Measured).count();
    Claim::MeasuredWindowsCount.equal("windows that count once it has finished", counted, measured)
}

/// The card needs less than is shipped, so a price that follows the attempt's own windows would differ.
fn an_attempt_is_priced_by_the_plan_it_showed(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench()?;
    let mut attempt = stage.begin(&bench, &stage.record(), "live")?;
    for run in attempt.plan.runs() {
        let planned = attempt.plan.cases[run.case_index].priced.estimate.reservation_bytes;
        let asked = attempt.run(&run, 0)?.measurement.estimate_bytes;
        Claim::AttemptIsPricedByItsPlan.equal(&format!("run {} asked", run.run), asked, planned)?;
    }
    Ok(())
}

/// An attempt of which every run but the last was measured, ended as `end` says.
fn ended(stage: &Stage<'_>, end: impl FnOnce(UnderWay<'_, '_>, &mut Record)) -> Result<Record, CheckError> {
    let bench = stage.bench()?;
    let mut record = stage.record();
    let mut attempt = stage.begin(&bench, &record, "ended")?;
    let runs = attempt.plan.runs();
    for run in &runs[..runs.len() - 1] {
        attempt.run(run, 0)?;
    }
    end(attempt, &mut record);
    Ok(record)
}

fn none_joins(stage: &Stage<'_>, record: &Record, claim: Claim, how: &str) -> Result<(), CheckError> {
    let joined = joined(stage, record);
    claim.holds(joined == 0, || format!("{joined} windows of an attempt that {how} count"))?;
    let has_fit = stage.knowledge(record).fits().get(&stage.key).is_some();
    claim.holds(!has_fit, || format!("the line has a fit from an attempt that {how}"))
}

fn a_stopped_attempt_never_joins(stage: &Stage<'_>) -> Result<(), CheckError> {
    let record = ended(stage, |attempt, record| {
        let (attempt, windows) = attempt.running.stop(1);
        keep(record, attempt, windows);
    })?;
    none_joins(stage, &record, Claim::StoppedAttemptNeverJoins, "was stopped")
}

fn a_failed_attempt_never_joins(stage: &Stage<'_>) -> Result<(), CheckError> {
    let record = ended(stage, |attempt, record| {
        let (attempt, windows) = attempt.running.fail("the largest size ran out of memory", 1);
        keep(record, attempt, windows);
    })?;
    none_joins(stage, &record, Claim::FailedAttemptNeverJoins, "failed")
}

fn an_attempt_that_broke_off_never_joins(stage: &Stage<'_>) -> Result<(), CheckError> {
    // The process dies after its last write; the next one reads the record and runs nothing of it.
    let mut record = ended(stage, |attempt, record| *record = attempt.so_far(record))?;
    record.break_off_all_but(&[]);
    none_joins(stage, &record, Claim::BrokenOffAttemptNeverJoins, "broke off")
}

fn an_attempt_with_runs_missing_cannot_finish(stage: &Stage<'_>) -> Result<(), CheckError> {
    let mut outcome = None;
    ended(stage, |attempt, _| outcome = Some(attempt.running.finish(1).map_err(|(_, error)| error)))?;
    let refused = matches!(outcome, Some(Err(AttemptError::RunsMissing { .. })));
    Claim::AttemptFinishesWhole.holds(refused, || "an attempt finished with its last run missing".to_owned())
}

/// The first try of the largest size's first run needs far too much and is tried again.
fn of_a_run_that_was_tried_again_the_last_try_counts(stage: &Stage<'_>) -> Result<(), CheckError> {
    let hungry = Arc::new(AtomicBool::new(false));
    let is_hungry = Arc::clone(&hungry);
    let bench = stage.bench_with(Setup::default(), move |scene| {
        let factor = if is_hungry.load(Ordering::SeqCst) { 2 } else { 1 };
        scene.take(scene.need_bytes * factor)
    })?;
    let mut record = stage.record();
    let mut attempt = stage.begin(&bench, &record, "retried")?;
    let runs = attempt.plan.runs();
    let retried = runs.len() - 2;
    for run in &runs[..retried] {
        attempt.run(run, 0)?;
    }
    hungry.store(true, Ordering::SeqCst);
    let first_try = attempt.run(&runs[retried], 0)?;
    hungry.store(false, Ordering::SeqCst);
    let number = attempt.running.retry(runs[retried].run).map_err(crate::bench::CalibrationError::from)?;
    attempt.run(&runs[retried], number)?;
    attempt.run(&runs[retried + 1], 0)?;
    attempt.finish_into(&mut record)?;
    let knowledge = stage.knowledge(&record);
    let counted = record.windows.iter().zip(knowledge.verdicts()).find(|(window, _)| **window == first_try);
    let superseded = matches!(counted.and_then(|(_, verdict)| verdict.reason()), Some(Uncounted::SupersededTry { .. }));
    Claim::LastTryCountsAlone.holds(superseded, || "the first try of a run that was tried again counts".to_owned())
}

/// The first run of each case takes twice what the others do.
fn a_warm_up_never_counts(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench_with(Setup::default(), |scene| {
        let factor = if scene.runs_before.is_multiple_of(3) { 2 } else { 1 };
        scene.take(scene.need_bytes * factor)
    })?;
    let mut record = stage.record();
    stage.calibrate(&bench, &mut record, "first")?;
    let knowledge = stage.knowledge(&record);
    for (window, verdict) in record.windows.iter().zip(knowledge.verdicts()) {
        let warm_up = window.kind == RunKind::Warmup;
        Claim::WarmUpNeverCounts.holds(!(warm_up && verdict.counts()), || format!("a warm-up of {}", window.case))?;
    }
    Ok(())
}

/// Verdicts on an attempt in whose last run something happens; the run's window is handed to `look`.
fn last_of(stage: &Stage<'_>, record: &Record, claim: Claim, right: fn(&Uncounted) -> bool) -> Result<(), CheckError> {
    let knowledge = stage.knowledge(record);
    let verdict = knowledge.verdicts().last().cloned();
    let reason = verdict.as_ref().and_then(|verdict| verdict.reason());
    claim.holds(reason.is_some_and(right), || match reason {
        Some(reason) => format!("the disturbed window does not count because {reason}"),
        None => "the disturbed window counts".to_owned(),
    })
}

fn a_window_that_another_lock_disturbed_never_counts(stage: &Stage<'_>) -> Result<(), CheckError> {
    let runs = stage.line.cases.len() * 3;
    let bench = stage.bench_with(Setup::default(), move |scene| {
        if scene.runs_before + 1 == runs {
            scene.foreign_lock("neighbour")?;
        }
        scene.take(scene.need_bytes)
    })?;
    bench.session.cache().add(neighbour("neighbour", 100))?;
    let mut record = stage.record();
    stage.calibrate(&bench, &mut record, "disturbed")?;
    let disturbed = record.windows.last().map(|window| window.measurement.validity.clone());
    let expected = Some(Validity::Invalid(InvalidReason::ForeignLockDuring));
    Claim::ForeignLockIsSeen.equal("the window with a foreign lock", disturbed, expected)?;
    last_of(stage, &record, Claim::InvalidWindowNeverCounts, |reason| matches!(reason, Uncounted::Invalid { .. }))
}

/// Before the last run the card fills up, so that a model of pieces can be loaded only in part.
fn a_window_of_a_partly_resident_model_never_counts(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench()?;
    let cache = bench.session.cache();
    cache.add(neighbour("pieces", 400))?;
    let mut record = stage.record();
    let mut attempt = stage.begin(&bench, &record, "tight")?;
    attempt.run_all()?;
    let (mut finished, mut windows) = attempt.running.finish(1).map_err(|(_, error)| failed_attempt(error))?;
    // One more run, of a model that may be loaded in part, on a card with too little room for all of it.
    cache.offload_unlocked()?;
    bench.card.leave_free(bench.floor_bytes + 200 * MIB)?;
    let scope = headroom_device::Scope::new(0);
    let entered = scope.enter();
    let locked = cache.lock(&ModelKey::from("pieces"), Some(bench.floor_bytes))?;
    drop(entered);
    let measurement = locked.unlock().measurement.ok_or_else(|| CheckError::violated("the run left no window"))?;
    let is_partial = matches!(measurement.residency, Residency::Partial { .. });
    Claim::PartialResidencyIsSaid
        .holds(is_partial, || "half of the model was missing, and it says whole".to_owned())?;
    let last = windows.last().cloned().ok_or_else(|| CheckError::violated("the attempt left no window"))?;
    finished.planned_runs += 1;
    windows.push(Window { run: last.run + 1, measurement, ..last });
    keep(&mut record, finished, windows);
    let right = |reason: &Uncounted| matches!(reason, Uncounted::PartlyResident { .. });
    last_of(stage, &record, Claim::PartlyResidentWindowNeverCounts, right)
}

fn failed_attempt(error: AttemptError) -> CheckError {
    crate::bench::CalibrationError::from(error).into()
}

fn windows_of_other_software_cards_and_estimators_never_count(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench()?;
    let mut record = stage.record();
    stage.calibrate(&bench, &mut record, "here")?;
    let here = stage.subject.context(stage.ground().versions);
    let newer = [(stage.key.estimator.clone(), stage.key.estimator_version + 1)].into_iter().collect();
    let elsewhere: [(Claim, Context); 3] = [
        (
            Claim::OtherSoftwareNeverCounts,
            Context {
                hard: HardEnvironment { allocator: AllocatorKind::ExpandableSegments, ..here.hard.clone() },
                ..here.clone()
            },
        ),
        (Claim::SupersededEstimatorNeverCounts, Context { versions: newer, ..here.clone() }),
        (
            Claim::OtherCardNeverCounts,
            Context { device: DeviceClass { name: "another card".to_owned(), ..here.device.clone() }, ..here },
        ),
    ];
    for (claim, context) in elsewhere {
        let counted = count(&record.windows, &record.attempts, &context).iter().filter(|v| v.counts()).count();
        claim.holds(counted == 0, || format!("{counted} windows measured otherwise count"))?;
    }
    Ok(())
}
