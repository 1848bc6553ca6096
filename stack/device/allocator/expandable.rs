//! Expandable segments: one growing range of addresses per pool, with memory mapped behind it page by page.

use headroom_base::{AllocatorKind, mutant};

use super::stream_ordered::STEP_BYTES;
use super::{Allocator, Block, BlockState, DriverError, Entry, EventKind, MemoryInfo, NONE, PoolKind};
use crate::driver::{Address, Driver};

/// Addresses set apart for one pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) base: u64,
    pub(super) bytes: u64,
}

impl Range {
    /// How many addresses a pool's range has on a device: an eighth more than the device's memory, since pages can be
    /// needed at its end while earlier ones stay pinned.
    pub(super) fn bytes_for(total_bytes: u64, page_bytes: u64) -> u64 {
        (total_bytes + total_bytes / 8).next_multiple_of(page_bytes)
    }
}

impl<D: Driver> Allocator<D> {
    /// Moves on from the best fit while the next larger free block could grow to less: the size that counts for a block
    /// followed by unmapped addresses is the one it can grow to.
    pub(super) fn least_growable(&self, best: Entry, kind: PoolKind) -> Entry {
        let mut chosen = best;
        while self.blocks[chosen.block].is_expandable()
            && let Some(next) = self.pools[kind as usize].free.after(chosen)
            && self.growable_bytes(next) < self.growable_bytes(chosen)
        {
            chosen = next;
        }
        chosen
    }

    pub(super) fn page_bytes(&self, pool: PoolKind) -> u64 {
        match self.settings.kind {
            AllocatorKind::CudaMallocAsync => STEP_BYTES,
            _ => pool.page_bytes(self.settings.large_segment_bytes),
        }
    }

    fn growable_bytes(&self, entry: Entry) -> u64 {
        let next = self.blocks[entry.block].next;
        let room = next != NONE && self.blocks[next].state == BlockState::Unmapped;
        entry.bytes + if room { self.blocks[next].bytes } else { 0 }
    }

    /// Maps pages until `bytes` lie free in one block, and takes that block out of the pool. On failure what was mapped
    /// so far stays, as free memory.
    pub(super) fn map_more(&mut self, bytes: u64, kind: PoolKind) -> Result<u32, DriverError> {
        let mut candidate = match self.unmapped_room(bytes, kind) {
            Some(candidate) => candidate,
            None => self.new_range(bytes, kind)?,
        };
        if self.blocks[candidate].state == BlockState::Unmapped {
            self.map_front(candidate, bytes.min(self.blocks[candidate].bytes))?;
        }
        while self.blocks[candidate].bytes < bytes {
            let missing = bytes - self.blocks[candidate].bytes;
            let next = self.blocks[candidate].next;
            self.map_front(next, missing.min(self.blocks[next].bytes))?;
            candidate = next;
        }
        let Block { bytes, address, .. } = self.blocks[candidate];
        self.pool(kind).free.remove(bytes, address);
        Ok(candidate)
    }

    /// The first unmapped block, by address, that has room for `bytes` together with the free and unmapped blocks around
    /// it; or the free block just before it, from which both can be used.
    fn unmapped_room(&self, bytes: u64, kind: PoolKind) -> Option<u32> {
        let is_usable = |index: u32| index != NONE && self.blocks[index].state != BlockState::Allocated;
        self.pools[kind as usize].unmapped.values().find_map(|&unmapped| {
            let before = self.blocks[unmapped].previous;
            let start = if is_usable(before) { before } else { unmapped };
            let (mut room, mut index) = (0, start);
            while room < bytes && is_usable(index) {
                room += self.blocks[index].bytes;
                index = self.blocks[index].next;
            }
            (room >= bytes).then_some(start)
        })
    }

    /// Sets a new range apart, as one unmapped block.
    ///
    /// PyTorch does so before it sees that a request is larger than any range, and keeps the range: later requests map
    /// their pages there, where its addresses are the lowest, and no longer behind what is free already. The pool of the
    /// driver has no ranges that one could see, and the bound for it none that nothing is in.
    pub(super) fn new_range(&mut self, needed_bytes: u64, kind: PoolKind) -> Result<u32, DriverError> {
        let MemoryInfo { free_bytes, total_bytes } = self.driver.memory()?;
        let bytes = Range::bytes_for(total_bytes, self.page_bytes(kind));
        if needed_bytes <= bytes {
            let base = self.driver.reserve(bytes)?.0;
            return Ok(self.add_range(Range { base, bytes }, kind));
        }
        // Without an address left for it the request is too large all the same.
        if self.settings.kind == AllocatorKind::ExpandableSegments
            && let Ok(Address(base)) = self.driver.reserve(bytes)
        {
            self.add_range(Range { base, bytes }, kind);
        }
        Err(DriverError::OutOfMemory { requested_bytes: needed_bytes, free_bytes, total_bytes })
    }

