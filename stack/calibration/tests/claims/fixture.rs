//! Windows, attempts and plans that the claims are made of.

use headroom_base::{
    AllocatorKind, AttemptId, Backend, Cap, CapacityTerms, Case, DType, Deltas, DeviceClass, Environment, GIB,
    HardEnvironment, LineKey, Measurement, Operation, Origin, Reading, Residency, RunKind, SoftEnvironment, Validity,
    Window,
};
use headroom_calibration::{Attempt, Context, EstimatorVersions};

pub(crate) const MODEL: &str = "model-a";
pub(crate) const MIB: u64 = headroom_base::MIB;

pub(crate) fn device() -> DeviceClass {
    DeviceClass::new("Card", 16 * GIB, Backend::Cuda)
}

pub(crate) fn hard() -> HardEnvironment {
    HardEnvironment {
        backend: Backend::Cuda,
        allocator: AllocatorKind::Native,
        allocator_settings: String::new(),
        framework: "framework 2".into(),
        attention: Default::default(),
        convolution_benchmark: false,
        memory_layout: Default::default(),
    }
}

pub(crate) fn soft(driver: &str) -> SoftEnvironment {
    SoftEnvironment { driver: driver.into() }
}

pub(crate) fn environment() -> Environment {
    Environment { hard: hard(), soft: soft("driver 1") }
}

pub(crate) fn line_of(operation: Operation) -> LineKey {
    LineKey { estimator: "vae".into(), estimator_version: 2, operation, dtype: DType::Fp16, tiling: None, tokens: None }
}

pub(crate) fn line() -> LineKey {
    line_of(Operation::VaeDecode)
}

pub(crate) fn context() -> Context {
    let versions: EstimatorVersions = [("vae".to_owned(), 2)].into_iter().collect();
    Context { device: device(), hard: hard(), versions }
}

pub(crate) fn units(side: u32) -> u64 {
    u64::from(side) * u64::from(side) * 2
}

/// A measured window of model A's decode that counts, if its attempt has finished.
pub(crate) fn window(attempt: &str, run: u32, side: u32, demand_bytes: u64) -> Window {
    let deltas = Deltas {
        allocated_peak_bytes: demand_bytes / 5 * 4,
        reserved_peak_bytes: demand_bytes,
        driver_bytes: Reading::Unknown,
    };
    Window {
        model: MODEL.into(),
        line: line(),
        case: Case::image(Operation::VaeDecode, DType::Fp16, side, side),
        cost_units: units(side),
        analytic_bytes: 0,
        device: device(),
        environment: environment(),
        attempt_id: Some(AttemptId(attempt.into())),
        run,
        retry: 0,
        kind: RunKind::Measured,
        origin: Origin::Measured,
        measurement: Measurement {
            estimate_bytes: demand_bytes,
            deltas,
            demand_bytes,
            stretches: 1,
            retries: 0,
            residency: Residency::Full,
            validity: Validity::Valid,
        },
    }
}

/// One warm-up and two measured runs of each size.
pub(crate) fn windows(attempt: &str, demands: &[(u32, u64)]) -> Vec<Window> {
    let mut windows = Vec::new();
    for (side, demand_bytes) in demands {
        for kind in [RunKind::Warmup, RunKind::Measured, RunKind::Measured] {
            let run = windows.len() as u32;
            // A warm-up needs much more: nothing may depend on it.
            let demand_bytes = if kind == RunKind::Warmup { demand_bytes * 2 } else { *demand_bytes };
            windows.push(Window { kind, ..window(attempt, run, *side, demand_bytes) });
        }
    }
    windows
}

/// A finished attempt of model A with as many runs as there are windows.
pub(crate) fn finished(attempt: &str, windows: &[Window]) -> Attempt {
    Attempt::recorded(AttemptId(attempt.into()), MODEL, device(), environment(), windows.len() as u32)
}

/// Three sizes that lie on one line through the origin: `bytes_per_unit` for each cost unit.
pub(crate) fn straight(bytes_per_unit: u64) -> [(u32, u64); 3] {
    [512, 768, 1024].map(|side| (side, units(side) * bytes_per_unit))
}

pub(crate) fn terms() -> CapacityTerms {
    CapacityTerms {
        total_bytes: 16 * GIB,
        outside_now_bytes: 0,
        outside_floor_bytes: GIB,
        context_bytes: GIB / 2,
        retained_bytes: Reading::Unknown,
        locked_weights_bytes: GIB,
        cap: Cap::Unlimited,
    }
}

/// What an attempt's end does to a window: `ended` gets a running attempt of as many runs as `windows`.
pub(crate) fn running(attempt: &str, planned_runs: u32) -> Attempt {
    let mut running = Attempt::recorded(AttemptId(attempt.into()), MODEL, device(), environment(), planned_runs);
    running.state = headroom_calibration::AttemptState::Running;
    running.finished_runs.clear();
    running
}
