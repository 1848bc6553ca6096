//! An upper bound for the driver's stream-ordered pool, `backend:cudaMallocAsync`.
//!
//! The pool's policy is not public, and its reserved peak differs by up to a tenth between runs of the same requests. This is
//! therefore a bound, and not the pool. It assumes the least that recordings allow and adds to it:
//!
//! - one range of addresses that grows in steps of 32 MiB, best fit, free neighbours merged, the free end of the range
//!   used before it grows. Loaded weights lie in a recorded pool like that: 22,737 MiB of them in 22,752 MiB. Without the
//!   addition no recorded operation reserves less than this, and a few reserve exactly it;
//! - once memory has come back and been handed out again the pool fragments: [`EXCESS_DIVISOR`] and
//!   [`EXCESS_BASE_BYTES`] are charged on what it grew by, or on what came back if that is less, since it was last
//!   emptied.
//!
//! Both numbers were chosen on the 18 recorded traces whose windows were also recorded with this backend, as round
//! figures above the least that no such window exceeds. `stack/device/tests/stream_ordered.rs` prints how far above them
//! the bound lies.

use headroom_base::MIB;

use super::{AllocationError, Allocator, BlockState, DriverError, NONE, PoolKind};
use crate::driver::{Address, Driver};

/// The step in which the pool grows, as measured on an H200.
pub(super) const STEP_BYTES: u64 = 32 * MIB;
/// One part in this many of the fragmented growth is charged beyond it.
const EXCESS_DIVISOR: u64 = 5;
/// This much is charged as well, as soon as as much has come back.
const EXCESS_BASE_BYTES: u64 = 64 * MIB;

/// What the bound charges beyond the pool's own range.
#[derive(Debug, Default)]
pub(super) struct Excess {
    /// What the range grew by since the pool was last emptied.
    grown_bytes: u64,
    /// What was freed since then.
    returned_bytes: u64,
    /// Memory taken from the driver for it, in whole steps.
    held: Vec<(Address, u64)>,
    held_bytes: u64,
}

impl Excess {
    fn target_bytes(&self) -> u64 {
        let fragmented = self.grown_bytes.min(self.returned_bytes);
        (fragmented / EXCESS_DIVISOR + fragmented.min(EXCESS_BASE_BYTES)).next_multiple_of(STEP_BYTES)
    }

    #[inline]
    pub(super) fn came_back(&mut self, bytes: u64) {
        self.returned_bytes = self.returned_bytes.saturating_add(bytes);
    }
}

impl<D: Driver> Allocator<D> {
    /// What the bound for the stream-ordered pool charges beyond the pool's segments; 0 for other kinds.
    pub fn pool_excess_bytes(&self) -> u64 {
        self.excess.held_bytes
    }

    /// What is tried when the pool has no block that is large enough. PyTorch counts neither retries nor failures for
    /// this backend; they are counted here, so that whoever watches them sees them.
    #[cold]
    pub(super) fn grow_pool(&mut self, requested_bytes: u64, bytes: u64) -> Result<u32, AllocationError> {
        // The limit is compared with what is handed out, and not with what is reserved.
        let handed_out = self.counters.allocated.current;
        let over_limit = self.limit().is_some_and(|limit| handed_out.saturating_add(requested_bytes) > limit);
        if over_limit {
            self.counters.num_ooms += 1;
            return Err(AllocationError::OutOfMemory { requested_bytes, situation: self.situation() });
        }
        match self.map_in_steps(bytes) {
            Err(DriverError::OutOfMemory { .. }) => {
                let _ = self.release_cached();
                self.counters.num_alloc_retries += 1;
                self.map_in_steps(bytes).map_err(|error| self.failure(requested_bytes, error))
            }
            other => other.map_err(|error| self.failure(requested_bytes, error)),
        }
    }

    fn map_in_steps(&mut self, bytes: u64) -> Result<u32, DriverError> {
        let before = self.counters.reserved.current;
        let block = self.map_more(bytes, PoolKind::Large)?;
        self.excess.grown_bytes += self.counters.reserved.current - before;
        match self.charge_excess() {
            Ok(()) => Ok(block),
            Err(error) => {
                self.return_unused(block);
                Err(error)
            }
        }
    }

    /// Puts a block that was taken out of the pool back, merged with what lies free beside it.
    fn return_unused(&mut self, block: u32) {
        debug_assert_eq!(self.blocks[block].state, BlockState::Free);
        let (previous, next) = (self.blocks[block].previous, self.blocks[block].next);
        debug_assert!(previous == NONE || self.blocks[previous].state != BlockState::Free);
        self.absorb(block, next);
        self.put_free(block);
    }

    fn charge_excess(&mut self) -> Result<(), DriverError> {
        let missing = self.excess.target_bytes().saturating_sub(self.excess.held_bytes);
        if missing == 0 {
            return Ok(());
        }
        let address = self.driver.allocate(missing)?;
        self.excess.held.push((address, missing));
        self.excess.held_bytes += missing;
        self.counters.reserved.add(missing);
        Ok(())
    }

    /// Gives the excess back and starts counting anew; what the driver does not take is kept, and its error returned.
    pub(super) fn release_excess(&mut self) -> Option<DriverError> {
        let mut first = None;
        let driver = &mut self.driver;
        self.excess.held.retain(|&(address, _)| match driver.free(address) {
            Ok(()) => false,
            Err(error) => {
                first.get_or_insert(error);
                true
            }
        });
        let kept: u64 = self.excess.held.iter().map(|&(_, bytes)| bytes).sum();
        self.counters.reserved.subtract(self.excess.held_bytes - kept);
        self.excess.held_bytes = kept;
        self.excess.grown_bytes = 0;
        self.excess.returned_bytes = 0;
        first
    }
}
