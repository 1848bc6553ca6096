//! What an allocator counts, in PyTorch's words.

use serde::{Deserialize, Serialize};

/// A figure now and the highest it was since the peaks were last reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct Counter {
    /// Now.
    pub current: u64,
    /// The highest since the last reset; never below `current`.
    pub peak: u64,
}

impl Counter {
    #[inline]
    pub(crate) fn add(&mut self, amount: u64) {
        self.current += amount;
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    pub(crate) fn subtract(&mut self, amount: u64) {
        debug_assert!(amount <= self.current, "a counter fell below zero");
        self.current = self.current.wrapping_sub(amount);
    }

    pub(crate) fn reset_peak(&mut self) {
        self.peak = self.current;
    }
}

/// All counters of one allocator. Everything but `segments`, `num_alloc_retries` and `num_ooms` is in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct Counters {
    /// What live allocations asked for.
    pub requested: Counter,
    /// What live allocations got: their blocks.
    pub allocated: Counter,
    /// Blocks that are not free. Equal to `allocated` here, since memory is used on one stream per device.
    pub active: Counter,
    /// What was taken from the driver.
    pub reserved: Counter,
    /// Free blocks with a neighbour in their segment; expandable segments are not counted.
    pub inactive_split: Counter,
    /// Segments; expandable ones are not counted.
    pub segments: Counter,
    /// How often an allocation succeeded or failed only after all free memory had gone back to the driver.
    pub num_alloc_retries: u64,
    /// How often an allocation failed for lack of memory.
    pub num_ooms: u64,
}

impl Counters {
    /// Makes every peak the current figure.
    pub(super) fn reset_peaks(&mut self) {
        for counter in [
            &mut self.requested,
            &mut self.allocated,
            &mut self.active,
            &mut self.reserved,
            &mut self.inactive_split,
            &mut self.segments,
        ] {
            counter.reset_peak();
        }
    }
}
