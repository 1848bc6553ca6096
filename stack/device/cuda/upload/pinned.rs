//! Host memory that the device reads without the processor's help, and which of a process's memory is such.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys;

use crate::cuda::status::give_back;
use crate::cuda::{CudaContext, check};
use crate::driver::{DriverCall, DriverError};

/// Start → length of every [`PinnedBuffer`] of this process. Such memory is pinned for every device.
static PINNED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// Pinned host memory, freed when dropped. Uploads from it need no staging.
///
/// It is ordinary memory for the processor: not write-combined, which is slow to read.
pub struct PinnedBuffer {
    memory: HostMemory,
}

impl PinnedBuffer {
    /// Pins `bytes` of zeros. The machine has that much less memory for everything else.
    ///
    /// # Errors
    /// When the driver cannot pin as much.
    pub fn new(context: &CudaContext, bytes: usize) -> Result<Self, DriverError> {
        let memory = HostMemory::new(context, bytes)?;
        // SAFETY: the memory is this value's own, as long as that, and nobody reads it yet.
        unsafe { memory.start.as_ptr().write_bytes(0, bytes) };
        pinned().insert(memory.start.as_ptr().addr(), bytes);
        Ok(Self { memory })
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // Before the memory is freed, so that other memory at the same address is never taken for pinned.
        pinned().remove(&self.memory.start.as_ptr().addr());
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is this value's own, as long as that, and was filled when it was made.
        unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr(), self.memory.bytes) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; copies from it borrow it until they are done, so nobody else reads or writes it meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.memory.bytes) }
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer").field("bytes", &self.memory.bytes).finish_non_exhaustive()
    }
}

fn pinned() -> std::sync::MutexGuard<'static, BTreeMap<usize, usize>> {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether all of `contents` lies in one [`PinnedBuffer`] of those that live.
pub(super) fn is_pinned(contents: &[u8]) -> bool {
    let start = contents.as_ptr().addr();
    let pinned = pinned();
    let before = pinned.range(..=start).next_back();
    before.and_then(|(from, bytes)| bytes.checked_sub(start - from)).is_some_and(|behind| contents.len() <= behind)
}

/// Pinned memory with nothing in it yet, freed when dropped.
pub(super) struct HostMemory {
    context: CudaContext,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is this value's own, and the driver pins and frees from any thread.
unsafe impl Send for HostMemory {}
// SAFETY: nothing can be read or written through a shared reference to it, except by whoever upholds its own reasons.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Pins `bytes`; at least one, since the driver pins no nothing.
    pub(super) fn new(context: &CudaContext, bytes: usize) -> Result<Self, DriverError> {
        context.bind()?;
        let mut start: *mut c_void = std::ptr::null_mut();
        // SAFETY: the place is valid for writing, and the context is bound.
        let answer = unsafe { sys::cuMemHostAlloc(&raw mut start, bytes.max(1), 0) };
        check(DriverCall::Pin, answer)?;
        let reason = "it pinned memory at no address".to_owned();
        let start = NonNull::new(start.cast()).ok_or(DriverError::Failed { call: DriverCall::Pin, code: 0, reason })?;
        Ok(Self { context: context.clone(), start, bytes })
    }

    /// Where it starts. Valid for reading and writing as long as this lives and no copy is under way.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // Fails only where the context is broken for good, and the driver clears up after it.
        let _ = self.context.bind();
        // SAFETY: the memory is this value's own, and whoever copied from it has waited for the copy.
        give_back(|| unsafe { sys::cuMemFreeHost(self.start.as_ptr().cast()) });
    }
}
