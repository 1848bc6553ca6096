//! What single values say of themselves: beginnings and ends, texts, and the last byte on either side of a limit.

use headroom_base::{
    AllocatorKind, AttemptId, Capacity, Case, DType, Estimate, InvalidReason, LineKey, Measurement, Operation, Plan,
    PricedCase, RunKind, Source, Validity, Window,
};
use headroom_calibration::anchored::{PredictedPoint, PredictionTerms, anchor};
use headroom_calibration::cross_validation::HeldOut;
use headroom_calibration::{
    Attempt, AttemptState, Basis, BuiltIns, Coefficients, Facts, Knowledge, NegativeRemainder, Platform, Point, Record,
    RunningAttempt, ShippedLine, ShippedSize, State, Store, UnitRange, UserFits, built_in, fit, state, summarize_line,
};

use crate::fixture::{
    MIB, MODEL, context, device, environment, finished, hard, line, line_of, running, soft, straight, terms, units,
    window, windows,
};

crate::claims![
    an_attempt_begins_running_with_its_plan_and_nothing_finished,
    an_attempt_that_failed_says_why_and_when,
    every_way_to_find_a_shipped_line_reads_differently,
    the_compiled_in_lines_are_found_and_say_what_they_are_made_of,
    shipped_lines_name_what_was_left_out_of_them_and_lies_above,
    coefficients_are_shown_in_bytes_and_bytes_per_unit,
    a_prediction_is_near_within_two_growth_steps,
    what_is_reserved_to_the_byte_is_not_too_little,
    a_range_holds_both_its_ends_and_what_lies_between,
    a_demand_that_is_known_exactly_to_the_byte_is_no_contradiction,
    a_running_attempt_shows_its_windows_and_counts_its_tries,
    a_folder_that_is_not_there_holds_no_card,
    a_failure_on_one_line_is_not_shown_on_another,
    a_size_that_does_not_count_shows_what_its_measured_runs_needed,
    what_an_attempt_has_measured_so_far_takes_the_place_of_what_it_had,
    a_record_of_many_windows_is_crowded_and_one_at_the_limit_is_not,
    whatever_keeps_a_window_from_ever_counting_lets_it_be_dropped,
    a_writer_waits_for_another_that_ends_in_time,
];

/// A plan of one case, on a line.
fn plan_on(line: LineKey) -> Plan {
    let case = Case::image(line.operation, line.dtype, 512, 512);
    let estimate = Estimate::new(0, MIB, Source::BuiltIn);
    Plan::new(Capacity::new(terms()), vec![PricedCase { case, line, cost_units: units(512), estimate }], MIB, 0)
}

fn plan() -> Plan {
    plan_on(line())
}

fn an_attempt_begins_running_with_its_plan_and_nothing_finished() {
    let attempt = Attempt::begin(AttemptId("a".into()), MODEL, device(), environment(), plan());
    assert_eq!((&attempt.state, attempt.planned_runs), (&AttemptState::Running, 3));
    assert_eq!(attempt.plan, Some(plan()));
    assert!(attempt.finished_runs.is_empty());
    // A recorded one has no plan to show, and is done.
    let recorded = Attempt::recorded(AttemptId("r".into()), MODEL, device(), environment(), 2);
    assert_eq!((recorded.state, recorded.plan, recorded.finished_runs.len()), (AttemptState::Finished, None, 2));
}

fn an_attempt_that_failed_says_why_and_when() {
    let mut attempt = Attempt::begin(AttemptId("a".into()), MODEL, device(), environment(), plan());
    attempt.fail("the device is gone", 77).unwrap();
    assert_eq!(attempt.state, AttemptState::Failed { message: "the device is gone".into() });
    assert_eq!(attempt.ended_unix_seconds, Some(77));
}

fn every_way_to_find_a_shipped_line_reads_differently() {
    let texts = [Basis::SameEnvironment, Basis::SameAllocator, Basis::OtherAllocators].map(|basis| basis.to_string());
    let distinct: std::collections::BTreeSet<&String> = texts.iter().collect();
    assert!(distinct.len() == 3 && texts.iter().all(|text| text.contains("measured")), "{texts:?}");
}

fn the_compiled_in_lines_are_found_and_say_what_they_are_made_of() {
    let decode = LineKey {
        estimator: "autoencoder_kl".into(),
        estimator_version: 1,
        operation: Operation::VaeDecode,
        dtype: DType::Fp16,
        tiling: None,
        tokens: None,
    };
    let here = headroom_base::HardEnvironment { allocator: AllocatorKind::Native, ..hard() };
    let found = built_in(&here, &decode).expect("an SDXL decode is shipped");
    assert_eq!(BuiltIns::compiled_in().find(&here, &decode), Some(found.clone()));
    let lines: Vec<_> = found.lines().collect();
    assert!(!lines.is_empty() && lines.iter().all(|shipped| shipped.line == decode));
    let units = 1024 * 1024 * 2;
    let most = lines.iter().map(|shipped| shipped.coefficients.bytes_at(units)).max();
    assert_eq!(most, Some(found.estimate(units, 0).empirical_bytes));
    assert_eq!(built_in(&here, &line()), None, "a line that nobody shipped");
}

