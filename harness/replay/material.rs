//! What a file given to `replay` is: a snapshot, a recording or the text of a message, told by its content.

use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};

use headroom_reports::oom_text::{self, ParseOomError, Pasted};
use headroom_reports::recordings::{self, Recording, RecordingError};
use headroom_reports::snapshot::{self, Limits, Snapshot, SnapshotError};

/// The two bytes every gzip begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The first byte of every pickle of the protocols that PyTorch writes.
const PICKLE: u8 = 0x80;

/// The file that means standard input.
const STANDARD_INPUT: &str = "-";

/// Something to replay.
#[derive(Debug)]
pub enum Material {
    /// A PyTorch memory snapshot.
    Snapshot(Box<Snapshot>),
    /// Scripts and traces.
    Recordings(Vec<Recording>),
    /// A text with out-of-memory messages.
    Message(Box<Pasted>),
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

/// Reads a file, or standard input where the path is `-`, and tells what it is.
///
/// # Errors
/// When it cannot be read or is nothing that can be replayed.
pub fn read(path: &Path) -> Result<Material, MaterialError> {
    if path != Path::new(STANDARD_INPUT) {
        let bytes = std::fs::read(path).map_err(|source| MaterialError::Io { path: path.to_owned(), source })?;
        return told(path, &bytes);
    }
    let path = Path::new("standard input");
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(|source| MaterialError::Io { path: path.to_owned(), source })?;
    told(path, &bytes)
}

/// Tells what bytes are; `path` is what errors name.
fn told(path: &Path, bytes: &[u8]) -> Result<Material, MaterialError> {
    let bytes = &*in_utf8(bytes);
    let first = first_byte(bytes);
    if first == Some(PICKLE) || (bytes.starts_with(&GZIP) && first.is_none()) {
        return Ok(Material::Snapshot(Box::new(snapshot::parse(path, bytes, Limits::USUAL)?)));
    }
    let is_packed = bytes.starts_with(&GZIP);
    if is_packed || first == Some(b'{') || is_named_as_recording(path) {
        return match recordings::parse(bytes) {
            Ok(recordings) if recordings.is_empty() => Err(MaterialError::Empty { path: path.to_owned() }),
            Ok(recordings) => Ok(Material::Recordings(recordings)),
            // Logs are written as JSON lines too.
            Err(source) => match oom_text::read(&String::from_utf8_lossy(bytes)) {
                Ok(pasted) if !is_packed => Ok(Material::Message(Box::new(pasted))),
                _ => Err(MaterialError::Recording { path: path.to_owned(), source }),
            },
        };
    }
    let text = String::from_utf8_lossy(bytes);
    match oom_text::read(&text) {
        Ok(pasted) => Ok(Material::Message(Box::new(pasted))),
        // A log may have a path in another encoding in it; what holds no message beside that is no text at all.
        Err(ParseOomError::NoMessage) if std::str::from_utf8(bytes).is_err() => {
            Err(MaterialError::Unknown { path: path.to_owned() })
        }
        Err(source) => Err(MaterialError::Message { path: path.to_owned(), source }),
    }
}

/// Text as it is read here: what Windows writes begins with a mark that says how, and where PowerShell redirects
/// (`>`) it is in UTF-16. Bytes without a mark stay as they are.
fn in_utf8(bytes: &[u8]) -> Cow<'_, [u8]> {
    let read: fn([u8; 2]) -> u16 = match bytes {
        [0xef, 0xbb, 0xbf, rest @ ..] => return Cow::Borrowed(rest),
        [0xff, 0xfe, ..] => u16::from_le_bytes,
        [0xfe, 0xff, ..] => u16::from_be_bytes,
        _ => return Cow::Borrowed(bytes),
    };
    // A half unit at the end is a file that was cut off: what is before it can still be read.
    let units: Vec<u16> = bytes[2..].chunks_exact(2).map(|unit| read([unit[0], unit[1]])).collect();
    Cow::Owned(String::from_utf16_lossy(&units).into_bytes())
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

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "Détail\nCUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity)";

    fn with_mark(mark: &[u8], text: impl Iterator<Item = u8>) -> Vec<u8> {
        mark.iter().copied().chain(text).collect()
    }

    fn requested(bytes: &[u8]) -> Option<u64> {
        match told(Path::new("log.txt"), bytes) {
            Ok(Material::Message(pasted)) => pasted.messages.first().map(|oom| oom.requested.bytes),
            _ => None,
        }
    }

    #[test]
    fn a_message_is_read_in_every_encoding_that_a_shell_writes() {
        let (little, big) = (u16::to_le_bytes, u16::to_be_bytes);
        let utf_16 = |order: fn(u16) -> [u8; 2]| MESSAGE.encode_utf16().flat_map(order);
        let cut_off = utf_16(little).chain([0x20]);
        let windows_1252 = MESSAGE.chars().map(|letter| letter as u8).collect();
        let encodings = [
            MESSAGE.as_bytes().to_vec(),
            with_mark(&[0xef, 0xbb, 0xbf], MESSAGE.bytes()),
            with_mark(&[0xff, 0xfe], utf_16(little)),
            with_mark(&[0xfe, 0xff], utf_16(big)),
            with_mark(&[0xff, 0xfe], cut_off),
            windows_1252,
        ];
        for bytes in encodings {
            assert_eq!(requested(&bytes), Some(2 << 30), "{:?}", &bytes[..8]);
        }
        // The other order is no text with a message.
        assert_eq!(requested(&with_mark(&[0xfe, 0xff], utf_16(little))), None);
    }
}
