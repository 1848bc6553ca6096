//! Recorded windows are read whole, as windows of finished attempts, or refused with the place.

use std::collections::BTreeSet;

use crate::recorded::{import, recording};
use headroom_base::{
    AttentionKernel, Extent, InvalidReason, MIB, MemoryLayout, Operation, Origin, Reading, RunKind, Validity,
};
use headroom_calibration::AttemptState;
use headroom_reports::AttemptRecord;

crate::claims![
    every_line_of_the_recordings_is_a_window_of_a_finished_attempt,
    a_run_number_stands_once_in_its_attempt,
    the_recorded_sdxl_decode_keeps_its_figures,
    options_become_the_hard_environment_or_the_line,
    warm_server_attempts_say_so_and_others_do_not,
    a_line_that_is_no_window_is_refused_with_file_line_and_field,
    retries_and_negative_deltas_make_a_window_invalid_and_an_unknown_driver_is_not_zero,
    a_text_is_priced_by_its_tokens,
];

fn every_line_of_the_recordings_is_a_window_of_a_finished_attempt() {
    for (name, windows, attempts, measured) in
        [("windows.jsonl", 507, 49, 337), ("windows-options.jsonl", 225, 24, 150), ("warm-server.jsonl", 36, 6, 36)]
    {
        let imported = recording(name);
        assert_eq!(imported.windows.len(), windows, "{name}");
        assert_eq!(imported.attempts.len(), attempts, "{name}");
        assert_eq!(imported.devices.len(), 1, "{name}");
        assert_eq!(imported.devices[0].class.to_string(), "NVIDIA H200 140 GiB cuda");
        let count = imported.windows.iter().filter(|(window, _)| window.kind == RunKind::Measured).count();
        assert_eq!(count, measured, "{name}");
        let known: BTreeSet<_> = imported.attempts.iter().map(|record| &record.attempt.id).collect();
        for AttemptRecord { attempt, .. } in &imported.attempts {
            assert_eq!(attempt.state, AttemptState::Finished);
            let runs = imported.windows.iter().filter(|(window, _)| window.attempt_id.as_ref() == Some(&attempt.id));
            assert_eq!(runs.count(), attempt.planned_runs as usize, "{}", attempt.id);
            assert_eq!(attempt.finished_runs.len(), attempt.planned_runs as usize, "{}", attempt.id);
        }
        for (window, _) in &imported.windows {
            assert!(known.contains(window.attempt_id.as_ref().expect("an attempt")));
            assert_eq!(window.origin, Origin::Recorded);
            assert_eq!(window.measurement.validity, Validity::Valid);
        }
    }
}

fn a_run_number_stands_once_in_its_attempt() {
    let imported = recording("windows.jsonl");
    let runs: BTreeSet<_> = imported.windows.iter().map(|(window, _)| (&window.attempt_id, window.run)).collect();
    assert_eq!(runs.len(), imported.windows.len());
}

fn the_recorded_sdxl_decode_keeps_its_figures() {
    let imported = recording("windows.jsonl");
    let found: Vec<_> = imported
        .windows
        .iter()
        .map(|(window, _)| window)
        .filter(|window| {
            window.model == "sdxl"
                && window.kind == RunKind::Measured
                && window.case.to_string() == "vae_decode fp16 1024x1024"
                && window.environment.hard.allocator.name() == "native"
        })
        .collect();
    assert_eq!(found.len(), 2);
    for window in found {
        assert_eq!(window.measurement.deltas.allocated_peak_bytes / MIB, 2_434);
        assert_eq!(window.measurement.deltas.reserved_peak_bytes, 4_274 * MIB);
        assert_eq!(window.measurement.deltas.driver_bytes, Reading::Bytes(4_274 * MIB));
        assert_eq!(window.measurement.demand_bytes, 4_274 * MIB);
        assert_eq!(window.cost_units, 1024 * 1024 * 2);
        assert_eq!(window.environment.hard.framework, "torch 2.11.0+cu130");
    }
}

fn options_become_the_hard_environment_or_the_line() {
    let imported = recording("windows-options.jsonl");
    let windows = || imported.windows.iter().map(|(window, _)| window);
    let hard = |window: &headroom_base::Window| window.environment.hard.clone();
    assert_eq!(windows().filter(|w| hard(w).convolution_benchmark).count(), 27);
    assert_eq!(windows().filter(|w| hard(w).attention == AttentionKernel::Math).count(), 27);
    assert_eq!(windows().filter(|w| hard(w).memory_layout == MemoryLayout::ChannelsLast).count(), 36);
    let tiled: Vec<_> = windows().filter(|w| w.case.tiling.is_some()).collect();
    assert_eq!(tiled.len(), 99);
    assert!(tiled.iter().all(|w| w.case.tiling == w.line.tiling && w.case.tiling.unwrap().overlap_percent == 25));
    assert_eq!(windows().filter(|w| w.case.batch == 2).count(), 18);
}

