//! One GPU opened by this process: its context, its one stream, and the device made of it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdeviceptr, CUstream, CUstream_flags};
use headroom_base::{AllocatorKind, Backend, DeviceClass, Reading};

use super::driver::CudaDriver;
use super::gpus::{CudaUnavailable, Gpu, handle_of};
use super::memory::CudaMemory;
use super::pool::CudaPool;
use super::status::{check, give_back};
use crate::allocator::{Allocator, Settings};
use crate::device::{AllocatorMemory, DeviceId, DeviceMemory, DeviceParts};
use crate::driver::{DriverCall, DriverError, MemoryInfo};
use crate::readers::{NvmlReader, Platform, ProcessReader, UnknownReader};

/// The primary context of one GPU, and the one stream that everything on it goes to.
///
/// Clones are the same context; so is one opened again while another lives. The context goes when the last of them does,
/// and with it whatever was still allocated in it.
#[derive(Clone)]
pub struct CudaContext {
    shared: Arc<Shared>,
}

struct Shared {
    gpu: Gpu,
    device: CUdevice,
    context: CUcontext,
    stream: CUstream,
    own_bytes_at_start: Reading,
}

// SAFETY: the driver's handles may be used from any thread, and the driver locks for itself. The calls that need the
// context bind it to the calling thread first.
unsafe impl Send for Shared {}
// SAFETY: as above; nothing in it changes after it was made.
unsafe impl Sync for Shared {}

/// What is open, so that a device has one stream however often it is opened.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

impl CudaContext {
    /// Opens a GPU that [`gpus`](super::gpus) listed. This costs device memory (some 500 MiB on an H200) until the last
    /// handle is dropped.
    ///
    /// # Errors
    /// When the driver refuses, for example for lack of memory. Nothing is left open then.
    pub fn open(gpu: &Gpu) -> Result<Self, DriverError> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|shared| shared.strong_count() > 0);
        let same = open.iter().filter_map(Weak::upgrade).find(|shared| shared.gpu.uuid == gpu.uuid);
        if let Some(shared) = same {
            return Ok(Self { shared });
        }
        let shared = Arc::new(Shared::open(gpu)?);
        open.push(Arc::downgrade(&shared));
        Ok(Self { shared })
    }

    /// The GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.shared.gpu
    }

    /// The driver's handle of the device.
    pub fn device(&self) -> CUdevice {
        self.shared.device
    }

    /// Makes this context the calling thread's. Whoever calls the driver does so first; it costs little where nothing
    /// changes.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn bind(&self) -> Result<(), DriverError> {
        bind(self.shared.context)
    }

    /// The stream that all work of this device goes to. It lives as long as any handle of the context.
    pub fn stream(&self) -> CUstream {
        self.shared.stream
    }

    /// Waits until everything on the stream has been done.
    ///
    /// # Errors
    /// When something on it failed, or the driver does.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.bind()?;
        // SAFETY: the stream is this context's and lives.
        check(DriverCall::Synchronize, unsafe { sys::cuStreamSynchronize(self.shared.stream) })
    }

    /// What the process held on the device right after the context was made: what the context costs.
    pub fn own_bytes_at_start(&self) -> Reading {
        self.shared.own_bytes_at_start
    }

    /// Free and total bytes of this device.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn memory(&self) -> Result<MemoryInfo, DriverError> {
        self.bind()?;
        let (mut free_bytes, mut total_bytes) = (0_usize, 0_usize);
        // SAFETY: both places are valid for writing, and the bound context names the device.
        let answer = unsafe { sys::cuMemGetInfo_v2(&raw mut free_bytes, &raw mut total_bytes) };
        check(DriverCall::Memory, answer)?;
        Ok(MemoryInfo { free_bytes: free_bytes as u64, total_bytes: total_bytes as u64 })
    }

    /// Takes memory that belongs to no allocator, until it is dropped: what another program on the device would hold.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] when there is too little.
    pub fn ballast(&self, bytes: u64) -> Result<Ballast, DriverError> {
        let address = self.take(bytes)?;
        Ok(Ballast { context: self.clone(), address, bytes })
    }

    /// The device: its memory under an allocator of `settings`, and who tells what this process holds on it.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn parts(&self, settings: Settings) -> Result<DeviceParts, DriverError> {
        let Gpu { uuid, name, total_bytes, .. } = self.gpu();
        let memory: Box<dyn DeviceMemory> = match settings.kind {
            AllocatorKind::Native | AllocatorKind::ExpandableSegments => {
                let driver = CudaDriver::new(self.clone())?;
                let memory = AllocatorMemory::new(Allocator::new(driver, settings));
                Box::new(CudaMemory::new(memory, self.clone()))
            }
            AllocatorKind::CudaMallocAsync => {
                Box::new(CudaMemory::new(CudaPool::new(self.clone(), &settings)?, self.clone()))
            }
        };
        let reader: Box<dyn ProcessReader> = match NvmlReader::open(uuid) {
            Ok(reader) => Box::new(reader),
            Err(error) => {
                tracing::warn!(%error, device = uuid, "what this process holds on the device stays unknown");
                Box::new(UnknownReader { platform: Platform::Nvml })
            }
        };
        let class = DeviceClass::new(name, *total_bytes, Backend::Cuda);
        Ok(DeviceParts { id: DeviceId::new(uuid), class, memory, reader, hook: None })
    }

    /// Takes plain device memory.
    pub(super) fn take(&self, bytes: u64) -> Result<CUdeviceptr, DriverError> {
        self.bind()?;
        let mut address: CUdeviceptr = 0;
        // SAFETY: the place is valid for writing; the context is bound.
        let answer = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes.max(1) as usize) };
        check(DriverCall::Allocate, answer).map_err(|error| self.with_figures(error, bytes))?;
        Ok(address)
    }

    /// The same error, with the device's figures where it is that memory ran out.
    pub(in crate::cuda) fn with_figures(&self, error: DriverError, requested_bytes: u64) -> DriverError {
        if !error.is_out_of_memory() {
            return error;
        }
        let (free_bytes, total_bytes) =
            self.memory().map_or((0, self.gpu().total_bytes), |info| (info.free_bytes, info.total_bytes));
        DriverError::OutOfMemory { requested_bytes, free_bytes, total_bytes }
    }
}

