//! Reads windows recorded on a real device, one JSON object a line, as windows of finished attempts.

use std::collections::BTreeMap;

use headroom_base::{
    AllocatorKind, AttemptId, AttentionKernel, Backend, Case, DType, Deltas, DeviceClass, Environment, Extent,
    HardEnvironment, InvalidReason, LineKey, Measurement, MemoryLayout, Operation, Origin, Reading, Residency, RunKind,
    SoftEnvironment, Tiling, Validity, Window,
};
use headroom_calibration::{Attempt, Counted, Uncounted};
use serde::Deserialize;

use crate::report::{AttemptRecord, DeviceRecord, Provenance, Report, WindowRecord};

/// What the driver says of an NVIDIA H200: 143,155.9 MiB, 615 MiB less than NVML's figure.
pub const H200_TOTAL_BYTES: u64 = 1_431_559 * (1 << 20) / 10;

/// What a case prices on, as the estimators of the architecture say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pricing {
    /// The model's key.
    pub model: String,
    /// The line.
    pub line: LineKey,
    /// The case's cost units.
    pub cost_units: u64,
    /// What is known exactly.
    pub analytic_bytes: u64,
}

/// Maps a family and a case to what it prices on; none where no estimator knows the family.
pub type PriceCase<'a> = &'a dyn Fn(&str, &Case) -> Option<Pricing>;

/// What a recording does not say of itself.
#[derive(Clone, Copy)]
pub struct Recording<'a> {
    /// Its name ("windows.jsonl"): begins attempt ids and stands in errors.
    pub name: &'a str,
    /// The report it counts as.
    pub report_id: &'a str,
    /// The driver's total memory of a device, by the device's name.
    pub total_bytes: &'a dyn Fn(&str) -> Option<u64>,
    /// What a case prices on.
    pub price: PriceCase<'a>,
}

/// The windows of a recording, with the attempts they belong to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// The devices.
    pub devices: Vec<DeviceRecord>,
    /// One finished attempt per family, operation, element type, allocator and options.
    pub attempts: Vec<AttemptRecord>,
    /// The windows, in the recording's order, with how long each took.
    pub windows: Vec<(Window, Option<f64>)>,
}

/// Why a line of a recording is not a window.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It does not have the format.
    #[error("{file}, line {line}, field `{field}`: {message}")]
    Field {
        /// The recording.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The field.
        field: String,
        /// What is wrong with it.
        message: String,
    },
    /// No estimator prices the family's operation.
    #[error(
        "{file}, line {line}, field `family`: no estimator prices {operation} of `{family}`; name the family in the pricing or take the line out"
    )]
    Unpriced {
        /// The recording.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The family.
        family: String,
        /// The operation.
        operation: Operation,
    },
    /// The device's total memory is not known.
    #[error(
        "{file}, line {line}, field `device`: the total memory of `{device}` is not known here, and a class needs it"
    )]
    UnknownDevice {
        /// The recording.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The device.
        device: String,
    },
}

