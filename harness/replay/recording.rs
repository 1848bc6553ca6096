//! Recordings of PyTorch's allocator, replayed on this one and compared figure by figure.

use headroom_base::GIB;
use headroom_device::Settings;
use headroom_device::allocator::{RecordedSegment, RecordedStateError, SettingsError};
use headroom_device::driver::Address;
use headroom_device::replay::{
    Comparison, Difference, RecordedCounters, Requests, Script, ScriptAction, ScriptStep, Trace, TraceAction,
    TraceEvent, replay_script, replay_trace,
};
use headroom_reports::recordings::{Recording, Scenario, ScenarioAction, TraceRecording, TraceSegment};
use serde::Serialize;

/// A device that no recording comes near: an H200 has more, in whole GiB.
const DEVICE_BYTES: u64 = 139 * GIB;

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Its setting is not one.
    #[error("recording {number}: {source}")]
    Setting {
        /// The recording, from 1.
        number: usize,
        /// Why.
        source: SettingsError,
    },
    /// A counter that is compared is not in it.
    #[error("recording {number}: `fields` lacks `{counter}`, which is compared after every step")]
    NoCounter {
        /// The recording, from 1.
        number: usize,
        /// The counter.
        counter: &'static str,
    },
    /// The state a trace begins in is not one.
    #[error("recording {number}: {source}")]
    State {
        /// The recording, from 1.
        number: usize,
        /// Why.
        source: RecordedStateError,
    },
}

/// Where the first difference is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FirstDifference {
    /// The recording of the file, from 1.
    pub recording: usize,
    /// What differs there.
    #[serde(flatten)]
    pub difference: Difference,
}

/// One recording of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// What was recorded, for people.
    pub name: String,
    /// How much was compared and equal.
    #[serde(flatten)]
    pub figures: Comparison,
    /// For traces, what was taken from and given back to the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment_events: Option<Comparison>,
}

/// All recordings of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileComparison {
    /// Figures compared: eight counters a step and every recorded address; of a trace the addresses, the counters at
    /// its end and the peaks.
    pub compared: u64,
    /// Figures equal.
    pub equal: u64,
    /// The first that was not.
    pub first_difference: Option<FirstDifference>,
    /// Each recording.
    pub recordings: Vec<Compared>,
}

impl FileComparison {
    /// Whether something was compared and all of it was equal.
    pub const fn is_exact(&self) -> bool {
        self.compared > 0 && self.compared == self.equal
    }
}

/// Replays every recording of a file.
///
/// # Errors
/// For a recording that lacks what a replay needs.
pub fn compare(recordings: &[Recording]) -> Result<FileComparison, ReplayError> {
    let mut all = FileComparison { compared: 0, equal: 0, first_difference: None, recordings: Vec::new() };
    for (index, recording) in recordings.iter().enumerate() {
        let compared = compare_one(recording, index + 1)?;
        all.compared += compared.figures.compared;
        all.equal += compared.figures.equal;
        all.first_difference = all.first_difference.or_else(|| {
            let difference = compared.figures.first_difference?;
            Some(FirstDifference { recording: index + 1, difference })
        });
        all.recordings.push(compared);
    }
    Ok(all)
}

fn compare_one(recording: &Recording, number: usize) -> Result<Compared, ReplayError> {
    match recording {
        Recording::Scenario(scenario) => {
            let conf = if scenario.allocator_conf.is_empty() { "defaults" } else { &scenario.allocator_conf };
            let name = format!("{} steps, seed {}, {conf}", scenario.steps.len(), scenario.seed);
            let figures = replay_script(&script(scenario, number)?, DEVICE_BYTES);
            Ok(Compared { name, figures, segment_events: None })
        }
        Recording::Trace(recording) => {
            let TraceRecording { family, operation, dtype, allocator, .. } = recording.as_ref();
            let name = format!("{} events, {family} {operation} {dtype}, {allocator}", recording.events.len());
            let compared = replay_trace(&trace(recording), DEVICE_BYTES)
                .map_err(|source| ReplayError::State { number, source })?;
            Ok(Compared { name, figures: compared.figures, segment_events: Some(compared.segment_events) })
        }
    }
}

/// The requests of a trace, to be run under other settings; none for a script, which was made to test the allocator.
pub fn requests_of(recording: &Recording) -> Option<Requests> {
    match recording {
        Recording::Scenario(_) => None,
        Recording::Trace(recording) => Some(Requests::from(&trace(recording))),
    }
}

fn script(scenario: &Scenario, number: usize) -> Result<Script, ReplayError> {
    let steps: Result<Vec<_>, _> = scenario
        .steps
        .iter()
        .map(|step| {
            let counter = |counter| scenario.counter(step, counter).ok_or(ReplayError::NoCounter { number, counter });
            let counters = RecordedCounters::read(counter)?;
            Ok(ScriptStep { action: script_action(step.action), counters })
        })
        .collect();
    Ok(Script {
        settings: Settings::parse("allocator_conf", &scenario.allocator_conf)
            .map_err(|source| ReplayError::Setting { number, source })?,
        limit_bytes: scenario.limit_bytes,
        segments: scenario.new_segments.iter().map(|&(address, bytes)| (Address(address), bytes)).collect(),
        steps: steps?,
    })
}

fn script_action(action: ScenarioAction) -> ScriptAction {
    match action {
        ScenarioAction::Alloc { id, bytes, succeeded, address } => {
            let address = address.filter(|_| succeeded).map(Address);
            ScriptAction::Allocate { id, bytes, address }
        }
        ScenarioAction::Free { id } => ScriptAction::Free { id },
        ScenarioAction::EmptyCache => ScriptAction::EmptyCache,
        ScenarioAction::FreeAll => ScriptAction::FreeAll,
    }
}

fn trace(recording: &TraceRecording) -> Trace {
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

fn segment(segment: &TraceSegment) -> RecordedSegment {
    let blocks = segment.blocks.iter().map(|block| (block.bytes, block.requested_bytes, block.state.as_str()));
    RecordedSegment::of_words(Address(segment.address), &segment.segment_type, segment.is_expandable, blocks)
}
