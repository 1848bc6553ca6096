//! The GPUs that the driver lists for this process. Asking makes no context and takes no device memory.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write as _;

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute, CUresult, CUuuid};

use headroom_base::AllocatorKind;

use super::libraries::{Library, LibraryError};
use super::status::words;
use super::version::cuda_version_text as version;
use crate::readers::nvml_driver_version;

/// The oldest driver interface that this build can speak to, as the driver writes it: 13000 is 13.0.
pub(super) const OLDEST_INTERFACE: c_int = 13_000;

/// A GPU as the driver lists it for this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its place in the driver's list, which `CUDA_VISIBLE_DEVICES` shortens and reorders: no identity.
    pub ordinal: usize,
    /// Its identity, in the spelling of the management library: `GPU-` and 32 hexadecimal digits in five groups. Of a
    /// card that is divided (MIG) it is the part's, which that library spells otherwise, so that it tells nothing of it.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// Its memory by the driver API. The driver keeps some for itself, so it is less than the management library says.
    pub total_bytes: u64,
    /// Its compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// The driver's version ("580.159.04"), or, where the management library does not tell, the newest CUDA version that
    /// it knows ("CUDA 13.0").
    pub driver_version: String,
}

/// What a GPU's driver can do for an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Addresses and pages apart, as expandable segments need them.
    pub virtual_memory: bool,
    /// The stream-ordered pool.
    pub memory_pools: bool,
}

impl Abilities {
    /// The allocators that can run there.
    pub fn allocators(self) -> Vec<AllocatorKind> {
        let can = |kind: &AllocatorKind| match kind {
            AllocatorKind::Native => true,
            AllocatorKind::ExpandableSegments => self.virtual_memory,
            AllocatorKind::CudaMallocAsync => self.memory_pools,
        };
        AllocatorKind::ALL.into_iter().filter(can).collect()
    }
}

impl Gpu {
    /// What its driver can do for an allocator. No context is made.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn abilities(&self) -> Result<Abilities, CudaUnavailable> {
        let device = handle_of(&self.uuid)?;
        let has = |attribute| {
            Ok::<_, CudaUnavailable>(attribute_of(device, self.ordinal as c_int, "its abilities", attribute)? != 0)
        };
        Ok(Abilities {
            virtual_memory: has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?,
            memory_pools: has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)?,
        })
    }
}

/// Why there is no GPU to use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaUnavailable {
    /// There is no driver library, or it does not load.
    #[error(transparent)]
    NoDriver(#[from] LibraryError),
    /// The driver is older than the interface that this build needs.
    #[error(
        "the CUDA driver ({place}) is too old: it knows CUDA up to {}, and {} is needed; install a newer driver \
         (580 or later)", version(*found), version(OLDEST_INTERFACE)
    )]
    TooOld {
        /// The newest CUDA version that it knows, as it writes it.
        found: i32,
        /// Its file.
        place: String,
    },
    /// The driver is there and does not start.
    #[error(
        "the CUDA driver ({place}) does not start (code {code}): {reason}; its kernel module may be missing, or of another \
         version, or the GPUs were not handed into this container"
    )]
    DoesNotStart {
        /// Its file.
        place: String,
        /// The driver's code.
        code: i64,
        /// The driver's words.
        reason: String,
    },
    /// The driver works and lists nothing.
    #[error("the CUDA driver ({place}) lists no device{}", hidden(visible_devices.as_deref()))]
    NoDevice {
        /// Its file.
        place: String,
        /// What `CUDA_VISIBLE_DEVICES` says, if it is set.
        visible_devices: Option<String>,
    },
    /// A device that was listed before is not there any more.
    #[error("the CUDA driver lists no device {uuid}; list the devices anew")]
    Gone {
        /// Its UUID.
        uuid: String,
    },
    /// A device could not be described.
    #[error("the CUDA driver could not tell {what} of device {ordinal} (code {code}): {reason}")]
    NotDescribed {
        /// The device's place in the list.
        ordinal: usize,
        /// What was asked.
        what: &'static str,
        /// The driver's code.
        code: i64,
        /// The driver's words.
        reason: String,
    },
}

impl CudaUnavailable {
    /// The driver's own code; 0 where the driver was not asked or named none.
    pub fn code(&self) -> i64 {
        match self {
            Self::DoesNotStart { code, .. } | Self::NotDescribed { code, .. } => *code,
            Self::NoDriver(_) | Self::TooOld { .. } | Self::NoDevice { .. } | Self::Gone { .. } => 0,
        }
    }
}

fn hidden(visible_devices: Option<&str>) -> String {
    match visible_devices {
        Some(devices) => format!("; CUDA_VISIBLE_DEVICES is \"{devices}\", which may hide them"),
        None => {
            "; if there is one, it was not handed into this container, or its kernel module is not loaded".to_owned()
        }
    }
}

/// Every GPU that this process may use, in the driver's order.
///
/// No context is made: other processes see nothing of it.
///
/// # Errors
/// When the driver is missing, too old, does not start, or lists no device. It never panics for that.
pub fn gpus() -> Result<Vec<Gpu>, CudaUnavailable> {
    let count = count()?;
    let driver_version = driver_version();
    (0..count).map(|ordinal| describe(ordinal, &driver_version)).collect()
}

