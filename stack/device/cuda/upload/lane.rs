//! One staging thread's own stream and buffers: while one buffer is copied up, the other is filled.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::chunks::{Chunk, Chunks, Piece};
use super::pinned::HostMemory;
use super::source::populate;
use super::stream::{CopyStream, Event, Stretch};
use crate::cuda::CudaContext;
use crate::driver::{DriverCall, DriverError};

/// Two, so that one is filled while the other is copied up.
const BUFFERS: usize = 2;

/// What the lanes of one upload share.
pub(super) struct Task<'a> {
    pub(super) chunks: &'a Chunks<'a>,
    /// The next chunk that nobody has taken.
    pub(super) next: AtomicUsize,
    /// Chunks that lanes took for which they then had no buffer, each with why.
    pub(super) returned: Mutex<Vec<(&'a Chunk, DriverError)>>,
    /// Whether a lane failed, so that the others need not go on.
    pub(super) failed: AtomicBool,
    /// Whether the caller wants no more of it; asked before each chunk.
    pub(super) is_cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Behind the work that was given to the device before the upload.
    pub(super) start: &'a Event,
}

impl<'a> Task<'a> {
    /// The next chunk for whoever asks; none when all are taken or the upload is to end.
    fn take(&self) -> Option<&'a Chunk> {
        if self.failed.load(Ordering::Relaxed) || (self.is_cancelled)() {
            return None;
        }
        let returned = self.returned().pop().map(|(chunk, _)| chunk);
        returned.or_else(|| self.chunks.chunks().get(self.next.fetch_add(1, Ordering::Relaxed)))
    }

    /// Chunks that wait for a lane with a buffer.
    pub(super) fn returned(&self) -> MutexGuard<'_, Vec<(&'a Chunk, DriverError)>> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pinned buffer, and the end of the copy that was last begun from it.
struct Buffer {
    memory: HostMemory,
    copied: Event,
    in_use: bool,
}

impl Buffer {
    fn new(context: &CudaContext, bytes: usize) -> Result<Self, DriverError> {
        Ok(Self { memory: HostMemory::new(context, bytes)?, copied: Event::new(context)?, in_use: false })
    }
}

/// The stream comes first, so that it is waited for before the buffers are freed.
pub(super) struct Lane {
    stream: CopyStream,
    buffers: Vec<Buffer>,
    buffer_bytes: usize,
    context: CudaContext,
}

impl Lane {
    pub(super) fn new(context: &CudaContext, buffer_bytes: usize) -> Result<Self, DriverError> {
        Ok(Self { stream: CopyStream::new(context)?, buffers: Vec::new(), buffer_bytes, context: context.clone() })
    }

    /// What its buffers take of the machine's memory.
    pub(super) fn pinned_bytes(&self) -> u64 {
        (self.buffers.len() * self.buffer_bytes) as u64
    }

    /// Whether it can stage anything without pinning more.
    pub(super) fn has_buffers(&self) -> bool {
        !self.buffers.is_empty()
    }

    /// Copies chunks until there are none, or none that it has a buffer for. Nothing of it is under way any more when this
    /// returns.
    pub(super) fn work(&mut self, task: &Task<'_>) -> Result<(), DriverError> {
        let outcome = self.copy(task);
        if outcome.is_err() {
            task.failed.store(true, Ordering::Relaxed);
        }
        // Even after a failure: what was begun still reads the buffers and the caller's memory.
        let finished = self.stream.synchronize();
        for buffer in &mut self.buffers {
            buffer.in_use = false;
        }
        outcome.and(finished)
    }

    fn copy(&mut self, task: &Task<'_>) -> Result<(), DriverError> {
        self.context.bind()?;
        self.stream.wait_for(task.start)?;
        let (mut turn, mut most) = (0, BUFFERS);
        while let Some(chunk) = task.take() {
            let pieces = task.chunks.pieces(chunk);
            if chunk.direct {
                self.direct(pieces)?;
                continue;
            }
            if self.buffers.len() <= turn % most {
                // Pinned by the thread that needs it, when it does: a model's first upload need not wait for buffers of
                // all threads that are pinned one after the other, since those that have theirs copy meanwhile.
                match Buffer::new(&self.context, self.buffer_bytes) {
                    Ok(buffer) => self.buffers.push(buffer),
                    Err(error) if !error.is_out_of_host_memory() && !error.is_out_of_memory() => return Err(error),
                    Err(error) if self.buffers.is_empty() => {
                        task.returned().push((chunk, error));
                        return Ok(());
                    }
                    Err(_) => most = self.buffers.len(),
                }
            }
            self.stage(pieces, turn % most)?;
            turn += 1;
        }
        Ok(())
    }

    /// Copies pinned contents from where they are.
    fn direct(&self, pieces: &[Piece<'_>]) -> Result<(), DriverError> {
        let stretches: Vec<_> = pieces.iter().map(|piece| stretch(piece, piece.from.as_ptr())).collect();
        // SAFETY: each is pinned and borrowed until the upload returns, and `work` waits for the stream before.
        unsafe { self.stream.copy(&stretches) }
    }

    /// Fills a buffer with contents and begins to copy it up.
    fn stage(&mut self, pieces: &[Piece<'_>], place: usize) -> Result<(), DriverError> {
        let buffer = &mut self.buffers[place];
        if buffer.in_use {
            buffer.copied.synchronize()?;
            buffer.in_use = false;
        }
        let start = buffer.memory.start();
        for piece in pieces {
            populate(piece.from)?;
            if piece.at + piece.from.len() > buffer.memory.bytes() {
                // No panic: copies are under way, and the caller's memory must stay until they are done.
                let reason = "a chunk is longer than its buffer".to_owned();
                return Err(DriverError::Failed { call: DriverCall::Copy, code: 0, reason });
            }
            // SAFETY: the piece lies inside the buffer, as was checked; the buffer is no part of the contents; its last
            // copy was waited for.
            unsafe { start.add(piece.at).copy_from_nonoverlapping(from_slice(piece.from), piece.from.len()) };
        }
        // What is copied below is in use even if a later call fails.
        buffer.in_use = true;
        // SAFETY: each piece lies inside the buffer, as was checked.
        let staged = |piece: &Piece<'_>| stretch(piece, unsafe { start.add(piece.at) }.as_ptr());
        let stretches: Vec<_> = pieces.iter().map(staged).collect();
        // SAFETY: each lies inside the buffer and was filled above; the buffer is written to again, or freed, only after
        // its event or its stream was waited for.
        unsafe { self.stream.copy(&stretches) }?;
        buffer.copied.record(&self.stream)
    }
}

fn from_slice(contents: &[u8]) -> std::ptr::NonNull<u8> {
    std::ptr::NonNull::from(contents).cast()
}

/// A piece as one copy. Never several, although they may lie side by side on both sides: the driver takes no copy that
/// goes from one allocation of its own pool into the next (an H200's of the 580 series said `INVALID_VALUE`).
fn stretch(piece: &Piece<'_>, from: *const u8) -> Stretch {
    Stretch { to: piece.to, from, bytes: piece.from.len() }
}