/// Recordings of one machine as one report, its windows not judged yet.
///
/// # Errors
/// At the first line that is not a window.
pub fn report_of(
    provenance: Provenance,
    recordings: &[(&str, &str)],
    total_bytes: &dyn Fn(&str) -> Option<u64>,
    price: PriceCase<'_>,
) -> Result<Report, ImportError> {
    let report_id = provenance.report_id.clone();
    let mut report = Report::new(provenance);
    for (name, text) in recordings {
        let recording = Recording { name, report_id: &report_id, total_bytes, price };
        let imported = import_windows(recording, text)?;
        report.devices.extend(imported.devices);
        report.attempts.extend(imported.attempts);
        for (window, seconds) in imported.windows {
            let record = WindowRecord::new(window, Counted::Excluded(Uncounted::NoAttempt));
            report.windows.push(WindowRecord { seconds, ..record });
        }
    }
    report.devices.sort();
    report.devices.dedup();
    Ok(report)
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum RecordedKind {
    Warmup,
    Measured,
    WarmServer,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedOptions {
    tile: Option<u32>,
    overlap: Option<f64>,
    #[serde(default)]
    cudnn_benchmark: bool,
    #[serde(default)]
    attention: AttentionKernel,
    #[serde(default)]
    channels_last: bool,
}

#[derive(Clone, Debug, Deserialize)]
struct RecordedLine {
    family: String,
    operation: Operation,
    dtype: DType,
    width: Option<u32>,
    height: Option<u32>,
    frames: Option<u32>,
    batch: u32,
    tokens: Option<u32>,
    #[serde(default)]
    options: RecordedOptions,
    allocator: AllocatorKind,
    kind: RecordedKind,
    allocated_peak_delta: i64,
    reserved_peak_delta: i64,
    driver_delta: Option<i64>,
    retries: u64,
    seconds: Option<f64>,
    device: String,
    backend: Backend,
    framework: String,
    driver: String,
}

/// Reads every line of a recording.
///
/// # Errors
/// At the first line that is not a window, naming file, line and field. Nothing is skipped silently.
pub fn import_windows(recording: Recording<'_>, text: &str) -> Result<Imported, ImportError> {
    let mut imported = Imported::default();
    let mut runs: BTreeMap<AttemptId, u32> = BTreeMap::new();
    for (index, content) in text.lines().enumerate() {
        if content.trim().is_empty() {
            continue;
        }
        let place = Place { recording, line: index + 1 };
        let line = place.parse(content)?;
        let window = place.window(&line, &mut runs)?;
        note_attempt(&mut imported, recording, &line, &window);
        imported.windows.push((window, line.seconds));
    }
    Ok(imported)
}

fn note_attempt(imported: &mut Imported, recording: Recording<'_>, line: &RecordedLine, window: &Window) {
    let device =
        DeviceRecord { class: window.device.clone(), uuid_hash: None, driver: line.driver.clone(), simulated: false };
    if !imported.devices.contains(&device) {
        imported.devices.push(device);
    }
    let Some(id) = &window.attempt_id else { return };
    if let Some(known) = imported.attempts.iter_mut().find(|record| record.attempt.id == *id) {
        known.attempt.planned_runs += 1;
        known.attempt.finished_runs.insert(window.run);
        return;
    }
    let (model, device) = (window.model.as_str(), window.device.clone());
    let warm = "warm server: other tensors came and went between runs";
    imported.attempts.push(AttemptRecord {
        attempt: Attempt::recorded(id.clone(), model, device, window.environment.clone(), 1),
        report_id: recording.report_id.to_owned(),
        device_uuid_hash: None,
        note: (line.kind == RecordedKind::WarmServer).then(|| warm.to_owned()),
    });
}

/// One line of one recording, for errors.
#[derive(Clone, Copy)]
struct Place<'a> {
    recording: Recording<'a>,
    line: usize,
}

impl Place<'_> {
    fn parse(self, content: &str) -> Result<RecordedLine, ImportError> {
        let mut deserializer = serde_json::Deserializer::from_str(content);
        serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            let field = error.path().to_string();
            self.field(&field, error.into_inner().to_string())
        })
    }

    fn window(self, line: &RecordedLine, runs: &mut BTreeMap<AttemptId, u32>) -> Result<Window, ImportError> {
        let case = self.case(line)?;
        let file = || self.recording.name.to_owned();
        let pricing = (self.recording.price)(&line.family, &case).ok_or_else(|| ImportError::Unpriced {
            file: file(),
            line: self.line,
            family: line.family.clone(),
            operation: line.operation,
        })?;
        let total_bytes = (self.recording.total_bytes)(&line.device).ok_or_else(|| ImportError::UnknownDevice {
            file: file(),
            line: self.line,
            device: line.device.clone(),
        })?;
        let attempt_id = attempt_id(self.recording.name, line);
        let next_run = runs.entry(attempt_id.clone()).or_default();
        let run = *next_run;
        *next_run += 1;
        Ok(Window {
            model: pricing.model,
            line: pricing.line,
            case,
            cost_units: pricing.cost_units,
            analytic_bytes: pricing.analytic_bytes,
            device: DeviceClass::new(line.device.as_str(), total_bytes, line.backend),
            environment: environment(line),
            attempt_id: Some(attempt_id),
            run,
            retry: 0,
            kind: if line.kind == RecordedKind::Warmup { RunKind::Warmup } else { RunKind::Measured },
            origin: Origin::Recorded,
            measurement: measurement(line),
        })
    }

    fn case(self, line: &RecordedLine) -> Result<Case, ImportError> {
        let missing = |field| self.field(field, format!("{} needs it", line.operation));
        let extent = if line.operation == Operation::TextEncode {
            Extent::Text { tokens: line.tokens.ok_or_else(|| missing("tokens"))? }
        } else {
            Extent::Pixels {
                width: line.width.ok_or_else(|| missing("width"))?,
                height: line.height.ok_or_else(|| missing("height"))?,
                frames: line.frames.unwrap_or(1),
            }
        };
        let tiling = match (line.options.tile, line.options.overlap) {
            (None, None) => None,
            (Some(tile_pixels), Some(share)) => Some(Tiling { tile_pixels, overlap_percent: self.percent(share)? }),
            (None, Some(_)) => return Err(self.field("options.tile", "an overlap needs a tile".into())),
            (Some(_), None) => return Err(self.field("options.overlap", "a tile needs an overlap".into())),
        };
        Ok(Case { operation: line.operation, dtype: line.dtype, extent, batch: line.batch, tiling })
    }

    fn percent(self, share: f64) -> Result<u32, ImportError> {
        let percent = (share * 100.0).round();
        if (0.0..100.0).contains(&percent) {
            Ok(percent as u32)
        } else {
            Err(self.field("options.overlap", format!("{share} is no share below 1")))
        }
    }

    fn field(self, field: &str, message: String) -> ImportError {
        ImportError::Field { file: self.recording.name.to_owned(), line: self.line, field: field.to_owned(), message }
    }
}

