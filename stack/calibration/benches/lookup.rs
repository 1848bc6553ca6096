//! What a price costs where locks ask for it: the fit is there already, and nothing is fitted or read.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use headroom_base::{AllocatorKind, Backend, DType, DeviceClass, HardEnvironment, LineKey, Operation, SoftEnvironment};
use headroom_calibration::{
    BuiltIns, Coefficients, Context, Costs, EstimatorVersions, Fit, Knowledge, Point, Record, Shipped, ShippedLine,
    UnitRange, fit, resolve,
};

fn line() -> LineKey {
    LineKey {
        estimator: "autoencoder_kl".into(),
        estimator_version: 1,
        operation: Operation::VaeDecode,
        dtype: DType::Fp16,
        tiling: None,
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
    let device = DeviceClass::new("Card", 16 << 30, Backend::Cuda);
    let context = Context { device: device.clone(), hard, versions: EstimatorVersions::default() };
    let knowledge = Knowledge::new(Record::empty(device), context, SoftEnvironment::default());
    criterion.bench_function("knowledge of a card nobody measured", |bencher| {
        bencher.iter(|| knowledge.price(black_box(&line), black_box(&inside), &built_ins, 0));
    });
}

criterion_group!(benches, lookup);
criterion_main!(benches);
