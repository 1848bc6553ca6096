//! The free blocks of a pool, ordered by size and then by address, at a cost that hardly depends on how many there are.
//!
//! Sizes fall into bins: one per multiple of 512 up to 64 KiB, 64 per power of two above. A bit per bin says whether it
//! holds anything, so that the next one that does is found without looking at any. Inside a bin the blocks are in order.
//!
//! The block that was put in last waits outside the bins: more often than not it is the next to be taken out again, or to
//! be joined with a neighbour.

use super::bin::{Bin, Key};
use super::sizes::BLOCK_UNIT_BYTES;

/// A free block as the order sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) bytes: u64,
    pub(super) address: u64,
    pub(super) block: u32,
}

impl Entry {
    const NONE: Self = Self { bytes: 0, address: 0, block: u32::MAX };

    #[inline]
    pub(super) fn key(&self) -> Key {
        key(self.bytes, self.address)
    }
}

#[inline]
fn key(bytes: u64, address: u64) -> Key {
    Key::from(bytes) << 64 | Key::from(address)
}

/// Each power of two is cut into this many bins, as a power of two itself.
const BINS_PER_DOUBLING_BITS: u32 = 6;
const BINS_PER_DOUBLING: usize = 1 << BINS_PER_DOUBLING_BITS;
/// Enough for any size that 64 bits hold.
const BINS: usize = (64 - BLOCK_UNIT_BYTES.ilog2() as usize - BINS_PER_DOUBLING_BITS as usize + 1) * BINS_PER_DOUBLING;
const WORDS: usize = BINS.div_ceil(64);

// One word says which words hold a bit.
const _: () = assert!(WORDS <= 64);

/// Free blocks by size, equal sizes by address.
#[derive(Clone, Debug)]
pub(super) struct FreeBlocks {
    /// What was put in last and is in no bin yet; without bytes where there is no such block.
    latest: Entry,
    /// A bit for each word that is not 0.
    summary: u64,
    /// A bit for each bin that is not empty.
    words: [u64; WORDS],
    bins: Vec<Bin>,
}

impl Default for FreeBlocks {
    fn default() -> Self {
        Self { latest: Entry::NONE, summary: 0, words: [0; WORDS], bins: vec![Bin::EMPTY; BINS] }
    }
}

/// The bin of a size. Larger sizes never lie in earlier bins.
#[inline]
fn bin_of(bytes: u64) -> usize {
    let units = bytes / BLOCK_UNIT_BYTES;
    let shift = (units | (BINS_PER_DOUBLING as u64)).ilog2() - BINS_PER_DOUBLING_BITS;
    (shift as usize) * BINS_PER_DOUBLING + (units >> shift) as usize
}

