//! Memory that the allocator holds, does not use, and cannot give back: where it is, and what pins it.

use headroom_base::mutant;

use super::model::{Block, BlockState, Frame, Segment, Snapshot};

/// Pages of a growing range that serves small requests.
const SMALL_PAGE_BYTES: u64 = 2 << 20;
/// Pages of a growing range that serves large requests.
const LARGE_PAGE_BYTES: u64 = 20 << 20;

/// A block that is used, in a segment that is otherwise free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Who allocated it: the innermost frame outside PyTorch; none where stacks were not recorded.
    pub frame: Option<Frame>,
}

/// A segment with free memory that cannot be given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrandedSegment {
    /// The device's number.
    pub device: i64,
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
    /// Its largest free block: the largest request it could still serve.
    pub largest_free_bytes: u64,
    /// The used blocks, the smallest first: moving or freeing those would cost least.
    pub pins: Vec<Pin>,
}

/// What of the reserved memory is used, stuck, or free to go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stranded {
    /// All of it.
    pub reserved_bytes: u64,
    /// In used blocks.
    pub used_bytes: u64,
    /// What emptying the cache would give back to the driver.
    pub releasable_bytes: u64,
    /// What it would not.
    pub stranded_bytes: u64,
    /// Where that is, the most first.
    pub segments: Vec<StrandedSegment>,
}

impl Snapshot {
    /// What is stranded on a device when the snapshot was taken.
    pub fn stranded(&self, device: i64) -> Stranded {
        let mut stranded = Stranded::default();
        for segment in self.segments_of(device) {
            let free_bytes = segment.bytes_in(BlockState::Free);
            let releasable_bytes = releasable_bytes(segment);
            let stuck_bytes = free_bytes.saturating_sub(releasable_bytes);
            stranded.reserved_bytes += segment.total_bytes;
            stranded.used_bytes += segment.total_bytes.saturating_sub(free_bytes);
            stranded.releasable_bytes += releasable_bytes;
            stranded.stranded_bytes += stuck_bytes;
            if stuck_bytes > 0 {
                stranded.segments.push(self.stranded_segment(segment, stuck_bytes));
            }
        }
        stranded.segments.sort_by_key(|segment| (std::cmp::Reverse(segment.stranded_bytes), segment.address));
        stranded
    }

    fn stranded_segment(&self, segment: &Segment, stranded_bytes: u64) -> StrandedSegment {
        let free = segment.blocks.iter().filter(|block| block.state == BlockState::Free);
        let mut pins: Vec<Pin> = segment
            .blocks
            .iter()
            .filter(|block| block.state != BlockState::Free)
            .map(|block| Pin { address: block.address, size_bytes: block.size_bytes, frame: self.caller(block) })
            .collect();
        pins.sort_by_key(|pin| (pin.size_bytes, pin.address));
        StrandedSegment {
            device: segment.device,
            address: segment.address,
            total_bytes: segment.total_bytes,
            small: segment.small,
            expandable: segment.expandable,
            stranded_bytes,
            largest_free_bytes: free.map(|block| block.size_bytes).max().unwrap_or(0),
            pins,
        }
    }

    /// The innermost frame outside PyTorch itself, or the innermost one.
    fn caller(&self, block: &Block) -> Option<Frame> {
        let frames = self.stack(block.stack?);
        let inside = |frame: &&Frame| {
            let file = frame.file.replace('\\', "/");
            file.starts_with("torch/") || file.contains("/torch/") || file == "??" || file.ends_with(".cpp")
        };
        frames.iter().find(|frame| !inside(frame)).or_else(|| frames.first()).cloned()
    }
}

/// A fixed segment goes back whole or not at all; of a growing range go the whole pages inside free blocks.
fn releasable_bytes(segment: &Segment) -> u64 {
    if !segment.expandable {
        return mutant!(
            "split_segment_given_back",
            "slack beside a live block is promised to the next model and cannot be given",
            right: if segment.is_free() { segment.total_bytes } else { 0 },
            wrong: segment.bytes_in(BlockState::Free),
        );
    }
    let page_bytes = if segment.small { SMALL_PAGE_BYTES } else { LARGE_PAGE_BYTES };
    let free = segment.blocks.iter().filter(|block| block.state == BlockState::Free);
    free.map(|block| whole_pages_bytes(block, segment.address, page_bytes)).sum()
}

fn whole_pages_bytes(block: &Block, base: u64, page_bytes: u64) -> u64 {
    let from = block.address.saturating_sub(base).div_ceil(page_bytes);
    let to = block.address.saturating_sub(base).saturating_add(block.size_bytes) / page_bytes;
    to.saturating_sub(from) * page_bytes
}
