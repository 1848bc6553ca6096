//! A memory snapshot explained: its peaks, what was stranded and by whom, and what other settings would have done.

use headroom_device::replay::{Request, Requests};
use headroom_reports::snapshot::{Frame, Peaks, Pin, RequestStep, Snapshot, Stranded, StrandedSegment};
use serde::Serialize;

use super::settings::NamedSetting;
use super::what_if::{Terms, WhatIf, what_if_all};

/// How far a replay under the recorded setting may differ before a reader is told, in percent.
const TOLD_FROM_PERCENT: u64 = 2;

/// The most a device held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PeaksShown {
    /// Sum of what was asked for.
    pub requested_bytes: u64,
    /// The same, rounded as the allocator does.
    pub allocated_bytes: u64,
    /// Taken from the driver.
    pub reserved_bytes: u64,
    /// After how many events the allocated bytes were largest.
    pub events: usize,
}

/// A stack's frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrameShown {
    /// The function.
    pub function: String,
    /// The file.
    pub file: String,
    /// The line.
    pub line: i64,
}

/// A used block in a segment that could otherwise go back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PinShown {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Who allocated it, where stacks were recorded.
    pub frame: Option<FrameShown>,
}

/// A segment with free memory that cannot be given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentShown {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub total_bytes: u64,
    /// Whether it serves small requests.
    pub small: bool,
    /// Whether it is part of a growing range.
    pub expandable: bool,
    /// Free in it, and stuck.
    pub stranded_bytes: u64,
    /// Its largest free block.
    pub largest_free_bytes: u64,
    /// The used blocks, the smallest first.
    pub pins: Vec<PinShown>,
}

impl SegmentShown {
    /// The smallest used block and who made it, for people: freeing it, or moving it, would cost least.
    pub fn pinned_by(&self) -> String {
        let Some(smallest) = self.pins.first() else { return String::new() };
        let whose = match &smallest.frame {
            Some(FrameShown { function, file, line }) => format!("{function} ({file}:{line})"),
            None => "no stack recorded".to_owned(),
        };
        let more = match self.pins.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        format!("{} {whose}{more}", headroom_base::Bytes(smallest.size_bytes))
    }
}

/// What of the reserved memory was used, stuck, or free to go when the snapshot was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StrandedShown {
    /// All of it.
    pub reserved_bytes: u64,
    /// In used blocks.
    pub used_bytes: u64,
    /// What emptying the cache would give back.
    pub releasable_bytes: u64,
    /// What it would not.
    pub stranded_bytes: u64,
    /// Where that is, the most first.
    pub segments: Vec<SegmentShown>,
}

/// One setting's answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SettingRow {
    /// What it would have done.
    #[serde(flatten)]
    pub answer: WhatIf,
    /// Whether the snapshot was taken under it.
    pub as_recorded: bool,
}

/// A snapshot's device, explained.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explained {
    /// The device's number.
    pub device: i64,
    /// How many events were recorded.
    pub events: usize,
    /// The most it held.
    pub peaks: PeaksShown,
    /// The most handed out at once, as recorded.
    pub allocated_peak_bytes: u64,
    /// The most taken from the driver, as recorded.
    pub reserved_peak_bytes: u64,
    /// What was stuck at the end.
    pub stranded: StrandedShown,
    /// The least memory on which the requests are served under the setting they were recorded with.
    pub least_capacity_bytes: Option<u64>,
    /// Every setting; the recorded one first.
    pub settings: Vec<SettingRow>,
    /// What a reader must know before believing the figures.
    pub warnings: Vec<String>,
}

/// The device that held most, or the one that was asked for; none where the snapshot has no such device.
pub fn device_of(snapshot: &Snapshot, wanted: Option<i64>) -> Option<i64> {
    let devices = snapshot.devices();
    match wanted {
        Some(device) => devices.into_iter().find(|known| *known == device),
        None => devices.into_iter().max_by_key(|device| (snapshot.peaks(*device).reserved_bytes, -device)),
    }
}

/// Explains one device of a snapshot. `more` are settings to try beside the usual ones.
pub fn explain(snapshot: &Snapshot, device: i64, more: &[NamedSetting], memory_bytes: Option<u64>) -> Explained {
    let mut warnings: Vec<String> = snapshot.warnings().iter().map(ToString::to_string).collect();
    let peaks = snapshot.peaks(device);
    let (requests, refused) = requests_of(snapshot, device);
    if refused > 0 {
        warnings.push(format!(
            "{refused} requests were refused when this was recorded; here they are served, and given back at once"
        ));
    }
    let recorded = recorded_setting(snapshot, &mut warnings);
    let mut settings = vec![recorded.clone()];
    let others = NamedSetting::tried().into_iter().chain(more.iter().cloned());
    for setting in others {
        if !settings.iter().any(|known| known.settings == setting.settings) {
            settings.push(setting);
        }
    }
    let terms = Terms { memory_bytes, usual_limit_bytes: peaks.reserved_bytes };
    let answers = what_if_all(&requests, &settings, terms);
    if let Some(replayed) = answers.first() {
        warnings.extend(replay_differs(replayed, &peaks, refused));
    }
    Explained {
        device,
        events: snapshot.trace(device).len(),
        peaks: shown_peaks(peaks),
        allocated_peak_bytes: peaks.allocated_bytes,
        reserved_peak_bytes: peaks.reserved_bytes,
        stranded: shown_stranded(&snapshot.stranded(device)),
        least_capacity_bytes: answers.first().and_then(|answer| answer.least_capacity_bytes),
        settings: answers
            .into_iter()
            .enumerate()
            .map(|(index, answer)| SettingRow { answer, as_recorded: index == 0 })
            .collect(),
        warnings,
    }
}

