//! How fast contents reach a device, from each kind of memory and in each manner, beside a plain pinned copy.

use std::fmt;
use std::time::Instant;

use headroom_base::MIB;
use headroom_device::cuda::upload::{PinnedBuffer, UploadSettings, copy_each_part, copy_pinned};
use headroom_device::cuda::{CudaContext, Uploader};
use headroom_device::device::UploadPart;
use headroom_device::{DeviceMemory, Holding};
use serde::Serialize;

use super::arrival::Arrival;
use super::source::{Opened, Source, SourceKind};
use super::{Failure, Held, median};

/// The size of a tensor: that of a 1024 × 1024 matrix in half precision.
const PIECE_BYTES: usize = 2 << 20;

/// What the plain pinned copy is cut into: larger pieces go no faster.
const PLAIN_PIECE_BYTES: usize = 64 << 20;

const RUNS: usize = 5;

/// Threads, and bytes of a buffer, that are tried beside the usual ones.
const OTHER_SETTINGS: [(usize, usize); 7] =
    [(2, 4 << 20), (4, 4 << 20), (8, 4 << 20), (12, 4 << 20), (8, 1 << 20), (16, 1 << 20), (16, 2 << 20)];

/// How contents are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Manner {
    /// One stream, pieces of 64 MiB, nothing else: what the bus gives.
    PlainPinned,
    /// An upload of one part.
    UploadOnePart,
    /// An upload of parts of 2 MiB, all of them.
    UploadPieces,
    /// An upload of every second part of 2 MiB.
    UploadEverySecond,
    /// A pageable copy for each part of 2 MiB, one after the other.
    CopyEachPiece,
}

impl fmt::Display for Manner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PlainPinned => "plain pinned copy",
            Self::UploadOnePart => "upload, one part",
            Self::UploadPieces => "upload, every piece",
            Self::UploadEverySecond => "upload, every second piece",
            Self::CopyEachPiece => "one plain copy a piece",
        })
    }
}

/// How an upload was shared out.
#[derive(Serialize)]
pub(super) struct Shared {
    /// Threads that took part.
    pub(super) threads: usize,
    /// The size of one buffer.
    pub(super) buffer_bytes: usize,
    /// All buffers that were pinned for it.
    pub(super) pinned_bytes: u64,
}

/// One measurement.
#[derive(Serialize)]
pub(super) struct Copied {
    pub(super) source: SourceKind,
    pub(super) manner: Manner,
    /// How the upload was shared out, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) settings: Option<Shared>,
    /// Whether it was shared out as models are loaded, and not otherwise for comparison.
    pub(super) usual: bool,
    /// What was copied in each run.
    pub(super) bytes: u64,
    /// How long the first run took, before anything was pinned for it or any stream made: a model that a program loads
    /// first goes up so.
    pub(super) first_seconds: f64,
    /// How long each later run took, in order.
    seconds: Vec<f64>,
    /// Of the median run.
    pub(super) gib_per_second: f64,
    /// Beside the plain pinned copy of the same run; 1 is as fast.
    pub(super) share_of_plain: f64,
}

/// The size in whole pieces, and an even number of them.
pub(super) fn whole_pieces(bytes: u64) -> u64 {
    let pair_bytes = 2 * PIECE_BYTES as u64;
    bytes.max(1).next_multiple_of(pair_bytes)
}

/// Measures copies of up to `bytes` from every kind of memory.
pub(super) fn measure_copies(
    context: &CudaContext,
    memory: &mut dyn DeviceMemory,
    bytes: u64,
) -> Result<Vec<Copied>, Failure> {
    let mut copies = Vec::new();
    let mut bench = Bench { context, memory, arrival: Arrival::new(context)? };
    for kind in SourceKind::ALL {
        let pieces = usize::try_from(bytes)? / PIECE_BYTES;
        let source = Source::new(kind, context, pieces, PIECE_BYTES)?;
        if let Source::Pinned(buffer) = &source {
            copies.push(bench.timed(kind, &source, Manner::PlainPinned, |parts| plain(context, parts, buffer))?);
        }
        if !matches!(source, Source::MappedFile(_)) {
            copies.push(bench.uploaded(kind, &source, Manner::UploadOnePart, None)?);
        }
        copies.push(bench.uploaded(kind, &source, Manner::UploadPieces, None)?);
        copies.push(bench.uploaded(kind, &source, Manner::UploadEverySecond, None)?);
        if kind != SourceKind::Pinned {
            let each = |parts: &[UploadPart<'_>]| Ok(copy_each_part(context, parts)?);
            copies.push(bench.timed(kind, &source, Manner::CopyEachPiece, each)?);
            for (threads, buffer_bytes) in OTHER_SETTINGS {
                let settings = UploadSettings { threads, buffer_bytes };
                copies.push(bench.uploaded(kind, &source, Manner::UploadPieces, Some(settings))?);
            }
        }
    }
    let plain = copies.first().map_or(f64::NAN, |plain| plain.gib_per_second);
    for copied in &mut copies {
        copied.share_of_plain = copied.gib_per_second / plain;
    }
    Ok(copies)
}

fn plain(context: &CudaContext, parts: &[UploadPart<'_>], from: &PinnedBuffer) -> Result<(), Failure> {
    Ok(parts.iter().try_for_each(|part| copy_pinned(context, part.to, from, PLAIN_PIECE_BYTES))?)
}

/// GiB in a second.
pub(super) fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / (1_u64 << 30) as f64 / seconds
}

/// One device, and whoever looks at what arrived there.
struct Bench<'a> {
    context: &'a CudaContext,
    memory: &'a mut dyn DeviceMemory,
    arrival: Arrival<'a>,
}

