//! Copies as a program makes them that takes no trouble, and as fast as the bus goes: what an upload is held against.

use cudarc::driver::sys;

use super::chunks::Chunks;
use super::pinned::PinnedBuffer;
use super::stream::{CopyStream, Stretch};
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
    let chunks = Chunks::cut(&[UploadPart { to, contents: from }], piece_bytes.max(512), |_| None)?;
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
    let chunks = Chunks::cut(parts, usize::MAX / 2, |_| None)?;
    for piece in chunks.chunks().iter().flat_map(|chunk| chunks.pieces(chunk)) {
        // SAFETY: the contents are borrowed until this returns, and the call returns when they have been read.
        let answer = unsafe { sys::cuMemcpyHtoD_v2(piece.to, piece.from.as_ptr().cast(), piece.from.len()) };
        check(DriverCall::Copy, answer)?;
    }
    // A copy of little may return when it has been read and not yet arrived; it is on the default stream.
    // SAFETY: the default stream is always there.
    check(DriverCall::Synchronize, unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) })
}
