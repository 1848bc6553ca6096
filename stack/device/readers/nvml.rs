//! NVIDIA's management library: what a process holds on the device of a UUID. Loaded at run time.

use std::collections::BTreeMap;

use headroom_base::Reading;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::sightings::{NVML_SIGHTINGS, ReadingPlace};
use super::{ProcessReader, ReaderError, figure};
use crate::cuda::libraries::Library;
use crate::device::DeviceMemory;

const NAME: &str = "nvml";

/// A GPU as the management library lists it. Its place in the list is not CUDA's ordinal: only the UUID names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmlDevice {
    /// Its UUID.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// All its memory, the driver's own part included (615 MiB more than the driver API says on an H200).
    pub total_bytes: u64,
    /// What is free of it, whoever uses the rest.
    pub free_bytes: Reading,
    /// The link to the host as it is now. An idle card may slow it down.
    pub link: Option<PcieLink>,
    /// The fastest that card and host can have.
    pub fastest_link: Option<PcieLink>,
}

/// A PCI Express link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcieLink {
    /// Its generation.
    pub generation: u32,
    /// Its lanes.
    pub lanes: u32,
}

impl std::fmt::Display for PcieLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PCIe {}.0 x{}", self.generation, self.lanes)
    }
}

/// Reads the own process's bytes on one device.
#[derive(Debug)]
pub struct NvmlReader {
    library: Nvml,
    uuid: String,
    process: u32,
    verified: bool,
}

impl NvmlReader {
    /// A reader for the device of this UUID.
    ///
    /// # Errors
    /// When the library is not there, or knows no such device.
    pub fn open(uuid: impl Into<String>) -> Result<Self, ReaderError> {
        let (library, uuid) = (load()?, uuid.into());
        let is_divided = is_divided(&library.device_by_uuid(uuid.as_str()).map_err(|error| broken(&error))?);
        let place = ReadingPlace::here(library.sys_driver_version().ok(), is_divided);
        let verified = place.is_among(NVML_SIGHTINGS);
        Ok(Self { library, uuid, process: std::process::id(), verified })
    }

    /// Whether this reader was seen to agree with the allocator on hardware, on a system with a driver such as this one's.
    /// It may still not be on a card that is divided (MIG); a reader of that card says so.
    pub fn is_verified() -> bool {
        ReadingPlace::here(nvml_driver_version(), false).is_among(NVML_SIGHTINGS)
    }

    /// Bytes of the device that this process holds. A denied list, or one without this process, is unknown.
    ///
    /// # Errors
    /// When the query itself broke.
    pub fn process_bytes(&self) -> Result<Reading, ReaderError> {
        let device = self.library.device_by_uuid(self.uuid.as_str()).map_err(|error| broken(&error))?;
        match device.running_compute_processes() {
            Ok(processes) => {
                let listed = processes.iter().map(|process| (process.pid, used(&process.used_gpu_memory)));
                Ok(held_by(self.process, listed))
            }
            Err(error) if is_denied(&error) => Ok(Reading::Unknown),
            Err(error) => Err(broken(&error)),
        }
    }

    /// What each other process holds on the device; none where the list is denied, lacks this process, or lacks a figure.
    ///
    /// # Errors
    /// When the query itself broke.
    pub fn other_processes(&self) -> Result<Option<Vec<u64>>, ReaderError> {
        let device = self.library.device_by_uuid(self.uuid.as_str()).map_err(|error| broken(&error))?;
        let mut listed = Vec::new();
        for processes in [device.running_compute_processes(), device.running_graphics_processes()] {
            match processes {
                Ok(processes) => {
                    listed.extend(processes.iter().map(|process| (process.pid, used(&process.used_gpu_memory))))
                }
                Err(error) if is_denied(&error) => return Ok(None),
                Err(error) => return Err(broken(&error)),
            }
        }
        Ok(held_by_others(self.process, listed))
    }
}

impl ProcessReader for NvmlReader {
    fn name(&self) -> &'static str {
        NAME
    }

    fn verified(&self) -> bool {
        self.verified
    }

    fn read(&mut self, _memory: &mut dyn DeviceMemory) -> Result<Reading, ReaderError> {
        self.process_bytes()
    }
}

/// Whether a device is a part of a divided card (MIG) or such a card itself. A library or card that does not know of
/// dividing divides nothing; one that cannot say is taken to do so.
fn is_divided(device: &Device<'_>) -> bool {
    let says = |answer: Result<bool, NvmlError>| match answer {
        Ok(divided) => divided,
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => false,
        Err(_) => true,
    };
    says(device.mig_is_mig_device_handle()) || says(device.mig_mode().map(|mode| mode.current != 0))
}

/// The driver's version, "580.159.04", where the management library tells.
pub fn nvml_driver_version() -> Option<String> {
    load().ok()?.sys_driver_version().ok()
}

/// Every GPU that the management library lists, whether or not this process may use it.
///
/// # Errors
/// When the library is not there, or cannot be asked.
pub fn nvml_devices() -> Result<Vec<NvmlDevice>, ReaderError> {
    let library = load()?;
    let count = library.device_count().map_err(|error| broken(&error))?;
    let describe = |index| describe(&library.device_by_index(index)?);
    (0..count).map(describe).collect::<Result<_, NvmlError>>().map_err(|error| broken(&error))
}

