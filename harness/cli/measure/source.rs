//! Where weights come from on a machine: pinned memory, ordinary memory, a mapped file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use headroom_device::cuda::CudaContext;
use headroom_device::cuda::upload::PinnedBuffer;
use headroom_device::weights::MappedWeights;
use serde::Serialize;
use tempfile::TempDir;

use super::Failure;

/// The kinds of memory that contents are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SourceKind {
    /// Memory that the device reads by itself.
    Pinned,
    /// Ordinary memory, every page of it touched.
    Pageable,
    /// A safetensors file in the page cache, mapped anew for each measurement.
    MappedFile,
}

impl SourceKind {
    pub(super) const ALL: [Self; 3] = [Self::Pinned, Self::Pageable, Self::MappedFile];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Pinned => "pinned memory",
            Self::Pageable => "pageable memory",
            Self::MappedFile => "mapped file",
        }
    }
}

/// Contents of one kind.
pub(super) enum Source {
    Pinned(PinnedBuffer),
    Pageable(Vec<u8>),
    /// The file goes with its folder.
    MappedFile(TempDir),
}

const FILE: &str = "weights.safetensors";

/// Fills memory with what stands from `start_bytes` (whole words) on in contents in which no two stretches are alike:
/// whatever is lost, or goes elsewhere, is then seen.
fn fill(memory: &mut [u8], start_bytes: usize) {
    for (word, index) in memory.chunks_mut(8).zip(start_bytes as u64 / 8..) {
        let mixed = (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes();
        let (now, _) = mixed.split_at(word.len());
        word.copy_from_slice(now);
    }
}

impl Source {
    /// `pieces` pieces of `piece_bytes` each.
    pub(super) fn new(
        kind: SourceKind,
        context: &CudaContext,
        pieces: usize,
        piece_bytes: usize,
    ) -> Result<Self, Failure> {
        let bytes = pieces * piece_bytes;
        Ok(match kind {
            SourceKind::Pinned => {
                let mut buffer = PinnedBuffer::new(context, bytes)?;
                fill(&mut buffer, 0);
                Self::Pinned(buffer)
            }
            SourceKind::Pageable => {
                let mut memory = vec![0; bytes];
                fill(&mut memory, 0);
                Self::Pageable(memory)
            }
            SourceKind::MappedFile => {
                let folder = tempfile::tempdir()?;
                write_file(&folder.path().join(FILE), pieces, piece_bytes)?;
                Self::MappedFile(folder)
            }
        })
    }

    /// The contents, ready to be read. A file is mapped anew, so that its pages must be found again each time.
    pub(super) fn open(&self) -> Result<Opened<'_>, Failure> {
        Ok(match self {
            Self::Pinned(buffer) => Opened::Memory(buffer),
            Self::Pageable(memory) => Opened::Memory(memory),
            Self::MappedFile(folder) => Opened::Mapped(MappedWeights::open(&folder.path().join(FILE))?),
        })
    }
}

/// Contents that can be read.
pub(super) enum Opened<'a> {
    Memory(&'a [u8]),
    Mapped(MappedWeights),
}

impl Opened<'_> {
    /// The contents in pieces, in order.
    pub(super) fn pieces(&self, piece_bytes: usize) -> Vec<&[u8]> {
        match self {
            Self::Memory(memory) => memory.chunks(piece_bytes).collect(),
            Self::Mapped(mapped) => mapped.tensors().iter().map(|span| mapped.contents(span)).collect(),
        }
    }
}

/// Writes a safetensors file of equal tensors. What is read from it afterwards comes from the page cache.
fn write_file(path: &PathBuf, pieces: usize, piece_bytes: usize) -> Result<(), Failure> {
    let failed = |error: io::Error| format!("cannot write {}: {error}", shown(path));
    let header: serde_json::Map<_, _> = (0..pieces)
        .map(|index| {
            let offsets = [index * piece_bytes, (index + 1) * piece_bytes];
            let tensor = serde_json::json!({"dtype": "U8", "shape": [piece_bytes], "data_offsets": offsets});
            (format!("piece.{index:05}"), tensor)
        })
        .collect();
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut contents = vec![0; piece_bytes];
    let mut write = || {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for index in 0..pieces {
            fill(&mut contents, index * piece_bytes);
            file.write_all(&contents)?;
        }
        // So that nothing is written to the disk while copies are timed.
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    };
    write().map_err(|error| Failure::Other(failed(error).into()))
}

/// The file without its folder's random name.
fn shown(path: &Path) -> String {
    format!("{FILE} in {}", path.parent().and_then(Path::parent).unwrap_or(path).display())
}
