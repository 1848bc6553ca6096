//! What people are shown: every state with its precedence, and rows that say why they do not count.

use headroom_base::{InvalidReason, Validity};
use headroom_calibration::{
    Attempt, AttemptState, BuiltIns, Facts, Knowledge, Newest, Own, Platform, Record, State, state, summarize_line,
};

use crate::fixture::{MODEL, context, device, finished, line, running, soft, straight, windows};

crate::claims![
    every_state_is_reached_and_the_first_that_holds_is_shown,
    an_unreadable_store_and_an_unverified_method_stand_beside_other_states,
    a_failure_is_shown_until_a_newer_attempt_succeeds,
    results_of_other_environments_do_not_colour_the_state,
    a_new_driver_is_said_until_measured_again,
    a_row_that_does_not_count_says_why,
    a_calibration_of_which_nothing_counts_has_too_few_sizes_and_was_not_never_made,
    a_shared_line_shows_its_calibration_to_a_model_that_never_measured,
];

const GOOD: Platform = Platform { supported: true, generation_devices: 1, method_verified: true };

fn facts() -> Facts {
    Facts { platform: GOOD, store_readable: true, newest: Newest::Nothing, own: Own::Nothing }
}

/// A change of the facts and the state it leads to.
type Rung = (fn(&mut Facts), State);

/// One change that leads to each state, in the order of precedence.
fn ladder() -> Vec<Rung> {
    vec![
        (|f| f.platform.supported = false, State::Unsupported),
        (|f| f.platform.generation_devices = 0, State::NoGpu),
        (|f| f.platform.generation_devices = 2, State::ManyGenerationDevices { devices: 2 }),
        (
            |f| f.newest = Newest::Running { finished_runs: 3, planned_runs: 18 },
            State::Running { finished_runs: 3, planned_runs: 18 },
        ),
        (|f| f.newest = Newest::Failed { message: "no".into() }, State::Failed { message: "no".into() }),
        (
            |f| f.newest = Newest::Incomplete { finished_runs: 3, planned_runs: 18, stopped: true },
            State::Incomplete { finished_runs: 3, planned_runs: 18, stopped: true },
        ),
        (|f| f.own = Own::Fit { may_be_outdated: true }, State::MayBeOutdated),
        (|f| f.own = Own::Fit { may_be_outdated: false }, State::InUse),
        (|f| f.own = Own::TooFew { sizes: 2 }, State::TooFewSizes { sizes: 2 }),
        (|f| f.own = Own::ElsewhereOnly, State::NotUsed),
        (|_| {}, State::NeverCalibrated),
    ]
}

fn every_state_is_reached_and_the_first_that_holds_is_shown() {
    let ladder = ladder();
    for (rung, (change, expected)) in ladder.iter().enumerate() {
        let mut alone = facts();
        change(&mut alone);
        let shown = state(&alone);
        assert_eq!((&shown.state, shown.also.len()), (expected, 0));
        // Whatever comes later on the ladder and does not contradict it changes nothing.
        for (later, _) in &ladder[rung..] {
            let mut both = facts();
            later(&mut both);
            change(&mut both);
            assert_eq!(state(&both).state, *expected);
        }
    }
    let texts: std::collections::BTreeSet<String> = ladder.iter().map(|(_, state)| state.to_string()).collect();
    assert_eq!(texts.len(), 11, "two states read the same");
}

fn an_unreadable_store_and_an_unverified_method_stand_beside_other_states() {
    let shown = |change: fn(&mut Facts)| {
        let mut facts = facts();
        change(&mut facts);
        let shown = state(&facts);
        (shown.state, shown.also)
    };
    let unreadable: fn(&mut Facts) = |f| f.store_readable = false;
    assert_eq!(shown(unreadable), (State::StoreUnreadable, vec![]));
    // What cannot be read is known as that, not as a record with nothing in it.
    assert_eq!(state(&Facts::gather(None, &line(), MODEL, GOOD)).state, State::StoreUnreadable);
    let no_gpu: fn(&mut Facts) = |f| (f.store_readable, f.platform.generation_devices) = (false, 0);
    assert_eq!(shown(no_gpu), (State::NoGpu, vec![State::StoreUnreadable]));
    let unverified: fn(&mut Facts) = |f| f.platform.method_verified = false;
    assert_eq!(shown(unverified), (State::NeverCalibrated, vec![State::MethodNotVerified]));
    let in_use: fn(&mut Facts) = |f| {
        f.platform.method_verified = false;
        f.own = Own::Fit { may_be_outdated: false };
    };
    assert_eq!(shown(in_use), (State::InUse, vec![State::MethodNotVerified]));
    let both: fn(&mut Facts) = |f| (f.platform.method_verified, f.store_readable) = (false, false);
    assert_eq!(shown(both), (State::StoreUnreadable, vec![State::MethodNotVerified]));
}

fn shown_for(record: Record, model: &str) -> State {
    let knowledge = Knowledge::new(record, context(), soft("driver 1"));
    state(&Facts::gather(Some(&knowledge), &line(), model, GOOD)).state
}

/// A record of attempts in this order, each with windows of three sizes.
fn record(attempts: &[(&str, AttemptState)]) -> Record {
    let mut record = Record::empty(device());
    for (id, state) in attempts {
        let windows = windows(id, &straight(1_000));
        record.keep_attempt(Attempt { state: state.clone(), ..finished(id, &windows) });
        record.windows.extend(windows);
    }
    record
}

