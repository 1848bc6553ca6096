//! `devices`: what there is to run on and what each can do, which libraries were found, who tells what a process holds.

use std::collections::BTreeMap;

use headroom_base::{AllocatorKind, Bytes, Reading};
use headroom_device::cuda::libraries::Library;
use headroom_device::cuda::{self, Gpu};
use headroom_device::readers::{DriverReader, NvmlReader, Platform, ProcessReader, UnknownReader, nvml_device};
use serde::Serialize;

use super::args::DevicesArgs;
use super::error::CliError;
use super::exit::Exit;
use super::measure::measure;
use super::terminal::Terminal;
use crate::catalogue::Catalogue;
use crate::gpu::{missing_libraries, short_name, too_old};

/// A GPU of this machine that this process may use.
#[derive(Serialize)]
struct Attached {
    name: String,
    /// What `--device` calls it; nothing where it is too old to run anything.
    device: Option<String>,
    uuid: String,
    /// By the driver API, as a device class has it.
    total_bytes: u64,
    /// What nobody uses, by the management library; nothing where it does not tell.
    free_bytes: Option<u64>,
    compute_capability: String,
    driver_version: String,
    /// The link as it is now, and as fast as it can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fastest_link: Option<String>,
    allocators: Vec<AllocatorKind>,
    /// Whether operations can be executed on it with real kernels.
    runs_operations: bool,
    /// Why not, if not: the libraries that are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<&'static str>,
    /// Why not, if the card itself is why.
    #[serde(skip_serializing_if = "Option::is_none")]
    too_old: Option<String>,
    /// Who tells what this process holds on it.
    reader: &'static str,
    reader_verified: bool,
    /// Why that is unknown, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    reader_problem: Option<String>,
}

/// One of NVIDIA's libraries.
#[derive(Serialize)]
struct LibraryRow {
    name: &'static str,
    found: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// The file it was loaded from.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// What is wrong with it, or why it was not found.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// Every file name that was tried, where none was found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tried: Vec<String>,
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
    libraries: Vec<LibraryRow>,
    simulated: Vec<Simulated>,
    readers: Vec<Reader>,
}

/// Lists devices, libraries and readers. Nothing is taken from any device.
///
/// # Errors
/// When they cannot be printed.
pub(super) fn devices(
    args: &DevicesArgs,
    catalogue: &Catalogue,
    terminal: &mut Terminal<'_>,
) -> Result<Exit, CliError> {
    if let Some(size) = args.measure {
        return measure(size, args.json, terminal);
    }
    let (devices, no_device) = match cuda::gpus() {
        Ok(gpus) => (gpus.iter().map(attached).collect(), None),
        Err(error) => (Vec::new(), Some(format!("no CUDA device: {error}"))),
    };
    let libraries = Library::ALL.into_iter().map(library).collect();
    let listing = Listing { devices, no_device, libraries, simulated: simulated(catalogue), readers: readers() };
    if args.json {
        terminal.json(&listing)?;
    } else {
        print(&listing, terminal)?;
    }
    Ok(Exit::Success)
}

fn attached(gpu: &Gpu) -> Attached {
    let by_nvml = nvml_device(&gpu.uuid).ok();
    let (reader, reader_verified, reader_problem) = match NvmlReader::open(&gpu.uuid) {
        Ok(reader) => (reader.name(), reader.verified(), None),
        Err(error) => (Platform::Nvml.name(), false, Some(error.to_string())),
    };
    let (missing, too_old) = (missing_libraries(), too_old(gpu.compute_capability));
    let link = by_nvml.as_ref().and_then(|device| device.link);
    let fastest_link = by_nvml.as_ref().and_then(|device| device.fastest_link);
    Attached {
        name: gpu.name.clone(),
        device: too_old.is_none().then(|| short_name(&gpu.uuid)),
        uuid: gpu.uuid.clone(),
        total_bytes: gpu.total_bytes,
        free_bytes: by_nvml.as_ref().and_then(|device| device.free_bytes.known()),
        compute_capability: format!("{}.{}", gpu.compute_capability.0, gpu.compute_capability.1),
        driver_version: gpu.driver_version.clone(),
        link: link.map(|link| link.to_string()),
        fastest_link: fastest_link.map(|link| link.to_string()),
        allocators: gpu.abilities().map(cuda::Abilities::allocators).unwrap_or_default(),
        runs_operations: missing.is_empty() && too_old.is_none(),
        missing,
        too_old,
        reader,
        reader_verified,
        reader_problem,
    }
}

