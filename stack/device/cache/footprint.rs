//! What pieces take from the driver beyond their own bytes, since memory comes in segments, pages and steps.
//!
//! Budgets compare a model's own bytes, as the rules say. Three places look closer: a model that is to be loaded whole,
//! for which the driver must have what its segments take; one of which only a part is loaded, so that their slack does
//! not eat the working memory; and a stream-ordered pool, where a load that fits by a few MiB was seen to fail because
//! the pool grows in steps.

use headroom_base::budget::credit_bytes;
use headroom_base::{AllocatorKind, DeviceFigures, MIB, Reclaim};

use super::entry::{Entry, Piece};
use crate::allocator::PoolKind;
use crate::allocator::sizes::{LARGE_SEGMENT_BYTES, round_to_unit, segment_bytes};

/// Pieces loaded one after the other into an empty reserve.
#[derive(Clone, Debug)]
pub(super) struct Footprint {
    reclaim: Reclaim,
    /// What is left of the segment, page or step that was opened last, in the small and in the large pool.
    left_bytes: [u64; 2],
}

impl Footprint {
    pub(super) fn new(reclaim: Reclaim) -> Self {
        Self { reclaim, left_bytes: [0; 2] }
    }

    /// What one more piece takes from the driver.
    pub(super) fn add(&mut self, bytes: u64) -> u64 {
        let rounded = round_to_unit(bytes);
        let pool = PoolKind::of(rounded);
        let left = &mut self.left_bytes[usize::from(pool == PoolKind::Large)];
        let step = match self.reclaim {
            Reclaim::NoCounters => return bytes,
            Reclaim::Indistinguishable => pool.page_bytes(LARGE_SEGMENT_BYTES),
            Reclaim::Pool => AllocatorKind::CudaMallocAsync.growth_step_bytes(),
            Reclaim::WholeSegments => return in_segments(left, rounded, pool),
        };
        let grown = rounded.saturating_sub(*left).next_multiple_of(step);
        *left = *left + grown - rounded;
        grown
    }
}

/// A piece in a segment that has room, or in a new one.
fn in_segments(left: &mut u64, rounded: u64, pool: PoolKind) -> u64 {
    let (segment, rest) = if rounded <= *left {
        (0, *left - rounded)
    } else {
        let segment = segment_bytes(rounded, LARGE_SEGMENT_BYTES);
        (segment, segment - rounded)
    };
    // A large block with less than this beyond the request is handed out whole.
    let splits = pool == PoolKind::Small || rest > MIB;
    let usable = if splits { rest } else { 0 };
    *left = if segment == 0 { usable } else { usable.max(*left) };
    segment
}

/// What the driver can give: what is free there, and what lies idle and goes back to it.
pub(super) fn there_bytes(figures: &DeviceFigures) -> u64 {
    figures.driver_free_bytes.saturating_add(credit_bytes(figures))
}

impl Entry {
    /// What its missing pieces take from the driver.
    pub(super) fn missing_footprint_bytes(&self, reclaim: Reclaim) -> u64 {
        self.footprint_bytes(reclaim, Piece::is_missing)
    }

    /// What those of them take that must be on the device.
    pub(super) fn required_missing_footprint_bytes(&self, reclaim: Reclaim) -> u64 {
        self.footprint_bytes(reclaim, |piece| piece.required && piece.is_missing())
    }

    fn footprint_bytes(&self, reclaim: Reclaim, counts: impl Fn(&Piece) -> bool) -> u64 {
        let mut footprint = Footprint::new(reclaim);
        self.pieces.iter().filter(|piece| counts(piece)).map(|piece| footprint.add(piece.bytes)).sum()
    }

    /// What the budget must hold for the model to be loaded whole.
    pub(super) fn needed_bytes(&self, reclaim: Reclaim) -> u64 {
        let missing_bytes = self.missing_bytes();
        if reclaim == Reclaim::Pool && missing_bytes > 0 {
            self.missing_footprint_bytes(reclaim)
        } else {
            missing_bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(reclaim: Reclaim, pieces: impl IntoIterator<Item = u64>) -> u64 {
        let mut footprint = Footprint::new(reclaim);
        pieces.into_iter().map(|bytes| footprint.add(bytes)).sum::<u64>() / MIB
    }

    #[test]
    fn pieces_cost_whole_segments_pages_or_steps() {
        let seven = || std::iter::repeat_n(7 * MIB, 5);
        assert_eq!(total(Reclaim::WholeSegments, seven()), 60, "two to a segment of 20 MiB");
        assert_eq!(total(Reclaim::Indistinguishable, seven()), 40, "35 MiB in pages of 20");
        assert_eq!(total(Reclaim::Pool, seven()), 64, "35 MiB in steps of 32");
        assert_eq!(total(Reclaim::NoCounters, seven()), 35);
        assert_eq!(total(Reclaim::WholeSegments, [11 * MIB, 21 * MIB]), 34, "each its own, in steps of 2 MiB");
        assert_eq!(total(Reclaim::WholeSegments, std::iter::repeat_n(MIB / 2, 9)), 6, "four to a segment of 2 MiB");
    }
}
