//! A caching allocator that behaves as PyTorch's does, over any driver.
//!
//! ```
//! use headroom_base::MIB;
//! use headroom_device::{Allocator, Settings, SimulatedCard};
//!
//! // As a process would read them: `from_environment(|variable| std::env::var(variable).ok())`.
//! let settings = Settings::parse("PYTORCH_ALLOC_CONF", "roundup_power2_divisions:4")?;
//! let card = SimulatedCard::with_gib(1);
//! let mut allocator = Allocator::new(card.driver(), settings);
//!
//! // Between 256 and 512 MiB there are four steps of 64 MiB.
//! let held = allocator.allocate(300 * MIB)?;
//! assert_eq!(held.bytes(), 320 * MIB);
//! allocator.free(held)?;
//! let counters = allocator.counters();
//! assert_eq!((counters.allocated.current, counters.allocated.peak), (0, 320 * MIB));
//! assert_eq!(counters.reserved.current, 320 * MIB, "it is kept for the next request");
//! allocator.empty_cache()?;
//! assert_eq!(card.free_bytes(), 1_024 * MIB);
//!
//! let error = allocator.allocate(1_025 * MIB).unwrap_err();
//! assert!(error.is_out_of_memory() && allocator.counters().num_ooms == 1);
//! assert!(Settings::parse("PYTORCH_ALLOC_CONF", "max_split_size:128").is_err(), "there is no such key");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bin;
mod blocks;
mod counters;
mod error;
mod events;
mod expandable;
mod free_blocks;
mod native;
mod recorded;
mod release;
mod rules;
mod segments;
mod settings;
mod shared;
pub mod sizes;
mod stream_ordered;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use headroom_base::{AllocatorKind, DeviceFigures, Reclaim};

use crate::driver::{Address, Driver, DriverError, MemoryInfo};
use blocks::{Block, BlockState, Blocks, NONE};
pub use counters::{Counter, Counters};
pub use error::{AllocationError, NotAllocated, Situation};
pub use events::{Event, EventKind};
use expandable::Range;
use free_blocks::{Entry, FreeBlocks};
pub use recorded::{RecordedBlock, RecordedSegment, RecordedStateError, driver_placements};
use rules::Rules;
pub use segments::{BlockView, SegmentView};
pub use settings::{Problem, Settings, SettingsError, VARIABLES};
pub use shared::SharedAllocator;
pub use sizes::PoolKind;
use stream_ordered::Excess;

/// A handle to allocated memory. It is a plain value: dropping it frees nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Allocation {
    address: Address,
    bytes: u64,
    serial: u64,
    block: u32,
}

impl Allocation {
    /// A handle to memory that somebody else than an [`Allocator`] of this crate counts, by a number that it gives once.
    pub(crate) fn outside(address: Address, bytes: u64, serial: u64) -> Self {
        Self { address, bytes, serial, block: NONE }
    }

    /// The number it was given, which no other allocation of the same allocator has.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Where the memory is.
    pub fn address(&self) -> Address {
        self.address
    }

    /// What the counters have it down for: its block, rounded up from what was asked; with the stream-ordered pool,
    /// whose blocks nobody sees, what was asked.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// One of the two pools.
#[derive(Debug, Default)]
struct Pool {
    free: FreeBlocks,
    /// Addresses of expandable ranges with no memory behind them, by address.
    unmapped: BTreeMap<u64, u32>,
    /// How often it was searched while garbage collection was on: the clock by which a free block ages.
    searches: u64,
}

/// Where a new allocator begins to number its allocations: far from every other's, so that no handle fits two.
fn first_serial() -> u64 {
    static ALLOCATORS: AtomicU64 = AtomicU64::new(0);
    ALLOCATORS.fetch_add(1, Ordering::Relaxed) << 40
}

/// A caching allocator over a driver: PyTorch's rules, counters and peaks.
///
/// All memory is used on one stream. Several threads share one through [`SharedAllocator`].
#[derive(Debug)]
pub struct Allocator<D: Driver> {
    driver: D,
    settings: Settings,
    rules: Rules,
    limit_bytes: Option<u64>,
    blocks: Blocks,
    pools: [Pool; 2],
    ranges: Vec<Option<Range>>,
    excess: Excess,
    counters: Counters,
    serial: u64,
    events: Option<Vec<Event>>,
}

impl<D: Driver> Allocator<D> {
    /// An allocator that holds nothing yet.
    pub fn new(driver: D, settings: Settings) -> Self {
        Self {
            driver,
            rules: Rules::of(&settings),
            settings,
            limit_bytes: None,
            blocks: Blocks::default(),
            pools: Default::default(),
            ranges: Vec::new(),
            excess: Excess::default(),
            counters: Counters::default(),
            serial: first_serial(),
            events: None,
        }
    }

