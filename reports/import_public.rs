//! Reads figures that others published, one CSV row each, as windows with their source and its doubts.

use std::collections::BTreeMap;

use headroom_base::{
    AllocatorKind, AttemptId, AttentionKernel, Backend, Case, DType, Deltas, DeviceClass, Environment, Extent, GIB,
    HardEnvironment, InvalidReason, Measurement, MemoryLayout, Operation, Origin, Reading, Residency, RunKind,
    SoftEnvironment, Tiling, Validity, Window,
};
use headroom_calibration::{Attempt, Counted, Uncounted};
use serde::Deserialize;

use crate::import_windows::PriceCase;
use crate::report::{AttemptRecord, DeviceRecord, Provenance, Report, Trust, WindowRecord};

/// What a source says that makes its figure say something else than the columns do, and how people say it.
const DOUBTS: [(&str, &str); 6] = [
    ("inferred", "a part of the row is inferred, not printed"),
    ("anomaly", "the source measured something else than it meant to"),
    ("not stated", "it is not stated whether weights are in it"),
    ("mixed mode", "weights grew during the run and are in it"),
    ("oom", "the run ended out of memory"),
    ("likely", "the device is a guess"),
];

/// In tiled rows the sources name the tile alone; a quarter is what diffusers uses unless told otherwise.
const ASSUMED_OVERLAP_PERCENT: u32 = 25;

/// A row that cannot be a window, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The row's line in the file.
    pub line: u64,
    /// Where it was published.
    pub source_url: String,
    /// Why it cannot be one.
    pub reason: &'static str,
}

/// Published figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// The windows, as a report with one provenance for each source.
    pub report: Report,
    /// The rows that say too little.
    pub left_out: Vec<LeftOut>,
}

/// Why the file of published figures cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PublishedError {
    /// It is not the table it should be.
    #[error("{file}: {source}")]
    Table {
        /// The file.
        file: String,
        /// Where and why.
        source: csv::Error,
    },
    /// A cell cannot be read.
    #[error("{file}, line {line}, column `{column}`: `{value}` is no {expected}")]
    Cell {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// What stands there.
        value: String,
        /// What should.
        expected: &'static str,
    },
}

#[derive(Clone, Debug, Deserialize)]
struct Row {
    source_url: String,
    gpu: String,
    backend: String,
    allocator: String,
    framework_version: String,
    family: String,
    operation: String,
    dtype: String,
    width: u32,
    height: u32,
    frames: u32,
    tile_size: Option<u32>,
    allocated_bytes: Option<u64>,
    reserved_bytes: Option<u64>,
    note: String,
}

/// Reads published figures. `file` is only named in errors.
///
/// Rows that do not say on which card, under which allocator, or how much was reserved are left out and
/// listed. Rows whose note takes something back are kept as invalid windows with that reason.
///
/// # Errors
/// When the table has another shape or a cell cannot be read.
pub fn import_public(file: &str, text: &str, price: PriceCase<'_>) -> Result<Published, PublishedError> {
    let table = |source| PublishedError::Table { file: file.to_owned(), source };
    // With the line ends of Windows the reader's line numbers lag by one.
    let text = text.replace("\r\n", "\n");
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let headers = reader.headers().map_err(table)?.clone();
    let mut published = Published { report: Report::of(Vec::new()), left_out: Vec::new() };
    let mut runs: BTreeMap<AttemptId, u32> = BTreeMap::new();
    for record in reader.records() {
        let record = record.map_err(table)?;
        let line = record.position().map_or(0, csv::Position::line);
        let row: Row = record.deserialize(Some(&headers)).map_err(table)?;
        let place = Place { file, line, row: &row };
        match place.window(price, &mut runs)? {
            Ok(window) => add(&mut published.report, &row, window),
            Err(reason) => {
                published.left_out.push(LeftOut { line, source_url: row.source_url.clone(), reason });
            }
        }
    }
    Ok(published)
}

fn add(report: &mut Report, row: &Row, window: Window) {
    if !report.provenance.iter().any(|from| from.report_id == row.source_url) {
        report.provenance.push(Provenance {
            report_id: row.source_url.clone(),
            tool_version: "not by headroom".to_owned(),
            commit: None,
            created: "unknown".to_owned(),
            arguments: Vec::new(),
            trust: Trust::Published,
            withdrawn: None,
            stopped: false,
        });
    }
    let driver = window.environment.soft.driver.clone();
    let device = DeviceRecord { class: window.device.clone(), uuid_hash: None, driver, simulated: false };
    if !report.devices.contains(&device) {
        report.devices.push(device);
    }
    if let Some(id) = &window.attempt_id {
        match report.attempts.iter_mut().find(|record| record.attempt.id == *id) {
            Some(known) => {
                known.attempt.planned_runs += 1;
                known.attempt.finished_runs.insert(window.run);
            }
            None => report.attempts.push(AttemptRecord {
                attempt: Attempt::recorded(
                    id.clone(),
                    window.model.as_str(),
                    window.device.clone(),
                    window.environment.clone(),
                    1,
                ),
                report_id: row.source_url.clone(),
                device_uuid_hash: None,
                note: None,
            }),
        }
    }
    // Judged with all others once the report is whole; until then it belongs to nothing.
    let record = WindowRecord::new(window, Counted::Excluded(Uncounted::NoAttempt));
    report.windows.push(WindowRecord { note: Some(row.note.clone()), ..record });
}

/// One row, for errors.
#[derive(Clone, Copy)]
struct Place<'a> {
    file: &'a str,
    line: u64,
    row: &'a Row,
}

