//! Cards under NVIDIA's driver: which there are, and how one is opened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headroom_base::{AllocatorKind, Reading};
use headroom_device::cuda::libraries::Library;
use headroom_device::cuda::{Abilities, CudaContext, Gpu, gpus};
use headroom_device::device::DeviceParts;
use headroom_device::driver::DriverCall;
use headroom_device::readers::NvmlReader;
use headroom_device::{Device, DriverError, MemoryInfo, Settings};
use headroom_runners::cuda::{
    Convolutions, CudaError, CudaRunner, Executed, GivenContents, OLDEST_CAPABILITY, OutputsSeen, Results,
};
use headroom_runners::programs::Computation;
use headroom_runners::{RunError, Runner, Work};

use super::{Attached, Ballast, CardFacts, NoTurn, Opener};

/// What is needed beside the driver.
const LIBRARIES: [Library; 3] = [Library::Nvrtc, Library::Cublas, Library::Cudnn];

/// The libraries without which nothing is computed.
pub(crate) fn missing_libraries() -> Vec<&'static str> {
    LIBRARIES.into_iter().filter(|library| library.find().is_err()).map(Library::name).collect()
}

/// Why the kernels do not run on a card of this compute capability; none where they do.
pub(crate) fn too_old(compute_capability: (u32, u32)) -> Option<String> {
    let (major, minor) = OLDEST_CAPABILITY;
    (compute_capability < OLDEST_CAPABILITY).then(|| format!("too old: compute capability {major}.{minor} is needed"))
}

/// The cards that the driver lists and that this program can compute on. No context is made.
///
/// # Errors
/// Why there is none, in a sentence.
pub(super) fn listed() -> Result<Vec<(CardFacts, Opener)>, String> {
    let listed = gpus().map_err(|error| error.to_string())?;
    for library in LIBRARIES {
        library.find().map_err(|error| format!("{} attached, and cannot be computed on: {error}", names(&listed)))?;
    }
    let (able, old): (Vec<Gpu>, Vec<Gpu>) =
        listed.into_iter().partition(|gpu| too_old(gpu.compute_capability).is_none());
    if let (true, Some(why)) = (able.is_empty(), old.first().and_then(|gpu| too_old(gpu.compute_capability))) {
        return Err(format!("{} {why}", names(&old)));
    }
    let framework = headroom_runners::cuda::framework().map_err(|error| error.to_string())?;
    Ok(able.into_iter().map(|gpu| openable(gpu, framework.clone())).collect())
}

fn names(gpus: &[Gpu]) -> String {
    let names: Vec<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    format!("{} {}", names.join(", "), if names.len() == 1 { "is" } else { "are" })
}

fn openable(gpu: Gpu, framework: String) -> (CardFacts, Opener) {
    let facts = CardFacts {
        model: gpu.name.clone(),
        uuid: gpu.uuid.clone(),
        total_bytes: gpu.total_bytes,
        driver: gpu.driver_version.clone(),
        framework,
        // A card that does not answer even this fails by itself when it is opened, and hides no other.
        allocators: gpu.abilities().map_or_else(|_| AllocatorKind::ALL.to_vec(), Abilities::allocators),
    };
    let opener = move || Cuda::open(&gpu).map(|card| Arc::new(card) as Arc<dyn Attached>);
    (facts, Box::new(opener))
}

/// A card under the CUDA driver, open.
#[derive(Debug)]
struct Cuda {
    context: CudaContext,
    runner: Arc<CudaRunner>,
    /// Who tells what this process holds, where anybody does.
    reader: Option<NvmlReader>,
    devices: AtomicU64,
}

impl Cuda {
    fn open(gpu: &Gpu) -> Result<Self, NoTurn> {
        let context = CudaContext::open(gpu).map_err(|error| NoTurn::of_opening(&error))?;
        let runner = CudaRunner::new(context.clone()).map_err(|error| match error {
            CudaError::Driver(error) => NoTurn::of_opening(&error),
            error if error.is_out_of_memory() => NoTurn::no_room_to_open(error),
            error => NoTurn::Unusable(error.to_string()),
        })?;
        let reader = NvmlReader::open(&gpu.uuid).ok();
        Ok(Self { context, runner: Arc::new(runner), reader, devices: AtomicU64::new(0) })
    }
}

impl Attached for Cuda {
    fn parts(&self, settings: Settings) -> Result<DeviceParts, DriverError> {
        // A name of its own for each: what libraries keep on one is not there on the next.
        let number = self.devices.fetch_add(1, Ordering::SeqCst);
        Ok(self.context.parts(settings)?.named(format!("{}#{number}", self.context.gpu().uuid)))
    }

    fn runner(&self) -> Arc<dyn Runner> {
        Arc::clone(&self.runner) as Arc<dyn Runner>
    }

    fn executed(&self, work: &Work<'_>) -> Result<Executed, RunError> {
        self.runner.executed(work)
    }

    fn results(&self, device: &Device, computation: Computation) -> Result<(Vec<Vec<f64>>, Convolutions), RunError> {
        let computed = self.runner.results(device, computation, &GivenContents::default())?;
        Ok((computed.outputs.iter().map(Results::values).collect(), computed.convolutions))
    }

    fn outputs_seen(&self, device: &Device, work: &Work<'_>) -> Result<OutputsSeen, RunError> {
        self.runner.outputs_seen(device, work)
    }

    fn memory(&self) -> Result<MemoryInfo, DriverError> {
        self.context.memory()
    }

    fn process_bytes(&self) -> Result<Reading, DriverError> {
        let Some(reader) = &self.reader else { return Ok(Reading::Unknown) };
        let failed = |reason: String| DriverError::Failed { call: DriverCall::ProcessBytes, code: 0, reason };
        reader.process_bytes().map_err(|error| failed(error.to_string()))
    }

    fn others(&self) -> Option<Vec<u64>> {
        self.reader.as_ref()?.other_processes().ok()?
    }

    fn context_bytes(&self) -> Reading {
        self.context.own_bytes_at_start()
    }

    fn libraries(&self) -> Vec<(&'static str, u64)> {
        self.runner.library_bytes()
    }

    fn ballast(&self, bytes: u64) -> Result<Ballast, DriverError> {
        Ok(Box::new(self.context.ballast(bytes)?))
    }

    fn synchronize(&self) -> Result<(), DriverError> {
        self.context.synchronize()
    }

    fn leave(&self, device: &Device) -> Result<(), RunError> {
        self.runner.leave(device)
    }
}
