//! What a PyTorch memory snapshot says, as typed values.

use std::collections::BTreeMap;

/// Refers to a call stack of a [`Snapshot`]; many blocks and events share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub(super) u32);

/// One frame of a call stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function.
    pub function: String,
    /// The file it stands in.
    pub file: String,
    /// The line.
    pub line: i64,
}

/// What a snapshot has of one device: the state when it was taken, and events before that.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The allocator's pieces of driver memory when the snapshot was taken, in the file's order.
    pub segments: Vec<Segment>,
    /// Events, one list per device, oldest first.
    pub traces: Vec<Vec<Event>>,
    /// The allocator's settings; none in files of versions that did not write them.
    pub settings: Option<Settings>,
    /// Call stacks, innermost frame first.
    pub stacks: Vec<Vec<Frame>>,
    /// Words this program does not know, with where they stand: a newer format.
    pub unknown: BTreeMap<String, u64>,
}

/// One piece of driver memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// The device's number.
    pub device: i64,
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub total_bytes: u64,
    /// The stream its memory belongs to.
    pub stream: i64,
    /// Whether it serves small requests (at most 1 MiB).
    pub small: bool,
    /// The private pool it belongs to; none for the default pool.
    pub private_pool: Option<(i64, i64)>,
    /// Whether it is part of a growing range.
    pub expandable: bool,
    /// Its blocks, by address, without gaps.
    pub blocks: Vec<Block>,
}

/// Whether a block is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Handed out.
    Active,
    /// Freed by the program, but a stream may still use it.
    AwaitingFree,
    /// Free.
    Free,
}

/// One block of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub size_bytes: u64,
    /// What was asked for; none where the version did not write it. A free block keeps its last request.
    pub requested_bytes: Option<u64>,
    /// Whether it is used.
    pub state: BlockState,
    /// Who allocated it, where stacks were recorded.
    pub stack: Option<StackId>,
}

/// What an event did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// The program freed a block.
    FreeRequested,
    /// The block became free.
    FreeCompleted,
    /// A segment was taken from the driver.
    SegmentAlloc,
    /// A segment was given back.
    SegmentFree,
    /// Pages were mapped into a growing range.
    SegmentMap,
    /// Pages were unmapped from it.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// A request could not be served.
    OutOfMemory,
    /// A mark of the program's own.
    UserDefined,
    /// Something this program does not know.
    Unknown,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it did.
    pub action: Action,
    /// The block's or segment's address; 0 where there is none.
    pub address: u64,
    /// The requested size of a block; the size of a segment or of mapped pages.
    pub bytes: u64,
    /// Free memory of the device, with an [`Action::OutOfMemory`].
    pub device_free_bytes: Option<u64>,
    /// The stream.
    pub stream: i64,
    /// Who caused it, where stacks were recorded.
    pub stack: Option<StackId>,
}

/// The allocator's settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The environment variable's own text.
    pub configuration: String,
    /// Whether ranges grow.
    pub expandable_segments: bool,
    /// Requests below this may not split blocks at or above it; none where there is no limit.
    pub max_split_bytes: Option<u64>,
    /// The share of the limit above which free blocks are given back; 0 where there is none.
    pub garbage_collection_threshold: f64,
}

impl Segment {
    /// Bytes of the blocks in this state.
    pub fn bytes_in(&self, state: BlockState) -> u64 {
        self.blocks.iter().filter(|block| block.state == state).map(|block| block.size_bytes).sum()
    }

    /// Whether nothing of it is used.
    pub fn is_free(&self) -> bool {
        self.blocks.iter().all(|block| block.state == BlockState::Free)
    }
}

impl Snapshot {
    /// A stack's frames.
    pub fn stack(&self, id: StackId) -> &[Frame] {
        &self.stacks[id.0 as usize]
    }

    /// The devices that have segments or events, in order.
    pub fn devices(&self) -> Vec<i64> {
        let with_events = self.traces.iter().enumerate().filter(|(_, trace)| !trace.is_empty());
        let mut devices: Vec<i64> = with_events.filter_map(|(index, _)| i64::try_from(index).ok()).collect();
        devices.extend(self.segments.iter().map(|segment| segment.device));
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// The events of a device, oldest first.
    pub fn trace(&self, device: i64) -> &[Event] {
        usize::try_from(device).ok().and_then(|index| self.traces.get(index)).map_or(&[], Vec::as_slice)
    }

    /// The segments of a device.
    pub fn segments_of(&self, device: i64) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(move |segment| segment.device == device)
    }

    /// Drops the folders of every file name: of a package its path within `site-packages` stays, of
    /// anything else the file's own name.
    pub fn redact(&mut self) {
        for frame in self.stacks.iter_mut().flatten() {
            frame.file = without_folders(&frame.file).to_owned();
        }
    }
}

fn without_folders(file: &str) -> &str {
    for packages in ["site-packages/", "dist-packages/", "site-packages\\"] {
        if let Some((_, inside)) = file.rsplit_once(packages) {
            return inside;
        }
    }
    file.rsplit(['/', '\\']).next().unwrap_or(file)
}
