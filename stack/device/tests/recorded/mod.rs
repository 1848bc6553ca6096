//! The recordings as scripts and traces that can be replayed.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::PathBuf;

use headroom_base::GIB;
use headroom_device::Settings;
use headroom_device::allocator::RecordedSegment;
use headroom_device::driver::Address;
use headroom_device::replay::{RecordedCounters, Script, ScriptAction, ScriptStep, Trace, TraceAction, TraceEvent};
use headroom_reports::recordings::{self, Recording, Scenario, ScenarioAction, TraceRecording, TraceSegment};

/// The H200 they were recorded on has 143,155.9 MiB; no recording comes near it.
pub(crate) const DEVICE_BYTES: u64 = 139 * GIB;

pub(crate) fn recorded(name: &str) -> Vec<Recording> {
    // A test binary may run in a copy of the repository on another machine, from the copy's root.
    let built_at = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/h200");
    let folder = if built_at.is_dir() { built_at } else { PathBuf::from("tests/data/h200") };
    recordings::read(&folder.join(name)).unwrap()
}

pub(crate) fn scripts(name: &str) -> Vec<Script> {
    recorded(name)
        .into_iter()
        .map(|recording| match recording {
            Recording::Scenario(scenario) => script(&scenario),
            Recording::Trace(_) => panic!("{name} holds a trace"),
        })
        .collect()
}

pub(crate) fn trace_recordings(name: &str) -> Vec<TraceRecording> {
    recorded(name)
        .into_iter()
        .map(|recording| match recording {
            Recording::Trace(recording) => *recording,
            Recording::Scenario(_) => panic!("{name} holds a scenario"),
        })
        .collect()
}

pub(crate) fn script(scenario: &Scenario) -> Script {
    let steps = scenario.steps.iter().map(|step| {
        let action = match step.action {
            ScenarioAction::Alloc { id, bytes, succeeded, address } => {
                let address = address.filter(|_| succeeded).map(Address);
                ScriptAction::Allocate { id, bytes, address }
            }
            ScenarioAction::Free { id } => ScriptAction::Free { id },
            ScenarioAction::EmptyCache => ScriptAction::EmptyCache,
            ScenarioAction::FreeAll => ScriptAction::FreeAll,
        };
        let counters = RecordedCounters::read(|name| scenario.counter(step, name).ok_or(name)).unwrap();
        ScriptStep { action, counters }
    });
    Script {
        settings: Settings::parse("allocator_conf", &scenario.allocator_conf).unwrap(),
        limit_bytes: scenario.limit_bytes,
        segments: scenario.new_segments.iter().map(|&(address, bytes)| (Address(address), bytes)).collect(),
        steps: steps.collect(),
    }
}

pub(crate) fn trace(recording: &TraceRecording) -> Trace {
    let events = recording.events.iter().map(|(word, address, bytes)| TraceEvent {
        action: TraceAction::of_word(word),
        address: Address(*address),
        bytes: *bytes,
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

pub(crate) fn segment(segment: &TraceSegment) -> RecordedSegment {
    let blocks = segment.blocks.iter().map(|block| (block.bytes, block.requested_bytes, block.state.as_str()));
    RecordedSegment::of_words(Address(segment.address), &segment.segment_type, segment.is_expandable, blocks)
}
