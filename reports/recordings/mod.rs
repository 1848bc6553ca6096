//! Recordings of PyTorch's allocator: JSON lines, plain or gzipped, as plain values.

mod scenario;
mod trace;

use std::borrow::Cow;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub use scenario::{Scenario, ScenarioAction, ScenarioStep};
pub use trace::{TraceBlock, TraceCounters, TraceRecording, TraceSegment};

/// Uncompressed recordings beyond this are refused, so that a small file cannot fill the memory.
const MOST_TEXT_BYTES: u64 = 1 << 30;

/// One line of a recording.
#[derive(Clone, Debug, PartialEq)]
pub enum Recording {
    /// A script of allocations and frees with the counters after every step.
    Scenario(Scenario),
    /// One operation, event by event.
    Trace(Box<TraceRecording>),
}

/// Why a file is not a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is not gzip all the way, not text, or too large.
    #[error("the recording cannot be unpacked: {reason}")]
    Unpack {
        /// What is wrong.
        reason: String,
    },
    /// A line is neither a scenario nor a trace.
    #[error("line {line}: {reason}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

/// Reads a recording from a file.
///
/// # Errors
/// When it cannot be read or is not a recording.
pub fn read(path: &Path) -> Result<Vec<Recording>, RecordingError> {
    let bytes = fs::read(path).map_err(|source| RecordingError::Io { path: path.to_owned(), source })?;
    parse(&bytes)
}

/// Reads a recording from a file's bytes.
///
/// # Errors
/// When they are not a recording.
pub fn parse(bytes: &[u8]) -> Result<Vec<Recording>, RecordingError> {
    let text = unpacked(bytes)?;
    let lines = text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty());
    lines
        .map(|(index, text)| parse_line(text).map_err(|reason| RecordingError::Line { line: index + 1, reason }))
        .collect()
}

fn unpacked(bytes: &[u8]) -> Result<Cow<'_, str>, RecordingError> {
    let unpack = |reason: String| RecordingError::Unpack { reason };
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|error| unpack(error.to_string()));
    }
    let mut text = String::new();
    let mut reader = flate2::read::MultiGzDecoder::new(bytes).take(MOST_TEXT_BYTES + 1);
    reader.read_to_string(&mut text).map_err(|error| unpack(error.to_string()))?;
    if text.len() as u64 > MOST_TEXT_BYTES {
        return Err(unpack(format!("it holds more than {}", headroom_base::Bytes(MOST_TEXT_BYTES))));
    }
    Ok(Cow::Owned(text))
}

fn parse_line(text: &str) -> Result<Recording, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if value.get("steps").is_some() {
        scenario::from_json(value).map(Recording::Scenario)
    } else if value.get("events").is_some() {
        trace::from_json(value).map(|trace| Recording::Trace(Box::new(trace)))
    } else {
        Err("neither `steps` (a scenario) nor `events` (a trace) is in it".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_recording_is_refused_with_its_line() {
        for (text, says) in [
            ("\n{\"steps\": 1}", "line 2"),
            ("{\"other\": 1}", "neither"),
            ("not json", "line 1"),
            ("{\"steps\": [[[\"alloc\", 1], []]], \"fields\": []}", "line 1"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(matches!(parse(&[0x1f, 0x8b, 0]), Err(RecordingError::Unpack { .. })));
    }
}
