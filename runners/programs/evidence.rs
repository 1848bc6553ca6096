//! Predictions held against windows that were recorded on a real device.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use headroom_base::{
    AllocatorKind, AttentionKernel, Bytes, Case, DType, Extent, MemoryLayout, Operation, Tiling, UnknownName,
};
use headroom_device::Settings;
use headroom_family::Architecture;
use serde::Deserialize;

use super::derive::{program, weights};
use super::execution::{Execution, Library};
use super::predict::{Peaks, PredictionError, Start, predict_program};
use super::program::{Piece, Program};

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
            allocated_peak_bytes: parsed.allocated_peak_delta,
            reserved_peak_bytes: parsed.reserved_peak_delta,
        });
    }
    Ok(windows)
}

/// A case's windows on one allocator beside what was predicted.
#[derive(Clone, Debug)]
pub struct Compared {
    /// What ran.
    pub recorded: Recorded,
    /// On which allocator.
    pub allocator: AllocatorKind,
    /// Whether these are first runs of the case.
    pub warmup: bool,
    /// How many windows there are.
    pub windows: usize,
    /// Smallest and largest recorded peak of allocated memory.
    pub allocated_bytes: (u64, u64),
    /// Smallest and largest recorded peak of reserved memory.
    pub reserved_bytes: (u64, u64),
    /// Smallest and largest recorded baseline of allocated memory.
    pub baseline_bytes: (u64, u64),
    /// What was predicted.
    pub predicted: Peaks,
}

/// How far a prediction lies outside the recorded range: 0 inside it, negative below.
fn outside(predicted: u64, (least, most): (u64, u64)) -> i64 {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    if predicted > most {
        signed(predicted - most)
    } else if predicted < least {
        -signed(least - predicted)
    } else {
        0
    }
}

impl Compared {
    /// Predicted less recorded peak of allocated memory, 0 within the recorded range.
    pub fn allocated_error_bytes(&self) -> i64 {
        outside(self.predicted.allocated_peak_bytes, self.allocated_bytes)
    }

    /// Predicted less recorded peak of reserved memory, 0 within the recorded range.
    pub fn reserved_error_bytes(&self) -> i64 {
        outside(self.predicted.reserved_peak_bytes, self.reserved_bytes)
    }

    /// The error of the allocated peak as a share of the largest recorded one.
    pub fn allocated_error(&self) -> f64 {
        self.allocated_error_bytes() as f64 / self.allocated_bytes.1.max(1) as f64
    }

    /// The error of the reserved peak as a share of the largest recorded one.
    pub fn reserved_error(&self) -> f64 {
        self.reserved_error_bytes() as f64 / self.reserved_bytes.1.max(1) as f64
    }

    /// Whether the allocated peak is within 2 %.
    pub fn allocated_holds(&self) -> bool {
        self.allocated_error().abs() <= 0.02
    }

    /// Whether the reserved peak is within 5 % or one growth step, whichever is larger; for the stream-ordered pool,
    /// whether it is never under.
    pub fn reserved_holds(&self) -> bool {
        let error = self.reserved_error_bytes();
        match self.allocator {
            AllocatorKind::CudaMallocAsync => error >= 0,
            kind => self.reserved_error().abs() <= 0.05 || error.unsigned_abs() <= kind.growth_step_bytes(),
        }
    }
}

/// Compares every window with what the programs predict, one entry per case, allocator and kind of run.
///
/// `architecture` says what was recorded; where it knows none, or there is no program, the case is
/// left out and counted in the second value, with the reason.
pub fn compare(
    windows: &[RecordedWindow],
    architecture: impl Fn(&Recorded) -> Option<Architecture>,
) -> (Vec<Compared>, BTreeMap<String, usize>) {
    let mut groups: BTreeMap<(Recorded, AllocatorKind, bool), Vec<&RecordedWindow>> = BTreeMap::new();
    for window in windows {
        groups.entry((window.recorded.clone(), window.allocator, window.warmup)).or_default().push(window);
    }
    let starts = starts(windows, &architecture);
    let mut compared = Vec::new();
    let mut left_out = BTreeMap::new();
    let mut derived: Option<(Recorded, Result<(Program, Vec<Piece>), String>)> = None;
    for ((recorded, allocator, warmup), windows) in groups {
        if derived.as_ref().is_none_or(|(other, _)| *other != recorded) {
            derived = Some((recorded.clone(), derive(&recorded, &windows[0].execution, &architecture)));
        }
        let Some((_, outcome)) = &derived else { continue };
        let predicted = outcome.as_ref().map_err(Clone::clone).and_then(|(program, weights)| {
            let least = windows.iter().map(|window| window.baseline_allocated_bytes).min().unwrap_or(0);
            let start = starts.get(&(recorded.family.clone(), recorded.case.operation, recorded.case.dtype, allocator));
            let start = start.copied().unwrap_or(Start::Fresh);
            predicted_peaks(program, weights, allocator, warmup, (start, least)).map_err(|error| error.to_string())
        });
        match predicted {
            Ok(predicted) => compared.push(Compared {
                recorded,
                allocator,
                warmup,
                windows: windows.len(),
                allocated_bytes: range(windows.iter().map(|window| window.allocated_peak_bytes)),
                baseline_bytes: range(windows.iter().map(|window| window.baseline_allocated_bytes)),
                reserved_bytes: range(windows.iter().map(|window| window.reserved_peak_bytes)),
                predicted,
            }),
            Err(reason) => *left_out.entry(reason).or_default() += windows.len(),
        }
    }
    (compared, left_out)
}

