//! The settings as every allocation needs them: plain numbers to compare with.

use headroom_base::{AllocatorKind, mutant};

use super::Settings;
use super::sizes::{BLOCK_UNIT_BYTES, LARGEST_SMALL_BYTES};

/// When a block is split.
#[derive(Clone, Copy, Debug)]
pub(super) struct Splitting {
    /// At least this must be left.
    pub(super) least_remainder_bytes: u64,
    /// The request must be smaller than this.
    pub(super) most_bytes: u64,
}

/// What follows from the settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// By pool.
    pub(super) splitting: [Splitting; 2],
    /// `max_split_size_mb`, where none is more than any size.
    pub(super) most_split_bytes: u64,
    /// Whether a free block ages with each search of its pool, given a limit.
    pub(super) free_blocks_age: bool,
    /// Whether the size a free block can grow to counts.
    pub(super) free_blocks_grow: bool,
    /// Whether this is the stream-ordered pool: one pool for all sizes, and requested bytes are what is counted.
    pub(super) is_pool: bool,
}

impl Rules {
    pub(super) fn of(settings: &Settings) -> Self {
        let most_split_bytes = settings.most_split_bytes.unwrap_or(u64::MAX);
        let always = Splitting { least_remainder_bytes: BLOCK_UNIT_BYTES, most_bytes: u64::MAX };
        let large = match settings.kind {
            // What is left must be more than the small pool could use.
            AllocatorKind::Native => {
                let least_remainder_bytes = mutant!(
                    "allocator_splits_large_blocks_for_any_remainder",
                    "large blocks are predicted to serve more than the real ones do, and a step that fits fails",
                    right: LARGEST_SMALL_BYTES + 1,
                    wrong: BLOCK_UNIT_BYTES,
                );
                Splitting { least_remainder_bytes, most_bytes: most_split_bytes }
            }
            AllocatorKind::ExpandableSegments | AllocatorKind::CudaMallocAsync => always,
        };
        Self {
            splitting: [always, large],
            most_split_bytes,
            free_blocks_age: settings.garbage_collection_threshold.is_some(),
            free_blocks_grow: mutant!(
                "allocator_growable_size_ignored",
                "the free end of a growing range is cut up while holes stay empty, and more pages are mapped than needed",
                right: settings.kind == AllocatorKind::ExpandableSegments,
                wrong: false,
            ),
            is_pool: settings.kind == AllocatorKind::CudaMallocAsync,
        }
    }
}
