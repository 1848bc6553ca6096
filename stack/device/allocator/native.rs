//! Fixed segments: the search of the cache, splitting, merging, and what is tried on a miss.

use headroom_base::{AllocatorKind, mutant};

use super::{
    Allocation, AllocationError, Allocator, Block, BlockState, DriverError, Entry, EventKind, NONE, Pool, PoolKind,
    sizes,
};
use crate::driver::{Address, Driver};

impl<D: Driver> Allocator<D> {
    #[inline]
    pub(super) fn pool(&mut self, pool: PoolKind) -> &mut Pool {
        &mut self.pools[pool as usize]
    }

    /// The best free block of the pool, if one may serve the size. It stays in the pool.
    #[inline]
    pub(super) fn cached(&mut self, bytes: u64, kind: PoolKind) -> Option<Entry> {
        let most = self.rules.most_split_bytes;
        let pool = &mut self.pools[kind as usize];
        if self.rules.free_blocks_age {
            pool.searches += u64::from(self.limit_bytes.is_some() || self.settings.memory_fraction.is_some());
        }
        let mut found = mutant!(
            "allocator_takes_more_than_the_best_fit",
            "large free blocks are eaten up by small requests, and the next large one takes new memory",
            right: pool.free.best_fit(bytes)?,
            wrong: pool.free.to_vec().into_iter().rfind(|entry| entry.bytes >= bytes)?,
        );
        if self.rules.free_blocks_grow {
            found = self.least_growable(found, kind);
        }
        let serves = if bytes < most {
            mutant!(
                "allocator_small_request_takes_an_oversize_block",
                "a block that the split limit keeps whole is pinned by a small request",
                right: found.bytes < most,
                wrong: true,
            )
        } else {
            found.bytes - bytes < self.settings.most_unsplit_excess_bytes
        };
        serves.then_some(found)
    }

    /// What is tried when no cached block serves.
    #[cold]
    pub(super) fn grow(&mut self, requested_bytes: u64, bytes: u64, kind: PoolKind) -> Result<u32, AllocationError> {
        self.collect_garbage();
        let attempt = match self.new_memory(bytes, kind) {
            Err(error) if error.is_out_of_memory() && self.release_oversize(bytes, kind) => {
                self.new_memory(bytes, kind)
            }
            other => other,
        };
        let attempt = match attempt {
            Err(error) if error.is_out_of_memory() => {
                mutant!(
                    "idle_segments_not_given_back",
                    "an operation runs out of memory while what it needs lies idle in the reserve",
                    right: drop(self.release_cached()),
                    wrong: (),
                );
                mutant!(
                    "retry_not_counted",
                    "a run that only passed because everything idle was given back looks like any other",
                    right: self.counters.num_alloc_retries += 1,
                    wrong: (),
                );
                self.new_memory(bytes, kind)
            }
            other => other,
        };
        attempt.map_err(|error| self.failure(requested_bytes, error))
    }

    /// The error of an allocation that the driver refused at last.
    pub(super) fn failure(&mut self, requested_bytes: u64, error: DriverError) -> AllocationError {
        let situation = self.situation();
        if error.is_out_of_memory() {
            mutant!(
                "out_of_memory_not_counted",
                "an operation that catches a refusal and goes on with less says how little it needs",
                right: self.counters.num_ooms += 1,
                wrong: (),
            );
            return AllocationError::OutOfMemory { requested_bytes, situation };
        }
        AllocationError::Driver { requested_bytes, error: Box::new(error), situation }
    }

    /// Asks the driver for memory; the block that comes back is not among the free ones.
    fn new_memory(&mut self, bytes: u64, kind: PoolKind) -> Result<u32, DriverError> {
        // The limit is compared with the native segment's size under expandable segments as well.
        let segment_bytes = sizes::segment_bytes(bytes, self.settings.large_segment_bytes);
        let reserved = self.counters.reserved.current;
        let limit = mutant!(
            "allocator_limit_not_checked",
            "a process that may use half of a card takes all of it",
            right: self.limit()?,
            wrong: None::<u64>,
        );
        if let Some(limit) = limit.filter(|&limit| reserved.saturating_add(segment_bytes) > limit) {
            return Err(DriverError::OutOfMemory {
                requested_bytes: segment_bytes,
                free_bytes: limit.saturating_sub(reserved),
                total_bytes: limit,
            });
        }
        match self.settings.kind {
            AllocatorKind::ExpandableSegments | AllocatorKind::CudaMallocAsync => self.map_more(bytes, kind),
            AllocatorKind::Native => self.new_segment(segment_bytes, kind),
        }
    }