fn library(library: Library) -> LibraryRow {
    let name = library.name();
    match library.find() {
        Ok(loaded) => LibraryRow {
            name,
            found: true,
            version: loaded.version.clone(),
            path: Some(
                loaded.path.as_ref().map_or_else(|| loaded.file_name.clone(), |path| path.display().to_string()),
            ),
            problem: loaded.remark.clone(),
            tried: Vec::new(),
        },
        Err(error) => LibraryRow {
            name,
            found: false,
            version: None,
            path: None,
            problem: Some(error.to_string()),
            tried: error.tried().to_vec(),
        },
    }
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
        let answers = match platform {
            Platform::Nvml | Platform::AmdgpuFdinfo => "the process's bytes, where the platform gives them",
            Platform::D3dkmt | Platform::Mps | Platform::Xpu => "unknown, until somebody can test it",
        };
        let verified = match platform {
            Platform::Nvml => NvmlReader::is_verified(),
            other => UnknownReader { platform: other }.verified(),
        };
        Reader { name: platform.name(), verified, answers }
    });
    std::iter::once(own).chain(platforms).collect()
}

fn print(listing: &Listing, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    if let Some(reason) = &listing.no_device {
        terminal.line(reason)?;
    }
    for device in &listing.devices {
        print_attached(device, terminal)?;
    }
    let rows = listing.libraries.iter().map(|library| {
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let mut place = or_dash(&library.path);
        if let Some(problem) = &library.problem {
            place = if library.found { format!("{place}; {problem}") } else { problem.clone() };
        }
        vec![library.name.to_owned(), or_dash(&library.version), place]
    });
    terminal.table(&["library", "version", "found at, or why not"], &rows.collect::<Vec<_>>())?;
    let rows = listing.simulated.iter().map(|device| {
        vec![
            device.name.clone(),
            Bytes(device.memory_bytes).to_string(),
            names(&device.allocators),
            device.families.join(", "),
        ]
    });
    terminal.table(&["simulated", ">memory", "allocators", "families"], &rows.collect::<Vec<_>>())?;
    let readers = listing.readers.iter();
    let rows: Vec<_> = readers
        .map(|reader| vec![reader.name.to_owned(), yes_or_no(reader.verified).to_owned(), reader.answers.to_owned()])
        .collect();
    terminal.table(&["reader", "verified on hardware", "answers"], &rows)?;
    Ok(())
}

fn print_attached(device: &Attached, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let name = device.device.as_ref().map(|name| format!(": --device {name}")).unwrap_or_default();
    terminal.line(format!("{} ({}){name}", device.name, device.uuid))?;
    let free = Reading::from(device.free_bytes);
    terminal.line(format!("  memory: {}, {free} free", Bytes(device.total_bytes)))?;
    let link = match (&device.link, &device.fastest_link) {
        (Some(now), Some(fastest)) if now != fastest => format!(", {now} (up to {fastest})"),
        (Some(link), _) | (None, Some(link)) => format!(", {link}"),
        (None, None) => String::new(),
    };
    let capability = &device.compute_capability;
    terminal.line(format!("  compute capability {capability}, driver {}{link}", device.driver_version))?;
    terminal.line(format!("  allocators: {}", names(&device.allocators)))?;
    let without = (!device.missing.is_empty()).then(|| format!("without {}", device.missing.join(", ")));
    let why_not: Vec<_> = device.too_old.clone().into_iter().chain(without).collect();
    let operations = if device.runs_operations { "yes".to_owned() } else { format!("no, {}", why_not.join(", and ")) };
    terminal.line(format!("  runs operations: {operations}"))?;
    let problem = device.reader_problem.as_ref().map(|problem| format!("; {problem}")).unwrap_or_default();
    let verified = yes_or_no(device.reader_verified);
    terminal.line(format!("  reader: {}, verified on hardware: {verified}{problem}", device.reader))?;
    Ok(())
}

fn names(allocators: &[AllocatorKind]) -> String {
    allocators.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
}

const fn yes_or_no(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}
