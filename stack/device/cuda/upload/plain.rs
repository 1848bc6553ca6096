//! Copies as a program makes them that takes no trouble, and as fast as the bus goes: what an upload is held against;
//! and how what arrived is looked at.

use cudarc::driver::sys;

use super::chunks::Chunks;
use super::pinned::PinnedBuffer;
use super::stream::{CopyStream, Stretch};
use crate::cuda::memory::destination;
use crate::cuda::{CudaContext, check};
use crate::device::{Holding, UploadPart};
use crate::driver::{DriverCall, DriverError};

/// Copies pinned memory to the device in pieces on one stream, and returns when it is there: what the bus gives.
///
/// # Errors
/// When it does not fit where it goes, or the driver fails.
pub fn copy_pinned(
    context: &CudaContext,
    to: Holding,
    from: &PinnedBuffer,
    piece_bytes: usize,
) -> Result<(), DriverError> {
    let chunks = Chunks::cut(&[UploadPart { to, contents: from }], piece_bytes.max(512), |_| false)?;
    context.synchronize()?;
    let stream = CopyStream::new(context)?;
    for chunk in chunks.chunks() {
        for piece in chunks.pieces(chunk) {
            // SAFETY: the contents are borrowed until this returns. Whether or not a copy fails, the stream is waited for
            // before, at the latest when it is dropped.
            unsafe { stream.copy(&[Stretch { to: piece.to, from: piece.from.as_ptr(), bytes: piece.from.len() }]) }?;
        }
    }
    stream.synchronize()
}

/// Copies each part with one plain call from memory that is not pinned, one after the other: the common manner of
/// loading a model's tensors.
///
/// # Errors
/// When a part does not fit where it goes, or the driver fails.
pub fn copy_each_part(context: &CudaContext, parts: &[UploadPart<'_>]) -> Result<(), DriverError> {
    context.synchronize()?;
    let chunks = Chunks::cut(parts, usize::MAX / 2, |_| false)?;
    for piece in chunks.chunks().iter().flat_map(|chunk| chunks.pieces(chunk)) {
        // SAFETY: the contents are borrowed until this returns, and the call returns when they have been read.
        let answer = unsafe { sys::cuMemcpyHtoD_v2(piece.to, piece.from.as_ptr().cast(), piece.from.len()) };
        check(DriverCall::Copy, answer)?;
    }
    // A copy of little may return when it has been read and not yet arrived; it is on the default stream.
    synchronize_default()
}

/// Copies device memory from `start_bytes` into it on back into `to`, and returns when it is there. From a
/// [`PinnedBuffer`] on the other side this goes as fast as the bus.
///
/// # Errors
/// When that is not all inside what is held, or the driver fails.
pub fn read_back(context: &CudaContext, from: Holding, start_bytes: u64, to: &mut [u8]) -> Result<(), DriverError> {
    let address = destination(&UploadPart { to: from, contents: &[] })?;
    if start_bytes.checked_add(to.len() as u64).is_none_or(|end| end > from.bytes()) {
        let reason = format!("{} bytes from {start_bytes} on are not inside {} bytes", to.len(), from.bytes());
        return Err(DriverError::Failed { call: DriverCall::Copy, code: 0, reason });
    }
    if to.is_empty() {
        return Ok(());
    }
    // The copy is on the default stream, which waits for no other.
    context.synchronize()?;
    // SAFETY: the memory behind the address is held and as long, `to` is valid for writing, and the call returns when it
    // has been written.
    check(DriverCall::Copy, unsafe { sys::cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), address + start_bytes, to.len()) })
}

/// Makes every byte of what is held `value`, and returns when that is done: so that what is read back afterwards is
/// what was copied, and nothing that lay there before.
///
/// # Errors
/// When it is not memory of this process, or the driver fails.
pub fn fill(context: &CudaContext, holding: Holding, value: u8) -> Result<(), DriverError> {
    let address = destination(&UploadPart { to: holding, contents: &[] })?;
    // What was given to the device before may still use the memory.
    context.synchronize()?;
    // SAFETY: the memory behind the address is held and as long.
    check(DriverCall::Copy, unsafe { sys::cuMemsetD8_v2(address, value, holding.bytes() as usize) })?;
    synchronize_default()
}

/// Waits for the default stream, on which the plain calls above work.
fn synchronize_default() -> Result<(), DriverError> {
    // SAFETY: the default stream is always there.
    check(DriverCall::Synchronize, unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
}
