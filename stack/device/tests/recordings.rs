//! Every recording of PyTorch's allocator, run through this one: figure by figure, event by event.

#![allow(clippy::print_stdout, reason = "what was compared, and how much of it was equal, is part of the result")]

mod recorded;

use headroom_base::AllocatorKind;
use headroom_device::Settings;
use headroom_device::replay::{Comparison, Difference, Figure, replay_script, replay_trace};
use recorded::{DEVICE_BYTES, scripts, trace, trace_recordings};

fn assert_exact(name: &str, comparison: Comparison) {
    println!("{name}: {comparison:?}");
    assert!(comparison.is_exact(), "{name}: {comparison:?}");
}

fn assert_scripts_exact(name: &str, least_compared: u64) {
    let mut total = 0;
    for (index, script) in scripts(name).iter().enumerate() {
        let comparison = replay_script(script, DEVICE_BYTES);
        assert_exact(&format!("{name} script {index}, {} steps", script.steps.len()), comparison);
        total += comparison.compared;
    }
    println!("{name}: {total} figures, all equal");
    assert!(total >= least_compared, "{name} holds only {total} figures");
}

#[test]
fn native_scripts_equal_in_every_counter_after_every_step() {
    assert_scripts_exact("scenario-native.jsonl.gz", 4 * 1500 * 8);
}

#[test]
fn scripts_with_a_split_limit_equal_in_every_counter_and_address() {
    assert_scripts_exact("scenario-split128.jsonl.gz", 3 * 700 * 8 + 1000);
}

#[test]
fn scripts_with_power_of_two_rounding_equal_in_every_counter_and_address() {
    assert_scripts_exact("scenario-pow2.jsonl.gz", 3 * 700 * 8 + 1000);
}

#[test]
fn scripts_with_garbage_collection_equal_in_every_counter_and_address() {
    assert_scripts_exact("scenario-gc.jsonl.gz", 3 * 700 * 8 + 1000);
}

#[test]
fn expandable_scripts_equal_in_every_counter_after_every_step() {
    assert_scripts_exact("scenario-expandable.jsonl.gz", 4 * 1500 * 8);
}

fn assert_traces_exact(name: &str) {
    let recordings = trace_recordings(name);
    assert!(recordings.len() >= 5);
    for recording in recordings {
        let what = format!("{name} {} {}, {} events", recording.family, recording.operation, recording.events.len());
        let comparison = replay_trace(&trace(&recording), DEVICE_BYTES).unwrap();
        assert_exact(&what, comparison.figures);
        assert_exact(&format!("{what}, segment events"), comparison.segment_events);
    }
}

#[test]
fn native_traces_equal_in_every_address_the_end_state_and_the_peaks() {
    assert_traces_exact("trace-native.jsonl.gz");
}

#[test]
fn native_traces_held_out_equal_as_well() {
    assert_traces_exact("trace-held-out-native.jsonl.gz");
}

#[test]
fn expandable_traces_equal_in_every_address_the_end_state_and_the_peaks() {
    assert_traces_exact("trace-expandable.jsonl.gz");
}

#[test]
fn the_state_a_trace_begins_in_has_the_recorded_counters() {
    for name in ["trace-native.jsonl.gz", "trace-expandable.jsonl.gz"] {
        for mut recording in trace_recordings(name) {
            recording.events.clear();
            recording.after = recording.before;
            let comparison = replay_trace(&trace(&recording), DEVICE_BYTES).unwrap();
            assert_eq!(comparison.figures.first_difference, None, "{name} {}", recording.family);
        }
    }
}

#[test]
fn one_counter_flipped_in_a_recording_is_found_where_it_stands() {
    let mut scripts = scripts("scenario-native.jsonl.gz");
    let script = &mut scripts[0];
    let step = 777;
    script.steps[step].counters.inactive_split ^= 512;
    let recorded = script.steps[step].counters.inactive_split;
    let comparison = replay_script(script, DEVICE_BYTES);
    assert_eq!(comparison.equal, comparison.compared - 1);
    let replayed = Some(recorded ^ 512);
    let expected = Difference { step, figure: Figure::InactiveSplit, recorded: Some(recorded), replayed };
    assert_eq!(comparison.first_difference, Some(expected));
}

#[test]
fn a_script_under_another_setting_than_it_was_recorded_with_is_not_equal() {
    let mut scripts = scripts("scenario-native.jsonl.gz");
    scripts[0].settings = Settings::of_kind(AllocatorKind::ExpandableSegments);
    let comparison = replay_script(&scripts[0], DEVICE_BYTES);
    assert!(comparison.equal < comparison.compared);
    assert_eq!(comparison.first_difference.map(|difference| difference.step), Some(0));
}
