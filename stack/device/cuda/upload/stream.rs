//! Copy streams and events that end with whoever made them.

use cudarc::driver::sys::{
    self, CUevent, CUevent_flags, CUmemLocation, CUmemLocationType, CUmemcpyAttributes, CUmemcpySrcAccessOrder,
    CUstream, CUstream_flags,
};
use headroom_base::MIB;

use crate::cuda::status::give_back;
use crate::cuda::{CudaContext, check};
use crate::driver::{DriverCall, DriverError};

/// Copies that one call is given at most: drivers of the 580 series were reported to crash or hang where one call had
/// tens of thousands (<https://github.com/vllm-project/vllm/issues/49276>), and a thousand share a call's cost well enough.
const MOST_TOGETHER: usize = 1_024;

/// What streams and events take of the device where they take any: the driver does not tell how much, and hands its
/// memory out in these.
const LEAST_BYTES: u64 = 2 * MIB;

/// Pinned memory without a gap, and where it goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// The address on the device.
    pub(super) to: u64,
    /// The address in pinned memory.
    pub(super) from: *const u8,
    /// How long it is.
    pub(super) bytes: usize,
}

/// A stream of copies beside the device's main stream.
pub(super) struct CopyStream {
    context: CudaContext,
    stream: CUstream,
}

// SAFETY: the driver's handles may be used from any thread, and the driver locks for itself.
unsafe impl Send for CopyStream {}

impl CopyStream {
    pub(super) fn new(context: &CudaContext) -> Result<Self, DriverError> {
        context.bind()?;
        let mut stream: CUstream = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the place is valid for writing, and the context is bound.
        check(DriverCall::Copy, unsafe { sys::cuStreamCreate(&raw mut stream, flags) })
            .map_err(|error| context.with_figures(error, LEAST_BYTES))?;
        Ok(Self { context: context.clone(), stream })
    }

    /// Lets later copies of this stream wait for what `event` was recorded behind.
    pub(super) fn wait_for(&self, event: &Event) -> Result<(), DriverError> {
        // SAFETY: both handles are live.
        check(DriverCall::Copy, unsafe { sys::cuStreamWaitEvent(self.stream, event.event, 0) })
    }

    /// Begins to copy stretches of pinned memory to the device, in any order.
    ///
    /// Given in one call, since the device rests a little between calls: on an H200, every second piece of 2 MiB went up
    /// at 93 % of a plain copy by calls of their own, however many streams shared them, and at 99 % together.
    ///
    /// # Safety
    /// Each is valid for reading, and nobody changes or frees it before the copy is done: until
    /// [`synchronize`](Self::synchronize) returned, or an event recorded behind it was waited for.
    pub(super) unsafe fn copy(&self, stretches: &[Stretch]) -> Result<(), DriverError> {
        for together in stretches.chunks(MOST_TOGETHER) {
            let answer = match together {
                // SAFETY: the stream is live; the source is the caller's to answer for.
                [Stretch { to, from, bytes }] => unsafe {
                    sys::cuMemcpyHtoDAsync_v2(*to, from.cast(), *bytes, self.stream)
                },
                // SAFETY: as above.
                several => unsafe { self.copy_together(several) },
            };
            check(DriverCall::Copy, answer)?;
        }
        Ok(())
    }

    /// # Safety
    /// As [`copy`](Self::copy).
    unsafe fn copy_together(&self, stretches: &[Stretch]) -> sys::CUresult {
        let mut to: Vec<_> = stretches.iter().map(|stretch| stretch.to).collect();
        let mut from: Vec<_> = stretches.iter().map(|stretch| stretch.from.addr() as u64).collect();
        let mut bytes: Vec<_> = stretches.iter().map(|stretch| stretch.bytes).collect();
        let nowhere = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, id: 0 };
        let mut attributes = CUmemcpyAttributes {
            srcAccessOrder: CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            flags: 0,
        };
        // The attributes hold from the first stretch on.
        let mut first = 0;
        let (to, from, bytes, count) = (to.as_mut_ptr(), from.as_mut_ptr(), bytes.as_mut_ptr(), stretches.len());
        // SAFETY: each list is as long as is said and is read before the call returns. The stream is live and not the
        // default one; the sources are the caller's to answer for.
        unsafe {
            sys::cuMemcpyBatchAsync_v2(to, from, bytes, count, &raw mut attributes, &raw mut first, 1, self.stream)
        }
    }

    /// Waits for every copy of this stream.
    pub(super) fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is live.
        check(DriverCall::Copy, unsafe { sys::cuStreamSynchronize(self.stream) })
    }
}

impl Drop for CopyStream {
    fn drop(&mut self) {
        let _ = self.context.bind();
        // SAFETY: the stream is this value's own. Waited for, so that nothing reads memory that is freed next; neither
        // call fails unless the context is broken, and then nothing runs in it any more.
        give_back(|| unsafe { sys::cuStreamSynchronize(self.stream) });
        // SAFETY: as above, and nobody uses it any more.
        give_back(|| unsafe { sys::cuStreamDestroy_v2(self.stream) });
    }
}

/// A point in a stream that can be waited for.
pub(super) struct Event {
    context: CudaContext,
    event: CUevent,
}

// SAFETY: the driver's handles may be used from any thread, and the driver locks for itself.
unsafe impl Send for Event {}
// SAFETY: as above. What is recorded in it changes only by the driver, under its own lock.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(context: &CudaContext) -> Result<Self, DriverError> {
        context.bind()?;
        let mut event: CUevent = std::ptr::null_mut();
        // Sleeps while it waits: a waiting thread has nothing to do, and the copying ones need the processor.
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        // SAFETY: the place is valid for writing, and the context is bound.
        check(DriverCall::Copy, unsafe { sys::cuEventCreate(&raw mut event, flags) })
            .map_err(|error| context.with_figures(error, LEAST_BYTES))?;
        Ok(Self { context: context.clone(), event })
    }

    /// Marks what `stream` was given so far.
    pub(super) fn record(&self, stream: &CopyStream) -> Result<(), DriverError> {
        // SAFETY: both handles are live and of one context.
        check(DriverCall::Copy, unsafe { sys::cuEventRecord(self.event, stream.stream) })
    }

    /// Marks what the device's main stream was given so far.
    pub(super) fn record_main(&self) -> Result<(), DriverError> {
        // SAFETY: both handles are live and of one context.
        check(DriverCall::Copy, unsafe { sys::cuEventRecord(self.event, self.context.stream()) })
    }

    /// Waits for what was marked.
    pub(super) fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the event is live.
        check(DriverCall::Copy, unsafe { sys::cuEventSynchronize(self.event) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.context.bind();
        // SAFETY: the event is this value's own.
        give_back(|| unsafe { sys::cuEventDestroy_v2(self.event) });
    }
}
