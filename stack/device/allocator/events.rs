//! What an allocator did to its segments, for replays that compare it with a recording.

use crate::driver::Address;

/// A change of what is taken from the driver, in PyTorch's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A new fixed segment.
    SegmentAlloc,
    /// A fixed segment given back.
    SegmentFree,
    /// Pages mapped into an expandable segment.
    SegmentMap,
    /// Pages unmapped from one.
    SegmentUnmap,
}

/// One such change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What was done.
    pub kind: EventKind,
    /// Where.
    pub address: Address,
    /// How much.
    pub bytes: u64,
}
