//! The runner of one GPU: computations prepared once, memory filled once, launches on the device's one stream.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headroom_base::Case;
use headroom_device::cuda::CudaContext;
use headroom_device::cuda::libraries::{Library as CudaLibrary, LibraryError};
use headroom_device::device::{Device, Holding};
use headroom_family::Architecture;

use crate::programs::computation::{Given, Source};
use crate::programs::{self, Computation, Program, Step};
use crate::runner::{Inputs, RunError, Runner, Work, release_all};

use super::engine::GpuEngine;
use super::error::CudaError;
use super::execute::{Engine as _, Execution, Persistent, Prepared, execute};
use super::plan::call::{Call, ConvolutionCall, KernelCall};
use super::plan::contents;
use super::plan::convolution::ConvolutionShape;
use super::workspaces::{Sized, WorkspaceDifference, with_real_workspaces};

/// An operation as it is executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Its steps, with the workspaces that the library really asks for.
    pub program: Program,
    /// Workspaces of which the table says something else.
    pub differences: Vec<WorkspaceDifference>,
    /// Who computes its convolutions.
    pub convolutions: Convolutions,
}

/// How many convolutions of an operation are whose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Convolutions {
    /// cuDNN's.
    pub by_library: usize,
    /// Those of an own kernel, since cuDNN refused them: far slower, and without the workspace that the table knows.
    pub by_own_kernel: usize,
}

impl Convolutions {
    fn of(prepared: &Prepared, refused: impl Fn(&ConvolutionShape) -> bool) -> Self {
        let mut counted = Self::default();
        for call in convolutions(prepared) {
            *(if refused(&call.shape) { &mut counted.by_own_kernel } else { &mut counted.by_library }) += 1;
        }
        counted
    }
}

impl std::ops::AddAssign for Convolutions {
    fn add_assign(&mut self, other: Self) {
        self.by_library += other.by_library;
        self.by_own_kernel += other.by_own_kernel;
    }
}

impl std::fmt::Display for Convolutions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} convolutions by cuDNN, {} by own kernels", self.by_library, self.by_own_kernel)
    }
}

/// What a runner knows of an operation.
pub(super) struct Ready {
    pub(super) prepared: Prepared,
    differences: Vec<WorkspaceDifference>,
    /// Whose its convolutions were when it was decided.
    convolutions: Convolutions,
}

impl Ready {
    /// Whether nothing that it was decided by has been refused since: what is refused needs no workspace.
    fn holds(&self, refused: impl Fn(&ConvolutionShape) -> bool) -> bool {
        Convolutions::of(&self.prepared, refused) == self.convolutions
    }
}

type Key = (Architecture, Case, programs::Execution);

fn key_of(work: &Work<'_>) -> Key {
    (work.architecture.clone(), work.case, work.execution.clone())
}

pub(super) struct State {
    pub(super) engine: GpuEngine,
    ready: HashMap<Key, Arc<Ready>>,
    pub(super) persistent: Persistent,
    /// Weights that were given values here.
    filled: HashSet<Holding>,
}

/// Runs operations on one GPU, through one [`Device`] made of the same context.
///
/// One value stands for one process: libraries' workspaces stay on the device after their first use, and are the device's
/// to give back. Runs of several threads take turns.
pub struct CudaRunner {
    context: CudaContext,
    state: Mutex<State>,
}

/// The software that a [`CudaRunner`] computes with, as hard environments name it: this program's version and cuDNN's. No
/// GPU is needed to know it.
///
/// # Errors
/// When cuDNN is missing.
pub fn framework() -> Result<String, LibraryError> {
    let cudnn = CudaLibrary::Cudnn.find()?;
    let version = cudnn.version.as_deref().unwrap_or("of unknown version");
    Ok(format!("headroom-cuda {} cudnn {version}", env!("CARGO_PKG_VERSION")))
}

impl std::fmt::Debug for CudaRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaRunner").field("context", &self.context).finish_non_exhaustive()
    }
}

/// The oldest compute capability that the kernels are written for, major and minor.
pub const OLDEST_CAPABILITY: (u32, u32) = (8, 0);

impl CudaRunner {
    /// Starts the libraries on a GPU.
    ///
    /// # Errors
    /// When a library is missing, refuses, or the GPU is older than [`OLDEST_CAPABILITY`].
    pub fn new(context: CudaContext) -> Result<Self, CudaError> {
        let (major, minor) = context.gpu().compute_capability;
        if (major, minor) < OLDEST_CAPABILITY {
            return Err(CudaError::TooOld { major, minor });
        }
        for library in [CudaLibrary::Driver, CudaLibrary::Nvrtc, CudaLibrary::Cublas, CudaLibrary::Cudnn] {
            library.find()?;
        }
        let state = State {
            engine: GpuEngine::new(context.clone())?,
            ready: HashMap::new(),
            persistent: Persistent::new(),
            filled: HashSet::new(),
        };
        Ok(Self { context, state: Mutex::new(state) })
    }

