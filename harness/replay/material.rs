//! What a file given to `replay` is: a snapshot, a recording or the text of a message, told by its content.

use std::io::Read;
use std::path::{Path, PathBuf};

use headroom_reports::oom_text::{self, OutOfMemory, ParseOomError};
use headroom_reports::recordings::{self, Recording, RecordingError};
use headroom_reports::snapshot::{self, Limits, Snapshot, SnapshotError};

/// The two bytes every gzip begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The first byte of every pickle of the protocols that PyTorch writes.
const PICKLE: u8 = 0x80;

/// Something to replay.
#[derive(Debug)]
pub enum Material {
    /// A PyTorch memory snapshot.
    Snapshot(Box<Snapshot>),
    /// Scripts and traces.
    Recordings(Vec<Recording>),
    /// An out-of-memory message.
    Message(OutOfMemory),
}

/// Why a file cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    /// It cannot be opened.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is a pickle and no snapshot.
    #[error("{0}")]
    Snapshot(#[from] SnapshotError),
    /// It is JSON and no recording.
    #[error("{} is no recording: {source}", path.display())]
    Recording {
        /// The file.
        path: PathBuf,
        /// Why.
        source: RecordingError,
    },
    /// A recording without a line.
    #[error("{} holds no recording: it is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// It is a text and has no message.
    #[error("{}: {source}; a memory snapshot (pickle) or a recording (JSON lines) can be replayed too", path.display())]
    Message {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ParseOomError,
    },
    /// It is nothing that is known.
    #[error("{} is neither a memory snapshot nor a recording nor a text", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
    },
}

/// Reads a file and tells what it is.
///
/// # Errors
/// When it cannot be read or is nothing that can be replayed.
pub fn read(path: &Path) -> Result<Material, MaterialError> {
    let bytes = std::fs::read(path).map_err(|source| MaterialError::Io { path: path.to_owned(), source })?;
    let first = first_byte(&bytes);
    if first == Some(PICKLE) || (bytes.starts_with(&GZIP) && first.is_none()) {
        return Ok(Material::Snapshot(Box::new(snapshot::parse(path, &bytes, Limits::USUAL)?)));
    }
    if bytes.starts_with(&GZIP) || first == Some(b'{') || is_named_as_recording(path) {
        let recordings =
            recordings::parse(&bytes).map_err(|source| MaterialError::Recording { path: path.to_owned(), source })?;
        if recordings.is_empty() {
            return Err(MaterialError::Empty { path: path.to_owned() });
        }
        return Ok(Material::Recordings(recordings));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| MaterialError::Unknown { path: path.to_owned() })?;
    let message = oom_text::parse(text).map_err(|source| MaterialError::Message { path: path.to_owned(), source })?;
    Ok(Material::Message(message))
}

/// The first byte that is no white space, of a gzip's content where it is one; none where it cannot be unpacked.
fn first_byte(bytes: &[u8]) -> Option<u8> {
    let mut head = [0; 64];
    let shown: &[u8] = if bytes.starts_with(&GZIP) {
        let count = flate2::read::MultiGzDecoder::new(bytes).read(&mut head).ok()?;
        &head[..count]
    } else {
        bytes
    };
    shown.iter().copied().find(|byte| !byte.is_ascii_whitespace())
}

fn is_named_as_recording(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "jsonl")
}