    /// Takes a fixed segment from the driver.
    pub(super) fn new_segment(&mut self, bytes: u64, pool: PoolKind) -> Result<u32, DriverError> {
        let address = self.driver.allocate(bytes)?.0;
        self.counters.reserved.add(bytes);
        self.counters.segments.add(1);
        self.log(EventKind::SegmentAlloc, address, bytes);
        Ok(self.blocks.insert(Block { address, bytes, pool, state: BlockState::Free, ..Block::VACANT }))
    }

    /// Hands out `bytes` of a free block. What is left is free again where it is worth it.
    #[inline]
    pub(super) fn hand_out_cached(&mut self, found: Entry, requested_bytes: u64, bytes: u64) -> Allocation {
        let Block { pool, .. } = self.blocks[found.block];
        if !self.splits(pool, bytes, found.bytes - bytes) {
            self.pool(pool).free.remove(found.bytes, found.address);
            return self.hand_out_whole(found.block, requested_bytes);
        }
        let front = self.cut(found.block, bytes);
        let searches = self.pool(pool).searches;
        let rest = &mut self.blocks[found.block];
        rest.freed_at = searches;
        let entry = Entry { bytes: rest.bytes, address: rest.address, block: found.block };
        self.pool(pool).free.replace(found.bytes, found.address, entry);
        self.mark_allocated(front, requested_bytes)
    }

    /// Hands out `bytes` of a block that is in no pool. What is left becomes free where it is worth it.
    pub(super) fn hand_out_new(&mut self, found: u32, requested_bytes: u64, bytes: u64) -> Allocation {
        let Block { bytes: found_bytes, pool, .. } = self.blocks[found];
        if !self.splits(pool, bytes, found_bytes - bytes) {
            return self.hand_out_whole(found, requested_bytes);
        }
        let front = self.cut(found, bytes);
        self.put_free(found);
        self.mark_allocated(front, requested_bytes)
    }

    #[inline]
    fn hand_out_whole(&mut self, index: u32, requested_bytes: u64) -> Allocation {
        let block = &self.blocks[index];
        if block.is_split() && !block.is_expandable() {
            self.counters.inactive_split.subtract(block.bytes);
        }
        self.mark_allocated(index, requested_bytes)
    }

    /// Cuts the first `bytes` off a free block, and counts how the free part changes.
    #[inline]
    fn cut(&mut self, index: u32, bytes: u64) -> u32 {
        let block = &self.blocks[index];
        if !block.is_expandable() {
            if block.is_split() {
                self.counters.inactive_split.subtract(bytes);
            } else {
                self.counters.inactive_split.add(block.bytes - bytes);
            }
        }
        self.cut_front(index, bytes)
    }

    /// Makes a block that is in no pool an allocation.
    #[inline]
    pub(super) fn mark_allocated(&mut self, index: u32, requested_bytes: u64) -> Allocation {
        self.serial += 1;
        let serial = self.serial;
        let block = &mut self.blocks[index];
        block.state = BlockState::Allocated;
        block.requested_bytes = requested_bytes;
        block.serial = serial;
        let (address, bytes) = (block.address, block.bytes);
        let counted = if self.rules.is_pool { requested_bytes } else { bytes };
        self.counters.allocated.add(counted);
        self.counters.active.add(counted);
        self.counters.requested.add(requested_bytes);
        Allocation { address: Address(address), bytes: counted, serial, block: index }
    }

    #[inline]
    fn splits(&self, pool: PoolKind, bytes: u64, remainder_bytes: u64) -> bool {
        let rule = &self.rules.splitting[pool as usize];
        remainder_bytes >= rule.least_remainder_bytes && bytes < rule.most_bytes
    }