impl FreeBlocks {
    #[inline]
    pub(super) fn insert(&mut self, new: Entry) {
        let before = std::mem::replace(&mut self.latest, new);
        if before.bytes > 0 {
            self.insert_into(bin_of(before.bytes), before);
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, bytes: u64, address: u64) {
        if self.is_latest(bytes, address) {
            self.latest = Entry::NONE;
        } else {
            self.remove_from(bin_of(bytes), key(bytes, address));
        }
    }

    /// The same as removing one and inserting the other.
    #[inline]
    pub(super) fn replace(&mut self, bytes: u64, address: u64, new: Entry) {
        if self.is_latest(bytes, address) {
            self.latest = new;
        } else {
            self.remove_from(bin_of(bytes), key(bytes, address));
            self.insert(new);
        }
    }

    #[inline]
    fn is_latest(&self, bytes: u64, address: u64) -> bool {
        self.latest.address == address && self.latest.bytes == bytes
    }

    #[inline]
    fn insert_into(&mut self, bin: usize, new: Entry) {
        self.bins[bin].insert(new);
        self.words[bin / 64] |= 1 << (bin % 64);
        self.summary |= 1 << (bin / 64);
    }

    #[inline]
    fn remove_from(&mut self, bin: usize, key: Key) {
        if self.bins[bin].remove(key) {
            self.words[bin / 64] &= !(1 << (bin % 64));
            if self.words[bin / 64] == 0 {
                self.summary &= !(1 << (bin / 64));
            }
        }
    }

    /// The smallest block of at least `bytes`; among equals the lowest address.
    #[inline]
    pub(super) fn best_fit(&self, bytes: u64) -> Option<Entry> {
        self.lower_of_latest(self.binned_from(key(bytes, 0)), key(bytes, 0))
    }

    /// The block that follows `entry` in the order.
    pub(super) fn after(&self, entry: Entry) -> Option<Entry> {
        self.lower_of_latest(self.binned_from(entry.key() + 1), entry.key() + 1)
    }

    /// `found`, or the block put in last where that comes before it but not before `key`.
    #[inline]
    fn lower_of_latest(&self, found: Option<Entry>, key: Key) -> Option<Entry> {
        let latest = self.latest;
        let is_lower = latest.bytes > 0 && latest.key() >= key && found.is_none_or(|found| latest.key() < found.key());
        if is_lower { Some(latest) } else { found }
    }

    #[inline]
    fn binned_from(&self, key: Key) -> Option<Entry> {
        let bin = bin_of((key >> 64) as u64);
        if self.words[bin / 64] >> (bin % 64) & 1 == 1
            && let Some(found) = self.bins[bin].from(key)
        {
            return Some(found);
        }
        self.bins[self.bin_after(bin)?].lowest()
    }

    /// All blocks in order, as they are now.
    pub(super) fn to_vec(&self) -> Vec<Entry> {
        let mut all = Vec::new();
        for bin in &self.bins {
            bin.append_to(&mut all);
        }
        if self.latest.bytes > 0 {
            all.insert(all.partition_point(|entry| entry.key() < self.latest.key()), self.latest);
        }
        all
    }

    /// The first bin after `bin` that is not empty.
    #[inline]
    fn bin_after(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        // Shifted twice, since a shift by 64 is not one.
        let rest = self.words[word] & (!0 << (bin % 64) << 1);
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let later = self.summary & (!0 << word << 1);
        if later == 0 {
            return None;
        }
        let word = later.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    fn entry((&key, &block): (&Key, &u32)) -> Entry {
        Entry { bytes: (key >> 64) as u64, address: key as u64, block }
    }

    #[test]
    fn larger_sizes_never_lie_in_earlier_bins_and_every_size_has_one() {
        for units in 1..200_000 {
            let (bin, next) = (bin_of(units * BLOCK_UNIT_BYTES), bin_of((units + 1) * BLOCK_UNIT_BYTES));
            assert!(bin <= next && next <= bin + 1, "{units}");
            assert!(units >= 128 || bin == units as usize, "{units}");
        }
        assert!(bin_of(u64::MAX) < BINS);
    }

    /// What the order is, at its plainest.
    fn plain_best_fit(all: &BTreeMap<Key, u32>, bytes: u64) -> Option<Entry> {
        all.range(key(bytes, 0)..).next().map(entry)
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_a_sorted_map(
            steps in prop::collection::vec((0..5_u8, prop_oneof![1..90_u64, 1..9_000_u64, 1..3_000_000_u64], 0..400_u64), 1..400),
        ) {
            let mut free = FreeBlocks::default();
            let mut all = BTreeMap::new();
            for (block, (action, units, place)) in (0..).zip(steps) {
                let bytes = units * BLOCK_UNIT_BYTES;
                let new = Entry { bytes, address: place * BLOCK_UNIT_BYTES, block };
                let known = all.range(key(bytes, 0)..).next().map(entry);
                match (action, known) {
                    (0, Some(old)) => {
                        free.remove(old.bytes, old.address);
                        all.remove(&old.key());
                    }
                    (1, Some(old)) if !all.contains_key(&new.key()) => {
                        free.replace(old.bytes, old.address, new);
                        all.remove(&old.key());
                        all.insert(new.key(), block);
                    }
                    _ if !all.contains_key(&new.key()) => {
                        free.insert(new);
                        all.insert(new.key(), block);
                    }
                    _ => {}
                }
                prop_assert_eq!(free.best_fit(bytes), plain_best_fit(&all, bytes));
                if let Some(found) = free.best_fit(bytes) {
                    let next = all.range(found.key() + 1..).next().map(entry);
                    prop_assert_eq!(free.after(found), next);
                }
            }
            let plain: Vec<_> = all.iter().map(entry).collect();
            prop_assert_eq!(free.to_vec(), plain);
        }
    }

    #[test]
    fn a_bin_with_many_blocks_keeps_their_order_as_it_grows_and_shrinks() {
        let mut free = FreeBlocks::default();
        let address = |index: u64| index * 7_919 % 1_009 * 1_024;
        for index in 0..1_000 {
            free.insert(Entry { bytes: 512, address: address(index), block: index as u32 });
        }
        let mut lowest_first: Vec<_> = (0..1_000).map(address).collect();
        lowest_first.sort_unstable();
        for lowest in lowest_first {
            let found = free.best_fit(512).unwrap();
            assert_eq!(found.address, lowest);
            free.remove(512, lowest);
        }
        assert_eq!(free.best_fit(1), None);
    }
}
