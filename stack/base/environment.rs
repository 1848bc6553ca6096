//! Where a measurement holds: the device class, and the hard and soft parts of the software around it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::case::named;

/// The programming interface a device is driven through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// NVIDIA CUDA.
    Cuda,
    /// AMD ROCm (HIP).
    Rocm,
    /// Intel XPU.
    Xpu,
    /// Apple Metal.
    Mps,
}

impl Backend {
    /// Every backend.
    pub const ALL: [Self; 4] = [Self::Cuda, Self::Rocm, Self::Xpu, Self::Mps];

    /// The name used in files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Rocm => "rocm",
            Self::Xpu => "xpu",
            Self::Mps => "mps",
        }
    }
}

/// How the caching allocator takes memory from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocatorKind {
    /// Fixed segments.
    Native,
    /// One growing range of addresses per pool.
    ExpandableSegments,
    /// The driver's own stream-ordered pool.
    CudaMallocAsync,
}

impl AllocatorKind {
    /// Every kind, the default first.
    pub const ALL: [Self; 3] = [Self::Native, Self::ExpandableSegments, Self::CudaMallocAsync];

    /// The name used in files, on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::ExpandableSegments => "expandable_segments",
            Self::CudaMallocAsync => "cuda_malloc_async",
        }
    }

    /// The step in which reserved memory grows: below it two peaks are the same (20 MiB segments and pages,
    /// 32 MiB pool steps).
    pub const fn growth_step_bytes(self) -> u64 {
        match self {
            Self::Native | Self::ExpandableSegments => 20 << 20,
            Self::CudaMallocAsync => 32 << 20,
        }
    }
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionKernel {
    /// A fused kernel that never holds the score matrix (flash or memory-efficient).
    #[default]
    Fused,
    /// The score matrix is materialised.
    Math,
}

impl AttentionKernel {
    /// Every kernel.
    pub const ALL: [Self; 2] = [Self::Fused, Self::Math];

    /// The name used in files, on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fused => "fused",
            Self::Math => "math",
        }
    }
}

/// The order of a feature map's dimensions in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryLayout {
    /// Batch, channels, rows, columns.
    #[default]
    Contiguous,
    /// Channels innermost.
    ChannelsLast,
}

impl MemoryLayout {
    /// Every layout.
    pub const ALL: [Self; 2] = [Self::Contiguous, Self::ChannelsLast];

    /// The name used in files, on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::ChannelsLast => "channels_last",
        }
    }
}

named!(Backend, "backend");
named!(AllocatorKind, "allocator");
named!(AttentionKernel, "attention kernel");
named!(MemoryLayout, "memory layout");

/// The kind of card: measurements of one class never price another. One store file each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceClass {
    /// The driver's name of the device.
    pub name: String,
    /// Total memory by the driver, rounded to the nearest GiB.
    pub total_gib: u32,
    /// Its backend.
    pub backend: Backend,
}

impl DeviceClass {
    /// The class of a device whose driver reports `total_bytes`.
    pub fn new(name: impl Into<String>, total_bytes: u64, backend: Backend) -> Self {
        let rounded = (total_bytes + crate::GIB / 2) / crate::GIB;
        Self { name: name.into(), total_gib: u32::try_from(rounded).unwrap_or(u32::MAX), backend }
    }

    /// A file name without extension that no other class has: every byte outside `[A-Za-z0-9.-]` is
    /// written as `_` and two hexadecimal digits.
    pub fn file_stem(&self) -> String {
        let mut stem = String::new();
        for byte in self.to_string().bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' => stem.push(char::from(byte)),
                other => stem.push_str(&format!("_{other:02x}")),
            }
        }
        stem
    }
}

impl fmt::Display for DeviceClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} GiB {}", self.name, self.total_gib, self.backend)
    }
}

/// What must be equal for a fit to be used at all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HardEnvironment {
    /// The backend.
    pub backend: Backend,
    /// The allocator.
    pub allocator: AllocatorKind,
    /// Its settings beyond the kind, in the environment variable's own syntax; empty for the defaults.
    #[serde(default)]
    pub allocator_settings: String,
    /// Framework and version, "torch 2.11.0+cu130".
    pub framework: String,
    /// The attention kernel.
    #[serde(default)]
    pub attention: AttentionKernel,
    /// Whether the convolution library searches for its fastest algorithm.
    #[serde(default)]
    pub convolution_benchmark: bool,
    /// The memory layout of feature maps.
    #[serde(default)]
    pub memory_layout: MemoryLayout,
}

/// What may differ, at the price of the mark "may be outdated".
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SoftEnvironment {
    /// The driver's version; empty where it was not recorded, which no known version equals.
    pub driver: String,
}

impl SoftEnvironment {
    /// Whether nothing was recorded. It is left out of files then.
    pub const fn is_unknown(&self) -> bool {
        self.driver.is_empty()
    }
}

/// The software around a measurement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Environment {
    /// A difference here means that a fit is not used.
    pub hard: HardEnvironment,
    /// A difference here marks a fit.
    #[serde(default, skip_serializing_if = "SoftEnvironment::is_unknown")]
    pub soft: SoftEnvironment,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_memory_is_rounded_to_the_nearest_gib() {
        let mib = 1 << 20;
        for (total_bytes, gib) in [(143_156 * mib, 140), (24_564 * mib, 24), (16_368 * mib, 16), (8_191 * mib, 8)] {
            assert_eq!(DeviceClass::new("card", total_bytes, Backend::Cuda).total_gib, gib);
        }
    }

    #[test]
    fn different_classes_never_share_a_file_name() {
        let names = ["RTX 4090", "RTX_4090", "RTX/4090", "RTX_20 4090", "../RTX", "Ünïcode"];
        let stems: Vec<_> =
            names.iter().map(|name| DeviceClass::new(*name, 24 << 30, Backend::Cuda).file_stem()).collect();
        for (index, stem) in stems.iter().enumerate() {
            assert!(stem.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b)), "{stem}");
            assert!(!stem.contains('/'));
            assert!(!stems[..index].contains(stem), "{stem}");
        }
    }
}
