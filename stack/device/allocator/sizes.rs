//! How a request becomes a block size, a pool and a segment size.

use headroom_base::{KIB, MIB, mutant};
use serde::{Deserialize, Serialize};

/// Every block is a multiple of this, and no block is smaller.
pub const BLOCK_UNIT_BYTES: u64 = 512;
/// Rounded sizes up to this use the small pool.
pub const LARGEST_SMALL_BYTES: u64 = MIB;
/// The segments of the small pool, and its pages under expandable segments.
pub const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
/// The segments for rounded sizes below [`SMALLEST_OWN_SEGMENT_BYTES`], and the large pool's pages, unless
/// `large_segment_size_mb` says otherwise.
pub const LARGE_SEGMENT_BYTES: u64 = 20 * MIB;
/// From here on a request gets a segment of its own size, rounded up to [`SEGMENT_UNIT_BYTES`].
pub const SMALLEST_OWN_SEGMENT_BYTES: u64 = 10 * MIB;
/// Large segments are a multiple of this.
pub const SEGMENT_UNIT_BYTES: u64 = 2 * MIB;
/// Requests from here on are refused outright: 1 EiB, more than any device has.
pub const REFUSED_FROM_BYTES: u64 = 1 << 60;

const _: () = assert!(BLOCK_UNIT_BYTES == KIB / 2);

/// The two kinds of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// Blocks of at most [`LARGEST_SMALL_BYTES`].
    Small,
    /// All others.
    Large,
}

impl PoolKind {
    /// The pool of a *rounded* size.
    #[inline]
    pub fn of(rounded_bytes: u64) -> Self {
        if rounded_bytes <= LARGEST_SMALL_BYTES { Self::Small } else { Self::Large }
    }

    /// Its pages under expandable segments, where a large segment is `large_segment_bytes`.
    pub const fn page_bytes(self, large_segment_bytes: u64) -> u64 {
        match self {
            Self::Small => SMALL_SEGMENT_BYTES,
            Self::Large => large_segment_bytes,
        }
    }
}

/// The size of a new segment for a rounded size, by the native rule, where a large segment is `large_segment_bytes`.
pub fn segment_bytes(rounded_bytes: u64, large_segment_bytes: u64) -> u64 {
    if rounded_bytes <= LARGEST_SMALL_BYTES {
        SMALL_SEGMENT_BYTES
    } else if rounded_bytes < SMALLEST_OWN_SEGMENT_BYTES {
        large_segment_bytes
    } else {
        mutant!(
            "allocator_segments_not_rounded",
            "every large segment costs less here than it does on a card, and a step that fits fails there",
            right: rounded_bytes.next_multiple_of(SEGMENT_UNIT_BYTES),
            wrong: rounded_bytes,
        )
    }
}

/// Rounds up to a multiple of [`BLOCK_UNIT_BYTES`], at least one.
#[inline]
pub fn round_to_unit(requested_bytes: u64) -> u64 {
    (requested_bytes.max(1) + (BLOCK_UNIT_BYTES - 1)) & !(BLOCK_UNIT_BYTES - 1)
}

/// The ranges in which `roundup_power2_divisions` can differ: one per power of two from 1 MiB on, the first also for
/// everything below, the last also for everything above.
pub const DIVISION_RANGES: usize = 16;

/// Steps between powers of two, per size range; 0 and 1 mean none.
pub type Divisions = [u64; DIVISION_RANGES];

/// Rounds a request as the setting says.
#[inline]
pub fn round(requested_bytes: u64, divisions: Option<&Divisions>) -> u64 {
    match divisions {
        Some(divisions) => round_in_steps(requested_bytes, divisions[division_range(requested_bytes)]),
        None => round_to_unit(requested_bytes),
    }
}

/// The range of a size in [`Divisions`].
pub fn division_range(bytes: u64) -> usize {
    (bytes.max(MIB).ilog2() as usize - MIB.ilog2() as usize).min(DIVISION_RANGES - 1)
}

fn round_in_steps(requested_bytes: u64, steps: u64) -> u64 {
    if steps <= 1 || requested_bytes <= BLOCK_UNIT_BYTES.saturating_mul(steps) {
        return round_to_unit(requested_bytes);
    }
    // `steps` is a power of two and the size exceeds 512 of them, so a step is at least 512 bytes.
    let step = (1 << requested_bytes.ilog2()) / steps;
    requested_bytes.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_up_to_whole_units_and_are_never_empty() {
        for (requested, rounded) in [(0, 512), (1, 512), (512, 512), (513, 1024), (27_425_869, 27_426_304)] {
            assert_eq!(round_to_unit(requested), rounded);
        }
    }

    #[test]
    fn four_steps_between_powers_of_two_leave_an_exact_power_alone() {
        let divisions = [4; DIVISION_RANGES];
        for (requested, rounded) in
            [(1200, 1536), (2048, 2048), (2049, 2560), (415_312, 458_752), (8_818_878, 10 * MIB), (16 * MIB, 16 * MIB)]
        {
            assert_eq!(round(requested, Some(&divisions)), rounded, "{requested}");
        }
    }

    #[test]
    fn each_power_of_two_from_a_mebibyte_on_has_its_own_number_of_steps() {
        for (bytes, range) in
            [(1, 0), (2 * MIB - 1, 0), (2 * MIB, 1), (4 * MIB - 1, 1), (256 * MIB, 8), (1 << 35, 15), (u64::MAX, 15)]
        {
            assert_eq!(division_range(bytes), range, "{bytes}");
        }
        let mut divisions = [1; DIVISION_RANGES];
        divisions[1] = 4;
        let rounded = [MIB + 513, 2 * MIB + 1, 4 * MIB + 1].map(|bytes| round(bytes, Some(&divisions)));
        assert_eq!(rounded, [MIB + 1_024, 2 * MIB + MIB / 2, 4 * MIB + 512]);
    }

    #[test]
    fn the_segment_follows_the_rounded_size() {
        for (rounded, segment) in [
            (512, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB + 512, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (10 * MIB + 512, 12 * MIB),
        ] {
            assert_eq!(segment_bytes(rounded, LARGE_SEGMENT_BYTES), segment, "{rounded}");
        }
    }
}