fn environment(line: &RecordedLine) -> Environment {
    let memory_layout = if line.options.channels_last { MemoryLayout::ChannelsLast } else { MemoryLayout::Contiguous };
    Environment {
        hard: HardEnvironment {
            backend: line.backend,
            allocator: line.allocator,
            allocator_settings: String::new(),
            framework: line.framework.clone(),
            attention: line.options.attention,
            convolution_benchmark: line.options.cudnn_benchmark,
            memory_layout,
        },
        soft: SoftEnvironment { driver: line.driver.clone() },
    }
}

/// One attempt per family, operation, element type, allocator and options of a recording.
fn attempt_id(recording: &str, line: &RecordedLine) -> AttemptId {
    let mut parts = vec![
        recording.to_owned(),
        line.family.clone(),
        line.operation.to_string(),
        line.dtype.to_string(),
        line.allocator.to_string(),
    ];
    let options = &line.options;
    parts.extend(options.tile.map(|tile| format!("tile-{tile}")));
    parts.extend(options.overlap.map(|share| format!("overlap-{share}")));
    parts.extend(options.cudnn_benchmark.then(|| "benchmark".to_owned()));
    parts.extend((options.attention != AttentionKernel::Fused).then(|| options.attention.to_string()));
    parts.extend(options.channels_last.then(|| "channels_last".to_owned()));
    parts.extend((line.kind == RecordedKind::WarmServer).then(|| "warm_server".to_owned()));
    AttemptId(parts.join("/"))
}

fn measurement(line: &RecordedLine) -> Measurement {
    let (allocated, reserved) = (line.allocated_peak_delta, line.reserved_peak_delta);
    let deltas = Deltas {
        allocated_peak_bytes: u64::try_from(allocated).unwrap_or(0),
        reserved_peak_bytes: u64::try_from(reserved).unwrap_or(0),
        driver_bytes: Reading::from(line.driver_delta.and_then(|bytes| u64::try_from(bytes).ok())),
    };
    Measurement {
        estimate_bytes: 0,
        deltas,
        demand_bytes: deltas.demand_bytes(),
        stretches: 1,
        retries: line.retries,
        residency: Residency::Full,
        validity: validity(line),
    }
}

fn validity(line: &RecordedLine) -> Validity {
    let deltas = [
        ("allocated", Some(line.allocated_peak_delta)),
        ("reserved", Some(line.reserved_peak_delta)),
        ("driver", line.driver_delta),
    ];
    if let Some((quantity, _)) = deltas.into_iter().find(|(_, bytes)| bytes.is_some_and(|bytes| bytes < 0)) {
        return Validity::Invalid(InvalidReason::NegativeDelta { quantity: quantity.to_owned() });
    }
    match line.retries {
        0 => Validity::Valid,
        retries => Validity::Invalid(InvalidReason::AllocatorRetry { retries }),
    }
}
