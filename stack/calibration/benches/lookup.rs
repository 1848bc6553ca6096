//! What a price costs where locks ask for it: the fit is there already, and nothing is fitted or read.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use headroom_base::{
    AllocatorKind, AttemptId, Backend, Case, CostUnit, DType, Deltas, DeviceClass, Environment, HardEnvironment,
    LineKey, Measurement, Operation, Origin, Reading, Residency, RunKind, SoftEnvironment, Validity, Window,
};
use headroom_calibration::{
    Attempt, BuiltIns, Coefficients, Context, Costs, EstimatorVersions, Fit, Knowledge, Point, Record, Shipped,
    ShippedLine, UnitRange, fit, resolve,
};

fn line() -> LineKey {
    LineKey {
        estimator: "autoencoder_kl".into(),
        estimator_version: 1,
        operation: Operation::VaeDecode,
        dtype: DType::Fp16,
        tiling: None,
        tokens: None,
    }
}

fn hard() -> HardEnvironment {
    HardEnvironment {
        backend: Backend::Cuda,
        allocator: AllocatorKind::Native,
        allocator_settings: String::new(),
        framework: "torch 2.11.0+cu130".into(),
        attention: Default::default(),
        convolution_benchmark: false,
        memory_layout: Default::default(),
    }
}

fn user_fit() -> Fit {
    let at = |units: u64, demand_bytes| Point { units, demand_bytes, analytic_bytes: 0 };
    let points = [at(524_288, 1_119_879_168), at(1_179_648, 2_491_416_576), at(2_097_152, 4_481_613_824)];
    fit(&points).expect("three sizes")
}

fn built_ins() -> BuiltIns {
    let line = ShippedLine {
        line: line(),
        environment: hard(),
        coefficients: Coefficients::new(90_243_072 * 7, 14_959, 7).expect("not 0"),
        range: UnitRange { least_units: 1, largest_units: 1 << 24 },
        windows: 30,
        sizes: Vec::new(),
        left_out_above: Vec::new(),
        sources: Vec::new(),
    };
    BuiltIns::new([Shipped::new(Backend::Cuda, AllocatorKind::Native, vec![line])])
}

fn lookup(criterion: &mut Criterion) {
    let (fit, built_ins, line, hard) = (user_fit(), built_ins(), line(), hard());
    let inside = Costs { units: 1_500_000, analytic_bytes: 1 << 20, predicted_bytes: None };
    let above = Costs { units: 9_000_000, ..inside };
    criterion.bench_function("own fit, inside its sizes", |bencher| {
        bencher.iter(|| resolve(black_box(&inside), Some(&fit), None, 0));
    });
    criterion.bench_function("built-in, found by line and environment", |bencher| {
        bencher.iter(|| resolve(black_box(&inside), None, built_ins.find(&hard, black_box(&line)).as_ref(), 0));
    });
    criterion.bench_function("above the own sizes, both looked up", |bencher| {
        bencher.iter(|| resolve(black_box(&above), Some(&fit), built_ins.find(&hard, black_box(&line)).as_ref(), 0));
    });
    let (measured, unmeasured) = (knowledge(measured_windows()), knowledge(Vec::new()));
    assert!(measured.fits().get(&line).is_some() && unmeasured.fits().get(&line).is_none());
    criterion.bench_function("a lock's price, inside the own sizes", |bencher| {
        bencher.iter(|| measured.price(black_box(&line), black_box(&inside), &built_ins, 0));
    });
    criterion.bench_function("a lock's price, above the own sizes", |bencher| {
        bencher.iter(|| measured.price(black_box(&line), black_box(&above), &built_ins, 0));
    });
    criterion.bench_function("a lock's price, nothing measured, from the data compiled in", |bencher| {
        let compiled_in = BuiltIns::compiled_in();
        assert!(compiled_in.find(&unmeasured.context().hard, &line).is_some());
        bencher.iter(|| unmeasured.price(black_box(&line), black_box(&inside), compiled_in, 0));
    });
}

/// Two measured runs of three sizes on eight lines, of which one is asked for.
fn measured_windows() -> Vec<Window> {
    let mut windows = Vec::new();
    for estimator in ["autoencoder_kl", "other_kl", "autoencoder_tiny", "unet"] {
        for dtype in [DType::Fp16, DType::Fp32] {
            for side in [512, 768, 1024, 512, 768, 1024] {
                let run = u32::try_from(windows.len()).expect("few");
                let line = LineKey { estimator: estimator.into(), dtype, ..line() };
                windows.push(window(line, run, side));
            }
        }
    }
    windows
}

fn window(line: LineKey, run: u32, side: u32) -> Window {
    let case = Case::image(line.operation, line.dtype, side, side);
    let cost_units = CostUnit::PixelBytes.units(&case);
    let demand_bytes = cost_units * 2_100;
    let driver_bytes = Reading::Unknown;
    let deltas = Deltas { allocated_peak_bytes: demand_bytes, reserved_peak_bytes: demand_bytes, driver_bytes };
    Window {
        model: "model".into(),
        line,
        case,
        cost_units,
        analytic_bytes: 0,
        device: device(),
        environment: environment(),
        attempt_id: Some(AttemptId("attempt".into())),
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

fn knowledge(windows: Vec<Window>) -> Knowledge {
    let mut record = Record::empty(device());
    let runs = u32::try_from(windows.len()).expect("few");
    record.keep_attempt(Attempt::recorded(AttemptId("attempt".into()), "model", device(), environment(), runs));
    let versions = EstimatorVersions::newest_of(windows.iter().map(|window| &window.line));
    record.windows = windows;
    let context = Context { device: device(), hard: hard(), versions };
    Knowledge::new(record, context, SoftEnvironment::default())
}

fn device() -> DeviceClass {
    DeviceClass::new("Card", 16 << 30, Backend::Cuda)
}

fn environment() -> Environment {
    Environment { hard: hard(), soft: SoftEnvironment::default() }
}

criterion_group!(benches, lookup);
criterion_main!(benches);