impl Bench<'_> {
    /// An upload as the model cache makes it, through an uploader of its own; shared out otherwise where `settings` say.
    fn uploaded(
        &mut self,
        kind: SourceKind,
        source: &Source,
        manner: Manner,
        settings: Option<UploadSettings>,
    ) -> Result<Copied, Failure> {
        let context = self.context.clone();
        let mut uploader = match settings {
            Some(settings) => Uploader::with_settings(context, settings),
            None => Uploader::new(context),
        };
        let copied = self.timed(kind, source, manner, |parts| Ok(uploader.upload(parts)?))?;
        let (staging, buffer_bytes) = (uploader.staging(), uploader.settings().buffer_bytes);
        let shared = Shared { threads: staging.threads, buffer_bytes, pinned_bytes: staging.pinned_bytes };
        Ok(Copied { settings: Some(shared), usual: settings.is_none(), ..copied })
    }

    /// Times one manner of copying. What is allocated for it is what would be on the device: a partial load has no room
    /// for the pieces that it leaves out. What the first and the last run brought there is compared, outside the time.
    fn timed(
        &mut self,
        kind: SourceKind,
        source: &Source,
        manner: Manner,
        mut copy: impl FnMut(&[UploadPart<'_>]) -> Result<(), Failure>,
    ) -> Result<Copied, Failure> {
        let sizes: Vec<u64> = {
            let opened = source.open()?;
            chosen(&opened, manner).iter().map(|contents| contents.len() as u64).collect()
        };
        let held = Held::new(&mut *self.memory, &sizes)?;
        let mut seconds = Vec::with_capacity(RUNS);
        let mut first_seconds = 0.0;
        for run in 0..=RUNS {
            let opened = source.open()?;
            let parts: Vec<_> = held.holdings.iter().zip(chosen(&opened, manner)).map(part).collect();
            let is_compared = run == 0 || run == RUNS;
            if is_compared {
                self.arrival.spoil(&parts)?;
            }
            let began = Instant::now();
            copy(&parts)?;
            let taken = began.elapsed().as_secs_f64();
            if is_compared {
                self.arrival.check(&format!("{} from {}", manner, kind.name()), &parts)?;
            }
            if run == 0 {
                first_seconds = taken;
            } else {
                seconds.push(taken);
            }
        }
        let bytes = sizes.iter().sum();
        let gib_per_second = rate(bytes, median(seconds.clone()));
        let (source, settings, usual, share_of_plain) = (kind, None, true, 1.0);
        Ok(Copied { source, manner, settings, usual, bytes, first_seconds, seconds, gib_per_second, share_of_plain })
    }
}

fn chosen<'a>(opened: &'a Opened<'_>, manner: Manner) -> Vec<&'a [u8]> {
    let is_whole = matches!(manner, Manner::PlainPinned | Manner::UploadOnePart);
    let piece_bytes = if is_whole { usize::MAX } else { PIECE_BYTES };
    let step = if manner == Manner::UploadEverySecond { 2 } else { 1 };
    opened.pieces(piece_bytes).into_iter().step_by(step).collect()
}

fn part<'a>((to, contents): (&Holding, &'a [u8])) -> UploadPart<'a> {
    UploadPart { to: *to, contents }
}

// A tensor of half a staging buffer is cut nowhere.
const _: () = assert!(PIECE_BYTES as u64 == 2 * MIB);
