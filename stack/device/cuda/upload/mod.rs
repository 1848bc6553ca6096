//! Weights on their way up: read by several threads, staged in pinned memory, and copied meanwhile.

mod chunks;
mod lane;
mod pinned;
mod plain;
mod source;
mod stream;

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use chunks::Chunks;
use lane::{Lane, Task};
use pinned::is_pinned;
use stream::Event;

pub use pinned::PinnedBuffer;
pub use plain::{copy_each_part, copy_pinned, fill, read_back};

use crate::cuda::CudaContext;
use crate::device::{UploadPart, Uploaded};
use crate::driver::DriverError;

/// How an upload is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadSettings {
    /// Staging threads, each with a stream and two buffers of its own.
    pub threads: usize,
    /// Bytes of one buffer.
    pub buffer_bytes: usize,
}

impl Default for UploadSettings {
    /// Three quarters of the threads that the machine runs at once, at most 16, with buffers of 4 MiB. On one host of an H200
    /// 16 threads read mapped files at 89 % of a plain pinned copy, 12 at 90 % and 8 at 85 %; on another, of 16 processors,
    /// 16 threads at 83 and 85 % in two runs, 12 at 97 and 86 %, 8 at 79 and 68 %.
    fn default() -> Self {
        let at_once = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { threads: (at_once * 3 / 4).clamp(2, 16), buffer_bytes: 4 << 20 }
    }
}

/// What an uploader keeps from one upload to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Threads that took part, each with a stream of its own: no more than there were chunks to share out.
    pub threads: usize,
    /// Bytes of pinned memory; none where no contents had to be staged.
    pub pinned_bytes: u64,
}

/// Copies contents to one device through a ring of pinned buffers that it keeps.
///
/// The buffers are pinned when they are first needed and freed when this is dropped, or when an upload fails or is
/// cancelled: such an upload leaves nothing pinned, no copy under way and no thread running.
pub struct Uploader {
    context: CudaContext,
    settings: UploadSettings,
    ring: Ring,
}

/// What is kept from one upload to the next.
#[derive(Default)]
struct Ring {
    lanes: Vec<Lane>,
    start: Option<Event>,
}

impl Uploader {
    /// An uploader with the settings that were found best. It costs nothing before the first upload.
    pub fn new(context: CudaContext) -> Self {
        Self::with_settings(context, UploadSettings::default())
    }

    /// An uploader that shares out as `settings` say; none of them below 1 thread and 512 bytes.
    pub fn with_settings(context: CudaContext, settings: UploadSettings) -> Self {
        let settings =
            UploadSettings { threads: settings.threads.max(1), buffer_bytes: settings.buffer_bytes.max(512) };
        Self { context, settings, ring: Ring::default() }
    }

    /// How it shares out.
    pub fn settings(&self) -> UploadSettings {
        self.settings
    }

    /// What it keeps at this moment.
    pub fn staging(&self) -> Staging {
        let lanes = &self.ring.lanes;
        Staging { threads: lanes.len(), pinned_bytes: lanes.iter().map(Lane::pinned_bytes).sum() }
    }

    /// Copies every part up, and returns when all of it is there. Work that was given to the device before is done
    /// first, work given to it afterwards sees the contents.
    ///
    /// Contents in a [`PinnedBuffer`] are copied from where they are; all others are staged.
    ///
    /// # Errors
    /// When a part does not fit where it goes, its contents cannot be read any more, or the driver fails. The parts'
    /// memory holds something undefined then.
    pub fn upload(&mut self, parts: &[UploadPart<'_>]) -> Result<(), DriverError> {
        self.upload_unless(parts, &|| false).map(|_| ())
    }

    /// The same, until `is_cancelled`: then no further chunk is begun, and those under way are waited for. It is asked
    /// by each thread before each chunk, so it should be quick.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn upload_unless(
        &mut self,
        parts: &[UploadPart<'_>],
        is_cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Uploaded, DriverError> {
        let chunks = Chunks::cut(parts, self.settings.buffer_bytes, is_pinned)?;
        if chunks.chunks().is_empty() {
            return Ok(Uploaded::Whole);
        }
        let outcome = self.ring.run(&self.context, self.settings, &chunks, is_cancelled);
        if outcome != Ok(Uploaded::Whole) {
            // After a failure some of it may be in a state that nobody knows, and after a cancellation nobody may want
            // another upload for long. Dropping it waits for its copies and unpins its buffers.
            self.ring = Ring::default();
        }
        outcome
    }
}

impl Ring {
    fn run(
        &mut self,
        context: &CudaContext,
        settings: UploadSettings,
        chunks: &Chunks<'_>,
        is_cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<Uploaded, DriverError> {
        context.bind()?;
        let start = match self.start.take() {
            Some(start) => start,
            None => Event::new(context)?,
        };
        let start = self.start.insert(start);
        // The memory may be a block that work of the main stream still uses: what comes after it on that stream would
        // wait, and so must these.
        start.record_main()?;
        let needed = settings.threads.min(chunks.chunks().len());
        while self.lanes.len() < needed {
            match Lane::new(context, settings.buffer_bytes) {
                Ok(lane) => self.lanes.push(lane),
                // Those that are there do its share.
                Err(error) if error.is_out_of_memory() && !self.lanes.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        let count = needed.min(self.lanes.len());
        let lanes = self.lanes.get_mut(..count).unwrap_or_default();
        let (next, returned, failed) = (AtomicUsize::new(0), Mutex::default(), AtomicBool::new(false));
        let task = Task { chunks, next, returned, failed, is_cancelled, start: &*start };
        share_out(lanes, &task)?;
        // What came back after the others had ended.
        if let Some((_, error)) = { task.returned().last().cloned() } {
            self.lanes.iter_mut().find(|lane| lane.has_buffers()).ok_or(error)?.work(&task)?;
        }
        let all = task.returned().is_empty() && task.next.into_inner() >= chunks.chunks().len();
        Ok(if all { Uploaded::Whole } else { Uploaded::Cancelled })
    }
}

/// Lets every lane work, one of them in this thread. The first error is told. Where the system has no thread left for a
/// lane, the others do its share.
fn share_out(lanes: &mut [Lane], task: &Task<'_>) -> Result<(), DriverError> {
    std::thread::scope(|scope| {
        let mut lanes = lanes.iter_mut();
        let own = lanes.next();
        let others: Vec<_> =
            lanes.filter_map(|lane| std::thread::Builder::new().spawn_scoped(scope, || lane.work(task)).ok()).collect();
        let mut outcome = own.map_or(Ok(()), |lane| lane.work(task));
        for other in others {
            let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome = outcome.and(other);
        }
        outcome
    })
}

impl fmt::Debug for Uploader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uploader").field("settings", &self.settings).finish_non_exhaustive()
    }
}
