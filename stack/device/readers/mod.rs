//! Who tells what this process holds on a device, as the driver sees it, and how far that is to be believed.

mod amdgpu;
mod attribution;
mod nvml;
mod platform;
mod sightings;

use headroom_base::Reading;

use crate::device::DeviceMemory;
pub use amdgpu::{AmdgpuReader, FdinfoError, drm_memory_bytes};
pub use attribution::{Attribution, Basis, attribute};
pub use nvml::{NvmlDevice, NvmlReader, PcieLink, nvml_device, nvml_devices, nvml_driver_version};
pub use platform::{Platform, UnknownReader};
pub use sightings::{NVML_SIGHTINGS, Sighting};

/// Why a reader that should know could not say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reader} could not tell what this process holds: {reason}")]
pub struct ReaderError {
    /// The reader.
    pub reader: &'static str,
    /// What went wrong.
    pub reason: String,
}

/// Tells what the own process holds on one device.
///
/// "Not available", an all-ones figure, a denied query or a list without the own process are
/// [`Reading::Unknown`], never 0 and never an error.
pub trait ProcessReader: Send {
    /// Its name, for reports.
    fn name(&self) -> &'static str;

    /// Whether a person saw it agree with the allocator on hardware of this platform.
    fn verified(&self) -> bool;

    /// Bytes of the device that this process holds.
    ///
    /// # Errors
    /// When the query itself broke.
    fn read(&mut self, memory: &mut dyn DeviceMemory) -> Result<Reading, ReaderError>;
}

/// A figure as tools print it: all ones is their way of saying that they do not know.
pub fn figure(bytes: u64) -> Reading {
    if bytes == u64::MAX { Reading::Unknown } else { Reading::Bytes(bytes) }
}

/// The driver's own figure, where the driver under the allocator has one.
#[derive(Clone, Copy, Debug)]
pub struct DriverReader {
    /// Whether it is known to agree: true for simulated drivers, whose figures are exact.
    pub verified: bool,
}

impl ProcessReader for DriverReader {
    fn name(&self) -> &'static str {
        "driver"
    }

    fn verified(&self) -> bool {
        self.verified
    }

    fn read(&mut self, memory: &mut dyn DeviceMemory) -> Result<Reading, ReaderError> {
        let reading =
            memory.process_bytes().map_err(|error| ReaderError { reader: "driver", reason: error.to_string() })?;
        Ok(reading.known().map_or(Reading::Unknown, figure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ones_is_unknown_and_zero_is_zero() {
        assert_eq!(figure(u64::MAX), Reading::Unknown);
        assert_eq!(figure(0), Reading::Bytes(0));
        assert_eq!(figure(u64::MAX - 1), Reading::Bytes(u64::MAX - 1));
    }
}