impl fmt::Debug for CudaContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaContext").field("gpu", self.gpu()).finish_non_exhaustive()
    }
}

fn bind(context: CUcontext) -> Result<(), DriverError> {
    let mut current: CUcontext = std::ptr::null_mut();
    // SAFETY: the place is valid for writing; the context is a live one of this process.
    unsafe {
        check(DriverCall::Context, sys::cuCtxGetCurrent(&raw mut current))?;
        if current == context {
            return Ok(());
        }
        check(DriverCall::Context, sys::cuCtxSetCurrent(context))
    }
}

impl Shared {
    fn open(gpu: &Gpu) -> Result<Self, DriverError> {
        let unavailable = |error: CudaUnavailable| DriverError::Failed {
            call: DriverCall::Context,
            code: error.code(),
            reason: error.to_string(),
        };
        let device = handle_of(&gpu.uuid).map_err(unavailable)?;
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: the driver just named this device; the place is valid for writing.
        check(DriverCall::Context, unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) })?;
        let mut opened = Self {
            gpu: gpu.clone(),
            device,
            context,
            stream: std::ptr::null_mut(),
            own_bytes_at_start: Reading::Unknown,
        };
        bind(context)?;
        // Not tied to the default stream, so that a library that uses that one does not hold this one up.
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the place is valid for writing; the context is bound.
        check(DriverCall::Context, unsafe { sys::cuStreamCreate(&raw mut opened.stream, flags) })?;
        let reader = NvmlReader::open(&gpu.uuid);
        opened.own_bytes_at_start = reader.and_then(|reader| reader.process_bytes()).unwrap_or_default();
        Ok(opened)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = bind(self.context).or_else(|_| bind(self.context));
        if !self.stream.is_null() {
            // SAFETY: the stream is this value's own. What failed on it was told to whoever waited for it.
            let _ = unsafe { sys::cuStreamSynchronize(self.stream) };
            // SAFETY: as above, and nobody uses it any more.
            give_back(|| unsafe { sys::cuStreamDestroy_v2(self.stream) });
        }
        // SAFETY: no context is always a context that can be had.
        give_back(|| unsafe { sys::cuCtxSetCurrent(std::ptr::null_mut()) });
        // SAFETY: the context was retained once by this value, and nobody uses it any more.
        give_back(|| unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) });
    }
}

/// Device memory outside every allocator; it goes back when this is dropped.
#[derive(Debug)]
pub struct Ballast {
    context: CudaContext,
    address: CUdeviceptr,
    bytes: u64,
}

impl Ballast {
    /// Bytes that were asked for; the driver takes whole pages of 2 MiB.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        // Work may still use it as far as this value knows. Freeing fails only where the context is broken for good.
        let _ = self.context.synchronize();
        // SAFETY: the address is this value's own, and everything that could use it was waited for.
        give_back(|| unsafe { sys::cuMemFree_v2(self.address) });
    }
}
