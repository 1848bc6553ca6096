//! What can be set about the allocator, as values and as PyTorch's environment variables say it.

mod conf;
mod error;

use std::fmt;

use headroom_base::{AllocatorKind, MIB};

use super::sizes::{DIVISION_RANGES, Divisions, LARGE_SEGMENT_BYTES};
pub use error::{Problem, SettingsError};

/// The environment variables that are read; the first that is set wins.
pub const VARIABLES: [&str; 3] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"];

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
    /// `large_segment_size_mb` in bytes: segments for large requests below 10 MiB, and the large pool's pages.
    pub large_segment_bytes: u64,
    /// `per_process_memory_fraction`: a memory limit as a share of the device, unless one is set explicitly.
    pub memory_fraction: Option<f64>,
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
            large_segment_bytes: LARGE_SEGMENT_BYTES,
            memory_fraction: None,
            notes: Vec::new(),
        }
    }

    /// This `max_split_size_mb`.
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

    /// The settings that an environment gives: `lookup` returns a variable's value. None set is the default.
    ///
    /// # Errors
    /// A key that PyTorch 2.11 does not know, or a value that it refuses.
    pub fn from_environment(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        VARIABLES
            .into_iter()
            .find_map(|variable| lookup(variable).map(|text| Self::parse(variable, &text)))
            .unwrap_or_else(|| Ok(Self::default()))
    }

    /// The settings in the text of `variable`, which errors name.
    ///
    /// # Errors
    /// A key that PyTorch 2.11 does not know, or a value that it refuses.
    pub fn parse(variable: &str, text: &str) -> Result<Self, SettingsError> {
        conf::parse(variable, text)
    }
}

/// Prints as the value of the environment variable, empty for the defaults; [`Settings::parse`] reads it back.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match self.kind {
            AllocatorKind::Native => {}
            AllocatorKind::ExpandableSegments => parts.push("expandable_segments:True".to_owned()),
            AllocatorKind::CudaMallocAsync => parts.push("backend:cudaMallocAsync".to_owned()),
        }
        if let Some(bytes) = self.most_split_bytes {
            parts.push(format!("max_split_size_mb:{}", bytes / MIB));
        }
        if self.most_unsplit_excess_bytes != LARGE_SEGMENT_BYTES {
            parts.push(format!("max_non_split_rounding_mb:{}", self.most_unsplit_excess_bytes / MIB));
        }
        if let Some(divisions) = &self.divisions {
            parts.push(format!("roundup_power2_divisions:{}", conf::divisions_text(divisions)));
        }
        if let Some(threshold) = self.garbage_collection_threshold {
            parts.push(format!("garbage_collection_threshold:{threshold}"));
        }
        if self.large_segment_bytes != LARGE_SEGMENT_BYTES {
            parts.push(format!("large_segment_size_mb:{}", self.large_segment_bytes / MIB));
        }
        if let Some(fraction) = self.memory_fraction {
            parts.push(format!("per_process_memory_fraction:{fraction}"));
        }
        f.pad(&parts.join(","))
    }
}