/// A device's requests in order, and how many of them were refused when they were recorded.
fn requests_of(snapshot: &Snapshot, device: i64) -> (Requests, usize) {
    let recorded = snapshot.requests(device);
    let mut requests = Requests::default();
    requests.live.extend(recorded.already_live.iter().map(|&(id, bytes)| (u64::from(id), bytes)));
    let mut refused = 0;
    for step in &recorded.steps {
        match *step {
            RequestStep::Alloc { id, bytes } => {
                requests.operation.push(Request::Allocate { id: u64::from(id), bytes });
            }
            RequestStep::Free { id } => requests.operation.push(Request::Free { id: u64::from(id) }),
            RequestStep::OutOfMemory { bytes } => {
                // Beyond every number of a request that was served.
                let id = u64::from(u32::MAX) + 1 + refused as u64;
                requests.operation.extend([Request::Allocate { id, bytes }, Request::Free { id }]);
                refused += 1;
            }
        }
    }
    (requests, refused)
}

/// The setting the snapshot says it was taken under; the default where it says none that is known.
fn recorded_setting(snapshot: &Snapshot, warnings: &mut Vec<String>) -> NamedSetting {
    let Some(recorded) = &snapshot.settings else {
        warnings.push("the snapshot does not say its allocator's settings: PyTorch's defaults are assumed".to_owned());
        return NamedSetting::of_kind(headroom_base::AllocatorKind::Native);
    };
    match NamedSetting::parse("the snapshot's settings", &recorded.configuration) {
        Ok(setting) if !recorded.configuration.is_empty() || !recorded.expandable_segments => setting,
        Ok(_) => NamedSetting::of_kind(headroom_base::AllocatorKind::ExpandableSegments),
        Err(error) => {
            warnings.push(format!("{error}; whether ranges grow is taken from the snapshot, the rest is the default"));
            let expandable = recorded.expandable_segments;
            NamedSetting::of_kind(match expandable {
                true => headroom_base::AllocatorKind::ExpandableSegments,
                false => headroom_base::AllocatorKind::Native,
            })
        }
    }
}

/// Says so where a replay under the recorded setting reserves something else than was recorded.
fn replay_differs(replayed: &WhatIf, peaks: &Peaks, refused: usize) -> Option<String> {
    let (ours, theirs) = (replayed.reserved_peak_bytes, peaks.reserved_bytes);
    let differs = u128::from(ours.abs_diff(theirs)) * 100 > u128::from(theirs) * u128::from(TOLD_FROM_PERCENT);
    let reason = match refused {
        0 => "what the allocator held before the first event, or a limit, is not in the snapshot",
        _ => "the refused requests are in it, and no limit",
    };
    let (ours, theirs) = (headroom_base::Bytes(ours), headroom_base::Bytes(theirs));
    differs.then(|| format!("replayed under its own setting it reserves {ours} where {theirs} were recorded: {reason}"))
}

fn shown_peaks(peaks: Peaks) -> PeaksShown {
    let Peaks { requested_bytes, allocated_bytes, reserved_bytes, events } = peaks;
    PeaksShown { requested_bytes, allocated_bytes, reserved_bytes, events }
}

fn shown_stranded(stranded: &Stranded) -> StrandedShown {
    StrandedShown {
        reserved_bytes: stranded.reserved_bytes,
        used_bytes: stranded.used_bytes,
        releasable_bytes: stranded.releasable_bytes,
        stranded_bytes: stranded.stranded_bytes,
        segments: stranded.segments.iter().map(shown_segment).collect(),
    }
}

fn shown_segment(segment: &StrandedSegment) -> SegmentShown {
    SegmentShown {
        address: segment.address,
        total_bytes: segment.total_bytes,
        small: segment.small,
        expandable: segment.expandable,
        stranded_bytes: segment.stranded_bytes,
        largest_free_bytes: segment.largest_free_bytes,
        pins: segment.pins.iter().map(shown_pin).collect(),
    }
}

fn shown_pin(pin: &Pin) -> PinShown {
    let frame =
        |frame: &Frame| FrameShown { function: frame.function.clone(), file: frame.file.clone(), line: frame.line };
    PinShown { address: pin.address, size_bytes: pin.size_bytes, frame: pin.frame.as_ref().map(frame) }
}
