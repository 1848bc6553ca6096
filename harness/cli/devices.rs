//! `devices`: what there is to run on, who tells what a process holds there, and which of those were verified.

use std::collections::BTreeMap;

use headroom_base::{AllocatorKind, Bytes};
use headroom_device::readers::{DriverReader, NvmlDevice, Platform, ProcessReader, UnknownReader, nvml_devices};
use serde::Serialize;

use super::args::DevicesArgs;
use super::error::CliError;
use super::exit::Exit;
use super::terminal::Terminal;
use crate::catalogue::Catalogue;

/// A GPU of this machine.
#[derive(Serialize)]
struct Attached {
    name: String,
    uuid: String,
    total_bytes: u64,
}

/// A device that exists only in software.
#[derive(Serialize)]
struct Simulated {
    name: String,
    memory_bytes: u64,
    allocators: Vec<AllocatorKind>,
    families: Vec<String>,
}

/// Somebody who tells what a process holds on a device.
#[derive(Serialize)]
struct Reader {
    name: &'static str,
    /// Whether a person saw it agree with the allocator on hardware.
    verified: bool,
    answers: &'static str,
}

#[derive(Serialize)]
struct Listing {
    devices: Vec<Attached>,
    /// Why there is none, if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    no_device: Option<String>,
    simulated: Vec<Simulated>,
    readers: Vec<Reader>,
}

/// Lists devices and readers.
///
/// # Errors
/// When they cannot be printed.
pub(super) fn devices(
    args: &DevicesArgs,
    catalogue: &Catalogue,
    terminal: &mut Terminal<'_>,
) -> Result<Exit, CliError> {
    let (devices, no_device) = match attached() {
        Ok(devices) => (devices, None),
        Err(reason) => (Vec::new(), Some(reason)),
    };
    let listing = Listing { devices, no_device, simulated: simulated(catalogue), readers: readers() };
    if args.json {
        terminal.json(&listing)?;
    } else {
        print(&listing, terminal)?;
    }
    Ok(Exit::Success)
}

/// The GPUs of this machine, or why there is none.
fn attached() -> Result<Vec<Attached>, String> {
    let listed = nvml_devices().map_err(|error| format!("no CUDA device: {error}"))?;
    let attached =
        listed.into_iter().map(|NvmlDevice { uuid, name, total_bytes }| Attached { name, uuid, total_bytes });
    Ok(attached.collect())
}

fn simulated(catalogue: &Catalogue) -> Vec<Simulated> {
    let mut by_size: BTreeMap<(u64, &str), Simulated> = BTreeMap::new();
    for family in catalogue.families() {
        for device in &family.devices {
            let listed = by_size.entry((device.memory_bytes, &device.name)).or_insert_with(|| Simulated {
                name: device.name.clone(),
                memory_bytes: device.memory_bytes,
                allocators: Vec::new(),
                families: Vec::new(),
            });
            listed.families.push(family.name.clone());
            listed.allocators.extend(device.allocators.iter().copied());
            listed.allocators.sort_unstable();
            listed.allocators.dedup();
        }
    }
    by_size.into_values().collect()
}

fn readers() -> Vec<Reader> {
    let simulated = DriverReader { verified: true };
    let own = Reader { name: "simulated driver", verified: simulated.verified(), answers: "its own exact figure" };
    let platforms = Platform::ALL.into_iter().map(|platform| {
        let untested = UnknownReader { platform };
        let answers = match platform {
            Platform::Nvml | Platform::AmdgpuFdinfo => "the process's bytes, where the platform gives them",
            Platform::D3dkmt | Platform::Mps | Platform::Xpu => "unknown, until somebody can test it",
        };
        Reader { name: untested.name(), verified: untested.verified(), answers }
    });
    std::iter::once(own).chain(platforms).collect()
}

fn print(listing: &Listing, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    if let Some(reason) = &listing.no_device {
        terminal.line(reason)?;
    }
    if !listing.devices.is_empty() {
        terminal.line("This build drives simulated devices only. Listed by NVIDIA's management library:")?;
    }
    for device in &listing.devices {
        terminal.line(format!("{} ({}), {}", device.name, device.uuid, Bytes(device.total_bytes)))?;
    }
    let rows = listing.simulated.iter().map(|device| {
        let allocators: Vec<_> = device.allocators.iter().map(|kind| kind.name()).collect();
        vec![
            device.name.clone(),
            Bytes(device.memory_bytes).to_string(),
            allocators.join(", "),
            device.families.join(", "),
        ]
    });
    terminal.table(&["simulated", ">memory", "allocators", "families"], &rows.collect::<Vec<_>>())?;
    let verified = |reader: &Reader| if reader.verified { "yes" } else { "no" }.to_owned();
    let readers = listing.readers.iter();
    let rows: Vec<_> =
        readers.map(|reader| vec![reader.name.to_owned(), verified(reader), reader.answers.to_owned()]).collect();
    terminal.table(&["reader", "verified on hardware", "answers"], &rows)?;
    Ok(())
}