fn shipped_lines_name_what_was_left_out_of_them_and_lies_above() {
    let hard = hard();
    let size = |units, mebibytes: u64| ShippedSize {
        units,
        labels: vec![format!("{units}x1")],
        largest_remainder_bytes: mebibytes * MIB,
        windows: 1,
    };
    let line = ShippedLine {
        line: line(),
        environment: hard,
        coefficients: Coefficients::flat(100 * MIB),
        range: UnitRange { least_units: 1, largest_units: 9 },
        windows: 3,
        sizes: vec![size(1, 100)],
        left_out_above: vec![size(2, 126), size(3, 147), size(4, 110)],
        sources: Vec::new(),
    };
    assert_eq!(line.reserved_bytes(3), 105 * MIB);
    let (worst, share) = line.worst_left_out().unwrap();
    assert_eq!((worst.units, share), (3, 0.4));
    assert_eq!(ShippedLine { left_out_above: Vec::new(), ..line }.worst_left_out(), None);
}

fn coefficients_are_shown_in_bytes_and_bytes_per_unit() {
    let line = Coefficients::new(8 * u128::from(MIB), 12, 8).unwrap();
    assert_eq!(line.intercept_bytes(), MIB);
    assert_eq!(line.approximate_bytes_per_unit(), 1.5);
    assert_eq!(line.to_string(), "1 MiB + 1.500 bytes per unit");
}

/// Predictions of `bytes` at three sizes, each missed by `off`.
fn is_anchored(bytes: u64, off: u64) -> bool {
    let terms = PredictionTerms { step_bytes: 20 * MIB, is_upper_bound: false };
    let point = |units| PredictedPoint {
        point: Point { units, demand_bytes: bytes + off, analytic_bytes: 0 },
        predicted_bytes: bytes,
    };
    anchor(&[point(1), point(2), point(3)], terms).is_some()
}

fn a_prediction_is_near_within_two_growth_steps() {
    assert!(is_anchored(100 * MIB, 40 * MIB));
    assert!(!is_anchored(100 * MIB, 40 * MIB + 1));
    assert!(is_anchored(1_000 * MIB, 100 * MIB), "or within a tenth, where that is more");
}

fn what_is_reserved_to_the_byte_is_not_too_little() {
    let held_out = |reservation_bytes| HeldOut {
        line: "a line".into(),
        units: 1,
        demand_bytes: 1_000,
        reservation_bytes,
        inside: true,
    };
    assert!(held_out(999).is_under());
    assert!(!held_out(1_000).is_under());
}

fn a_range_holds_both_its_ends_and_what_lies_between() {
    let range = UnitRange { least_units: 10, largest_units: 20 };
    assert_eq!([9, 10, 15, 20, 21].map(|units| range.contains(units)), [false, true, true, true, false]);
}

fn a_demand_that_is_known_exactly_to_the_byte_is_no_contradiction() {
    let with = |demand_bytes| {
        let point = |units| Point { units, demand_bytes: 5_000, analytic_bytes: 1_000 };
        let odd = Point { units: 4, demand_bytes, analytic_bytes: 1_000 };
        fit(&[point(1), point(2), point(3), odd]).unwrap().negative_remainders
    };
    assert_eq!(with(1_000), []);
    assert_eq!(with(999), [NegativeRemainder { units: 4, short_bytes: 1 }]);
}

fn a_running_attempt_shows_its_windows_and_counts_its_tries() {
    let mut attempt = RunningAttempt::begin(running("a", 3), &UserFits::default()).unwrap();
    let first = window("a", 0, 512, MIB);
    attempt.run_finished(0, vec![first.clone()]).unwrap();
    assert_eq!(attempt.windows(), [first]);
    assert_eq!([attempt.retry(0), attempt.retry(0), attempt.retry(1)], [Ok(1), Ok(2), Ok(1)]);
    assert!(attempt.retry(3).is_err(), "a run that was never planned");
}

fn a_folder_that_is_not_there_holds_no_card() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(Store::open(folder.path().join("none")).devices().unwrap(), []);
    let file = folder.path().join("file");
    std::fs::write(&file, "no folder").unwrap();
    assert!(Store::open(file).devices().is_err());
}