/// The driver's handle of the device of this UUID, wherever in the list it is.
///
/// # Errors
/// As [`gpus`], or when it lists no such device.
pub(super) fn handle_of(uuid: &str) -> Result<CUdevice, CudaUnavailable> {
    for ordinal in 0..count()? {
        let (device, found) = identity(ordinal)?;
        if found == uuid {
            return Ok(device);
        }
    }
    Err(CudaUnavailable::Gone { uuid: uuid.to_owned() })
}

/// How many devices the driver lists, at least one.
fn count() -> Result<c_int, CudaUnavailable> {
    let place = start()?;
    let mut count = 0;
    // SAFETY: the driver was found and started; the place is valid for writing.
    match unsafe { sys::cuDeviceGetCount(&raw mut count) } {
        CUresult::CUDA_SUCCESS if count > 0 => Ok(count),
        CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_NO_DEVICE => Err(no_device(place)),
        failed => Err(CudaUnavailable::DoesNotStart { place, code: failed as i64, reason: words(failed) }),
    }
}

/// Finds the driver and starts it; returns the file it was loaded from.
fn start() -> Result<String, CudaUnavailable> {
    let place = Library::Driver.find()?.place();
    let not_started = |answer: CUresult| CudaUnavailable::DoesNotStart {
        place: place.clone(),
        code: answer as i64,
        reason: words(answer),
    };
    let found = interface().map_err(not_started)?;
    if found < OLDEST_INTERFACE {
        return Err(CudaUnavailable::TooOld { found, place });
    }
    // SAFETY: the driver was found; starting it again does nothing.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => Ok(place),
        CUresult::CUDA_ERROR_NO_DEVICE => Err(no_device(place)),
        failed => Err(not_started(failed)),
    }
}

fn no_device(place: String) -> CudaUnavailable {
    CudaUnavailable::NoDevice { place, visible_devices: std::env::var("CUDA_VISIBLE_DEVICES").ok() }
}

/// The newest CUDA version that the driver knows. The driver need not be started for it.
fn interface() -> Result<c_int, CUresult> {
    let mut version = 0;
    // SAFETY: the driver was found; the place is valid for writing.
    match unsafe { sys::cuDriverGetVersion(&raw mut version) } {
        CUresult::CUDA_SUCCESS => Ok(version),
        failed => Err(failed),
    }
}

fn driver_version() -> String {
    let known = nvml_driver_version().or_else(|| Some(format!("CUDA {}", version(interface().ok()?))));
    known.unwrap_or_else(|| "unknown".to_owned())
}

/// An answer about one device as a result.
fn told(ordinal: c_int, what: &'static str, answer: CUresult) -> Result<(), CudaUnavailable> {
    match answer {
        CUresult::CUDA_SUCCESS => Ok(()),
        failed => Err(CudaUnavailable::NotDescribed {
            ordinal: ordinal as usize,
            what,
            code: failed as i64,
            reason: words(failed),
        }),
    }
}

/// The handle and the UUID of the device at a place of the list.
fn identity(ordinal: c_int) -> Result<(CUdevice, String), CudaUnavailable> {
    let (mut device, mut uuid): (CUdevice, CUuuid) = (0, CUuuid { bytes: [0; 16] });
    // SAFETY: the driver was started; both places are valid for writing.
    unsafe {
        told(ordinal, "the handle", sys::cuDeviceGet(&raw mut device, ordinal))?;
        told(ordinal, "the UUID", sys::cuDeviceGetUuid_v2(&raw mut uuid, device))?;
    }
    Ok((device, uuid_text(uuid.bytes.map(|byte| byte as u8))))
}

fn attribute_of(
    device: CUdevice,
    ordinal: c_int,
    what: &'static str,
    attribute: CUdevice_attribute,
) -> Result<c_int, CudaUnavailable> {
    let mut value: c_int = 0;
    // SAFETY: the driver was started; the place is valid for writing.
    told(ordinal, what, unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) })?;
    Ok(value)
}

fn describe(ordinal: c_int, driver_version: &str) -> Result<Gpu, CudaUnavailable> {
    let (device, uuid) = identity(ordinal)?;
    let mut total_bytes = 0_usize;
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: the driver was started; both places are valid for writing, and the name's length is given with it.
    unsafe {
        told(ordinal, "the name", sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
        told(ordinal, "the memory", sys::cuDeviceTotalMem_v2(&raw mut total_bytes, device))?;
    }
    let what = "the compute capability";
    let capability =
        |attribute| Ok::<_, CudaUnavailable>(attribute_of(device, ordinal, what, attribute)?.unsigned_abs());
    let major = capability(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = capability(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(Gpu {
        ordinal: ordinal as usize,
        uuid,
        name: text(&name),
        total_bytes: total_bytes as u64,
        compute_capability: (major, minor),
        driver_version: driver_version.to_owned(),
    })
}

/// A UUID in the management library's spelling.
fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (at, byte) in bytes.into_iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|&character| character as u8).collect();
    CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_spelled_as_the_management_library_does() {
        let bytes = [0x0f, 0x1c, 2, 3, 4, 5, 6, 7, 8, 9, 0xa, 0xb, 0xc, 0xd, 0xe, 0xff];
        assert_eq!(uuid_text(bytes), "GPU-0f1c0203-0405-0607-0809-0a0b0c0d0eff");
    }
}
