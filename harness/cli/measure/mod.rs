//! `devices --measure`: how fast weights reach each attached GPU, and what memory costs that the allocator has at hand.

mod arrival;
mod copies;
mod pairs;
mod source;

use std::fmt;
use std::num::NonZero;
use std::time::Duration;

use headroom_base::{Bytes, MIB};
use headroom_device::cuda::{CudaContext, Gpu, gpus};
use headroom_device::lease::{DeviceLease, LeaseError};
use headroom_device::{Holding, Settings};
use serde::Serialize;

use self::copies::{Copied, Shared, measure_copies, rate};
use self::pairs::{Pair, measure_pairs};
use super::error::CliError;
use super::exit::Exit;
use super::terminal::Terminal;
use crate::gpu::{NoTurn, uuid_hash};
use crate::run::provenance;
use crate::variables::patience_or;

/// What a device is measured with when nobody says otherwise, as the command line has it.
pub(super) const USUAL_SIZE: &str = "4GiB";

/// How long another process's lease of a device is waited for unless the environment says otherwise.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(60);

/// Everything that can go wrong on a device is told in its own words and fails that device alone.
#[derive(Debug)]
enum Failure {
    /// What was copied is not what is there.
    Wrong(String),
    /// Somebody else has the device.
    Busy(String),
    /// It cannot be measured.
    Other(Box<dyn std::error::Error>),
}

impl Failure {
    fn no_turn(no_turn: NoTurn) -> Self {
        match no_turn {
            NoTurn::Busy(text) => Self::Busy(text),
            unusable @ NoTurn::Unusable(_) => Self::Other(Box::new(unusable)),
        }
    }

