//! The driver under the caching allocator: plain memory and virtual memory of one GPU.

use std::collections::BTreeSet;

use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use headroom_base::{MIB, Reading};

use super::context::CudaContext;
use super::status::{check, give_back};
use super::virtual_memory::VirtualMemory;
use crate::driver::{Address, Driver, DriverCall, DriverError, MemoryInfo};
use crate::readers::NvmlReader;

/// The unit on every NVIDIA device known so far, for one whose driver has no virtual memory to ask it about.
const USUAL_GRANULARITY_BYTES: u64 = 2 * MIB;

/// The memory of one GPU. What is still held when it is dropped goes back.
///
/// Any thread may call it: each call makes the device's context that thread's. Before memory goes back to the driver,
/// everything on the device's stream is waited for.
#[derive(Debug)]
pub struct CudaDriver {
    context: CudaContext,
    granularity_bytes: u64,
    has_virtual_memory: bool,
    allocated: BTreeSet<u64>,
    virtual_memory: VirtualMemory,
    reader: Option<NvmlReader>,
}

impl CudaDriver {
    /// The memory of `context`'s device.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn new(context: CudaContext) -> Result<Self, DriverError> {
        context.bind()?;
        let virtual_memory = VirtualMemory::of_device(context.device());
        let mut supported = 0;
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        // SAFETY: the place is valid for writing, and the context holds its device.
        let answer = unsafe { sys::cuDeviceGetAttribute(&raw mut supported, attribute, context.device()) };
        check(DriverCall::Reserve, answer)?;
        let has_virtual_memory = supported != 0;
        let granularity_bytes =
            if has_virtual_memory { virtual_memory.granularity_bytes()? } else { USUAL_GRANULARITY_BYTES };
        let reader = NvmlReader::open(&context.gpu().uuid).ok();
        Ok(Self { context, granularity_bytes, has_virtual_memory, allocated: BTreeSet::new(), virtual_memory, reader })
    }

    /// The context.
    pub fn context(&self) -> &CudaContext {
        &self.context
    }

    fn require_virtual_memory(&self, call: DriverCall) -> Result<(), DriverError> {
        if self.has_virtual_memory { Ok(()) } else { Err(DriverError::Unsupported { call }) }
    }
}

impl Driver for CudaDriver {
    fn memory(&mut self) -> Result<MemoryInfo, DriverError> {
        self.context.memory()
    }

    fn granularity_bytes(&self) -> u64 {
        self.granularity_bytes
    }

    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError> {
        let address = self.context.take(bytes)?;
        self.allocated.insert(address);
        Ok(Address(address))
    }

    fn free(&mut self, address: Address) -> Result<(), DriverError> {
        if !self.allocated.contains(&address.0) {
            let code = CUresult::CUDA_ERROR_INVALID_VALUE as i64;
            let reason = "nothing was allocated at this address".to_owned();
            return Err(DriverError::Failed { call: DriverCall::Free, code, reason });
        }
        self.context.synchronize()?;
        // SAFETY: the address is an allocation of this driver, and everything that could use it was waited for.
        check(DriverCall::Free, unsafe { sys::cuMemFree_v2(address.0) })?;
        self.allocated.remove(&address.0);
        Ok(())
    }

    fn reserve(&mut self, bytes: u64) -> Result<Address, DriverError> {
        self.require_virtual_memory(DriverCall::Reserve)?;
        self.context.bind()?;
        self.virtual_memory.reserve(bytes).map(Address).map_err(|error| self.context.with_figures(error, bytes))
    }

    fn release(&mut self, address: Address, bytes: u64) -> Result<(), DriverError> {
        self.context.bind()?;
        self.virtual_memory.release(address.0, bytes)
    }

    fn map(&mut self, address: Address, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        self.require_virtual_memory(DriverCall::Map)?;
        self.context.bind()?;
        let mapped = self.virtual_memory.map(address.0, bytes, page_bytes);
        mapped.map_err(|error| self.context.with_figures(error, bytes))
    }

    fn unmap(&mut self, address: Address, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        self.context.synchronize()?;
        self.virtual_memory.unmap(address.0, bytes, page_bytes)
    }

    fn process_bytes(&mut self) -> Result<Reading, DriverError> {
        process_bytes(self.reader.as_ref())
    }
}

/// What the management library says this process holds; unknown where it does not know the device.
pub(super) fn process_bytes(reader: Option<&NvmlReader>) -> Result<Reading, DriverError> {
    let Some(reader) = reader else { return Ok(Reading::Unknown) };
    reader.process_bytes().map_err(|error| DriverError::Failed {
        call: DriverCall::ProcessBytes,
        code: 0,
        reason: error.to_string(),
    })
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        if self.allocated.is_empty() && self.virtual_memory.is_empty() {
            return;
        }
        // A failure here is an earlier one come to light; what follows must be tried all the same.
        let _ = self.context.synchronize();
        for address in std::mem::take(&mut self.allocated) {
            // SAFETY: the address is an allocation of this driver that nobody can name any more.
            give_back(|| unsafe { sys::cuMemFree_v2(address) });
        }
        self.virtual_memory.clear();
    }
}
