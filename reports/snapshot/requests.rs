//! From a snapshot's events to the requests a program made, and how much it held at each moment.
//!
//! Events say what changed and the segments say how it ended, so the beginning is found by going back
//! from the end: what is live when the first event happens was allocated before it.

use std::collections::{BTreeMap, HashMap};

use headroom_base::mutant;

use super::model::{Action, Block, BlockState, Event, Snapshot};

/// PyTorch's allocator hands out multiples of this.
const ROUND_BYTES: u64 = 512;

/// What one step of a program asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestStep {
    /// It asked for memory and got it.
    Alloc {
        /// Its number, the same in its [`RequestStep::Free`].
        id: u32,
        /// What it asked for.
        bytes: u64,
    },
    /// It gave the memory back.
    Free {
        /// Which.
        id: u32,
    },
    /// It asked for memory and the allocator had none.
    OutOfMemory {
        /// What it asked for.
        bytes: u64,
    },
}

/// The requests of one device, in order. Streams are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// What was live before the first event, as (number, requested bytes), by address.
    pub already_live: Vec<(u32, u64)>,
    /// What happened then.
    pub steps: Vec<RequestStep>,
    /// Events that cannot have followed each other: others between them are missing.
    pub contradictions: u64,
}

/// What a device held after an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Sum of the requested sizes of live blocks.
    pub requested_bytes: u64,
    /// The same, each rounded up to 512: what the allocator hands out, but for remainders it does not split.
    pub allocated_bytes: u64,
    /// Sum of the segments.
    pub reserved_bytes: u64,
}

/// The largest of each, over all events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Of the requested bytes.
    pub requested_bytes: u64,
    /// Of the allocated bytes.
    pub allocated_bytes: u64,
    /// Of the reserved bytes.
    pub reserved_bytes: u64,
    /// After how many events the allocated bytes were largest.
    pub events: usize,
}

/// The live blocks before the first event, found from those after the last.
pub(super) struct Beginning {
    /// Address → requested bytes.
    pub(super) live: BTreeMap<u64, u64>,
    pub(super) contradictions: u64,
}

impl Snapshot {
    /// The requests of a device.
    pub fn requests(&self, device: i64) -> Requests {
        let beginning = self.beginning(device);
        let mut requests = Requests { contradictions: beginning.contradictions, ..Requests::default() };
        let mut ids: HashMap<u64, u32> = HashMap::new();
        let mut next: u32 = 0;
        let mut number = || {
            next = next.saturating_add(1);
            next - 1
        };
        for (address, bytes) in beginning.live {
            let id = number();
            ids.insert(address, id);
            requests.already_live.push((id, bytes));
        }
        for event in self.trace(device) {
            match event.action {
                Action::Alloc => {
                    let id = number();
                    ids.insert(event.address, id);
                    requests.steps.push(RequestStep::Alloc { id, bytes: event.bytes });
                }
                Action::FreeCompleted => {
                    requests.steps.extend(ids.remove(&event.address).map(|id| RequestStep::Free { id }));
                }
                Action::OutOfMemory => requests.steps.push(RequestStep::OutOfMemory { bytes: event.bytes }),
                _ => {}
            }
        }
        requests
    }

    /// What a device held before its first event and after each.
    pub fn timeline(&self, device: i64) -> Vec<Moment> {
        let trace = self.trace(device);
        let beginning = self.beginning(device);
        let mut moment = Moment {
            requested_bytes: beginning.live.values().sum(),
            allocated_bytes: beginning.live.values().copied().map(rounded).sum(),
            reserved_bytes: self.reserved_before(device),
        };
        let mut moments = Vec::with_capacity(trace.len() + 1);
        moments.push(moment);
        for event in trace {
            moment.follow(event);
            moments.push(moment);
        }
        moments
    }

    /// The largest of what a device held.
    pub fn peaks(&self, device: i64) -> Peaks {
        let mut peaks = Peaks::default();
        for (events, moment) in self.timeline(device).into_iter().enumerate() {
            if moment.allocated_bytes > peaks.allocated_bytes {
                peaks.events = events;
            }
            peaks.requested_bytes = peaks.requested_bytes.max(moment.requested_bytes);
            peaks.allocated_bytes = peaks.allocated_bytes.max(moment.allocated_bytes);
            peaks.reserved_bytes = peaks.reserved_bytes.max(moment.reserved_bytes);
        }
        peaks
    }

    pub(super) fn beginning(&self, device: i64) -> Beginning {
        let blocks = self.segments_of(device).flat_map(|segment| &segment.blocks);
        let used = blocks.filter(|block| block.state != BlockState::Free);
        let mut live: BTreeMap<u64, u64> = used.map(|block| (block.address, requested(block))).collect();
        let mut contradictions = 0;
        for event in self.trace(device).iter().rev() {
            let contradicts = match event.action {
                Action::FreeCompleted => live.insert(event.address, event.bytes).is_some(),
                Action::Alloc => live.remove(&event.address).is_none(),
                _ => false,
            };
            contradictions += u64::from(contradicts);
        }
        mutant!(
            "snapshot_begins_empty",
            "what was allocated before the recording began is left out, and a setting that fails is said to fit",
            right: Beginning { live, contradictions },
            wrong: Beginning { live: BTreeMap::new(), contradictions },
        )
    }

    fn reserved_before(&self, device: i64) -> u64 {
        let end: u64 = self.segments_of(device).map(|segment| segment.total_bytes).sum();
        self.trace(device).iter().rev().fold(end, |reserved, event| match event.action {
            Action::SegmentAlloc | Action::SegmentMap => reserved.saturating_sub(event.bytes),
            Action::SegmentFree | Action::SegmentUnmap => reserved.saturating_add(event.bytes),
            _ => reserved,
        })
    }
}

impl Moment {
    fn follow(&mut self, event: &Event) {
        match event.action {
            Action::Alloc => {
                self.requested_bytes = self.requested_bytes.saturating_add(event.bytes);
                self.allocated_bytes = self.allocated_bytes.saturating_add(rounded(event.bytes));
            }
            Action::FreeCompleted => {
                self.requested_bytes = self.requested_bytes.saturating_sub(event.bytes);
                self.allocated_bytes = self.allocated_bytes.saturating_sub(rounded(event.bytes));
            }
            Action::SegmentAlloc | Action::SegmentMap => {
                self.reserved_bytes = self.reserved_bytes.saturating_add(event.bytes);
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                self.reserved_bytes = self.reserved_bytes.saturating_sub(event.bytes);
            }
            _ => {}
        }
    }
}

fn requested(block: &Block) -> u64 {
    block.requested_bytes.unwrap_or(block.size_bytes)
}

fn rounded(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(ROUND_BYTES).unwrap_or(u64::MAX)
}