    /// How a run ends of which this is the worst.
    const fn exit(&self) -> Exit {
        match self {
            Self::Wrong(_) => Exit::CheckFailed,
            Self::Busy(_) => Exit::Busy,
            Self::Other(_) => Exit::Unavailable,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(text) | Self::Busy(text) => f.write_str(text),
            Self::Other(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(Box::new(error))
    }
}

/// All devices of one run.
#[derive(Serialize)]
struct Measurements {
    /// When they were made, in RFC 3339.
    created: String,
    /// The program's version.
    tool_version: String,
    /// The source that it was built from, where the build knows.
    commit: Option<String>,
    /// What it was asked.
    arguments: Vec<String>,
    /// Whether the build is optimised: figures of one that is not say little about the allocator.
    optimised: bool,
    /// Threads that the host runs at once; none where it does not tell.
    processors: Option<usize>,
    devices: Vec<Measured>,
}

/// One device.
#[derive(Serialize)]
struct Measured {
    name: String,
    /// Shown to whoever measures, and not printed as JSON: that can be kept and names no card.
    #[serde(skip)]
    uuid: String,
    /// Tells two cards apart, and is the same in reports.
    uuid_hash: String,
    driver_version: String,
    /// What was copied up, at most, in one measurement.
    size_bytes: u64,
    /// Empty if the device could not be measured.
    copies: Vec<Copied>,
    cached_pairs: Vec<Pair>,
    /// Why the device could not be measured, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

/// Measures every attached GPU.
///
/// # Errors
/// When there is none, or the result cannot be printed.
pub(super) fn measure(size: Bytes, json: bool, terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    let listed = gpus().map_err(|error| CliError::Unavailable(format!("no CUDA device: {error}")))?;
    let patience = patience_or(DEFAULT_PATIENCE).map_err(CliError::Value)?;
    let (devices, ends): (Vec<_>, Vec<_>) = listed.iter().map(|gpu| measured(gpu, size.0, patience, terminal)).unzip();
    let asked = ["devices".to_owned(), format!("--measure={}B", size.0)];
    let from = provenance(asked.into_iter().chain(json.then(|| "--json".to_owned())).collect());
    let measurements = Measurements {
        created: from.created,
        tool_version: from.tool_version,
        commit: from.commit,
        arguments: from.arguments,
        optimised: !cfg!(debug_assertions),
        processors: std::thread::available_parallelism().ok().map(NonZero::get),
        devices,
    };
    if json {
        terminal.json(&measurements)?;
    } else {
        print(&measurements, terminal)?;
    }
    // That a device was busy is worth another try only where nothing else went wrong.
    let worst = [Exit::CheckFailed, Exit::Unavailable, Exit::Busy].into_iter().find(|exit| ends.contains(exit));
    Ok(worst.unwrap_or(Exit::Success))
}

fn measured(gpu: &Gpu, size_bytes: u64, patience: Duration, terminal: &mut Terminal<'_>) -> (Measured, Exit) {
    let size_bytes = copies::whole_pieces(size_bytes);
    let measured = try_measure(gpu, size_bytes, patience, terminal);
    let exit = measured.as_ref().map_or_else(Failure::exit, |_| Exit::Success);
    let (copies, cached_pairs, failed) = match measured {
        Ok((copies, pairs)) => (copies, pairs, None),
        Err(error) => {
            terminal.remark(format!("{} ({}) could not be measured: {error}", gpu.name, gpu.uuid));
            (Vec::new(), Vec::new(), Some(error.to_string()))
        }
    };
    let Gpu { name, uuid, driver_version, .. } = gpu.clone();
    let uuid_hash = uuid_hash(&uuid);
    (Measured { name, uuid, uuid_hash, driver_version, size_bytes, copies, cached_pairs, failed }, exit)
}

fn try_measure(
    gpu: &Gpu,
    size_bytes: u64,
    patience: Duration,
    terminal: &mut Terminal<'_>,
) -> Result<(Vec<Copied>, Vec<Pair>), Failure> {
    let on_wait = |holder: &_| terminal.remark(format!("waiting for {}, held by {holder}", gpu.uuid));
    let folder = DeviceLease::default_folder()?;
    let lease = DeviceLease::acquire(&folder, &gpu.uuid, "headroom devices --measure", patience, on_wait);
    let _lease = lease.map_err(|error| match error {
        LeaseError::Held { holder, waited, .. } => Failure::no_turn(NoTurn::leased(&gpu.name, &holder, waited)),
        other => Failure::from(other),
    })?;
    let context = CudaContext::open(gpu).map_err(|error| Failure::no_turn(NoTurn::of_opening(&error)))?;
    let device = context.parts(Settings::default())?.build();
    // Before the copies, so that the allocator holds nothing but what is asked of it.
    let pairs = measure_pairs(&device)?;
    let copies = device.with_memory(|memory| measure_copies(&context, memory, size_bytes))?;
    device.empty_cache()?;
    Ok((copies, pairs))
}

fn print(measurements: &Measurements, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    if !measurements.optimised {
        terminal
            .line("This build is not optimised: build with --release before the allocator's figures are compared.")?;
    }
    for device in &measurements.devices {
        let Measured { name, uuid, uuid_hash, driver_version, size_bytes, .. } = device;
        let size = Bytes(*size_bytes);
        terminal
            .line(format!("{name} ({uuid}, {uuid_hash} in reports), driver {driver_version}, up to {size} a copy"))?;
        if let Some(reason) = &device.failed {
            terminal.line(format!("not measured: {reason}"))?;
            continue;
        }
        let copies = device.copies.iter().map(|copied| {
            vec![
                copied.source.name().to_owned(),
                copied.manner.to_string(),
                copied.settings.as_ref().map_or_else(String::new, shared),
                Bytes(copied.bytes).to_string(),
                format!("{:.1}", rate(copied.bytes, copied.first_seconds)),
                format!("{:.1}", copied.gib_per_second),
                format!("{:.1} %", copied.share_of_plain * 100.0),
            ]
        });
        let header = ["from", "manner", "threads × buffer", ">copied", ">first, GiB/s", ">GiB/s", ">of plain pinned"];
        terminal.table(&header, &copies.collect::<Vec<_>>())?;
        let pairs = device.cached_pairs.iter().map(|pair| {
            let nanoseconds = [pair.nanoseconds, pair.locked_nanoseconds].map(|figure| format!("{figure:.0}"));
            [vec![block(pair.bytes), pair.pairs.to_string()], nanoseconds.to_vec()].concat()
        });
        let header = [">block", ">pairs", ">ns, allocate + free", ">through the device's lock"];
        terminal.table(&header, &pairs.collect::<Vec<_>>())?;
    }
    Ok(())
}

fn shared(settings: &Shared) -> String {
    if settings.pinned_bytes == 0 {
        return format!("{}, no buffer", settings.threads);
    }
    format!("{} × {}", settings.threads, Bytes(settings.buffer_bytes as u64))
}

/// A block's size; the smallest are too small for the units that sizes are printed in.
fn block(bytes: u64) -> String {
    if bytes < MIB { format!("{bytes} B") } else { Bytes(bytes).to_string() }
}

/// The middle one of several measurements.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Memory that goes back to its allocator whether or not what it was for succeeded.
struct Held<'a> {
    memory: &'a mut dyn headroom_device::DeviceMemory,
    holdings: Vec<Holding>,
}

impl<'a> Held<'a> {
    fn new(memory: &'a mut dyn headroom_device::DeviceMemory, sizes: &[u64]) -> Result<Self, Failure> {
        let mut held = Self { memory, holdings: Vec::with_capacity(sizes.len()) };
        for bytes in sizes {
            let holding = held.memory.allocate(*bytes)?;
            held.holdings.push(holding);
        }
        Ok(held)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for holding in self.holdings.drain(..) {
            // Each was allocated above and is freed once.
            let _ = self.memory.free(holding);
        }
    }
}
