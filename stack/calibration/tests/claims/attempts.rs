//! Nothing of an attempt joins before all of it has finished, and nothing of it prices itself.

use headroom_base::{AttemptId, Window};
use headroom_calibration::{
    Attempt, AttemptError, AttemptState, BuiltIns, Costs, Knowledge, Record, RunningAttempt, Store, UserFits, count,
};

use crate::fixture::{MODEL, context, device, environment, finished, line, running, soft, straight, units, windows};

crate::claims![
    joining_early_would_change_a_reservation_and_does_not_happen,
    fits_stay_frozen_when_another_model_finishes_meanwhile,
    an_attempt_that_did_not_finish_never_joins,
    an_attempt_cannot_finish_while_a_run_is_missing,
    windows_of_an_earlier_try_never_count,
    an_attempt_cut_off_by_a_crash_reads_back_as_incomplete_and_says_so,
    an_attempt_that_ended_cannot_go_on,
];

const LARGE: Costs = Costs { units: 1024 * 1024 * 2, analytic_bytes: 0, predicted_bytes: None };

fn fits(attempts: &[Attempt], windows: &[Window]) -> UserFits {
    UserFits::of(windows, attempts, &context(), &soft("driver 1"))
}

fn reservation_bytes(fits: &UserFits) -> u64 {
    let user = fits.get(&line()).map(|user| &user.fit);
    headroom_calibration::resolve(&LARGE, user, None, 0).reservation_bytes
}

fn joining_early_would_change_a_reservation_and_does_not_happen() {
    let old = windows("old", &straight(1_000));
    let earlier = [finished("old", &old)];
    let frozen = fits(&earlier, &old);
    let mut attempt = RunningAttempt::begin(running("new", 9), &frozen).unwrap();

    // Everything but the last run has been measured, and needs a third more than the first calibration knew.
    let new = windows("new", &straight(1_333));
    for window in &new[..8] {
        attempt.run_finished(window.run, vec![window.clone()]).unwrap();
    }
    let price = |attempt: &RunningAttempt| attempt.price(&line(), &LARGE, None, 0).reservation_bytes;
    let before = reservation_bytes(&frozen);
    assert_eq!(price(&attempt), before, "a later case was priced from the attempt's earlier ones");

    let all = [old.clone(), new.clone()].concat();
    let so_far = [earlier[0].clone(), attempt.attempt().clone()];
    assert_eq!(reservation_bytes(&fits(&so_far, &all[..old.len() + 8])), before, "live windows joined");
    let counts = count(&all, &so_far, &context());
    assert!(counts[old.len()..].iter().all(|verdict| !verdict.counts()));

    // The same windows do change the reservation once the attempt has finished: the rule matters here.
    attempt.run_finished(8, vec![new[8].clone()]).unwrap();
    let (ended, measured) = attempt.finish(100).map_err(|(_, error)| error).unwrap();
    assert_eq!(ended.ended_unix_seconds, Some(100));
    let joined = reservation_bytes(&fits(&[earlier[0].clone(), ended], &[old, measured].concat()));
    assert_eq!((before, joined), (units(1024) * 1_050, (units(1024) * 1_333 * 21).div_ceil(20)));
}

fn fits_stay_frozen_when_another_model_finishes_meanwhile() {
    let old = windows("old", &straight(1_000));
    let frozen = fits(&[finished("old", &old)], &old);
    let attempt = RunningAttempt::begin(running("new", 9), &frozen).unwrap();

    let other = windows("other", &straight(2_000));
    let live = fits(&[finished("old", &old), finished("other", &other)], &[old, other].concat());
    assert_eq!(reservation_bytes(&live), units(1024) * 2_100);
    assert_eq!(attempt.price(&line(), &LARGE, None, 0).reservation_bytes, units(1024) * 1_050);
}

