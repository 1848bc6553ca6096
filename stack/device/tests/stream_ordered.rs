//! The bound for the stream-ordered pool against every recorded window whose requests were recorded too.

#![allow(clippy::print_stdout, reason = "how far the bound lies above what was recorded is part of the result")]

mod recorded;

use std::collections::BTreeMap;
use std::path::PathBuf;

use headroom_base::{AllocatorKind, Bytes};
use headroom_device::Settings;
use headroom_device::replay::{Requests, run_requests};
use headroom_reports::recordings::TraceRecording;
use recorded::{DEVICE_BYTES, trace, trace_recordings};
use serde_json::Value;

/// The fields that say which operation was run. Weights and activations of the two half formats have the same sizes.
fn case(of: impl Fn(&str) -> Option<Value>) -> String {
    let names = ["family", "operation", "dtype", "width", "height", "frames", "batch", "tokens", "options"];
    let texts = names.map(|name| match (name, of(name)) {
        ("dtype", Some(Value::String(dtype))) => if dtype == "fp32" { "single" } else { "half" }.to_owned(),
        ("frames" | "batch", None | Some(Value::Null)) => "1".to_owned(),
        (_, None | Some(Value::Null)) => String::new(),
        (_, Some(Value::Object(options))) if options.is_empty() => String::new(),
        (_, Some(value)) => value.to_string(),
    });
    texts.join(" ")
}

/// The allocated and reserved peaks of every window of this backend, by case.
fn recorded_peaks() -> BTreeMap<String, Vec<(u64, u64)>> {
    let mut peaks: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
    for name in ["windows.jsonl", "windows-options.jsonl"] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/h200").join(name);
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let window: Value = serde_json::from_str(line).unwrap();
            if window["allocator"] == "cuda_malloc_async" {
                let peak = |name: &str| window[name].as_u64().unwrap();
                let both = (peak("allocated_peak_delta"), peak("reserved_peak_delta"));
                peaks.entry(case(|name| window.get(name).cloned())).or_default().push(both);
            }
        }
    }
    peaks
}

fn case_of(recording: &TraceRecording) -> String {
    case(|name| recording.field(name))
}

#[test]
fn no_recorded_peak_exceeds_the_bound_which_at_the_median_is_within_a_fifth_of_them() {
    let peaks = recorded_peaks();
    let mut excesses = Vec::new();
    for name in ["trace-native.jsonl.gz", "trace-held-out-native.jsonl.gz"] {
        for recording in trace_recordings(name) {
            let case = case_of(&recording);
            let Some(recorded) = peaks.get(&case) else { continue };
            let requests = Requests::from(&trace(&recording));
            let settings = Settings::of_kind(AllocatorKind::CudaMallocAsync);
            let run = run_requests(&requests, &settings, DEVICE_BYTES).unwrap();
            let bound = run.reserved_peak_delta_bytes();
            let (_, least) = *recorded.iter().min_by_key(|(_, reserved)| reserved).unwrap();
            let (_, most) = *recorded.iter().max_by_key(|(_, reserved)| reserved).unwrap();
            let allocated = run.allocated_peak_delta_bytes();
            assert!(recorded.iter().any(|&(recorded, _)| recorded == allocated), "{case}: {allocated} allocated");
            // An operation that fits into what weights left free reserves nothing: the bound is to say so as well.
            let excess = if most == 0 { 1.0 + bound as f64 } else { bound as f64 / most as f64 };
            println!("{case}: bound {}, recorded {} to {}, {excess:.3}", Bytes(bound), Bytes(least), Bytes(most));
            assert!(bound >= most, "{case}: {bound} is under {most}");
            excesses.push(excess);
        }
    }
    excesses.sort_by(f64::total_cmp);
    let median = excesses[excesses.len() / 2];
    println!("{} cases, median {median:.3} times the largest recorded peak", excesses.len());
    assert!(excesses.len() >= 18, "only {} cases were compared", excesses.len());
    assert!(median <= 1.2, "the median is {median}");
}
