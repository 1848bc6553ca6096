//! The recorded runs as windows of finished attempts, read with as little code as will do.

use std::collections::BTreeMap;
use std::path::PathBuf;

use headroom_base::{
    AllocatorKind, AttemptId, Backend, Case, CostUnit, DType, Deltas, DeviceClass, Environment, Extent,
    HardEnvironment, LineKey, Measurement, Operation, Origin, Reading, Residency, RunKind, SoftEnvironment, Validity,
    Window,
};
use headroom_calibration::{Attempt, Context, EstimatorVersions};
use serde::Deserialize;

#[derive(Deserialize)]
struct Line {
    family: String,
    operation: Operation,
    dtype: DType,
    width: Option<u32>,
    height: Option<u32>,
    frames: Option<u32>,
    batch: u32,
    tokens: Option<u32>,
    allocator: AllocatorKind,
    kind: String,
    allocated_peak_delta: u64,
    reserved_peak_delta: u64,
    driver_delta: Option<u64>,
    retries: u64,
    framework: String,
    driver: String,
}

/// Runs that were made one after the other by one program: windows and their attempts, one attempt for each
/// family and allocator.
pub(crate) struct Recording {
    pub(crate) windows: Vec<Window>,
    pub(crate) attempts: Vec<Attempt>,
}

impl Recording {
    /// Reads a file of `tests/data/h200`. Every run but a warm-up is taken as measured.
    pub(crate) fn read(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/h200").join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Line>(line).unwrap());
        let windows: Vec<Window> = lines.zip(0..).map(|(line, run)| window(line, run)).collect();
        let mut attempts: BTreeMap<AttemptId, Attempt> = BTreeMap::new();
        for window in &windows {
            let id = window.attempt_id.clone().unwrap();
            attempts.entry(id.clone()).or_insert_with(|| {
                Attempt::recorded(id, &window.model, window.device.clone(), window.environment.clone(), 0)
            });
        }
        Self { windows, attempts: attempts.into_values().collect() }
    }

    /// The windows of one allocator, with what they are to be counted for.
    pub(crate) fn of(&self, allocator: AllocatorKind) -> (Vec<Window>, Context) {
        let windows: Vec<Window> =
            self.windows.iter().filter(|window| window.environment.hard.allocator == allocator).cloned().collect();
        let context = Context {
            device: windows[0].device.clone(),
            hard: windows[0].environment.hard.clone(),
            versions: EstimatorVersions::newest_of(windows.iter().map(|window| &window.line)),
        };
        (windows, context)
    }
}

fn window(line: Line, run: u32) -> Window {
    let extent = match line.tokens {
        Some(tokens) => Extent::Text { tokens },
        None => {
            let (width, height) = (line.width.unwrap(), line.height.unwrap());
            Extent::Pixels { width, height, frames: line.frames.unwrap_or(1) }
        }
    };
    let case = Case { operation: line.operation, dtype: line.dtype, extent, batch: line.batch, tiling: None };
    let (estimator, unit) = estimator(&line.family, line.operation);
    let deltas = Deltas {
        allocated_peak_bytes: line.allocated_peak_delta,
        reserved_peak_bytes: line.reserved_peak_delta,
        driver_bytes: Reading::from(line.driver_delta),
    };
    Window {
        attempt_id: Some(AttemptId(format!("{} {}", line.family, line.allocator))),
        line: LineKey {
            estimator: estimator.to_owned(),
            estimator_version: 1,
            operation: line.operation,
            dtype: line.dtype,
            tiling: None,
            tokens: None,
        },
        model: line.family,
        cost_units: unit.units(&case),
        case,
        analytic_bytes: 0,
        device: DeviceClass::new("NVIDIA H200", 143_156 << 20, Backend::Cuda),
        environment: Environment {
            hard: HardEnvironment {
                backend: Backend::Cuda,
                allocator: line.allocator,
                allocator_settings: String::new(),
                framework: line.framework,
                attention: Default::default(),
                convolution_benchmark: false,
                memory_layout: Default::default(),
            },
            soft: SoftEnvironment { driver: line.driver },
        },
        run,
        retry: 0,
        kind: if line.kind == "warmup" { RunKind::Warmup } else { RunKind::Measured },
        origin: Origin::Recorded,
        measurement: Measurement {
            estimate_bytes: 0,
            demand_bytes: deltas.demand_bytes(),
            deltas,
            stretches: 1,
            retries: line.retries,
            residency: Residency::Full,
            validity: Validity::Valid,
        },
    }
}

/// What a family prices on: SDXL's and FLUX's autoencoders have the same blocks and share their lines.
fn estimator(family: &str, operation: Operation) -> (&str, CostUnit) {
    match (family, operation) {
        ("sdxl" | "flux", Operation::VaeDecode | Operation::VaeEncode) => ("autoencoder_kl", CostUnit::PixelBytes),
        (_, Operation::VaeDecode | Operation::VaeEncode) => (family, CostUnit::PixelBytes),
        ("sdxl", Operation::Denoise) => ("unet", CostUnit::Tokens { side: 8, fixed: 0 }),
        (_, Operation::Denoise) => (family, CostUnit::Tokens { side: 16, fixed: 512 }),
        (_, Operation::TextEncode) => (family, CostUnit::Tokens { side: 1, fixed: 0 }),
    }
}