    fn add_range(&mut self, range: Range, pool: PoolKind) -> u32 {
        let index = self.ranges.iter().position(Option::is_none).unwrap_or_else(|| {
            self.ranges.push(None);
            self.ranges.len() - 1
        });
        self.ranges[index] = Some(range);
        let block = self.blocks.insert(Block {
            address: range.base,
            bytes: range.bytes,
            range: index as u32,
            state: BlockState::Unmapped,
            pool,
            ..Block::VACANT
        });
        self.pool(pool).unmapped.insert(range.base, block);
        block
    }

    /// Maps whole pages from the start of an unmapped block for at least `bytes`, and merges them with free neighbours.
    pub(super) fn map_front(&mut self, index: u32, bytes: u64) -> Result<(), DriverError> {
        let Block { address, bytes: unmapped_bytes, pool, .. } = self.blocks[index];
        let page_bytes = self.page_bytes(pool);
        let mapped_bytes = bytes.next_multiple_of(page_bytes);
        self.driver.map(Address(address), mapped_bytes, page_bytes)?;
        self.pool(pool).unmapped.remove(&address);
        if mapped_bytes < unmapped_bytes {
            let rest =
                Block { address: address + mapped_bytes, bytes: unmapped_bytes - mapped_bytes, ..self.blocks[index] };
            let rest_index = self.blocks.insert(rest);
            self.blocks.link_after(rest_index, index);
            self.pool(pool).unmapped.insert(rest.address, rest_index);
            self.blocks[index].bytes = mapped_bytes;
        }
        self.blocks[index].state = BlockState::Free;
        let Block { previous, next, .. } = self.blocks[index];
        self.absorb(index, previous);
        self.absorb(index, next);
        self.put_free(index);
        self.counters.reserved.add(mapped_bytes);
        self.log(EventKind::SegmentMap, address, mapped_bytes);
        Ok(())
    }

    /// Unmaps every whole page inside a free block; a range of which nothing is mapped any more goes back as well.
    pub(super) fn unmap_inside(&mut self, index: u32) -> Result<(), DriverError> {
        let Block { address, bytes, range, pool, .. } = self.blocks[index];
        let Some(Range { base, .. }) = self.ranges[range as usize] else { return Ok(()) };
        let page_bytes = self.page_bytes(pool);
        let start = base + (address - base).next_multiple_of(page_bytes);
        let end = mutant!(
            "allocator_keeps_the_last_whole_page",
            "a growing range that was emptied holds on to pages that another model needs",
            right: base + (address + bytes - base) / page_bytes * page_bytes,
            wrong: base + ((address + bytes - base) / page_bytes).saturating_sub(1) * page_bytes,
        );
        if start >= end {
            return Ok(());
        }
        self.driver.unmap(Address(start), end - start, page_bytes)?;
        self.pool(pool).free.remove(bytes, address);
        if start > address {
            let before = Block { bytes: start - address, ..self.blocks[index] };
            let before_index = self.blocks.insert(before);
            self.blocks.link_before(before_index, index);
            self.put_free(before_index);
        }
        if end < address + bytes {
            let after = Block { address: end, bytes: address + bytes - end, ..self.blocks[index] };
            let after_index = self.blocks.insert(after);
            self.blocks.link_after(after_index, index);
            self.put_free(after_index);
        }
        let block = &mut self.blocks[index];
        (block.address, block.bytes, block.state) = (start, end - start, BlockState::Unmapped);
        let Block { previous, next, .. } = *block;
        self.absorb(index, previous);
        self.absorb(index, next);
        let address = self.blocks[index].address;
        self.pool(pool).unmapped.insert(address, index);
        self.counters.reserved.subtract(end - start);
        self.log(EventKind::SegmentUnmap, start, end - start);
        self.release_range(index)
    }

    fn release_range(&mut self, index: u32) -> Result<(), DriverError> {
        let block = self.blocks[index];
        if block.is_split() {
            return Ok(());
        }
        let Some(Range { base, bytes }) = self.ranges[block.range as usize] else { return Ok(()) };
        self.driver.release(Address(base), bytes)?;
        self.ranges[block.range as usize] = None;
        self.pool(block.pool).unmapped.remove(&base);
        self.blocks.remove(index);
        Ok(())
    }
}
