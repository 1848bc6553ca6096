//! What can be set about the allocator.

use headroom_base::{AllocatorKind, MIB};

use super::sizes::{DIVISION_RANGES, Divisions, LARGE_SEGMENT_BYTES};

/// An allocator's settings; [`Settings::default`] is PyTorch's default.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Fixed segments, expandable ones, or the driver's stream-ordered pool.
    pub kind: AllocatorKind,
    /// `roundup_power2_divisions`; `None` rounds to multiples of 512 only.
    pub divisions: Option<Divisions>,
    /// `max_split_size_mb` in bytes; `None` is unlimited.
    pub most_split_bytes: Option<u64>,
    /// `max_non_split_rounding_mb` in bytes: how much larger than the request an oversize block may be.
    pub most_unsplit_excess_bytes: u64,
    /// `garbage_collection_threshold`, between 0 and 1. It acts only under a memory limit.
    pub garbage_collection_threshold: Option<f64>,
    /// What was accepted and has no effect here, for people to read.
    pub notes: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self::of_kind(AllocatorKind::Native)
    }
}

impl Settings {
    /// The default settings of a kind of allocator.
    pub fn of_kind(kind: AllocatorKind) -> Self {
        Self {
            kind,
            divisions: None,
            most_split_bytes: None,
            most_unsplit_excess_bytes: LARGE_SEGMENT_BYTES,
            garbage_collection_threshold: None,
            notes: Vec::new(),
        }
    }

    /// Fixed segments with this `max_split_size_mb`.
    pub fn with_max_split_mib(self, mib: u64) -> Self {
        Self { most_split_bytes: Some(mib * MIB), ..self }
    }

    /// The same `roundup_power2_divisions` for every size.
    pub fn with_divisions(self, steps: u64) -> Self {
        Self { divisions: Some([steps; DIVISION_RANGES]), ..self }
    }

    /// This `garbage_collection_threshold`.
    pub fn with_garbage_collection_threshold(self, threshold: f64) -> Self {
        Self { garbage_collection_threshold: Some(threshold), ..self }
    }
}