    /// The same, waiting for every launch, so that a failure names the kernel that failed. Slow.
    #[must_use]
    pub fn with_every_launch_waited_for(self) -> Self {
        self.state().engine.wait_for_each_launch();
        self
    }

    /// What libraries and kernels made this process grow by on the device so far, beside every allocator: each by name,
    /// in bytes. It is the change of the device's free memory around their calls.
    pub fn library_bytes(&self) -> Vec<(&'static str, u64)> {
        self.state().engine.grown()
    }

    /// An operation as this runner executed it last, or would where it has not. What cuDNN refuses only when it is called
    /// is told once it was run.
    ///
    /// # Errors
    /// When the operation is not known, or cuDNN cannot tell.
    pub fn executed(&self, work: &Work<'_>) -> Result<Executed, RunError> {
        let mut state = self.bound()?;
        // Not decided anew: what was run had the workspaces of what has been refused since.
        let last = state.ready.get(&key_of(work)).map(Arc::clone);
        let ready = last.map_or_else(|| state.ready(work), Ok)?;
        let convolutions = state.convolutions(&ready.prepared);
        let (program, differences) = (ready.prepared.computation.program.clone(), ready.differences.clone());
        Ok(Executed { program, differences, convolutions })
    }

    /// Runs an operation as [`Runner::run`] does, and calls `observe` after every step with the step as it was executed:
    /// pieces of weights that are not resident come and go as further steps.
    ///
    /// # Errors
    /// As [`Runner::run`].
    pub fn run_observed(
        &self,
        device: &Device,
        work: &Work<'_>,
        observe: &mut dyn FnMut(&Step),
    ) -> Result<(), RunError> {
        let mut state = self.bound()?;
        let ready = state.ready(work)?;
        state.execute(device, &ready.prepared, work, observe, |_, _| Ok(()))
    }

    /// Gives back what libraries keep on a device that is about to go, and forgets whatever was known of its memory.
    ///
    /// # Errors
    /// When the device says that it does not hold one of them; all are forgotten all the same.
    pub fn leave(&self, device: &Device) -> Result<(), RunError> {
        let mut state = self.bound()?;
        let (gone, kept): (Persistent, Persistent) =
            std::mem::take(&mut state.persistent).into_iter().partition(|((id, _), _)| id == device.id());
        state.persistent = kept;
        state.filled.clear();
        state.engine.forget_workspaces();
        release_all(device, gone.into_values())
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, with the context made the thread's.
    pub(super) fn bound(&self) -> Result<MutexGuard<'_, State>, CudaError> {
        self.context.bind()?;
        Ok(self.state())
    }
}

impl State {
    /// What is known of an operation: decided and compiled the first time, and anew where cuDNN has refused one of its
    /// convolutions since.
    pub(super) fn ready(&mut self, work: &Work<'_>) -> Result<Arc<Ready>, RunError> {
        let key = key_of(work);
        let held = self.ready.get(&key).filter(|ready| ready.holds(|shape| self.engine.has_refused(shape)));
        if let Some(ready) = held {
            return Ok(Arc::clone(ready));
        }
        let computation = programs::computation(work.architecture, &work.case, &work.execution)?;
        let ready = Arc::new(self.decided(computation)?);
        // What was chosen without cuDNN's heuristics is chosen anew for the next run: what made them fail may have passed.
        if !convolutions(&ready.prepared).any(|call| self.engine.is_unheard(&call.shape)) {
            self.ready.insert(key, Arc::clone(&ready));
        }
        Ok(ready)
    }

    /// Decides a computation's workspaces and calls, and makes its kernels. It may be run until the next is decided, and
    /// for good where nothing of it was [unheard](GpuEngine::is_unheard).
    pub(super) fn decided(&mut self, computation: Computation) -> Result<Ready, CudaError> {
        self.engine.forget_unheard();
        let Sized { computation, differences } = with_real_workspaces(computation, |shape| self.engine.decide(shape))?;
        let prepared = Prepared::new(computation)?;
        let kernels = prepared.calls.iter().flatten().filter_map(|call| match call {
            Call::Kernel(kernel) => Some(kernel),
            Call::Product(_) | Call::Convolution(_) => None,
        });
        let given = prepared.computation.parameters.iter().chain(&prepared.computation.inputs);
        let fillings: Vec<KernelCall> = given.filter_map(|given| contents::filling(given, Source::Nothing)).collect();
        self.engine.make(kernels.chain(&fillings))?;
        let convolutions = self.convolutions(&prepared);
        Ok(Ready { prepared, differences, convolutions })
    }

    pub(super) fn convolutions(&self, prepared: &Prepared) -> Convolutions {
        Convolutions::of(prepared, |shape| self.engine.has_refused(shape))
    }

    /// Puts values into memory that nobody gave any.
    pub(super) fn fill(&mut self, given: &Given, holding: Holding) -> Result<(), CudaError> {
        let Holding::Allocated(allocation) = holding else {
            return Err(CudaError::NoAddress { name: given.name.clone() });
        };
        let needed_bytes = given.elements * given.element.bytes();
        if holding.bytes() < needed_bytes {
            return Err(CudaError::WrongSize { name: given.name.clone(), bytes: holding.bytes(), needed_bytes });
        }
        let Some(filling) = contents::filling(given, Source::Nothing) else { return Ok(()) };
        self.engine.call(&Call::Kernel(filling), &|place| Ok(allocation.address().0 + place.offset_bytes))
    }

