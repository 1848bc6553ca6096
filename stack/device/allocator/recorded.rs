//! An allocator that starts where a recording starts: the same segments and blocks at the same addresses.

use headroom_base::Bytes;

use super::expandable::Range;
use super::sizes::BLOCK_UNIT_BYTES;
use super::{Allocation, Allocator, Block, Driver, DriverError, PoolKind, Settings};
use crate::driver::Address;

/// A block of a recorded state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedBlock {
    /// Its size.
    pub bytes: u64,
    /// What was asked for, where it is allocated.
    pub requested_bytes: Option<u64>,
}

/// A segment of a recorded state; of an expandable range, one run of mapped pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedSegment {
    /// Where it begins.
    pub address: Address,
    /// The pool it serves.
    pub pool: PoolKind,
    /// Whether it lies in an expandable range.
    pub is_expandable: bool,
    /// The blocks that tile it, by address.
    pub blocks: Vec<RecordedBlock>,
}

impl RecordedSegment {
    /// A segment in PyTorch's words: `segment_type` is "small" or "large", and a block is its bytes, those asked for and
    /// its state, which is "inactive" where nobody holds it.
    pub fn of_words<'a>(
        address: Address,
        segment_type: &str,
        is_expandable: bool,
        blocks: impl Iterator<Item = (u64, u64, &'a str)>,
    ) -> Self {
        let blocks = blocks.map(|(bytes, requested_bytes, state)| RecordedBlock {
            bytes,
            requested_bytes: (state != "inactive").then_some(requested_bytes),
        });
        let pool = if segment_type == "small" { PoolKind::Small } else { PoolKind::Large };
        Self { address, pool, is_expandable, blocks: blocks.collect() }
    }

    /// Its size: its blocks together.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().fold(0, |sum, block| sum.saturating_add(block.bytes))
    }
}