/// The GPU of this UUID.
///
/// # Errors
/// When the library is not there, or knows no such device.
pub fn nvml_device(uuid: &str) -> Result<NvmlDevice, ReaderError> {
    let library = load()?;
    library.device_by_uuid(uuid).and_then(|device| describe(&device)).map_err(|error| broken(&error))
}

/// The link's figures are extras: a card or container that denies them is listed all the same.
fn describe(device: &Device<'_>) -> Result<NvmlDevice, NvmlError> {
    let link = |generation: Result<u32, NvmlError>, lanes: Result<u32, NvmlError>| {
        Some(PcieLink { generation: generation.ok()?, lanes: lanes.ok()? })
    };
    let memory = device.memory_info()?;
    Ok(NvmlDevice {
        uuid: device.uuid()?,
        name: device.name()?,
        total_bytes: memory.total,
        free_bytes: figure(memory.free),
        link: link(device.current_pcie_link_gen(), device.current_pcie_link_width()),
        fastest_link: link(device.max_pcie_link_gen(), device.max_pcie_link_width()),
    })
}

fn load() -> Result<Nvml, ReaderError> {
    let failed = |reason: String| ReaderError { reader: NAME, reason };
    let found = Library::Nvml.find().map_err(|error| failed(error.to_string()))?;
    let library = Nvml::builder().lib_path(found.file_name.as_ref()).init();
    library.map_err(|error| failed(format!("{} cannot be used: {error}", found.file_name)))
}

fn broken(error: &NvmlError) -> ReaderError {
    ReaderError { reader: NAME, reason: error.to_string() }
}

/// Containers, MIG and WSL deny the list or do not have it: then nothing is known.
const fn is_denied(error: &NvmlError) -> bool {
    matches!(error, NvmlError::NotSupported | NvmlError::NoPermission | NvmlError::NotFound)
}

const fn used(memory: &UsedGpuMemory) -> Reading {
    match memory {
        UsedGpuMemory::Unavailable => Reading::Unknown,
        UsedGpuMemory::Used(bytes) => Reading::Bytes(*bytes),
    }
}

/// What the list has a process down for. A process that is not listed (other process numbers in a container) or whose
/// figure is not available is unknown.
fn held_by(process: u32, listed: impl Iterator<Item = (u32, Reading)>) -> Reading {
    let own = listed.filter(|(pid, _)| *pid == process).map(|(_, reading)| reading.known());
    own.flatten().map(figure).next().unwrap_or(Reading::Unknown)
}

/// What the list has other processes down for, each once: one that computes and draws stands in both lists.
fn held_by_others(own: u32, listed: Vec<(u32, Reading)>) -> Option<Vec<u64>> {
    let mut others = BTreeMap::new();
    let mut is_listed = false;
    for (process, reading) in listed {
        let bytes = reading.known().map(figure)?.known()?;
        is_listed |= process == own;
        if process != own {
            let most = others.entry(process).or_insert(0);
            *most = bytes.max(*most);
        }
    }
    is_listed.then(|| others.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_process_is_read_and_what_is_not_said_is_unknown() {
        let gib = 1 << 30;
        let cases = [
            (vec![(7, Reading::Bytes(gib)), (8, Reading::Bytes(5))], Reading::Bytes(gib)),
            (vec![(8, Reading::Bytes(5))], Reading::Unknown),
            (vec![(7, Reading::Unknown)], Reading::Unknown),
            (vec![(7, Reading::Bytes(u64::MAX))], Reading::Unknown),
            (vec![(7, Reading::Bytes(0))], Reading::Bytes(0)),
            (Vec::new(), Reading::Unknown),
        ];
        for (listed, expected) in cases {
            assert_eq!(held_by(7, listed.clone().into_iter()), expected, "{listed:?}");
        }
        assert_eq!(used(&UsedGpuMemory::Unavailable), Reading::Unknown);
    }

    #[test]
    fn others_are_told_each_once_and_only_where_the_list_is_whole() {
        let bytes = Reading::Bytes;
        let cases = [
            (vec![(7, bytes(5)), (8, bytes(6)), (9, bytes(4))], Some(vec![6, 4])),
            (vec![(7, bytes(5)), (8, bytes(6)), (8, bytes(6))], Some(vec![6])),
            (vec![(7, bytes(5))], Some(Vec::new())),
            (vec![(8, bytes(6))], None),
            (vec![(7, bytes(5)), (8, Reading::Unknown)], None),
            (vec![(7, bytes(5)), (8, bytes(u64::MAX))], None),
            (Vec::new(), None),
        ];
        for (listed, expected) in cases {
            assert_eq!(held_by_others(7, listed.clone()), expected, "{listed:?}");
        }
    }

    #[test]
    fn denied_lists_are_unknown_and_other_failures_are_said() {
        assert!(is_denied(&NvmlError::NotSupported) && is_denied(&NvmlError::NoPermission));
        assert!(!is_denied(&NvmlError::GpuLost) && !is_denied(&NvmlError::Unknown));
    }

    #[test]
    fn a_machine_without_the_library_gets_its_name_and_no_panic() {
        if let Err(error) = nvml_devices() {
            assert!(error.to_string().contains("nvml"), "{error}");
        }
    }
}
