//! Recorded windows as they are written down: one JSON object a line.

use headroom_base::{
    AllocatorKind, AttentionKernel, Case, DType, Extent, MemoryLayout, Operation, Tiling, UnknownName,
};
use serde::Deserialize;

use super::execution::Execution;

/// A recorded window that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// A line is no window.
    #[error("line {line} is no recorded window: {source}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A word is not known.
    #[error("line {line}: {source}")]
    Word {
        /// Its number, from 1.
        line: usize,
        /// Which word.
        source: UnknownName,
    },
    /// Neither pixels nor tokens are given.
    #[error("line {line} has neither width and height nor tokens")]
    Extent {
        /// Its number, from 1.
        line: usize,
    },
}

#[derive(Deserialize)]
struct RecordedOptions {
    tile: Option<u32>,
    overlap: Option<f64>,
    #[serde(default)]
    channels_last: bool,
    #[serde(default)]
    cudnn_benchmark: bool,
    attention: Option<String>,
    activation: Option<String>,
}

#[derive(Deserialize)]
struct RecordedLine {
    family: String,
    operation: String,
    dtype: String,
    width: Option<u32>,
    height: Option<u32>,
    frames: Option<u32>,
    batch: Option<u32>,
    tokens: Option<u32>,
    options: Option<RecordedOptions>,
    allocator: Option<String>,
    kind: Option<String>,
    #[serde(default)]
    baseline_allocated: u64,
    #[serde(default)]
    baseline_reserved: u64,
    #[serde(default)]
    allocated_peak_delta: u64,
    #[serde(default)]
    reserved_peak_delta: u64,
}

/// What a recorded line executed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Recorded {
    /// The family's name in the recording.
    pub family: String,
    /// The case.
    pub case: Case,
    /// Switches that differ from the default, for people ("math attention").
    pub options: String,
}

/// One recorded window.
#[derive(Clone, Debug)]
pub struct RecordedWindow {
    /// What ran.
    pub recorded: Recorded,
    /// How it ran.
    pub execution: Execution,
    /// On which allocator.
    pub allocator: AllocatorKind,
    /// Whether it was the first run of the case.
    pub warmup: bool,
    /// What was allocated when it began.
    pub baseline_allocated_bytes: u64,
    /// What was reserved when it began.
    pub baseline_reserved_bytes: u64,
    /// Peak of allocated memory above the baseline.
    pub allocated_peak_bytes: u64,
    /// Peak of reserved memory above the baseline.
    pub reserved_peak_bytes: u64,
}

/// The case and execution of a recorded line of windows or traces.
///
/// # Errors
/// When the line cannot be read; `line` is named in the error.
pub fn recorded_case(text: &str, line: usize) -> Result<(Recorded, Execution), RecordingError> {
    let parsed: RecordedLine = serde_json::from_str(text).map_err(|source| RecordingError::Line { line, source })?;
    case_of(&parsed, line)
}

fn case_of(parsed: &RecordedLine, line: usize) -> Result<(Recorded, Execution), RecordingError> {
    let word = |source| RecordingError::Word { line, source };
    let extent = match (parsed.tokens, parsed.width, parsed.height) {
        (Some(tokens), ..) => Extent::Text { tokens },
        (None, Some(width), Some(height)) => Extent::Pixels { width, height, frames: parsed.frames.unwrap_or(1) },
        _ => return Err(RecordingError::Extent { line }),
    };
    let mut execution = Execution::default();
    let mut options = Vec::new();
    let mut tiling = None;
    if let Some(given) = &parsed.options {
        if let Some(tile_pixels) = given.tile {
            // A share of a tile, written with at most two decimals.
            let overlap_percent = (given.overlap.unwrap_or(0.0) * 100.0).round() as u32;
            tiling = Some(Tiling { tile_pixels, overlap_percent });
        }
        if given.attention.as_deref() == Some("math") {
            execution.attention = AttentionKernel::Math;
            options.push("math attention".to_owned());
        }
        if given.channels_last {
            execution.memory_layout = MemoryLayout::ChannelsLast;
            options.push("channels last".to_owned());
        }
        if let Some(activation) = &given.activation {
            options.push(format!("{activation} activation"));
        }
        if given.cudnn_benchmark {
            execution.convolution_benchmark = true;
            options.push("convolution benchmark".to_owned());
        }
    }
    let case = Case {
        operation: parsed.operation.parse::<Operation>().map_err(word)?,
        dtype: parsed.dtype.parse::<DType>().map_err(word)?,
        extent,
        batch: parsed.batch.unwrap_or(1),
        tiling,
    };
    Ok((Recorded { family: parsed.family.clone(), case, options: options.join(", ") }, execution))
}

/// Reads recorded windows, one JSON object a line.
///
/// # Errors
/// For the first line that is no window.
pub fn read_windows(text: &str) -> Result<Vec<RecordedWindow>, RecordingError> {
    let mut windows = Vec::new();
    for (index, content) in text.lines().enumerate().filter(|(_, content)| !content.trim().is_empty()) {
        let line = index + 1;
        let parsed: RecordedLine =
            serde_json::from_str(content).map_err(|source| RecordingError::Line { line, source })?;
        let (recorded, execution) = case_of(&parsed, line)?;
        let allocator = parsed.allocator.as_deref().unwrap_or("native").parse();
        windows.push(RecordedWindow {
            recorded,
            execution,
            allocator: allocator.map_err(|source| RecordingError::Word { line, source })?,
            warmup: parsed.kind.as_deref() == Some("warmup"),
            baseline_allocated_bytes: parsed.baseline_allocated,
            baseline_reserved_bytes: parsed.baseline_reserved,
            allocated_peak_bytes: parsed.allocated_peak_delta,
            reserved_peak_bytes: parsed.reserved_peak_delta,
        });
    }
    Ok(windows)
}
