//! Calls on a real GPU: kernels, cuBLAS and cuDNN on one stream, and what each of them makes the process grow by.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use headroom_base::MIB;
use headroom_device::cuda::CudaContext;

use crate::programs::{Computation, Library};

use super::error::CudaError;
use super::execute::{Addresses, Engine};
use super::growth::Growth;
use super::library::blas::Blas;
use super::library::compiler::{self, Code};
use super::library::dnn::Dnn;
use super::library::driver::{Kernel, Module, download, upload};
use super::plan::call::{Argument, Call, ConvolutionCall, Instance, KernelCall, ProductCall};
use super::plan::convolution;
use super::workspaces::Answer;

/// Who makes the process grow beside the allocator.
const KERNELS: &str = "kernels";
const CUBLAS: &str = "cuBLAS";
const CUDNN: &str = "cuDNN";

/// A GPU's libraries and kernels. Fields are dropped in order, the context last.
pub(super) struct GpuEngine {
    kernels: HashMap<String, Kernel>,
    modules: HashMap<usize, (Code, Module)>,
    dnn: Dnn,
    blas: Blas,
    workspaces: HashMap<&'static str, (u64, u64)>,
    growth: Growth,
    each_launch_waited_for: bool,
    context: CudaContext,
}

// SAFETY: handles of the driver and its libraries may be used from any thread, one at a time; whoever uses the engine
// has it for itself, and binds the context to the calling thread first.
unsafe impl Send for GpuEngine {}

impl GpuEngine {
    /// Starts the libraries on a context's stream.
    pub(super) fn new(context: CudaContext) -> Result<Self, CudaError> {
        context.bind()?;
        let mut growth = Growth::default();
        let blas = growth.measured(|| free_bytes(&context), CUBLAS, || Blas::new(context.stream()));
        let blas = blas.map_err(|error| explained(&context, HANDLE_BYTES, error))?;
        let dnn = growth.measured(|| free_bytes(&context), CUDNN, || Dnn::new(context.stream()));
        let dnn = dnn.map_err(|error| explained(&context, HANDLE_BYTES, error))?;
        Ok(Self {
            kernels: HashMap::new(),
            modules: HashMap::new(),
            dnn,
            blas,
            workspaces: HashMap::new(),
            growth,
            each_launch_waited_for: false,
            context,
        })
    }

    /// Waits for every launch, so that a failure is the launch's own. Slow.
    pub(super) fn wait_for_each_launch(&mut self) {
        self.each_launch_waited_for = true;
    }

    /// Forgets where libraries work: that memory is about to go. The next run says anew.
    pub(super) fn forget_workspaces(&mut self) {
        self.workspaces.clear();
    }

    /// What libraries and kernels made the process grow by on the device, each by name, in bytes.
    pub(super) fn grown(&self) -> Vec<(&'static str, u64)> {
        self.growth.by_name()
    }

    /// What cuDNN asks for.
    pub(super) fn decide(&mut self, shape: &convolution::ConvolutionShape) -> Result<Answer, CudaError> {
        let Self { dnn, context, growth, .. } = self;
        let decided = growth.measured(|| free_bytes(context), CUDNN, || dnn.decide(shape));
        decided.map_err(|error| explained(context, 0, error))
    }

    /// Lets cuDNN be asked anew for what it could not tell. Nothing that was decided by such answers may run afterwards.
    pub(super) fn forget_unheard(&mut self) {
        self.dnn.forget_unheard();
    }

    /// Whether a convolution's algorithm was chosen without cuDNN's heuristics, since they failed.
    pub(super) fn is_unheard(&self, shape: &convolution::ConvolutionShape) -> bool {
        self.dnn.is_unheard(shape)
    }

    /// Whether cuDNN refused a convolution, so that an own kernel computes it.
    pub(super) fn has_refused(&self, shape: &convolution::ConvolutionShape) -> bool {
        self.dnn.has_refused(shape)
    }

