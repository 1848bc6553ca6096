//! The allocator's segments and blocks as others may look at them.

use super::Allocator;
use super::blocks::{BlockState, NONE};
use super::sizes::PoolKind;
use crate::driver::{Address, Driver};

/// A piece of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockView {
    /// Where it begins.
    pub address: Address,
    /// Its size.
    pub bytes: u64,
    /// What was asked for, where it is allocated.
    pub requested_bytes: Option<u64>,
}

impl BlockView {
    /// Whether it is handed out.
    pub fn is_allocated(&self) -> bool {
        self.requested_bytes.is_some()
    }
}

/// A piece of driver memory and the blocks that tile it. An expandable range is shown as one segment per run of mapped
/// pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// Where it begins.
    pub address: Address,
    /// Its size.
    pub bytes: u64,
    /// The pool it serves.
    pub pool: PoolKind,
    /// Whether it lies in an expandable range.
    pub is_expandable: bool,
    /// The pages in which it goes back to the driver, where it lies in an expandable range.
    pub page_bytes: Option<u64>,
    /// Its blocks by address.
    pub blocks: Vec<BlockView>,
}

impl SegmentView {
    /// Bytes of its blocks that are handed out.
    pub fn allocated_bytes(&self) -> u64 {
        self.blocks.iter().filter(|block| block.is_allocated()).map(|block| block.bytes).sum()
    }

    /// Bytes that cannot go back to the driver although nobody uses them, because a live block pins them: in a fixed
    /// segment every free block beside one, in an expandable range what is not a whole free page.
    pub fn stranded_bytes(&self) -> u64 {
        if !self.blocks.iter().any(BlockView::is_allocated) {
            return 0;
        }
        let free = self.blocks.iter().filter(|block| !block.is_allocated());
        free.map(|block| block.bytes - self.page_bytes.map_or(0, |page| self.whole_pages_bytes(block, page))).sum()
    }

    /// A run of mapped pages begins with one, so pages are counted from the segment's start.
    fn whole_pages_bytes(&self, block: &BlockView, page_bytes: u64) -> u64 {
        let start = block.address.0 - self.address.0;
        let (first, end) = (start.next_multiple_of(page_bytes), (start + block.bytes) / page_bytes * page_bytes);
        end.saturating_sub(first)
    }
}

impl<D: Driver> Allocator<D> {
    /// All segments by address.
    pub fn segments(&self) -> Vec<SegmentView> {
        let mut segments = Vec::new();
        for (head, _) in self.blocks.heads() {
            let mut open: Option<SegmentView> = None;
            let mut index = head;
            while index != NONE {
                let block = &self.blocks[index];
                if block.state == BlockState::Unmapped {
                    segments.extend(open.take());
                } else {
                    let segment = open.get_or_insert_with(|| SegmentView {
                        address: Address(block.address),
                        bytes: 0,
                        pool: block.pool,
                        is_expandable: block.is_expandable(),
                        page_bytes: block.is_expandable().then(|| self.page_bytes(block.pool)),
                        blocks: Vec::new(),
                    });
                    segment.bytes += block.bytes;
                    let allocated = block.state == BlockState::Allocated;
                    segment.blocks.push(BlockView {
                        address: Address(block.address),
                        bytes: block.bytes,
                        requested_bytes: allocated.then_some(block.requested_bytes),
                    });
                }
                index = block.next;
            }
            segments.extend(open);
        }
        segments.sort_by_key(|segment| segment.address);
        segments
    }
}
