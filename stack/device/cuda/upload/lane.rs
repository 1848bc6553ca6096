//! One staging thread's own stream and buffers: while one buffer is copied up, the other is filled.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
    /// Whether a lane failed, so that the others need not go on.
    pub(super) failed: AtomicBool,
    /// Whether the caller wants no more of it; asked before each chunk.
    pub(super) is_cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Behind the work that was given to the device before the upload.
    pub(super) start: &'a Event,
}

impl Task<'_> {
    /// The next chunk for whoever asks; none when all are taken or the upload is to end.
    fn take(&self) -> Option<&Chunk> {
        if self.failed.load(Ordering::Relaxed) || (self.is_cancelled)() {
            return None;
        }
        self.chunks.chunks().get(self.next.fetch_add(1, Ordering::Relaxed))
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

    /// Copies chunks until there are none. Nothing of it is under way any more when this returns.
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
        let mut turn = 0;
        while let Some(chunk) = task.take() {
            let pieces = task.chunks.pieces(chunk);
            if chunk.direct {
                self.direct(pieces)?;
            } else {
                self.stage(pieces, turn % BUFFERS)?;
                turn += 1;
            }
        }
        Ok(())
    }

    /// Copies pinned contents from where they are.
    fn direct(&self, pieces: &[Piece<'_>]) -> Result<(), DriverError> {
        let stretches = stretches(pieces, is_continued_in_place, |first, last| {
            let bytes = last.from.as_ptr().addr() + last.from.len() - first.from.as_ptr().addr();
            Stretch { to: first.to, from: first.from.as_ptr(), bytes }
        });
        // SAFETY: each lies in one pinned buffer without a gap. All of it is borrowed until the upload returns, and
        // `work` waits for the stream before.
        unsafe { self.stream.copy(&stretches) }
    }

    /// Fills a buffer with contents and begins to copy it up.
    fn stage(&mut self, pieces: &[Piece<'_>], turn: usize) -> Result<(), DriverError> {
        if self.buffers.len() <= turn {
            // Pinned by the thread that needs it, when it does: a model's first upload need not wait for buffers of all
            // threads that are pinned one after the other, since those that have theirs copy meanwhile.
            self.buffers.push(Buffer::new(&self.context, self.buffer_bytes)?);
        }
        let buffer = &mut self.buffers[turn];
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
        let stretches = stretches(pieces, is_continued, |first, last| {
            let bytes = last.at + last.from.len() - first.at;
            // SAFETY: the piece lies inside the buffer, as was checked.
            Stretch { to: first.to, from: unsafe { start.add(first.at) }.as_ptr(), bytes }
        });
        // SAFETY: each lies inside the buffer and was filled above; the buffer is written to again, or freed, only after
        // its event or its stream was waited for.
        unsafe { self.stream.copy(&stretches) }?;
        buffer.copied.record(&self.stream)
    }
}

fn from_slice(contents: &[u8]) -> std::ptr::NonNull<u8> {
    std::ptr::NonNull::from(contents).cast()
}

/// Pieces that go up in one copy, put together by their first and their last.
fn stretches<'a>(
    pieces: &'a [Piece<'a>],
    is_continued: impl Fn(&Piece<'a>, &Piece<'a>) -> bool,
    joined: impl Fn(&Piece<'a>, &Piece<'a>) -> Stretch,
) -> Vec<Stretch> {
    let runs = pieces.chunk_by(is_continued);
    runs.filter_map(|run| Some(joined(run.first()?, run.last()?))).collect()
}

/// Whether `next` lies right behind `piece` both in the buffer and on the device, so that one copy does for both.
fn is_continued(piece: &Piece<'_>, next: &Piece<'_>) -> bool {
    piece.end() == next.to && piece.at + piece.from.len() == next.at
}

/// The same for contents in pinned memory. Two pinned buffers may lie side by side and are still two.
fn is_continued_in_place(piece: &Piece<'_>, next: &Piece<'_>) -> bool {
    piece.end() == next.to && piece.pinned == next.pinned && piece.from.as_ptr_range().end == next.from.as_ptr()
}