/// Why a recorded state cannot be taken up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordedStateError {
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The driver placed a segment elsewhere.
    #[error("the segment recorded at {recorded} was placed at {placed}; give the driver the recorded addresses first")]
    Address {
        /// Where it was.
        recorded: Address,
        /// Where it is.
        placed: Address,
    },
    /// A segment that cannot have been recorded.
    #[error("the segment at {address} ({}) is not valid: {reason}", Bytes(*bytes))]
    Segment {
        /// Where it begins.
        address: Address,
        /// Its size.
        bytes: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// Where a driver has to place what [`Allocator::from_recorded_state`] asks for, in that order: fixed segments, and one
/// range for each pool that has expandable ones.
pub fn driver_placements(segments: &[RecordedSegment], settings: &Settings, total_bytes: u64) -> Vec<(Address, u64)> {
    let mut placements: Vec<_> =
        segments.iter().filter(|segment| !segment.is_expandable).map(|s| (s.address, s.bytes())).collect();
    for pool in [PoolKind::Small, PoolKind::Large] {
        if let Some(base) = range_base(segments, pool) {
            placements.push((base, Range::bytes_for(total_bytes, pool.page_bytes(settings.large_segment_bytes))));
        }
    }
    placements
}

/// A recording shows mapped pages only; a pool's range is taken to begin with the first of them.
fn range_base(segments: &[RecordedSegment], pool: PoolKind) -> Option<Address> {
    segments.iter().filter(|segment| segment.is_expandable && segment.pool == pool).map(|s| s.address).min()
}

impl<D: Driver> Allocator<D> {
    /// An allocator in a recorded state, and a handle for every allocated block in the order of the recording.
    ///
    /// The driver is asked for the segments and has to place them where they were (see [`driver_placements`]).
    ///
    /// # Errors
    /// When the driver fails or places a segment elsewhere, or a segment is not one that an allocator could have.
    pub fn from_recorded_state(
        driver: D,
        settings: Settings,
        segments: &[RecordedSegment],
    ) -> Result<(Self, Vec<Allocation>), RecordedStateError> {
        let mut allocator = Self::new(driver, settings);
        for segment in segments {
            check(segment)?;
        }
        let mut live = Vec::new();
        for segment in segments.iter().filter(|segment| !segment.is_expandable) {
            let first = allocator.new_segment(segment.bytes(), segment.pool)?;
            allocator.place(segment.address, allocator.blocks[first].address)?;
            allocator.tile(first, segment, &mut live);
        }
        for pool in [PoolKind::Small, PoolKind::Large] {
            let Some(base) = range_base(segments, pool) else { continue };
            let unmapped = allocator.new_range(0, pool)?;
            allocator.place(base, allocator.blocks[unmapped].address)?;
            let mut runs: Vec<_> = segments.iter().filter(|s| s.is_expandable && s.pool == pool).collect();
            runs.sort_by_key(|segment| segment.address);
            for run in runs {
                let first = allocator.map_at(run, pool)?;
                allocator.tile(first, run, &mut live);
            }
        }
        allocator.reset_peaks();
        Ok((allocator, live))
    }

    fn place(&self, recorded: Address, placed: u64) -> Result<(), RecordedStateError> {
        if recorded.0 == placed {
            return Ok(());
        }
        Err(RecordedStateError::Address { recorded, placed: Address(placed) })
    }

    /// Maps a run of pages where it was recorded and takes the block out of the pool.
    fn map_at(&mut self, run: &RecordedSegment, pool: PoolKind) -> Result<u32, RecordedStateError> {
        let (address, bytes) = (run.address.0, run.bytes());
        let invalid = |reason| RecordedStateError::Segment { address: run.address, bytes, reason };
        let found = self.pool(pool).unmapped.range(..=address).next_back().map(|(_, &block)| block);
        let mut target = found.ok_or(invalid("it lies outside its pool's range"))?;
        let Block { address: start, bytes: room, .. } = self.blocks[target];
        let end = address.checked_add(bytes).ok_or(invalid("it lies outside its pool's range"))?;
        if end > start + room || !(address - start).is_multiple_of(self.page_bytes(pool)) {
            return Err(invalid("it is not whole pages of its pool's range, or overlaps another"));
        }
        if start < address {
            let rest = Block { address, bytes: start + room - address, ..self.blocks[target] };
            self.blocks[target].bytes = address - start;
            let rest_index = self.blocks.insert(rest);
            self.blocks.link_after(rest_index, target);
            self.pool(pool).unmapped.insert(address, rest_index);
            target = rest_index;
        }
        self.map_front(target, bytes)?;
        let Block { bytes: mapped, address: at, .. } = self.blocks[target];
        if mapped != bytes || at != address {
            return Err(invalid("it touches another segment of its range"));
        }
        self.pool(pool).free.remove(bytes, address);
        Ok(target)
    }

    /// Cuts a segment's one block, which is in no pool, into the recorded ones.
    fn tile(&mut self, segment_block: u32, segment: &RecordedSegment, live: &mut Vec<Allocation>) {
        let count = segment.blocks.len();
        for (position, recorded) in segment.blocks.iter().enumerate() {
            let index =
                if position + 1 == count { segment_block } else { self.cut_front(segment_block, recorded.bytes) };
            if let Some(requested_bytes) = recorded.requested_bytes {
                live.push(self.mark_allocated(index, requested_bytes));
            } else {
                self.put_free(index);
                let block = self.blocks[index];
                if block.is_split() && !block.is_expandable() {
                    self.counters.inactive_split.add(block.bytes);
                }
            }
        }
    }
}

fn check(segment: &RecordedSegment) -> Result<(), RecordedStateError> {
    let invalid =
        |reason| Err(RecordedStateError::Segment { address: segment.address, bytes: segment.bytes(), reason });
    if segment.blocks.is_empty() {
        return invalid("it has no blocks");
    }
    if segment.blocks.iter().any(|block| block.bytes == 0 || !block.bytes.is_multiple_of(BLOCK_UNIT_BYTES)) {
        return invalid("a block is empty or not a multiple of 512 bytes");
    }
    if segment.blocks.iter().any(|block| block.requested_bytes.is_some_and(|requested| requested > block.bytes)) {
        return invalid("a block is smaller than what was requested");
    }
    if segment.blocks.windows(2).any(|pair| pair.iter().all(|block| block.requested_bytes.is_none())) {
        return invalid("two free blocks lie side by side");
    }
    Ok(())
}