    /// Hands out memory for `requested_bytes`, at least one block unit.
    ///
    /// # Errors
    /// [`AllocationError::OutOfMemory`] after everything that could be released was released, and then nothing but
    /// `num_ooms` and `num_alloc_retries` (and the cache) has changed; [`AllocationError::Driver`] when the driver failed
    /// otherwise.
    pub fn allocate(&mut self, requested_bytes: u64) -> Result<Allocation, AllocationError> {
        if requested_bytes >= sizes::REFUSED_FROM_BYTES {
            return Err(AllocationError::OutOfMemory { requested_bytes, situation: self.situation() });
        }
        let bytes = sizes::round(requested_bytes, self.settings.divisions.as_ref());
        if self.rules.is_pool {
            return self.allocate_from_pool(requested_bytes, bytes);
        }
        let pool = PoolKind::of(bytes);
        match self.cached(bytes, pool) {
            Some(found) => Ok(self.hand_out_cached(found, requested_bytes, bytes)),
            None => {
                let block = self.grow(requested_bytes, bytes, pool)?;
                Ok(self.hand_out_new(block, requested_bytes, bytes))
            }
        }
    }

    /// Takes memory back into the cache.
    ///
    /// # Errors
    /// When it is not allocated here; nothing is changed then.
    pub fn free(&mut self, allocation: Allocation) -> Result<(), NotAllocated> {
        let Allocation { address, bytes, serial, block } = allocation;
        if self.blocks.live(block, serial).is_none_or(|live| live.address != address.0) {
            return Err(NotAllocated { address, bytes });
        }
        self.take_back(block);
        Ok(())
    }

    /// Gives every segment that nobody uses back to the driver.
    ///
    /// # Errors
    /// The first failure of the driver. Everything else was given back, and what could not be is still cached.
    pub fn empty_cache(&mut self) -> Result<(), AllocationError> {
        match self.release_cached() {
            None => Ok(()),
            Some(error) => {
                Err(AllocationError::Driver { requested_bytes: 0, error: Box::new(error), situation: self.situation() })
            }
        }
    }

    /// All counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Makes every peak the current figure.
    pub fn reset_peaks(&mut self) {
        self.counters.reset_peaks();
    }

    /// Limits what may be taken from the driver. Beyond it the device counts as full.
    pub fn set_memory_limit(&mut self, limit_bytes: Option<u64>) {
        self.limit_bytes = limit_bytes;
    }

    /// The limit on what may be taken from the driver: the one that was set, or the settings' share of the device.
    /// None also where that is a share and the driver cannot say of what; nothing is taken from it then.
    pub fn memory_limit(&mut self) -> Option<u64> {
        self.limit().ok().flatten()
    }

    /// The device's total is asked when it is first needed, and not again.
    fn limit(&mut self) -> Result<Option<u64>, DriverError> {
        if self.limit_bytes.is_none()
            && let Some(fraction) = self.settings.memory_fraction
        {
            let total_bytes = self.driver.memory()?.total_bytes;
            self.limit_bytes = Some((fraction * total_bytes as f64) as u64);
        }
        Ok(self.limit_bytes)
    }

