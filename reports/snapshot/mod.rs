//! PyTorch memory snapshots, as people attach them to bug reports: read, checked and explained.

mod extract;
mod model;
mod opcodes;
mod pickle;
mod requests;
mod stranded;
mod warnings;

use std::io::Read;
use std::path::{Path, PathBuf};

use headroom_base::mutant;

pub use extract::{ShapeError, extract};
pub use model::{Action, Block, BlockState, Event, Frame, Segment, Settings, Snapshot, StackId};
pub use pickle::{Pickle, PickleError, Value, ValueId};
pub use requests::{Moment, Peaks, RequestStep, Requests};
pub use stranded::{Pin, Stranded, StrandedSegment};
pub use warnings::Warning;

/// What a file may come to, so that a small one cannot fill the memory of the machine that opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes when unpacked.
    pub bytes: u64,
    /// Values in the pickle; each takes about 40 bytes here.
    pub values: usize,
    /// Segments, blocks, events and frames, at most 2^23.
    pub records: u32,
}

impl Limits {
    /// Enough for the longest histories people attach to reports.
    pub const USUAL: Self = Self { bytes: 1 << 30, values: 60_000_000, records: 1 << 23 };
}

/// The two bytes every gzip begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Why a file is not a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Its gzip is broken or cut off.
    #[error("{} cannot be unpacked: {source}; the file was cut off or damaged", .path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: std::io::Error,
    },
    /// It is larger than this program is willing to hold.
    #[error("{} has more than {} when unpacked: record fewer events (max_entries)", .path.display(), headroom_base::Bytes(*most_bytes))]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// What it may have.
        most_bytes: u64,
    },
    /// Its pickle cannot be read.
    #[error("{} is not a memory snapshot: {source}", .path.display())]
    Pickle {
        /// The file.
        path: PathBuf,
        /// Why.
        source: PickleError,
    },
    /// Its pickle holds something else.
    #[error("{} is not a memory snapshot: {source}", .path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ShapeError,
    },
}

/// Reads a snapshot from a file, plain or gzipped. Nothing in it is executed.
///
/// # Errors
/// When the file cannot be read, is cut off, is something else, or asks for code to be run.
pub fn read(path: &Path) -> Result<Snapshot, SnapshotError> {
    let bytes = std::fs::read(path).map_err(|source| SnapshotError::Io { path: path.to_owned(), source })?;
    parse(path, &bytes, Limits::USUAL)
}

/// Reads a snapshot from a file's bytes; `path` is only named in errors.
///
/// # Errors
/// When they are cut off, are something else, or ask for code to be run.
pub fn parse(path: &Path, bytes: &[u8], limits: Limits) -> Result<Snapshot, SnapshotError> {
    let unpacked;
    let plain = if bytes.starts_with(&GZIP) {
        unpacked = unpack(path, bytes, limits.bytes)?;
        &unpacked[..]
    } else {
        bytes
    };
    let pickle =
        Pickle::read(plain, limits.values).map_err(|source| SnapshotError::Pickle { path: path.to_owned(), source })?;
    extract(&pickle, limits.records).map_err(|source| SnapshotError::Shape { path: path.to_owned(), source })
}

/// Whether a file's first bytes are those of a pickle or of a gzip, and not of a text.
pub fn looks_like_one(bytes: &[u8]) -> bool {
    bytes.starts_with(&GZIP) || bytes.first() == Some(&opcodes::PROTO)
}

fn unpack(path: &Path, bytes: &[u8], most_bytes: u64) -> Result<Vec<u8>, SnapshotError> {
    let mut plain = Vec::new();
    let within = mutant!(
        "gzip_without_limit",
        "a file of a few kilobytes unpacks until the memory of the machine that opens it is full",
        right: most_bytes,
        wrong: u64::MAX - 1,
    );
    let read = flate2::read::MultiGzDecoder::new(bytes).take(within + 1).read_to_end(&mut plain);
    read.map_err(|source| SnapshotError::Gzip { path: path.to_owned(), source })?;
    if plain.len() as u64 > within {
        return Err(SnapshotError::TooLarge { path: path.to_owned(), most_bytes });
    }
    Ok(plain)
}