    /// Gives values to weights that have none and are seen here for the first time.
    fn fill_weights(&mut self, computation: &Computation, work: &Work<'_>) -> Result<(), CudaError> {
        let by_name: HashMap<&str, &Given> =
            computation.parameters.iter().map(|given| (given.name.as_str(), given)).collect();
        for weight in work.weights.iter().filter(|weight| !weight.has_contents) {
            let (Some(holding), Some(given)) = (weight.holding, by_name.get(weight.name.as_str())) else { continue };
            if !self.filled.contains(&holding) {
                self.fill(given, holding)?;
                self.filled.insert(holding);
            }
        }
        Ok(())
    }

    /// Executes a computation on a work's memory.
    pub(super) fn execute<T>(
        &mut self,
        device: &Device,
        prepared: &Prepared,
        work: &Work<'_>,
        observe: &mut dyn FnMut(&Step),
        then: impl FnOnce(&mut GpuEngine, &super::execute::Addresses<'_>) -> Result<T, CudaError>,
    ) -> Result<T, RunError> {
        self.fill_weights(&prepared.computation, work)?;
        let Self { engine, persistent, .. } = self;
        let (inputs, weights) = (work.inputs, work.weights);
        execute(engine, Execution { device, prepared, inputs, weights, persistent, observe }, then)
    }
}

/// The convolutions among a computation's calls.
fn convolutions(prepared: &Prepared) -> impl Iterator<Item = &ConvolutionCall> {
    prepared.calls.iter().flatten().filter_map(|call| match call {
        Call::Convolution(call) => Some(call),
        Call::Kernel(_) | Call::Product(_) => None,
    })
}

impl Runner for CudaRunner {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn persistent_bytes(&self, device: &Device) -> u64 {
        let state = self.state();
        let own = state.persistent.iter().filter(|((id, _), _)| id == device.id());
        own.map(|(_, holding)| holding.bytes()).sum()
    }

    fn prepare(&self, device: &Device, work: &Work<'_>) -> Result<Inputs, RunError> {
        let mut state = self.bound()?;
        let ready = state.ready(work)?;
        let given = &ready.prepared.computation.inputs;
        let inputs = Inputs::place(device, given.iter().map(|given| given.elements * given.element.bytes()))?;
        for (given, holding) in given.iter().zip(inputs.holdings().to_vec()) {
            if let Err(error) = state.fill(given, holding) {
                inputs.release(device)?;
                return Err(error.into());
            }
        }
        Ok(inputs)
    }

    fn run(&self, device: &Device, work: &Work<'_>) -> Result<(), RunError> {
        self.run_observed(device, work, &mut |_| {})
    }
}

#[cfg(test)]
mod tests {
    use headroom_base::{DType, Operation};
    use headroom_family::architecture::AutoencoderKl;

    use super::*;
    use crate::programs::Role;

    /// An operation as it is decided while a library that has refused these wants a workspace for all others.
    fn decided(refused: &HashSet<ConvolutionShape>) -> Ready {
        let small = AutoencoderKl { block_out_channels: vec![32, 64], layers_per_block: 1, ..AutoencoderKl::default() };
        let case = Case::image(Operation::VaeDecode, DType::Fp16, 256, 192);
        let small = Architecture::AutoencoderKl(small);
        let computation = programs::computation(&small, &case, &programs::Execution::default()).unwrap();
        let answer = |shape: &ConvolutionShape| {
            Ok(if refused.contains(shape) { (0, "an own kernel".to_owned()) } else { (4_096, "ODD".to_owned()) })
        };
        let Sized { computation, differences } = with_real_workspaces(computation, answer).unwrap();
        let prepared = Prepared::new(computation).unwrap();
        let convolutions = Convolutions::of(&prepared, |shape| refused.contains(shape));
        Ready { prepared, differences, convolutions }
    }

    fn workspaces(ready: &Ready) -> usize {
        ready.prepared.computation.program.allocations().filter(|live| live.role == Role::Workspace).count()
    }

    #[test]
    fn an_operation_whose_convolution_is_refused_later_is_decided_anew_without_its_workspace() {
        let mut refused = HashSet::new();
        let before = decided(&refused);
        assert!(before.holds(|shape| refused.contains(shape)));
        let late = convolutions(&before.prepared).next().unwrap().shape.clone();
        let times = convolutions(&before.prepared).filter(|call| call.shape == late).count();
        refused.insert(late.clone());
        assert!(!before.holds(|shape| refused.contains(shape)), "it would still make the workspace");
        let anew = decided(&refused);
        assert!(anew.holds(|shape| refused.contains(shape)), "it is not decided again and again");
        assert_eq!(workspaces(&anew), workspaces(&before) - times);
        assert!(convolutions(&anew.prepared).all(|call| (call.shape == late) == call.workspace.is_none()));
    }
}