fn warm_server_attempts_say_so_and_others_do_not() {
    assert!(recording("warm-server.jsonl").attempts.iter().all(|attempt| attempt.note.is_some()));
    assert!(recording("windows.jsonl").attempts.iter().all(|attempt| attempt.note.is_none()));
}

const LINE: &str = r#"{"family": "sdxl", "operation": "vae_decode", "dtype": "fp16", "width": 512, "height": 512, "frames": 1, "batch": 1, "tokens": null, "allocator": "native", "kind": "measured", "run": 1, "weights_bytes": 1, "baseline_allocated": 1, "baseline_reserved": 1, "allocated_peak_delta": 10, "reserved_peak_delta": 20, "driver_delta": 30, "retries": 0, "seconds": 0.1, "device": "NVIDIA H200", "backend": "cuda", "framework": "torch 2.11.0+cu130", "library": "x", "driver": "580"}"#;

fn a_line_that_is_no_window_is_refused_with_file_line_and_field() {
    let cases = [
        (r#""dtype": "fp16""#, r#""dtype": "fp8""#, "dtype"),
        (r#""batch": 1"#, r#""batch": "one""#, "batch"),
        (r#""width": 512"#, r#""width": null"#, "width"),
        (r#""retries": 0"#, r#""retries": -1"#, "retries"),
        (r#""allocator": "native""#, r#""allocator": "jemalloc""#, "allocator"),
        (r#""device": "NVIDIA H200""#, r#""device": "NVIDIA H20""#, "device"),
        (r#""family": "sdxl""#, r#""family": "sdx""#, "family"),
        (r#""batch": 1"#, r#""batch": 1, "options": {"tile": 256}"#, "options.overlap"),
        (r#""batch": 1"#, r#""batch": 1, "options": {"tile": 256, "overlap": 1.5}"#, "options.overlap"),
        (r#""batch": 1"#, r#""batch": 1, "options": {"flash": true}"#, "flash"),
        (r#""driver": "580"}"#, r#""driver": "580""#, "line 2"),
        (r#""reserved_peak_delta": 20,"#, "", "reserved_peak_delta"),
    ];
    for (right, wrong, named) in cases {
        assert!(LINE.contains(right), "{right}");
        let text = format!("{LINE}\n{}\n", LINE.replacen(right, wrong, 1));
        let error = import("broken.jsonl", &text).expect_err(wrong).to_string();
        assert!(error.contains("broken.jsonl, line 2") && error.contains(named), "{error}");
    }
}

fn retries_and_negative_deltas_make_a_window_invalid_and_an_unknown_driver_is_not_zero() {
    let of = |right: &str, wrong: &str| {
        let imported = import("odd.jsonl", &LINE.replacen(right, wrong, 1)).expect("a window");
        imported.windows[0].0.measurement.clone()
    };
    let retried = of(r#""retries": 0"#, r#""retries": 3"#);
    assert_eq!(retried.validity, Validity::Invalid(InvalidReason::AllocatorRetry { retries: 3 }));
    let negative = of(r#""driver_delta": 30"#, r#""driver_delta": -30"#);
    assert_eq!(negative.validity, Validity::Invalid(InvalidReason::NegativeDelta { quantity: "driver".into() }));
    assert_eq!(negative.deltas.driver_bytes, Reading::Unknown);
    let unknown = of(r#""driver_delta": 30"#, r#""driver_delta": null"#);
    assert_eq!((unknown.deltas.driver_bytes, unknown.demand_bytes), (Reading::Unknown, 20));
}

fn a_text_is_priced_by_its_tokens() {
    let imported = recording("windows.jsonl");
    let texts: Vec<_> = imported.windows.iter().filter(|(w, _)| w.case.operation == Operation::TextEncode).collect();
    assert!(!texts.is_empty());
    for (window, _) in texts {
        let Extent::Text { tokens } = window.case.extent else { panic!("{}", window.case) };
        assert_eq!(window.cost_units, u64::from(tokens) * u64::from(window.case.batch));
    }
}
