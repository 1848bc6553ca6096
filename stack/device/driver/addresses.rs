//! Where the simulated driver places memory: below everything placed before, or where a recording says.

use std::collections::{BTreeMap, VecDeque};

/// One past the highest address handed out; the top of a 47-bit address space, as on x86-64.
const TOP: u64 = 1 << 47;
/// Nothing is placed below this.
const BOTTOM: u64 = 1 << 32;

/// Ranges of addresses in use, and the policy for the next one.
#[derive(Debug)]
pub(super) struct Addresses {
    /// Length of each range in use, by its start.
    used: BTreeMap<u64, u64>,
    /// The next range ends at or below this.
    next_end: u64,
    script: VecDeque<(u64, u64)>,
    script_misses: u64,
}

impl Addresses {
    pub(super) fn new() -> Self {
        Self { used: BTreeMap::new(), next_end: TOP, script: VecDeque::new(), script_misses: 0 }
    }

    /// The next ranges are to be `(start, bytes)`, in this order, as long as the sizes asked for are these.
    pub(super) fn script(&mut self, ranges: impl IntoIterator<Item = (u64, u64)>) {
        self.script = ranges.into_iter().collect();
    }

    /// How often a scripted range did not have the size that was asked for, or was in use.
    pub(super) fn script_misses(&self) -> u64 {
        self.script_misses
    }

    /// Marks a range as used, where nothing else is.
    pub(super) fn occupy(&mut self, start: u64, bytes: u64) -> bool {
        let Some(end) = start.checked_add(bytes) else { return false };
        let free = self.used.range(..end).next_back().is_none_or(|(&before, &length)| before + length <= start);
        if free {
            self.used.insert(start, bytes);
        }
        free
    }

    /// Chooses and occupies a range of `bytes`; `None` when the address space has no such hole.
    pub(super) fn place(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        if let Some((start, expected)) = self.script.pop_front() {
            if expected == bytes && self.occupy(start, bytes) {
                return Some(start);
            }
            self.script_misses += 1;
        }
        let start = self.below(self.next_end, bytes, alignment).or_else(|| self.below(TOP, bytes, alignment))?;
        self.used.insert(start, bytes);
        self.next_end = start;
        Some(start)
    }

    /// The highest hole of `bytes` that ends at or below `end`.
    fn below(&self, end: u64, bytes: u64, alignment: u64) -> Option<u64> {
        let mut end = end;
        loop {
            let start = end.checked_sub(bytes)? / alignment * alignment;
            if start < BOTTOM {
                return None;
            }
            match self.used.range(..start + bytes).next_back() {
                Some((&before, &length)) if before + length > start => end = before,
                _ => return Some(start),
            }
        }
    }

    /// Forgets the range that starts at `start` and returns its length.
    pub(super) fn vacate(&mut self, start: u64) -> Option<u64> {
        self.used.remove(&start)
    }

    /// The range in use that `address` lies in, as start and length.
    pub(super) fn containing(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &length) = self.used.range(..=address).next_back()?;
        (address < start + length).then_some((start, length))
    }

    pub(super) fn length(&self, start: u64) -> Option<u64> {
        self.used.get(&start).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_range_lies_below_all_earlier_ones_even_after_a_free() {
        let mut addresses = Addresses::new();
        let first = addresses.place(4096, 512).unwrap();
        let second = addresses.place(4096, 512).unwrap();
        addresses.vacate(first);
        let third = addresses.place(4096, 512).unwrap();
        assert!(third < second && second < first);
    }

    #[test]
    fn when_the_bottom_is_reached_the_highest_hole_is_reused_and_nothing_overlaps() {
        let mut addresses = Addresses::new();
        let half = (TOP - BOTTOM) / 2;
        let high = addresses.place(half, 512).unwrap();
        let low = addresses.place(half, 512).unwrap();
        assert_eq!(addresses.place(512, 512), None);
        addresses.vacate(high);
        assert_eq!(addresses.place(half, 512), Some(high));
        assert_eq!(addresses.length(low), Some(half));
    }

    #[test]
    fn scripted_ranges_are_used_while_sizes_agree() {
        let mut addresses = Addresses::new();
        addresses.script([(1 << 40, 1024), (1 << 41, 2048)]);
        assert_eq!(addresses.place(1024, 512), Some(1 << 40));
        assert_ne!(addresses.place(1024, 512), Some(1 << 41));
        assert_eq!(addresses.script_misses(), 1);
    }
}
