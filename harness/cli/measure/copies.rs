//! How fast contents reach a device, from each kind of memory and in each manner, beside a plain pinned copy.

use std::fmt;
use std::time::Instant;

use headroom_base::MIB;
use headroom_device::cuda::upload::{PinnedBuffer, UploadSettings, copy_each_part, copy_pinned};
use headroom_device::cuda::{CudaContext, Uploader};
use headroom_device::device::UploadPart;
use headroom_device::{DeviceMemory, Holding};
use serde::Serialize;

use super::source::{Source, SourceKind};
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
    pub(super) threads: usize,
    pub(super) buffer_bytes: usize,
}

/// One measurement.
#[derive(Serialize)]
pub(super) struct Copied {
    pub(super) source: SourceKind,
    pub(super) manner: Manner,
    /// How the upload was shared out, where it was otherwise than usual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) settings: Option<Shared>,
    /// What was copied in each run.
    pub(super) bytes: u64,
    /// How long each run took, in order.
    seconds: Vec<f64>,
    /// Of the median run.
    pub(super) gib_per_second: f64,
    /// Beside the plain pinned copy of the same run; 1 is as fast.
    pub(super) share_of_plain: f64,
}

impl Copied {
    fn new(source: SourceKind, manner: Manner, bytes: u64, seconds: Vec<f64>) -> Self {
        let gib_per_second = bytes as f64 / (1_u64 << 30) as f64 / median(seconds.clone());
        Self { source, manner, settings: None, bytes, seconds, gib_per_second, share_of_plain: 1.0 }
    }
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
    for kind in SourceKind::ALL {
        let pieces = usize::try_from(bytes)? / PIECE_BYTES;
        let source = Source::new(kind, context, pieces, PIECE_BYTES)?;
        if let Source::Pinned(buffer) = &source {
            copies.push(plain(context, memory, buffer)?);
        }
        if !matches!(source, Source::MappedFile(_)) {
            copies.push(uploaded(memory, kind, &source, Manner::UploadOnePart)?);
        }
        copies.push(uploaded(memory, kind, &source, Manner::UploadPieces)?);
        copies.push(uploaded(memory, kind, &source, Manner::UploadEverySecond)?);
        if kind != SourceKind::Pinned {
            let each = |_: &mut dyn DeviceMemory, parts: &[UploadPart<'_>]| Ok(copy_each_part(context, parts)?);
            copies.push(timed(memory, kind, &source, Manner::CopyEachPiece, each)?);
            for (threads, buffer_bytes) in OTHER_SETTINGS {
                let settings = UploadSettings { threads, buffer_bytes };
                copies.push(with_settings(context, memory, kind, &source, settings)?);
            }
        }
    }
    let plain = copies.first().map_or(f64::NAN, |plain| plain.gib_per_second);
    for copied in &mut copies {
        copied.share_of_plain = copied.gib_per_second / plain;
    }
    Ok(copies)
}

fn plain(context: &CudaContext, memory: &mut dyn DeviceMemory, from: &PinnedBuffer) -> Result<Copied, Failure> {
    let held = Held::new(memory, &[from.len() as u64])?;
    let mut seconds = Vec::with_capacity(RUNS);
    for run in 0..=RUNS {
        let began = Instant::now();
        for to in &held.holdings {
            copy_pinned(context, *to, from, PLAIN_PIECE_BYTES)?;
        }
        // The first one wakes the bus and is not counted.
        if run > 0 {
            seconds.push(began.elapsed().as_secs_f64());
        }
    }
    Ok(Copied::new(SourceKind::Pinned, Manner::PlainPinned, from.len() as u64, seconds))
}

/// An upload as the model cache makes it.
fn uploaded(
    memory: &mut dyn DeviceMemory,
    kind: SourceKind,
    source: &Source,
    manner: Manner,
) -> Result<Copied, Failure> {
    timed(memory, kind, source, manner, |memory, parts| Ok(memory.upload(parts)?))
}

fn with_settings(
    context: &CudaContext,
    memory: &mut dyn DeviceMemory,
    kind: SourceKind,
    source: &Source,
    settings: UploadSettings,
) -> Result<Copied, Failure> {
    let UploadSettings { threads, buffer_bytes } = settings;
    let mut uploader = Uploader::with_settings(context.clone(), settings);
    let copied = timed(memory, kind, source, Manner::UploadPieces, |_, parts| Ok(uploader.upload(parts)?))?;
    Ok(Copied { settings: Some(Shared { threads, buffer_bytes }), ..copied })
}

/// Times one manner of copying. What is allocated for it is what would be on the device: a partial load has no room for
/// the pieces that it leaves out.
fn timed(
    memory: &mut dyn DeviceMemory,
    kind: SourceKind,
    source: &Source,
    manner: Manner,
    mut copy: impl FnMut(&mut dyn DeviceMemory, &[UploadPart<'_>]) -> Result<(), Failure>,
) -> Result<Copied, Failure> {
    let step = if manner == Manner::UploadEverySecond { 2 } else { 1 };
    let sizes: Vec<u64> = {
        let opened = source.open()?;
        let pieces = chosen(&opened, manner, step);
        pieces.iter().map(|contents| contents.len() as u64).collect()
    };
    let held = Held::new(memory, &sizes)?;
    let mut seconds = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let opened = source.open()?;
        let pieces = chosen(&opened, manner, step);
        let parts: Vec<_> = held.holdings.iter().zip(pieces).map(part).collect();
        let began = Instant::now();
        copy(held.memory, &parts)?;
        seconds.push(began.elapsed().as_secs_f64());
    }
    Ok(Copied::new(kind, manner, sizes.iter().sum(), seconds))
}

fn chosen<'a>(opened: &'a super::source::Opened<'_>, manner: Manner, step: usize) -> Vec<&'a [u8]> {
    let piece_bytes = if manner == Manner::UploadOnePart { usize::MAX } else { PIECE_BYTES };
    opened.pieces(piece_bytes).into_iter().step_by(step).collect()
}

fn part<'a>((to, contents): (&Holding, &'a [u8])) -> UploadPart<'a> {
    UploadPart { to: *to, contents }
}

// A tensor of half a staging buffer is cut nowhere.
const _: () = assert!(PIECE_BYTES as u64 == 2 * MIB);
