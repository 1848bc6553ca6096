//! A GPU's memory that also takes contents: whoever allocates it, weights are copied up the same way.

use headroom_base::{Bytes, DeviceFigures, Reading};

use super::context::CudaContext;
use super::upload::Uploader;
use crate::allocator::{AllocationError, Counters, NotAllocated};
use crate::device::{DeviceMemory, Holding, UploadPart, Uploaded};
use crate::driver::{DriverCall, DriverError};

/// Memory of `M` on a GPU, with copies to it.
#[derive(Debug)]
pub(super) struct CudaMemory<M> {
    memory: M,
    uploader: Uploader,
}

impl<M: DeviceMemory> CudaMemory<M> {
    /// The memory that `memory` manages on `context`'s device.
    pub(super) fn new(memory: M, context: CudaContext) -> Self {
        Self { memory, uploader: Uploader::new(context) }
    }
}

/// Where a part goes, if it has room there.
pub(super) fn destination(part: &UploadPart<'_>) -> Result<u64, DriverError> {
    let refused = |reason: String| DriverError::Failed { call: DriverCall::Copy, code: 0, reason };
    let contents_bytes = part.contents.len() as u64;
    match part.to {
        Holding::Allocated(allocation) if contents_bytes <= allocation.bytes() => Ok(allocation.address().0),
        Holding::Allocated(allocation) => {
            let (contents, room) = (Bytes(contents_bytes), Bytes(allocation.bytes()));
            Err(refused(format!("{contents} do not fit into {room}")))
        }
        Holding::Remote { id, .. } => Err(refused(format!("number {id} of a worker process is not on this device"))),
    }
}

impl<M: DeviceMemory> DeviceMemory for CudaMemory<M> {
    fn figures(&mut self) -> Result<DeviceFigures, DriverError> {
        self.memory.figures()
    }

    fn counters(&mut self) -> Result<Counters, DriverError> {
        self.memory.counters()
    }

    fn allocate(&mut self, requested_bytes: u64) -> Result<Holding, AllocationError> {
        self.memory.allocate(requested_bytes)
    }

    fn free(&mut self, holding: Holding) -> Result<(), NotAllocated> {
        self.memory.free(holding)
    }

    fn empty_cache(&mut self) -> Result<(), AllocationError> {
        self.memory.empty_cache()
    }

    fn reset_peaks(&mut self) -> Result<(), DriverError> {
        self.memory.reset_peaks()
    }

    fn process_bytes(&mut self) -> Result<Reading, DriverError> {
        self.memory.process_bytes()
    }

    fn spilled_bytes(&mut self) -> Result<Reading, DriverError> {
        self.memory.spilled_bytes()
    }

    fn upload_unless(
        &mut self,
        parts: &[UploadPart<'_>],
        is_cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Uploaded, DriverError> {
        self.uploader.upload_unless(parts, is_cancelled)
    }
}