    /// The settings it runs under.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The driver below it.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// The driver below it. What the allocator took must not be freed there.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Starts, or with `false` ends, keeping a log of what happens to segments.
    pub fn log_events(&mut self, on: bool) {
        self.events = on.then(Vec::new);
    }

    /// The logged events since the last call; empty when no log is kept.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What of the reserve can be credited to a budget.
    pub fn reclaim(&self) -> Reclaim {
        match self.settings.kind {
            AllocatorKind::Native => Reclaim::WholeSegments,
            AllocatorKind::ExpandableSegments => Reclaim::Indistinguishable,
            AllocatorKind::CudaMallocAsync => Reclaim::Pool,
        }
    }

    /// This device's figures at this moment, for a budget.
    ///
    /// # Errors
    /// When the driver cannot tell its free memory.
    pub fn figures(&mut self) -> Result<DeviceFigures, DriverError> {
        let MemoryInfo { free_bytes, total_bytes } = self.driver.memory()?;
        Ok(DeviceFigures {
            total_bytes,
            driver_free_bytes: free_bytes,
            allocated_bytes: self.counters.allocated.current,
            reserved_bytes: self.counters.reserved.current,
            inactive_split_bytes: self.counters.inactive_split.current,
            reclaim: self.reclaim(),
        })
    }

    fn situation(&mut self) -> Situation {
        let memory = self.driver.memory().ok();
        Situation {
            free: memory.map(|info| info.free_bytes).into(),
            total: memory.map(|info| info.total_bytes).into(),
            allocated_bytes: self.counters.allocated.current,
            reserved_bytes: self.counters.reserved.current,
            limit_bytes: self.memory_limit(),
        }
    }

    fn log(&mut self, kind: EventKind, address: u64, bytes: u64) {
        if let Some(events) = &mut self.events {
            events.push(Event { kind, address: Address(address), bytes });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::SimulatedCard;
    use headroom_base::MIB;

    #[test]
    fn a_freed_block_is_handed_out_again_and_a_second_free_is_refused() {
        let mut allocator = Allocator::new(SimulatedCard::with_gib(1).driver(), Settings::default());
        let first = allocator.allocate(3 * MIB).unwrap();
        allocator.free(first).unwrap();
        assert!(allocator.free(first).is_err());
        let second = allocator.allocate(3 * MIB).unwrap();
        assert_eq!(second.address(), first.address());
        assert!(allocator.free(first).is_err(), "an old handle must not free the new allocation");
        assert_eq!(allocator.counters().reserved.current, 20 * MIB);
    }

    #[test]
    fn a_share_of_the_device_limits_it_like_a_limit_that_was_set() {
        let settings = Settings { memory_fraction: Some(0.5), ..Settings::default() };
        let mut allocator = Allocator::new(SimulatedCard::with_gib(1).driver(), settings);
        allocator.allocate(500 * MIB).unwrap();
        assert!(allocator.allocate(16 * MIB).unwrap_err().is_out_of_memory());
        assert_eq!(allocator.memory_limit(), Some(512 * MIB));
        allocator.set_memory_limit(Some(600 * MIB));
        allocator.allocate(16 * MIB).unwrap();
    }

    #[test]
    fn whole_free_pages_of_an_expandable_range_are_not_stranded_and_the_rest_beside_a_live_block_is() {
        let settings = Settings::of_kind(AllocatorKind::ExpandableSegments);
        let mut allocator = Allocator::new(SimulatedCard::with_gib(1).driver(), settings);
        let first = allocator.allocate(50 * MIB).unwrap();
        let pin = allocator.allocate(5 * MIB).unwrap();
        allocator.free(first).unwrap();
        let [segment] = allocator.segments().try_into().unwrap();
        assert_eq!((segment.bytes, segment.stranded_bytes()), (60 * MIB, 15 * MIB));
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.counters().reserved.current, 20 * MIB);
        allocator.free(pin).unwrap();
        let [segment] = allocator.segments().try_into().unwrap();
        assert_eq!(segment.stranded_bytes(), 0);
    }
}