impl Place<'_> {
    fn window(
        self,
        price: PriceCase<'_>,
        runs: &mut BTreeMap<AttemptId, u32>,
    ) -> Result<Result<Window, &'static str>, PublishedError> {
        let row = self.row;
        let environment = match self.environment()? {
            Some(environment) => environment,
            None => return Ok(Err("the allocator is not stated")),
        };
        let Some(device) = device(&row.gpu, environment.hard.backend) else {
            return Ok(Err("the card or its memory is not stated"));
        };
        let Some(reserved_peak_bytes) = row.reserved_bytes else {
            return Ok(Err("the reserved bytes are not stated"));
        };
        let case = self.case()?;
        let Some(pricing) = price(&row.family, &case) else {
            return Ok(Err("no estimator prices it"));
        };
        let deltas =
            Deltas { allocated_peak_bytes: allocated_bytes(row), reserved_peak_bytes, driver_bytes: Reading::Unknown };
        let attempt_id = attempt_id(row, &environment);
        let run = runs.entry(attempt_id.clone()).or_default();
        *run += 1;
        Ok(Ok(Window {
            model: pricing.model,
            line: pricing.line,
            case,
            cost_units: pricing.cost_units,
            analytic_bytes: pricing.analytic_bytes,
            device,
            environment,
            run: *run - 1,
            attempt_id: Some(attempt_id),
            retry: 0,
            kind: RunKind::Measured,
            origin: Origin::Published,
            measurement: Measurement {
                estimate_bytes: 0,
                deltas,
                demand_bytes: deltas.demand_bytes(),
                stretches: 1,
                retries: 0,
                residency: Residency::Full,
                validity: validity(row),
            },
        }))
    }

    /// None where the allocator is not stated.
    fn environment(self) -> Result<Option<Environment>, PublishedError> {
        let row = self.row;
        let backend: Backend = self.word("backend", &row.backend, "backend")?;
        let allocator = match row.allocator.as_str() {
            "unknown" => return Ok(None),
            "cudaMallocAsync" => AllocatorKind::CudaMallocAsync,
            other => self.word("allocator", other, "allocator")?,
        };
        let framework = row.framework_version.split(';').next().unwrap_or_default();
        let math = row.note.to_ascii_lowercase().contains("math=true");
        Ok(Some(Environment {
            hard: HardEnvironment {
                backend,
                allocator,
                allocator_settings: String::new(),
                framework: framework.trim().trim_end_matches("(pin)").trim().to_owned(),
                attention: if math { AttentionKernel::Math } else { AttentionKernel::Fused },
                convolution_benchmark: false,
                memory_layout: MemoryLayout::Contiguous,
            },
            soft: SoftEnvironment { driver: "unknown".to_owned() },
        }))
    }

    fn case(self) -> Result<Case, PublishedError> {
        let row = self.row;
        let operation: Operation = self.word("operation", &row.operation, "operation")?;
        let dtype: DType = self.word("dtype", row.dtype.trim_end_matches("(inferred)").trim(), "dtype")?;
        let extent = Extent::Pixels { width: row.width, height: row.height, frames: row.frames };
        let tiling = row.tile_size.map(|tile_pixels| Tiling { tile_pixels, overlap_percent: ASSUMED_OVERLAP_PERCENT });
        Ok(Case { operation, dtype, extent, batch: 1, tiling })
    }

    fn word<T: std::str::FromStr>(
        self,
        column: &'static str,
        value: &str,
        expected: &'static str,
    ) -> Result<T, PublishedError> {
        value.parse().map_err(|_| PublishedError::Cell {
            file: self.file.to_owned(),
            line: self.line,
            column,
            value: value.to_owned(),
            expected,
        })
    }
}

/// A card's class from its name and size as sold: cards are sold by the binary size. None where the size is not stated.
fn device(gpu: &str, backend: Backend) -> Option<DeviceClass> {
    let (name, size) = gpu.rsplit_once(' ')?;
    let gib: u64 = size.strip_suffix('B')?.strip_suffix('G')?.parse().ok()?;
    Some(DeviceClass::new(name, gib.checked_mul(GIB)?, backend))
}

/// What was allocated beyond the weights. Where the source prints a peak with weights in it, or nothing, this
/// is left at 0: the demand is then the reserved bytes, and no ratio of the two is judged.
fn allocated_bytes(row: &Row) -> u64 {
    let with_weights = row.note.contains("absolute peak incl.");
    row.allocated_bytes.filter(|_| !with_weights).unwrap_or(0)
}

fn validity(row: &Row) -> Validity {
    let said = format!("{} {} {}", row.note, row.dtype, row.gpu).to_ascii_lowercase();
    let doubt = DOUBTS.iter().find(|(word, _)| said.contains(word)).map(|(_, doubt)| *doubt);
    let doubt = doubt.or(row.tile_size.map(|_| "how much the tiles overlap is assumed"));
    match doubt {
        Some(message) => Validity::Invalid(InvalidReason::Unclear { message: message.to_owned() }),
        None => Validity::Valid,
    }
}

/// One attempt per source, card, family, operation, element type, tile and software.
fn attempt_id(row: &Row, environment: &Environment) -> AttemptId {
    let hard = &environment.hard;
    let tile = row.tile_size.map_or_else(String::new, |tile| format!("/tile-{tile}"));
    AttemptId(format!(
        "{}/{}/{}/{}/{}/{}/{}/{}{tile}",
        row.source_url, row.gpu, row.family, row.operation, row.dtype, hard.allocator, hard.framework, hard.attention
    ))
}