/// What a recorded model's process had done before: where even its first window has more allocated than weights and
/// input come to, other models had run, and every library held its workspace.
fn starts(
    windows: &[RecordedWindow],
    architecture: impl Fn(&Recorded) -> Option<Architecture>,
) -> HashMap<(String, Operation, DType, AllocatorKind), Start> {
    let mut starts = HashMap::new();
    for window in windows {
        let Recorded { family, case, .. } = &window.recorded;
        let key = (family.clone(), case.operation, case.dtype, window.allocator);
        let model = window.execution.workspaces;
        starts.entry(key).or_insert_with(|| {
            let held = architecture(&window.recorded).map(|found| {
                weights(&found, case.dtype).iter().map(|piece| piece.bytes.next_multiple_of(512)).sum::<u64>()
            });
            let libraries: u64 = Library::ALL.iter().map(|library| model.persistent_bytes(*library)).sum();
            match held {
                Some(held) if window.baseline_allocated_bytes >= held + libraries => Start::LibrariesReady(model),
                _ => Start::Fresh,
            }
        });
    }
    starts
}

fn derive(
    recorded: &Recorded,
    execution: &Execution,
    architecture: impl Fn(&Recorded) -> Option<Architecture>,
) -> Result<(Program, Vec<Piece>), String> {
    let Recorded { family, case, .. } = recorded;
    let found = architecture(recorded);
    let found = found.ok_or_else(|| format!("no architecture is known for {family} {}", case.operation))?;
    let program = program(&found, case, execution).map_err(|error| error.to_string())?;
    Ok((program, weights(&found, case.dtype)))
}

/// The peaks of the run that these windows are: the first of a process where library workspaces were not there yet.
fn predicted_peaks(
    program: &Program,
    weights: &[Piece],
    allocator: AllocatorKind,
    warmup: bool,
    state: (Start, u64),
) -> Result<Peaks, PredictionError> {
    let (start, least_baseline_bytes) = state;
    let prediction = predict_program(program, weights, &Settings::of_kind(allocator), start)?;
    let held = prediction.first.allocated_baseline_bytes + program.persistent_bytes();
    let fresh = warmup && start == Start::Fresh && least_baseline_bytes < held;
    Ok(if fresh { prediction.first } else { prediction.later })
}

fn range(values: impl Iterator<Item = u64>) -> (u64, u64) {
    values.fold((u64::MAX, 0), |(least, most), value| (least.min(value), most.max(value)))
}

/// The distribution of errors per family, operation, dtype, options and allocator as a Markdown table, worst first.
pub fn table(compared: &[Compared]) -> String {
    let mut lines: BTreeMap<(String, AllocatorKind), Vec<&Compared>> = BTreeMap::new();
    for entry in compared {
        let Recorded { family, case, options } = &entry.recorded;
        let tiling = case.tiling.map_or(String::new(), |tiling| format!(" tile {}", tiling.tile_pixels));
        let name = format!("{family} {} {}{tiling} {options}", case.operation, case.dtype);
        lines.entry((name.trim_end().to_owned(), entry.allocator)).or_default().push(entry);
    }
    let worst = |entries: &[&Compared], error: fn(&Compared) -> f64| {
        entries.iter().map(|entry| error(entry)).max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0)
    };
    let mut rows: Vec<_> = lines
        .into_iter()
        .map(|((name, allocator), entries)| {
            let allocated = worst(&entries, Compared::allocated_error);
            let reserved = worst(&entries, Compared::reserved_error);
            let mut sorted: Vec<f64> = entries.iter().map(|entry| entry.reserved_error()).collect();
            sorted.sort_by(f64::total_cmp);
            let windows: usize = entries.iter().map(|entry| entry.windows).sum();
            (name, allocator, windows, allocated, reserved, sorted[sorted.len() / 2])
        })
        .collect();
    rows.sort_by(|a, b| b.4.abs().total_cmp(&a.4.abs()).then_with(|| a.0.cmp(&b.0)));
    let mut text = String::from(
        "| line | allocator | windows | allocated, worst | reserved, worst | reserved, median |\n|---|---|---:|---:|---:|---:|\n",
    );
    for (name, allocator, windows, allocated, reserved, median) in rows {
        let percent = |share: f64| format!("{:+.2} %", 100.0 * share);
        let _ = writeln!(
            text,
            "| {name} | {allocator} | {windows} | {} | {} | {} |",
            percent(allocated),
            percent(reserved),
            percent(median)
        );
    }
    text
}

/// One comparison for people, with sizes.
pub fn describe(entry: &Compared) -> String {
    let Recorded { family, case, options } = &entry.recorded;
    format!(
        "{family} {case} {options} {} {}: baseline {} predicted, {} recorded; allocated {} predicted, {} recorded ({:+.2} %); reserved {} predicted, {} recorded ({:+.2} %)",
        entry.allocator,
        if entry.warmup { "warm-up" } else { "measured" },
        Bytes(entry.predicted.allocated_baseline_bytes),
        Bytes(entry.baseline_bytes.1),
        Bytes(entry.predicted.allocated_peak_bytes),
        Bytes(entry.allocated_bytes.1),
        100.0 * entry.allocated_error(),
        Bytes(entry.predicted.reserved_peak_bytes),
        Bytes(entry.reserved_bytes.1),
        100.0 * entry.reserved_error(),
    )
}
