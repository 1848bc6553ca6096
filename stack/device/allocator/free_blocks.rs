//! The free blocks of a pool, ordered by size and then by address.

use std::collections::BTreeMap;

/// A free block as the order sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) bytes: u64,
    pub(super) address: u64,
    pub(super) block: u32,
}

/// Free blocks by size, equal sizes by address.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeBlocks {
    order: BTreeMap<(u64, u64), u32>,
}

impl FreeBlocks {
    pub(super) fn insert(&mut self, entry: Entry) {
        self.order.insert((entry.bytes, entry.address), entry.block);
    }

    pub(super) fn remove(&mut self, bytes: u64, address: u64) {
        let removed = self.order.remove(&(bytes, address));
        debug_assert!(removed.is_some(), "a free block was not in the order");
    }

    /// The smallest block of at least `bytes`; among equals the lowest address.
    pub(super) fn best_fit(&self, bytes: u64) -> Option<Entry> {
        self.order.range((bytes, 0)..).next().map(entry)
    }

    /// The block that follows `entry` in the order.
    pub(super) fn after(&self, entry_before: Entry) -> Option<Entry> {
        self.order.range((entry_before.bytes, entry_before.address + 1)..).next().map(entry)
    }

    /// The last block smaller than `bytes`.
    pub(super) fn last_below(&self, bytes: u64) -> Option<Entry> {
        self.order.range(..(bytes, 0)).next_back().map(entry)
    }

    /// All blocks in order, as they are now.
    pub(super) fn to_vec(&self) -> Vec<Entry> {
        self.order.iter().map(entry).collect()
    }
}

fn entry((&(bytes, address), &block): (&(u64, u64), &u32)) -> Entry {
    Entry { bytes, address, block }
}
