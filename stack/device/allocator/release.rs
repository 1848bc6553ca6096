//! What goes back to the driver, and when: on request, when memory is short, or when it has lain idle for long.

use headroom_base::{AllocatorKind, mutant};

use super::{Allocator, DriverError, Entry, EventKind, PoolKind};
use crate::driver::{Address, Driver};

impl<D: Driver> Allocator<D> {
    /// Gives a free, unsplit block's segment back. On failure it stays cached.
    fn release_segment(&mut self, entry: Entry) -> Result<(), DriverError> {
        debug_assert!(!self.blocks[entry.block].is_split() && !self.blocks[entry.block].is_expandable());
        self.driver.free(Address(entry.address))?;
        let kind = self.blocks[entry.block].pool;
        self.pool(kind).free.remove(entry.bytes, entry.address);
        self.blocks.remove(entry.block);
        self.counters.reserved.subtract(entry.bytes);
        self.counters.segments.subtract(1);
        self.log(EventKind::SegmentFree, entry.address, entry.bytes);
        Ok(())
    }

    /// Gives back every segment that nobody uses; the first failure, if any.
    pub(super) fn release_cached(&mut self) -> Option<DriverError> {
        let mut first = self.release_excess();
        for kind in [PoolKind::Large, PoolKind::Small] {
            for entry in self.pool(kind).free.to_vec() {
                let block = &self.blocks[entry.block];
                let goes_back_whole = mutant!(
                    "allocator_keeps_free_segments_when_emptied",
                    "a cache that was emptied for the next model still holds the memory that the model needs",
                    right: !block.is_split(),
                    wrong: false,
                );
                let outcome = if block.is_expandable() {
                    self.unmap_inside(entry.block)
                } else if goes_back_whole {
                    self.release_segment(entry)
                } else {
                    Ok(())
                };
                if let Err(error) = outcome {
                    first.get_or_insert(error);
                }
            }
        }
        self.excess.left(self.counters.reserved.current - self.counters.allocated.current);
        first
    }

    /// With a split limit, gives back one oversize free block that would have been large enough, or as many of the
    /// largest as together are. Whether that much was released.
    pub(super) fn release_oversize(&mut self, bytes: u64, kind: PoolKind) -> bool {
        let Some(most_split) = self.settings.most_split_bytes else { return false };
        if self.settings.kind == AllocatorKind::ExpandableSegments {
            return false;
        }
        let wanted = bytes.max(most_split);
        let mut oversize = self.pool(kind).free.to_vec();
        // Where large segments are larger than the limit, what is left of a used one can be oversize too.
        oversize.retain(|entry| entry.bytes >= most_split && !self.blocks[entry.block].is_split());
        if let Some(&enough) = oversize.iter().find(|entry| entry.bytes >= wanted) {
            return self.release_segment(enough).is_ok();
        }
        let mut released = 0;
        for entry in oversize.into_iter().rev() {
            if released >= wanted || self.release_segment(entry).is_err() {
                break;
            }
            released += entry.bytes;
        }
        released >= wanted
    }

    /// Gives back free segments that have not been used for long, when more than the threshold's share of the limit is
    /// reserved.
    pub(super) fn collect_garbage(&mut self) {
        let (Some(share), Some(limit)) = (self.settings.garbage_collection_threshold, self.memory_limit()) else {
            return;
        };
        let threshold = (share * limit as f64) as u64;
        let Some(target) = self.counters.reserved.current.checked_sub(threshold).filter(|&excess| excess > 0) else {
            return;
        };
        let now = self.pool(PoolKind::Large).searches;
        let mut candidates: Vec<_> = self.pool(PoolKind::Large).free.to_vec();
        candidates.retain(|entry| !self.blocks[entry.block].is_split() && !self.blocks[entry.block].is_expandable());
        let age = |allocator: &Self, entry: &Entry| now - allocator.blocks[entry.block].freed_at;
        let mut reclaimed = 0;
        while reclaimed < target && !candidates.is_empty() {
            let total_age: u64 = candidates.iter().map(|entry| age(self, entry)).sum();
            let average = total_age as f64 / candidates.len() as f64;
            let mut freed_any = false;
            candidates.retain(|entry| {
                let is_young = mutant!(
                    "allocator_collects_garbage_of_any_age",
                    "blocks that are used all the time go back to the driver and are taken again each step",
                    right: (age(self, entry) as f64) < average,
                    wrong: false,
                );
                if is_young {
                    return true;
                }
                let released = self.release_segment(*entry).is_ok();
                freed_any |= released;
                reclaimed += if released { entry.bytes } else { 0 };
                !released
            });
            if !freed_any {
                return;
            }
        }
    }
}