fn a_failure_is_shown_until_a_newer_attempt_succeeds() {
    let failed = || AttemptState::Failed { message: "the device is gone".into() };
    let cases = [
        (vec![("a", failed())], State::Failed { message: "the device is gone".into() }),
        (vec![("a", failed()), ("b", AttemptState::Finished)], State::InUse),
        (
            vec![("a", failed()), ("b", AttemptState::Stopped)],
            State::Incomplete { finished_runs: 9, planned_runs: 9, stopped: true },
        ),
        (vec![("a", AttemptState::Finished), ("b", failed())], State::Failed { message: "the device is gone".into() }),
    ];
    for (attempts, expected) in cases {
        assert_eq!(shown_for(record(&attempts), MODEL), expected);
    }
    // A model that shares the line is shown its calibration, not another model's failure.
    let attempts = [("a", AttemptState::Finished), ("b", failed())];
    assert_eq!(shown_for(record(&attempts), "model-b"), State::InUse);
    let mut runs = record(&[("a", failed())]);
    runs.keep_attempt(running("b", 9));
    runs.windows.push(crate::fixture::window("b", 0, 512, 1 << 30));
    assert_eq!(shown_for(runs, MODEL), State::Running { finished_runs: 0, planned_runs: 9 });
}

fn results_of_other_environments_do_not_colour_the_state() {
    let failed = || AttemptState::Failed { message: "no".into() };
    let mut elsewhere = record(&[("a", AttemptState::Finished), ("b", failed())]);
    for attempt in &mut elsewhere.attempts {
        attempt.environment.hard.framework = "framework 1".into();
    }
    for window in &mut elsewhere.windows {
        window.environment.hard.framework = "framework 1".into();
    }
    assert_eq!(shown_for(elsewhere.clone(), MODEL), State::NotUsed);

    let now = record(&[("c", AttemptState::Finished)]);
    elsewhere.windows.extend(now.windows);
    now.attempts.into_iter().for_each(|attempt| elsewhere.keep_attempt(attempt));
    assert_eq!(shown_for(elsewhere, MODEL), State::InUse);

    let mut superseded = record(&[("a", failed())]);
    superseded.windows.iter_mut().for_each(|window| window.line.estimator_version = 1);
    assert_eq!(shown_for(superseded, MODEL), State::NeverCalibrated);
}

fn a_new_driver_is_said_until_measured_again() {
    let mut record = record(&[("a", AttemptState::Finished)]);
    record.windows.iter_mut().for_each(|window| window.environment.soft = soft("driver 0"));
    assert_eq!(shown_for(record.clone(), MODEL), State::MayBeOutdated);
    let again = windows("b", &straight(1_000));
    record.keep_attempt(finished("b", &again));
    record.windows.extend(again);
    assert_eq!(shown_for(record, MODEL), State::InUse);
}

fn a_row_that_does_not_count_says_why() {
    let mut record = record(&[("a", AttemptState::Finished)]);
    for window in &mut record.windows[6..] {
        window.measurement.validity = Validity::Invalid(InvalidReason::OutOfMemory);
    }
    let knowledge = Knowledge::new(record, context(), soft("driver 1"));
    let summary = summarize_line(&knowledge, &line(), MODEL, GOOD, &BuiltIns::default());
    assert_eq!(summary.shown.state, State::TooFewSizes { sizes: 2 });
    let rows: Vec<_> = summary.sizes.iter().map(|row| (row.size.as_str(), row.counted)).collect();
    assert_eq!(rows, [("512x512", true), ("768x768", true), ("1024x1024", false)]);
    assert_eq!(summary.sizes[2].excluded_reason.as_deref(), Some("out of memory"));
    assert_eq!(summary.sizes[0].excluded_reason, None);
    // The figure shown is that of the measured runs, never the warm-up's.
    let (_, demand_bytes) = straight(1_000)[0];
    assert_eq!(summary.sizes[0].measured_bytes, Some(demand_bytes));
    assert_eq!(summary.measured_by[0].windows, 4);
    assert_eq!(summary.own_windows, 9);
}

fn a_calibration_of_which_nothing_counts_has_too_few_sizes_and_was_not_never_made() {
    let spoilt = |state: AttemptState| {
        let mut record = record(&[("a", state)]);
        for window in &mut record.windows {
            window.measurement.validity = Validity::Invalid(InvalidReason::ForeignLockDuring);
        }
        record
    };
    assert_eq!(shown_for(spoilt(AttemptState::Finished), MODEL), State::TooFewSizes { sizes: 0 });
    // One that ended otherwise is somebody's own news, and none of a model that shares the line.
    assert_eq!(shown_for(spoilt(AttemptState::Stopped), "model-b"), State::NeverCalibrated);
    let mut elsewhere = spoilt(AttemptState::Finished);
    elsewhere.windows.iter_mut().for_each(|window| window.environment.hard.framework = "framework 1".into());
    assert_eq!(shown_for(elsewhere, MODEL), State::NeverCalibrated);
}

fn a_shared_line_shows_its_calibration_to_a_model_that_never_measured() {
    let knowledge = Knowledge::new(record(&[("a", AttemptState::Finished)]), context(), soft("driver 1"));
    let summary = summarize_line(&knowledge, &line(), "model-c", GOOD, &BuiltIns::default());
    assert_eq!((summary.own_windows, &summary.shown.state), (0, &State::InUse));
    let (_, demand_bytes) = straight(1_000)[0];
    let calibrated = summary.sizes[0].calibrated.unwrap();
    assert_eq!((calibrated.empirical_bytes, calibrated.source), (demand_bytes, headroom_base::Source::User));
    assert_eq!(summary.measured_by[0].model, MODEL);
}