    /// Makes and loads the kernels of these calls that are not there yet, all at once.
    pub(super) fn make<'a>(&mut self, calls: impl Iterator<Item = &'a KernelCall>) -> Result<(), CudaError> {
        let mut wanted: HashMap<&str, &KernelCall> = HashMap::new();
        for call in calls.filter(|call| !self.kernels.contains_key(&call.instance.name)) {
            wanted.entry(&call.instance.name).or_insert(call);
        }
        let mut wanted: Vec<&KernelCall> = wanted.into_values().collect();
        wanted.sort_by(|a, b| a.instance.name.cmp(&b.instance.name));
        if wanted.is_empty() {
            return Ok(());
        }
        let instances: Vec<&Instance> = wanted.iter().map(|call| &call.instance).collect();
        let codes = compiler::code(self.context.gpu().compute_capability, &instances)?;
        let Self { kernels, modules, context, growth, .. } = self;
        growth.measured(
            || free_bytes(context),
            KERNELS,
            || {
                for (call, code) in wanted.iter().zip(codes) {
                    let key = Arc::as_ptr(&code) as usize;
                    let (_, module) = match modules.entry(key) {
                        Entry::Occupied(loaded) => loaded.into_mut(),
                        Entry::Vacant(place) => place.insert((Arc::clone(&code), Module::load(&code)?)),
                    };
                    let name = &call.instance.name;
                    kernels.insert(name.clone(), module.kernel(name, call.shared_bytes)?);
                }
                Ok(())
            },
        )
    }

    /// Writes bytes to an address of this device's memory that is known to have room for them.
    pub(super) fn write(&self, address: u64, contents: &[u8]) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: callers pass addresses of holdings of this device, with contents of the holding's size.
        unsafe { upload(address, contents, self.context.stream()) }
    }

    /// Reads bytes from an address of this device's memory that is known to have as many.
    pub(super) fn read(&self, address: u64, contents: &mut [u8]) -> Result<(), CudaError> {
        self.context.bind()?;
        // SAFETY: callers pass addresses of holdings of this device, and ask for no more than the holding's size.
        unsafe { download(address, contents, self.context.stream()) }
    }

    fn kernel(&mut self, call: &KernelCall, address: &Addresses<'_>) -> Result<(), CudaError> {
        let name = &call.instance.name;
        if !self.kernels.contains_key(name) {
            self.make(std::iter::once(call))?;
        }
        let words = |argument: &Argument| match argument {
            Argument::At(place) => address(*place).map(|address| vec![address]),
            Argument::Nowhere => Ok(vec![0]),
            Argument::Words(words) => Ok(words.clone()),
        };
        let mut arguments = call.arguments.iter().map(words).collect::<Result<Vec<_>, _>>()?;
        let Self { kernels, context, growth, .. } = self;
        let kernel = kernels[name];
        let launch = || {
            // SAFETY: the kernel's module is loaded for as long as the engine lives; its text and these arguments were
            // written together, and its addresses are of live holdings, which the allocator reuses on this stream alone.
            unsafe { kernel.launch(context.stream(), call.blocks, call.threads, call.shared_bytes, &mut arguments) }
        };
        growth.measured_first(|| free_bytes(context), KERNELS, format!("kernel {name}"), launch)
    }

    fn product(&mut self, call: &ProductCall, address: &Addresses<'_>) -> Result<(), CudaError> {
        let order = if call.biased { [Library::CublasLt, Library::Cublas] } else { Library::ALL };
        match order.iter().find_map(|library| self.workspaces.get(library.name())) {
            // SAFETY: a library's workspace is kept by the runner until it is forgotten here.
            Some(&(at, bytes)) => unsafe { self.blas.work_in(at, bytes) }?,
            None => self.blas.work_alone(self.context.stream())?,
        }
        let Self { blas, context, growth, .. } = self;
        let all = || {
            for places in &call.places {
                let [a, b, c] = [address(places[0])?, address(places[1])?, address(places[2])?];
                // SAFETY: the addresses are of live holdings that the views behind the call stay within.
                unsafe { blas.multiply(call, [a, b, c]) }?;
            }
            Ok(())
        };
        let kind = format!("product {:?} {:?}", call.dtype, call.gemm);
        growth.measured_first(|| free_bytes(context), CUBLAS, kind, all)
    }

    fn convolution(&mut self, call: &ConvolutionCall, address: &Addresses<'_>) -> Result<(), CudaError> {
        let [input, weights, output] = call.places;
        let places = [address(input)?, address(weights)?, address(output)?];
        let workspace = call.workspace.map_or(Ok(0), address)?;
        let Self { dnn, context, growth, .. } = self;
        let convolve = || {
            // SAFETY: the addresses are of live holdings of the shape's sizes, and the workspace has the size that the
            // library was asked for this shape.
            unsafe { dnn.convolve(&call.shape, places, workspace) }
        };
        let kind = format!("convolution {:?}", call.shape);
        let done = growth.measured_first(|| free_bytes(context), CUDNN, kind, convolve);
        let done = done.map_err(|error| explained(context, self.dnn.workspace_bytes_of(&call.shape), error))?;
        if done { Ok(()) } else { self.kernel(&convolution::own_kernel(call), address) }
    }
}

/// What a handle of cuBLAS or cuDNN takes of the device, with room to spare: up to 68 MiB on an H200.
const HANDLE_BYTES: u64 = 128 * MIB;

/// A library's failure, told as lack of memory where that can be seen: everything that was begun ends well, so that the
/// failure is no earlier launch's, and less is free than the call needs.
fn explained(context: &CudaContext, needed_bytes: u64, error: CudaError) -> CudaError {
    if !error.may_be_out_of_memory() || context.synchronize().is_err() {
        return error;
    }
    match context.memory() {
        Ok(memory) => error.beside_free(memory.free_bytes, needed_bytes),
        Err(_) => error,
    }
}

/// What is free on the device.
fn free_bytes(context: &CudaContext) -> Result<u64, CudaError> {
    Ok(context.memory()?.free_bytes)
}

impl Engine for GpuEngine {
    fn call(&mut self, call: &Call, address: &Addresses<'_>) -> Result<(), CudaError> {
        match call {
            Call::Kernel(call) => self.kernel(call, address)?,
            Call::Product(call) => self.product(call, address)?,
            Call::Convolution(call) => self.convolution(call, address)?,
        }
        if self.each_launch_waited_for {
            self.context.synchronize()?;
        }
        Ok(())
    }

    fn keep(&mut self, library: &'static str, address: u64, bytes: u64) -> Result<(), CudaError> {
        self.workspaces.insert(library, (address, bytes));
        Ok(())
    }

    fn waits_for_each_call(&self) -> bool {
        self.each_launch_waited_for
    }

    fn finish(&mut self, what: &Computation) -> Result<(), CudaError> {
        self.context.synchronize().map_err(|error| CudaError::Late { case: what.program.case.to_string(), error })
    }
}

impl Drop for GpuEngine {
    fn drop(&mut self) {
        // Handles are given back in their own context; where it cannot be bound they go with the process.
        let _ = self.context.synchronize();
    }
}
