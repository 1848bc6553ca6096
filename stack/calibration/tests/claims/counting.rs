//! A window counts or keeps the reason why not, and the reason is the one a person needs.

use headroom_base::{AllocatorKind, AttentionKernel, Bytes, InvalidReason, MIB, Residency, RunKind, Validity, Window};
use headroom_calibration::{Attempt, AttemptState, UserFits, count};

use crate::fixture::{context, finished, line, soft, straight, units, window, windows};

crate::claims![
    every_reason_is_kept_with_a_text,
    what_is_wrong_with_a_window_itself_is_said_first,
    several_finished_attempts_are_fitted_together,
    a_new_driver_marks_a_fit_until_a_newer_attempt_counts,
    another_estimator_version_joins_no_line,
    a_partly_resident_or_invalid_window_joins_no_fit,
    a_window_in_room_left_by_others_does_not_count_and_one_in_its_own_weights_does,
];

fn changed(change: impl FnOnce(&mut Window)) -> Window {
    let mut window = window("a", 1, 512, 1 << 30);
    change(&mut window);
    window
}

fn reason(window: Window, state: AttemptState) -> Option<String> {
    let attempt = Attempt { state, finished_runs: [0, 1].into(), planned_runs: 18, ..finished("a", &[]) };
    count(&[window], &[attempt], &context())[0].reason().map(ToString::to_string)
}

fn every_reason_is_kept_with_a_text() {
    use AttemptState::{Failed, Finished, Incomplete, Running, Stopped};
    let same = || changed(|_| {});
    let invalid = |why| changed(|w| w.measurement.validity = Validity::Invalid(why));
    let cases = [
        (same(), Finished, None),
        (changed(|w| w.kind = RunKind::Warmup), Finished, Some("warm-up run")),
        (invalid(InvalidReason::ForeignLockDuring), Finished, Some("another lock came while it ran")),
        (invalid(InvalidReason::AllocatorRetry { retries: 2 }), Finished, Some("the allocator retried 2 times")),
        (invalid(InvalidReason::Oversubscribed), Finished, Some("it needed more than the device has")),
        (
            invalid(InvalidReason::Overlapped),
            Finished,
            Some("it overlapped another operation of its step, and whose memory is whose cannot be told"),
        ),
        (
            changed(|w| w.measurement.residency = Residency::Partial { missing_bytes: 3 << 20 }),
            Finished,
            Some("3 MiB of the model were not on the device"),
        ),
        (changed(|w| w.attempt_id = None), Finished, Some("it belongs to no calibration")),
        (
            changed(|w| w.attempt_id = Some(headroom_base::AttemptId("b".into()))),
            Finished,
            Some("its calibration b is not known here"),
        ),
        (same(), Running, Some("its calibration has not finished")),
        (same(), Stopped, Some("its calibration was stopped")),
        (same(), Failed { message: "no".into() }, Some("its calibration failed: no")),
        (same(), Incomplete, Some("its calibration broke off after 2 of 18 runs")),
        (changed(|w| w.device.total_gib = 24), Finished, Some("measured on Card 24 GiB cuda")),
        (
            changed(|w| w.environment.hard.allocator = AllocatorKind::ExpandableSegments),
            Finished,
            Some("measured with other software: allocator expandable_segments, now native"),
        ),
        (
            changed(|w| {
                w.environment.hard.attention = AttentionKernel::Math;
                w.environment.hard.allocator_settings = "max_split_size_mb:128".into();
            }),
            Finished,
            Some(
                "measured with other software: allocator settings max_split_size_mb:128, now default; \
                 attention math, now fused",
            ),
        ),
        (changed(|w| w.environment.soft = soft("driver 9")), Finished, None),
        (changed(|w| w.line.estimator_version = 1), Finished, Some("priced by version 1 of its estimator, now 2")),
        (
            changed(|w| w.line.estimator = "gone".into()),
            Finished,
            Some("priced by version 2 of an estimator that this program does not have"),
        ),
    ];
    for (window, state, expected) in cases {
        assert_eq!(reason(window, state).as_deref(), expected);
    }
}

fn what_is_wrong_with_a_window_itself_is_said_first() {
    let warm_up = changed(|w| {
        w.kind = RunKind::Warmup;
        w.environment.hard.framework = "framework 1".into();
    });
    assert_eq!(reason(warm_up, AttemptState::Stopped).as_deref(), Some("warm-up run"));
    let elsewhere = changed(|w| w.environment.hard.framework = "framework 1".into());
    assert_eq!(reason(elsewhere, AttemptState::Stopped).as_deref(), Some("its calibration was stopped"));
}