/// Attempts read from a recording have no plan: what they measured says which lines they are about.
fn a_failure_on_one_line_is_not_shown_on_another() {
    let mut record = Record::empty(device());
    let other = line_of(Operation::VaeEncode);
    let measured = Window { line: other.clone(), ..window("a", 0, 512, MIB) };
    let failed = AttemptState::Failed { message: "no".into() };
    record.keep_attempt(Attempt { state: failed.clone(), ..finished("a", std::slice::from_ref(&measured)) });
    record.windows.push(measured);
    let knowledge = Knowledge::new(record, context(), soft("driver 1"));
    let platform = Platform { supported: true, generation_devices: 1, method_verified: true };
    let shown = |line| state(&Facts::gather(Some(&knowledge), line, MODEL, platform)).state;
    assert_eq!(shown(&other), State::Failed { message: "no".into() });
    assert_eq!(shown(&line()), State::NeverCalibrated);
    // One that has a plan is about the lines of its plan, measured or not.
    let mut record = Record::empty(device());
    let mut attempt = Attempt::begin(AttemptId("p".into()), MODEL, device(), environment(), plan_on(other.clone()));
    attempt.fail("no", 1).unwrap();
    record.keep_attempt(attempt);
    let knowledge = Knowledge::new(record, context(), soft("driver 1"));
    let shown = |line| state(&Facts::gather(Some(&knowledge), line, MODEL, platform)).state;
    assert_eq!(shown(&other), State::Failed { message: "no".into() });
    assert_eq!(shown(&line()), State::NeverCalibrated);
}

fn a_size_that_does_not_count_shows_what_its_measured_runs_needed() {
    let demands = straight(1_000);
    let measured = windows("a", &demands);
    let mut record = Record::empty(device());
    record.keep_attempt(Attempt { state: AttemptState::Stopped, ..finished("a", &measured) });
    record.windows = measured;
    let knowledge = Knowledge::new(record, context(), soft("driver 1"));
    let platform = Platform { supported: true, generation_devices: 1, method_verified: true };
    let summary = summarize_line(&knowledge, &line(), MODEL, platform, &BuiltIns::default());
    let shown: Vec<_> = summary.sizes.iter().map(|row| (row.counted, row.measured_bytes)).collect();
    // Warm-ups needed twice as much and are not what is shown.
    assert_eq!(shown, demands.map(|(_, bytes)| (false, Some(bytes))));
}

fn what_an_attempt_has_measured_so_far_takes_the_place_of_what_it_had() {
    let mut record = Record::empty(device());
    let other = window("b", 0, 512, MIB);
    record.windows.push(other.clone());
    let measured = [window("a", 0, 512, MIB), window("a", 1, 768, 2 * MIB)];
    record.begin_attempt(running("a", 3));
    for so_far in 1..=2 {
        record.keep_progress(running("a", 3), measured[..so_far].to_vec()).unwrap();
    }
    assert_eq!(record.windows, [other, measured[0].clone(), measured[1].clone()]);
    assert_eq!(record.attempts, [running("a", 3)]);
}

fn a_record_of_many_windows_is_crowded_and_one_at_the_limit_is_not() {
    let mut record = Record::empty(device());
    let many = headroom_calibration::store::MANY_WINDOWS;
    record.windows = vec![window("a", 0, 512, MIB); many];
    assert!(!record.is_crowded());
    record.windows.push(window("a", 0, 512, MIB));
    assert!(record.is_crowded());
}

fn whatever_keeps_a_window_from_ever_counting_lets_it_be_dropped() {
    let usual = window("a", 0, 512, MIB);
    let invalid = Validity::Invalid(InvalidReason::OutOfMemory);
    let dead = [
        Window { kind: RunKind::Warmup, ..usual.clone() },
        Window { measurement: Measurement { validity: invalid, ..usual.measurement.clone() }, ..usual.clone() },
        Window { attempt_id: None, ..usual.clone() },
        Window { attempt_id: Some(AttemptId("unknown".into())), ..usual.clone() },
        Window { line: LineKey { estimator_version: 1, ..line() }, ..usual.clone() },
    ];
    for window in dead {
        let mut record = Record::empty(device());
        record.keep_attempt(finished("a", std::slice::from_ref(&usual)));
        record.windows = vec![usual.clone(), window];
        assert_eq!(record.thin(0, &context().versions), 1);
        assert_eq!(record.windows, std::slice::from_ref(&usual));
    }
}

fn a_writer_waits_for_another_that_ends_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let (holds, held) = std::sync::mpsc::channel();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let slow = |record: &mut Record| {
                holds.send(()).unwrap();
                // Long enough for the other one to find the lock held; if it does not, nothing is shown or broken.
                std::thread::sleep(std::time::Duration::from_millis(50));
                record.note_retained(1);
            };
            Store::open(folder.path()).update(&device(), slow).unwrap();
        });
        held.recv().unwrap();
        Store::open(folder.path()).update(&device(), |record| record.note_retained(2)).unwrap();
    });
    assert_eq!(Store::open(folder.path()).read(&device()).unwrap().retained_bytes, Some(2));
}
