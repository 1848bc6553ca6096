//! What amdgpu's `/proc/self/fdinfo` says of this process's device memory.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use headroom_base::{KIB, MIB, Reading};

use super::{ProcessReader, ReaderError};
use crate::device::DeviceMemory;

/// Why a line of an fdinfo file is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FdinfoError {
    /// A value is not a number with a known unit.
    #[error("`{line}`: expected a number and no unit, KiB or MiB")]
    NotASize {
        /// The line.
        line: String,
    },
    /// A value does not fit in 64 bits.
    #[error("`{line}`: more bytes than 64 bits hold")]
    TooLarge {
        /// The line.
        line: String,
    },
}

/// One open file of the device: its client number and its device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Client {
    id: Option<String>,
    vram: Reading,
}

/// Bytes of device memory that the client of one fdinfo file holds, where the file belongs to the amdgpu device at
/// `pci_address`. A file of anything else, or without the figure, is unknown.
///
/// # Errors
/// When the figure is there and is no size.
pub fn drm_memory_bytes(text: &str, pci_address: &str) -> Result<Reading, FdinfoError> {
    Ok(client(text, pci_address)?.map_or(Reading::Unknown, |client| client.vram))
}

fn client(text: &str, pci_address: &str) -> Result<Option<Client>, FdinfoError> {
    let (mut driver, mut device, mut id) = (None, None, None);
    let (mut resident, mut memory) = (Reading::Unknown, Reading::Unknown);
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match key.trim() {
            "drm-driver" => driver = Some(value),
            "drm-pdev" => device = Some(value),
            "drm-client-id" => id = Some(value.to_owned()),
            "drm-resident-vram" => resident = Reading::Bytes(size(line, value)?),
            "drm-memory-vram" => memory = Reading::Bytes(size(line, value)?),
            _ => {}
        }
    }
    if driver != Some("amdgpu") || !device.is_some_and(|device| device.eq_ignore_ascii_case(pci_address)) {
        return Ok(None);
    }
    // The kernel names the same figure `drm-memory-` before 6.13 and `drm-resident-` as well afterwards.
    let vram = if resident == Reading::Unknown { memory } else { resident };
    Ok(Some(Client { id, vram }))
}

fn size(line: &str, value: &str) -> Result<u64, FdinfoError> {
    let not_a_size = || FdinfoError::NotASize { line: line.to_owned() };
    let mut words = value.split_whitespace();
    let digits = words.next().ok_or_else(not_a_size)?;
    let scale = match words.next() {
        None => 1,
        Some("KiB") => KIB,
        Some("MiB") => MIB,
        Some(_) => return Err(not_a_size()),
    };
    if words.next().is_some() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(not_a_size());
    }
    let number: u64 = digits.parse().map_err(|_| FdinfoError::TooLarge { line: line.to_owned() })?;
    number.checked_mul(scale).ok_or_else(|| FdinfoError::TooLarge { line: line.to_owned() })
}

/// Reads this process's fdinfo files. Nobody has seen it beside an allocator on hardware yet, so it is unverified.
#[derive(Clone, Debug)]
pub struct AmdgpuReader {
    folder: PathBuf,
    pci_address: String,
}

impl AmdgpuReader {
    /// A reader of this process for the device at a PCI address such as `0000:03:00.0`.
    pub fn new(pci_address: impl Into<String>) -> Self {
        Self::of_folder("/proc/self/fdinfo", pci_address)
    }

    /// A reader of another folder of the same form: a captured one.
    pub fn of_folder(folder: impl Into<PathBuf>, pci_address: impl Into<String>) -> Self {
        Self { folder: folder.into(), pci_address: pci_address.into() }
    }

    /// The sum over the process's clients of this device. Several files of one client count once; unknown when no
    /// client tells.
    fn sum(&self) -> Result<Reading, ReaderError> {
        let failed = |reason: String| ReaderError { reader: "amdgpu fdinfo", reason };
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if unreadable(&error) => return Ok(Reading::Unknown),
            Err(error) => return Err(failed(format!("{}: {error}", self.folder.display()))),
        };
        let (mut seen, mut total) = (HashSet::new(), None::<u64>);
        for entry in entries {
            let path = entry.map_err(|error| failed(error.to_string()))?.path();
            let Some(text) = read(&path) else { continue };
            let found = client(&text, &self.pci_address).map_err(|error| failed(error.to_string()))?;
            let Some(Client { id, vram: Reading::Bytes(bytes) }) = found else { continue };
            if id.is_none_or(|id| seen.insert(id)) {
                total = Some(total.unwrap_or(0).saturating_add(bytes));
            }
        }
        Ok(total.into())
    }
}

/// A file that was closed since it was listed, or that may not be read, tells nothing.
fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn unreadable(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

impl ProcessReader for AmdgpuReader {
    fn name(&self) -> &'static str {
        "amdgpu fdinfo"
    }

    fn verified(&self) -> bool {
        false
    }

    fn read(&mut self, _memory: &mut dyn DeviceMemory) -> Result<Reading, ReaderError> {
        self.sum()
    }
}
