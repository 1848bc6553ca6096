//! Every recording of PyTorch's allocator, run through this one: figure by figure, event by event.

use std::path::PathBuf;

use headroom_base::{AllocatorKind, GIB};
use headroom_device::Settings;
use headroom_device::allocator::{EventKind, PoolKind, RecordedBlock, RecordedSegment};
use headroom_device::driver::Address;
use headroom_device::replay::{
    Comparison, Difference, Figure, RecordedCounters, Script, ScriptAction, ScriptStep, Trace, TraceAction, TraceEvent,
    replay_script, replay_trace,
};
use headroom_reports::recordings::{self, Recording, Scenario, ScenarioAction, TraceRecording, TraceSegment};

/// The H200 they were recorded on has 143,155.9 MiB; no recording comes near it.
const DEVICE_BYTES: u64 = 139 * GIB;

fn recorded(name: &str) -> Vec<Recording> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/h200").join(name);
    recordings::read(&path).unwrap()
}

fn scripts(name: &str) -> Vec<Script> {
    recorded(name)
        .into_iter()
        .map(|recording| match recording {
            Recording::Scenario(scenario) => script(&scenario),
            Recording::Trace(_) => panic!("{name} holds a trace"),
        })
        .collect()
}

fn script(scenario: &Scenario) -> Script {
    let steps = scenario.steps.iter().map(|step| {
        let counter = |name| scenario.counter(step, name).unwrap();
        let action = match step.action {
            ScenarioAction::Alloc { id, bytes, succeeded, address } => {
                let address = address.filter(|_| succeeded).map(Address);
                ScriptAction::Allocate { id, bytes, address }
            }
            ScenarioAction::Free { id } => ScriptAction::Free { id },
            ScenarioAction::EmptyCache => ScriptAction::EmptyCache,
            ScenarioAction::FreeAll => ScriptAction::FreeAll,
        };
        let counters = RecordedCounters {
            allocated: counter("allocated"),
            reserved: counter("reserved"),
            inactive_split: counter("inactive_split"),
            active: counter("active"),
            requested: counter("requested"),
            segments: counter("segments"),
            num_alloc_retries: counter("retries"),
            num_ooms: counter("ooms"),
        };
        ScriptStep { action, counters }
    });
    Script {
        settings: Settings::parse("allocator_conf", &scenario.allocator_conf).unwrap(),
        limit_bytes: scenario.limit_bytes,
        segments: scenario.new_segments.iter().map(|&(address, bytes)| (Address(address), bytes)).collect(),
        steps: steps.collect(),
    }
}

fn trace(recording: &TraceRecording) -> Trace {
    let events = recording.events.iter().map(|(action, address, bytes)| {
        let action = match action.as_str() {
            "alloc" => TraceAction::Alloc,
            "free_requested" => TraceAction::FreeRequested,
            "free_completed" => TraceAction::FreeCompleted,
            "segment_alloc" => TraceAction::Segment(EventKind::SegmentAlloc),
            "segment_free" => TraceAction::Segment(EventKind::SegmentFree),
            "segment_map" => TraceAction::Segment(EventKind::SegmentMap),
            "segment_unmap" => TraceAction::Segment(EventKind::SegmentUnmap),
            "oom" => TraceAction::OutOfMemory,
            _ => TraceAction::Other,
        };
        TraceEvent { action, address: Address(*address), bytes: *bytes }
    });
    let after = recording.after;
    Trace {
        settings: Settings::of_kind(recording.allocator),
        limit_bytes: None,
        start: recording.start.iter().map(segment).collect(),
        events: events.collect(),
        after: RecordedCounters {
            allocated: after.allocated,
            reserved: after.reserved,
            inactive_split: after.inactive_split,
            active: after.active,
            requested: after.requested,
            segments: after.segments,
            num_alloc_retries: after.retries,
            num_ooms: after.ooms,
        },
        peak_allocated: after.peak_allocated,
        peak_reserved: after.peak_reserved,
        peak_active: after.peak_active,
    }
}

fn segment(segment: &TraceSegment) -> RecordedSegment {
    let blocks = segment.blocks.iter().map(|block| RecordedBlock {
        bytes: block.bytes,
        requested_bytes: (block.state != "inactive").then_some(block.requested_bytes),
    });
    RecordedSegment {
        address: Address(segment.address),
        pool: if segment.segment_type == "small" { PoolKind::Small } else { PoolKind::Large },
        is_expandable: segment.is_expandable,
        blocks: blocks.collect(),
    }
}

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
    let recordings = recorded(name);
    assert_eq!(recordings.len(), 5);
    for recording in recordings {
        let Recording::Trace(recording) = recording else { panic!("{name} holds a scenario") };
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
fn expandable_traces_equal_in_every_address_the_end_state_and_the_peaks() {
    assert_traces_exact("trace-expandable.jsonl.gz");
}

#[test]
fn the_state_a_trace_begins_in_has_the_recorded_counters() {
    for name in ["trace-native.jsonl.gz", "trace-expandable.jsonl.gz"] {
        for recording in recorded(name) {
            let Recording::Trace(mut recording) = recording else { panic!("{name} holds a scenario") };
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
