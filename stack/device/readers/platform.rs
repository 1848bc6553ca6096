//! Readers that are known by name and that nobody could test yet: they answer unknown.

use headroom_base::Reading;

use super::{ProcessReader, ReaderError};
use crate::device::DeviceMemory;

/// The interfaces through which platforms tell what a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Platform {
    /// NVIDIA's management library; see [`NvmlReader`](super::NvmlReader).
    Nvml,
    /// `/proc/self/fdinfo` of the amdgpu kernel driver.
    AmdgpuFdinfo,
    /// The Windows kernel's video memory statistics.
    D3dkmt,
    /// Apple Metal's device figures.
    Mps,
    /// Intel's Level Zero Sysman.
    Xpu,
}

impl Platform {
    /// Every platform.
    pub const ALL: [Self; 5] = [Self::Nvml, Self::AmdgpuFdinfo, Self::D3dkmt, Self::Mps, Self::Xpu];

    /// Its name, for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nvml => "nvml",
            Self::AmdgpuFdinfo => "amdgpu fdinfo",
            Self::D3dkmt => "d3dkmt",
            Self::Mps => "mps",
            Self::Xpu => "xpu",
        }
    }
}

/// A reader for a platform on which nobody could test one.
#[derive(Clone, Copy, Debug)]
pub struct UnknownReader {
    /// The platform.
    pub platform: Platform,
}

impl ProcessReader for UnknownReader {
    fn name(&self) -> &'static str {
        self.platform.name()
    }

    fn verified(&self) -> bool {
        false
    }

    fn read(&mut self, _memory: &mut dyn DeviceMemory) -> Result<Reading, ReaderError> {
        Ok(Reading::Unknown)
    }
}
