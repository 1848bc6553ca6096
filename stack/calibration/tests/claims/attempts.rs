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
    attempts_that_begin_at_once_under_one_name_are_all_kept_and_never_mixed,
    an_attempt_never_takes_the_place_of_another,
    an_attempt_taken_for_broken_off_by_another_process_goes_on,
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

/// Measures a whole attempt that asks for the name `a`, kept after each run, and returns the name it got.
fn measured_into(store: &Store, bytes_per_unit: u64) -> AttemptId {
    let began = store.update(&device(), |record| record.begin_attempt(running("a", 9))).unwrap();
    let id = began.id.clone();
    let mut attempt = RunningAttempt::begin(began, &UserFits::default()).unwrap();
    let keep = |attempt: &Attempt, windows: &[Window]| {
        store.update(&device(), |record| record.keep_progress(attempt.clone(), windows.to_vec())).unwrap().unwrap();
    };
    for window in windows(&id.0, &straight(bytes_per_unit)) {
        attempt.run_finished(window.run, vec![window]).unwrap();
        keep(attempt.attempt(), attempt.windows());
    }
    let (attempt, windows) = attempt.finish(1).unwrap();
    keep(&attempt, &windows);
    id
}

fn attempts_that_begin_at_once_under_one_name_are_all_kept_and_never_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let store = || Store::open(folder.path()).with_lock_wait(std::time::Duration::from_secs(60));
    let measure = |bytes_per_unit| move || (measured_into(&store(), bytes_per_unit), bytes_per_unit);
    let ids: Vec<(AttemptId, u64)> = std::thread::scope(|scope| {
        let writers: Vec<_> = (1_000..1_008).map(|bytes| scope.spawn(measure(bytes))).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let record = store().read(&device()).unwrap();
    assert_eq!((record.attempts.len(), record.windows.len()), (8, 8 * 9));
    assert!(record.attempts.iter().all(|attempt| attempt.state == AttemptState::Finished));
    for (id, bytes_per_unit) in ids {
        let own: Vec<_> = record.windows.iter().filter(|window| window.attempt_id.as_ref() == Some(&id)).collect();
        assert_eq!(own, windows(&id.0, &straight(bytes_per_unit)).iter().collect::<Vec<_>>(), "{id}");
    }
}

fn an_attempt_never_takes_the_place_of_another() {
    let mut record = Record::empty(device());
    let first = record.begin_attempt(running("a", 9));
    let measured = windows("a", &straight(1_000));
    record.keep_progress(first.clone(), measured[..3].to_vec()).unwrap();
    // Windows alone keep a name taken, too.
    record.windows.push(Window { attempt_id: Some(AttemptId("b".into())), ..measured[0].clone() });
    assert_eq!(record.begin_attempt(running("a", 9)).id.0, "a-2");
    assert_eq!(record.begin_attempt(running("b", 9)).id.0, "b-2");

    let before = record.clone();
    let mut refused = |attempt: Attempt, windows: &[Window]| {
        let error = record.keep_progress(attempt, windows.to_vec()).unwrap_err();
        assert_eq!(record, before, "{error}");
        error
    };
    let of_another = AttemptError::OfAnother { attempt: first.id.clone() };
    assert_eq!(refused(running("c", 9), &[]), AttemptError::NotBegun { attempt: AttemptId("c".into()) });
    assert_eq!(refused(running("a", 18), &measured[..4]), of_another, "another plan");
    assert_eq!(refused(first.clone().started_at(1), &measured[..4]), of_another, "another begin");
    assert_eq!(refused(first.clone(), &measured[1..]), of_another, "a window would be lost");
    assert_eq!(refused(first.clone(), &before.windows), of_another, "another's window");
    record.attempts[0].stop(1).unwrap();
    let ended = record.keep_progress(first, measured).unwrap_err();
    assert!(matches!(ended, AttemptError::Ended { .. }), "{ended}");
}

fn an_attempt_taken_for_broken_off_by_another_process_goes_on() {
    let mut record = Record::empty(device());
    let attempt = record.begin_attempt(running("a", 9));
    record.break_off_all_but(&[]);
    record.keep_progress(attempt.clone(), windows("a", &straight(1_000))).unwrap();
    assert_eq!((record.attempts, record.windows.len()), (vec![attempt], 9));
}