fn several_finished_attempts_are_fitted_together() {
    let (first, second) = (windows("a", &straight(1_000)[..2]), windows("b", &straight(1_000)[2..]));
    let attempts = [finished("a", &first), finished("b", &second)];
    let alone = UserFits::of(&first, &attempts, &context(), &soft("driver 1"));
    assert_eq!(
        alone.why_not(&line()).unwrap().to_string(),
        "too few sizes: 2 of the 3 that a line needs; measure another size"
    );
    let together = UserFits::of(&[first, second].concat(), &attempts, &context(), &soft("driver 1"));
    let fit = &together.get(&line()).unwrap().fit;
    assert_eq!((fit.sizes, fit.windows, fit.coefficients.bytes_at(units(2048))), (3, 6, units(2048) * 1_000));
}

fn a_new_driver_marks_a_fit_until_a_newer_attempt_counts() {
    let old = windows("old", &straight(1_000));
    let outdated = |attempts: &[Attempt], windows: &[Window]| {
        UserFits::of(windows, attempts, &context(), &soft("driver 2")).get(&line()).unwrap().may_be_outdated
    };
    assert!(outdated(&[finished("old", &old)], &old));

    let mut new = windows("new", &straight(900)[..1]);
    new.iter_mut().for_each(|window| window.environment.soft = soft("driver 2"));
    let all = [old.clone(), new.clone()].concat();
    let attempts = [finished("old", &old), finished("new", &new)];
    assert!(!outdated(&attempts, &all), "measured again and still marked");

    // An attempt of now that does not count clears nothing.
    let stopped = [attempts[0].clone(), Attempt { state: AttemptState::Stopped, ..attempts[1].clone() }];
    assert!(outdated(&stopped, &all));

    // A driver that was not recorded may be any.
    let mut unrecorded = old.clone();
    unrecorded.iter_mut().for_each(|window| window.environment.soft = soft(""));
    assert!(outdated(&[finished("old", &unrecorded)], &unrecorded));
}

fn another_estimator_version_joins_no_line() {
    let mut old = windows("old", &straight(5_000));
    old.iter_mut().for_each(|window| window.line.estimator_version = 1);
    let new = windows("new", &straight(1_000));
    let attempts = [finished("old", &old), finished("new", &new)];
    let fits = UserFits::of(&[old.clone(), new].concat(), &attempts, &context(), &soft("driver 1"));
    assert_eq!(fits.lines().count(), 1);
    assert!(fits.get(&old[0].line).is_none());
    assert_eq!(fits.get(&line()).unwrap().fit.windows, 6);
}

fn a_partly_resident_or_invalid_window_joins_no_fit() {
    let clean = windows("a", &straight(1_000));
    let attempts = [finished("a", &clean)];
    let line_of = |windows: &[Window]| {
        UserFits::of(windows, &attempts, &context(), &soft("driver 1")).get(&line()).unwrap().fit.coefficients
    };
    let spoils: [fn(&mut Window); 2] = [
        |window| window.measurement.residency = Residency::Partial { missing_bytes: 1 },
        |window| window.measurement.validity = Validity::Invalid(InvalidReason::ForeignLockAtOpen),
    ];
    for spoil in spoils {
        let mut spoiled = clean.clone();
        spoiled[8].measurement.demand_bytes *= 3;
        spoil(&mut spoiled[8]);
        assert_eq!(line_of(&spoiled), line_of(&clean));
    }
}

/// Of 1 GiB allocated, so much was found in segments that were there before: two steps or the margin are usual.
fn a_window_in_room_left_by_others_does_not_count_and_one_in_its_own_weights_does() {
    let cases = [
        (1024, 0, false),
        (1024, 20, false),
        (1024, 51, false),
        (1024, 52, true),
        (1024, 1024, true),
        (100, 40, false),
        (100, 41, true),
        (39, 39, false),
    ];
    for (allocated_mib, found_mib, left_out) in cases {
        let window = changed(|window| {
            let deltas = &mut window.measurement.deltas;
            deltas.allocated_peak_bytes = allocated_mib * MIB;
            deltas.reserved_peak_bytes = (allocated_mib - found_mib) * MIB;
        });
        let reason = reason(window, AttemptState::Finished);
        let text = format!("it ran in {} of room left by others", Bytes(found_mib * MIB));
        let is_left_out = reason.as_ref().is_some_and(|reason| reason.starts_with(&text));
        assert_eq!(is_left_out, left_out, "{} allocated: {reason:?}", Bytes(allocated_mib * MIB));
        assert_eq!(reason.is_some(), left_out, "{reason:?}");
    }
    // The driver's own pool leaves no room, and a window on it is told so of nothing but its allocator.
    let on_the_pool = changed(|window| {
        window.environment.hard.allocator = AllocatorKind::CudaMallocAsync;
        window.measurement.deltas.reserved_peak_bytes = 0;
    });
    let reason = reason(on_the_pool, AttemptState::Finished);
    assert!(reason.as_ref().is_some_and(|reason| !reason.contains("room")), "{reason:?}");
}