fn an_attempt_that_did_not_finish_never_joins() {
    let measured = windows("a", &straight(1_000));
    let ends: [fn(&mut Attempt); 4] = [
        |attempt| attempt.stop(1).unwrap(),
        |attempt| attempt.fail("the device is gone", 1).unwrap(),
        Attempt::broke_off,
        |_| {},
    ];
    for end in ends {
        let mut attempt = running("a", 9);
        (0..9).for_each(|run| attempt.run_finished(run).unwrap());
        end(&mut attempt);
        let fits = fits(std::slice::from_ref(&attempt), &measured);
        assert!(fits.get(&line()).is_none() && fits.why_not(&line()).is_none(), "{}", attempt.outcome());
    }
}

fn an_attempt_cannot_finish_while_a_run_is_missing() {
    let mut attempt = running("a", 9);
    for run in [0, 1, 2, 3, 5, 6, 8] {
        attempt.run_finished(run).unwrap();
    }
    let error = attempt.finish(1).unwrap_err();
    assert!(matches!(&error, AttemptError::RunsMissing { missing, .. } if *missing == [4, 7]), "{error}");
    assert_eq!(attempt.state, AttemptState::Running);
    assert!(matches!(attempt.run_finished(9), Err(AttemptError::NoSuchRun { run: 9, .. })));
}

fn windows_of_an_earlier_try_never_count() {
    let mut measured = windows("a", &straight(1_000));
    let mut attempt = running("a", 9);
    (0..9).for_each(|run| attempt.run_finished(run).unwrap());
    assert_eq!(attempt.retry(8), Ok(1));
    assert!(attempt.clone().finish(1).is_err(), "a run that is tried again has not finished");

    // The first try of run 8 needed far more; the second one needs what the others did.
    let second = Window { retry: 1, ..measured[8].clone() };
    measured[8].measurement.demand_bytes *= 10;
    measured.push(second);
    attempt.run_finished(8).unwrap();
    attempt.finish(1).unwrap();
    let fits_with = |windows: &[Window]| fits(std::slice::from_ref(&attempt), windows);
    assert_eq!(reservation_bytes(&fits_with(&measured)), units(1024) * 1_050);

    // Nor where the second try left no window at all.
    measured.pop();
    let reason = count(&measured, std::slice::from_ref(&attempt), &context())[8].reason().unwrap().to_string();
    assert_eq!(reason, "the run was tried again (try 2)");
    assert_eq!(reservation_bytes(&fits_with(&measured)), units(1024) * 1_050);
}

fn an_attempt_cut_off_by_a_crash_reads_back_as_incomplete_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path());
    let measured = windows("a", &straight(1_000));
    store
        .update(&device(), |record| {
            let mut attempt = running("a", 18);
            (0..7).for_each(|run| attempt.run_finished(run).unwrap());
            record.keep_attempt(attempt);
            record.windows.extend_from_slice(&measured[..7]);
        })
        .unwrap();

    let read = |live: &[AttemptId]| {
        let mut record: Record = store.read(&device()).unwrap();
        record.break_off_all_but(live);
        record
    };
    let alive = read(&[AttemptId("a".into())]);
    assert_eq!(alive.attempts[0].state, AttemptState::Running);
    let crashed = read(&[]);
    assert_eq!(crashed.attempts[0].outcome(), "broke off in the middle and is incomplete (7 of 18 runs finished)");
    let knowledge = Knowledge::new(crashed, context(), soft("driver 1"));
    let reason = knowledge.verdicts()[1].reason().unwrap().to_string();
    assert_eq!(reason, "its calibration broke off after 7 of 18 runs");
    let price = knowledge.price(&line(), &LARGE, &BuiltIns::default(), 77);
    assert_eq!(price, headroom_base::Estimate::floor(77));
}

fn an_attempt_that_ended_cannot_go_on() {
    let mut attempt = Attempt::recorded(AttemptId("a".into()), MODEL, device(), environment(), 3);
    let refused = |result: Result<(), AttemptError>| matches!(result, Err(AttemptError::Ended { .. }));
    assert!(refused(attempt.run_finished(0)) && refused(attempt.stop(1)) && refused(attempt.finish(1)));
    assert!(refused(RunningAttempt::begin(attempt.clone(), &UserFits::default()).map(drop)));
    attempt.broke_off();
    assert_eq!(attempt.state, AttemptState::Finished);
}