    /// Makes the first `bytes` of a block one of its own; the rest keeps its index. Neither is put in the pool.
    #[inline]
    pub(super) fn cut_front(&mut self, rest: u32, bytes: u64) -> u32 {
        let front = self.blocks.insert(Block { bytes, ..self.blocks[rest] });
        self.blocks.link_before(front, rest);
        self.blocks[rest].address += bytes;
        self.blocks[rest].bytes -= bytes;
        front
    }

    /// Puts a block among its pool's free ones.
    #[inline]
    pub(super) fn put_free(&mut self, index: u32) {
        let Block { bytes, address, pool, .. } = self.blocks[index];
        let pool = self.pool(pool);
        pool.free.insert(Entry { bytes, address, block: index });
        let searches = pool.searches;
        let block = &mut self.blocks[index];
        block.state = BlockState::Free;
        block.freed_at = searches;
    }

    /// Makes an allocated block free, merged with free neighbours.
    #[inline]
    pub(super) fn take_back(&mut self, index: u32) {
        let Block { bytes, requested_bytes, previous, next, .. } = self.blocks[index];
        self.blocks[index].serial = 0;
        self.blocks[index].state = BlockState::Free;
        let counted = if self.rules.is_pool {
            self.excess.came_back(bytes);
            requested_bytes
        } else {
            bytes
        };
        self.counters.allocated.subtract(counted);
        let kept = self.put_free_merged(index, previous, next);
        let free = &self.blocks[kept];
        if !free.is_expandable() {
            if free.is_split() {
                self.counters.inactive_split.add(bytes);
            } else {
                self.counters.inactive_split.subtract(free.bytes - bytes);
            }
        }
        self.counters.active.subtract(counted);
        self.counters.requested.subtract(requested_bytes);
    }

    /// Puts a block that is no longer allocated among the free ones, joined with its free neighbours; returns the block
    /// that holds it then. A free neighbour keeps its entry, so that its place in the order need not be given up.
    #[inline]
    fn put_free_merged(&mut self, index: u32, previous: u32, next: u32) -> u32 {
        let is_free = |index: u32| index != NONE && self.blocks[index].state == BlockState::Free;
        let previous_is_free = mutant!(
            "allocator_freed_block_not_merged_with_the_one_before",
            "memory falls into ever smaller pieces, and segments that nobody uses never go back",
            right: is_free(previous),
            wrong: false,
        );
        let next_is_free = is_free(next);
        if previous_is_free {
            if next_is_free {
                self.absorb(index, next);
            }
            self.join(index, previous);
            previous
        } else if next_is_free {
            self.join(index, next);
            next
        } else {
            self.put_free(index);
            index
        }
    }

    /// Joins a block that is in no pool into a free neighbour that is in one.
    #[inline]
    fn join(&mut self, index: u32, into: u32) {
        let Block { address, bytes, pool, .. } = self.blocks[index];
        self.blocks.unlink(index);
        self.blocks.remove(index);
        let searches = self.pool(pool).searches;
        let block = &mut self.blocks[into];
        let (old_bytes, old_address) = (block.bytes, block.address);
        block.bytes += bytes;
        block.address = old_address.min(address);
        block.freed_at = searches;
        let entry = Entry { bytes: block.bytes, address: block.address, block: into };
        self.pool(pool).free.replace(old_bytes, old_address, entry);
    }

    /// Joins a neighbour in the same state into `index`, if there is one.
    #[inline]
    pub(super) fn absorb(&mut self, index: u32, neighbour: u32) {
        if neighbour == NONE || self.blocks[neighbour].state != self.blocks[index].state {
            return;
        }
        let Block { address, bytes, pool, state, .. } = self.blocks[neighbour];
        if state == BlockState::Free {
            self.pool(pool).free.remove(bytes, address);
        } else {
            self.pool(pool).unmapped.remove(&address);
        }
        self.blocks.unlink(neighbour);
        let block = &mut self.blocks[index];
        block.address = block.address.min(address);
        block.bytes += bytes;
        self.blocks.remove(neighbour);
    }
}
