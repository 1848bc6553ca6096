//! A case is priced by its own fit inside the measured sizes, and by the safer figure elsewhere.

use headroom_base::{
    AllocatorKind, AttentionKernel, Backend, DType, DeviceClass, Estimate, GIB, HardEnvironment, InvalidReason,
    LineKey, Source, Validity, Window,
};
use headroom_calibration::{
    Attempt, Basis, BuiltIns, Coefficients, Context, Costs, Fit, Knowledge, Point, Record, Shipped, ShippedLine,
    UnitRange, fit, resolve,
};

use crate::fixture::{context, device, finished, hard, line, line_of, soft, straight, units, window, windows};

crate::claims![
    inside_the_measured_sizes_the_own_fit_holds,
    outside_the_measured_sizes_the_larger_of_both_holds,
    without_a_fit_it_is_the_built_in_then_the_prediction_then_the_floor,
    the_margin_is_on_the_empirical_part_alone,
    a_card_that_needs_less_than_the_built_in_reserves_less,
    two_sizes_are_no_fit,
    an_envelope_is_never_under_a_window,
    an_allocator_nobody_measured_gets_the_largest_of_the_others_and_says_so,
    a_switch_that_changes_the_need_is_never_crossed,
    r13_three_clips_price_a_fourth_that_needs_three_times_as_much,
    r15_an_out_of_memory_is_no_point_and_ratchets_no_price,
    r17_a_card_nobody_measured_gets_the_largest_over_the_known_ones,
];

/// A fit over 512² to 1024² of `bytes_per_unit` for each unit.
fn own(bytes_per_unit: u64) -> Fit {
    let points = [512, 768, 1024].map(|side| Point {
        units: units(side),
        demand_bytes: units(side) * bytes_per_unit,
        analytic_bytes: 0,
    });
    fit(&points).unwrap()
}

fn shipped(environment: HardEnvironment, bytes_per_unit: u128) -> ShippedLine {
    ShippedLine {
        line: line(),
        environment,
        coefficients: Coefficients::new(0, bytes_per_unit, 1).unwrap(),
        range: UnitRange { least_units: 1, largest_units: units(2048) },
        windows: 6,
        sizes: Vec::new(),
        left_out_above: Vec::new(),
        sources: Vec::new(),
    }
}

fn built_ins(lines: Vec<ShippedLine>) -> BuiltIns {
    BuiltIns::new([Shipped::new(hard().backend, hard().allocator, lines)])
}

fn costs(side: u32) -> Costs {
    Costs { units: units(side), analytic_bytes: 0, predicted_bytes: None }
}

/// The price with an own fit of 1,000 bytes per unit and a built-in of `built_in`.
fn price(side: u32, built_in: u128) -> (Source, u64) {
    let built_ins = built_ins(vec![shipped(hard(), built_in)]);
    let found = built_ins.find(&hard(), &line());
    let estimate = resolve(&costs(side), Some(&own(1_000)), found.as_ref(), GIB);
    (estimate.source, estimate.reservation_bytes * 20 / 21 / units(side))
}

fn inside_the_measured_sizes_the_own_fit_holds() {
    for side in [512, 640, 1024] {
        assert_eq!(price(side, 2_000), (Source::User, 1_000));
        assert_eq!(price(side, 500), (Source::User, 1_000));
    }
}

fn outside_the_measured_sizes_the_larger_of_both_holds() {
    for side in [448, 511, 1025, 2048] {
        assert_eq!(price(side, 2_000), (Source::LargerOfBoth, 2_000), "{side}");
        assert_eq!(price(side, 500), (Source::LargerOfBoth, 1_000), "{side}");
    }
    // Nothing shipped: the prediction stands in; no program either: the own fit alone.
    let predicted = Costs { predicted_bytes: Some(units(2048) * 1_500), ..costs(2048) };
    let estimate = resolve(&predicted, Some(&own(1_000)), None, GIB);
    assert_eq!((estimate.source, estimate.empirical_bytes), (Source::LargerOfBoth, units(2048) * 1_500));
    assert_eq!(resolve(&costs(2048), Some(&own(1_000)), None, GIB).source, Source::User);
}

fn without_a_fit_it_is_the_built_in_then_the_prediction_then_the_floor() {
    let built_ins = built_ins(vec![shipped(hard(), 2_000)]);
    let found = built_ins.find(&hard(), &line()).unwrap();
    assert_eq!(found.basis(), Basis::SameEnvironment);
    let predicted = Costs { analytic_bytes: 100, predicted_bytes: Some(2_100), ..costs(512) };
    let built_in = resolve(&predicted, None, Some(&found), 77);
    assert_eq!(built_in, Estimate::new(100, units(512) * 2_000, Source::BuiltIn));
    assert_eq!(resolve(&predicted, None, None, 77), Estimate::new(100, 2_000, Source::Predicted));
    assert_eq!(resolve(&costs(512), None, None, 77), Estimate::floor(77));
}

fn the_margin_is_on_the_empirical_part_alone() {
    let flat = |bytes: u64| Fit { coefficients: Coefficients::flat(bytes), ..own(1) };
    let with_analytic = Costs { analytic_bytes: 2 * GIB, ..costs(512) };
    let estimate = resolve(&with_analytic, Some(&flat(4 * GIB)), None, 0);
    assert_eq!(estimate.reservation_bytes, 2 * GIB + (4 * GIB * 21).div_ceil(20));
    assert_eq!(estimate.reservation_bytes * 100 / GIB, 620);
    // A fraction of a byte is rounded once, after the margin.
    let half = Fit { coefficients: Coefficients::new(41, 0, 2).unwrap(), ..own(1) };
    assert_eq!(resolve(&costs(512), Some(&half), None, 0).reservation_bytes, 22);
}

fn a_card_that_needs_less_than_the_built_in_reserves_less() {
    // SDXL's fp32 decode up to 1152² on a 16 GiB card of another maker: measured 6.95, built-in 7.48.
    let hundredths = |bytes: u64| (bytes * 100 + GIB / 2) / GIB;
    let device = DeviceClass::new("Another maker's card", 16 * GIB, Backend::Rocm);
    let hard = HardEnvironment { backend: Backend::Rocm, ..hard() };
    let line = LineKey { dtype: DType::Fp32, ..line() };
    let units = |side: u32| units(side) * 2;
    let measured = |side: u32| GIB * 695 / 100 * units(side) / units(1152);
    let mut windows = windows("a", &[512, 768, 1152].map(|side| (side, measured(side))));
    for window in &mut windows {
        window.device = device.clone();
        window.environment.hard = hard.clone();
        window.line = line.clone();
        window.case.dtype = DType::Fp32;
        window.cost_units *= 2;
    }
    let mut record = Record::empty(device.clone());
    record.keep_attempt(Attempt { device: device.clone(), ..finished("a", &windows) });
    record.windows = windows;
    let of_1152 = u128::from(GIB) * 748 / 100 * 20 / 21;
    let coefficients = Coefficients::new(0, of_1152, units(1152)).unwrap();
    let shipped = ShippedLine { coefficients, line: line.clone(), ..shipped(hard.clone(), 0) };
    let built_ins = BuiltIns::new([Shipped::new(Backend::Rocm, hard.allocator, vec![shipped])]);

    let context = Context { device: device.clone(), hard, ..context() };
    let price = |record: Record, side: u32| {
        let costs = Costs { units: units(side), analytic_bytes: 0, predicted_bytes: None };
        let estimate = Knowledge::new(record, context.clone(), soft("driver 1")).price(&line, &costs, &built_ins, 0);
        (hundredths(estimate.reservation_bytes), estimate.source)
    };
    assert_eq!(price(Record::empty(device.clone()), 1152), (748, Source::BuiltIn));
    assert_eq!(price(record.clone(), 1152), (730, Source::User));
    // One row of pixels more was never measured: there the larger figure holds.
    let (above, source) = price(record, 1160);
    assert!(above > 748 && source == Source::LargerOfBoth, "{above}");
}

fn two_sizes_are_no_fit() {
    let points = [512, 768].map(|side| Point { units: units(side), demand_bytes: 1, analytic_bytes: 0 });
    assert!(fit(&points).is_err());
}

fn an_envelope_is_never_under_a_window() {
    let uneven = [(512, 900), (640, 1_200), (768, 1_000), (1024, 1_100)];
    let points =
        uneven.map(|(side, rate)| Point { units: units(side), demand_bytes: units(side) * rate, analytic_bytes: 0 });
    let fit = fit(&points).unwrap();
    for point in points {
        assert!(fit.coefficients.bytes_at(point.units) >= point.demand_bytes);
    }
}

fn an_allocator_nobody_measured_gets_the_largest_of_the_others_and_says_so() {
    let with = |allocator| HardEnvironment { allocator, ..hard() };
    let lines = vec![shipped(with(AllocatorKind::Native), 1_000), shipped(with(AllocatorKind::CudaMallocAsync), 3_000)];
    let built_ins = built_ins(lines);
    let rate = |environment: &HardEnvironment| {
        let found = built_ins.find(environment, &line()).unwrap();
        (found.basis(), found.estimate(units(512), 0).empirical_bytes / units(512))
    };
    assert_eq!(rate(&with(AllocatorKind::Native)), (Basis::SameEnvironment, 1_000));
    assert_eq!(rate(&with(AllocatorKind::ExpandableSegments)), (Basis::OtherAllocators, 3_000));
    let newer = HardEnvironment { framework: "framework 3".into(), ..hard() };
    assert_eq!(rate(&newer), (Basis::SameAllocator, 1_000));
    assert!(built_ins.find(&hard(), &line_of(headroom_base::Operation::VaeEncode)).is_none());
}

fn a_switch_that_changes_the_need_is_never_crossed() {
    let built_ins = built_ins(vec![shipped(hard(), 1_000)]);
    let math = HardEnvironment { attention: AttentionKernel::Math, ..hard() };
    let searching = HardEnvironment { convolution_benchmark: true, ..hard() };
    assert!(built_ins.find(&math, &line()).is_none());
    assert!(built_ins.find(&searching, &line()).is_none());
}

/// Public report 15: a run that ended out of memory tells only that its need was larger than what it got. It joins no
/// fit as a point, so no later price is ratcheted up to the card, and one success makes the price what it needed.
fn r15_an_out_of_memory_is_no_point_and_ratchets_no_price() {
    let mut windows = windows("a", &straight(1_000));
    let before = price_after(&windows);
    let ended = Validity::Invalid(InvalidReason::OutOfMemory);
    for demand_bytes in [units(768) * 50_000, 1] {
        let run = windows.len() as u32;
        let mut failed = window("a", run, 768, demand_bytes);
        failed.measurement.validity = ended.clone();
        windows.push(failed);
        assert_eq!(price_after(&windows), before, "a failed run changed the price");
    }
    let run = windows.len() as u32;
    windows.push(window("a", run, 768, units(768) * 1_100));
    let after = price_after(&windows);
    assert!(after > before && after >= units(768) * 1_100 && after < units(768) * 2_000, "{after}");
}

fn price_after(windows: &[Window]) -> u64 {
    let mut record = Record::empty(device());
    record.keep_attempt(finished("a", windows));
    record.windows = windows.to_vec();
    let known = Knowledge::new(record, context(), soft("driver 1"));
    known.price(&line(), &costs(768), &built_ins(vec![shipped(hard(), 9_000)]), 0).reservation_bytes
}

/// Public report 17: an operation needs different amounts on different kinds of card. Each keeps its own figures, and
/// a card that nobody measured gets the largest of them, never the mean.
fn r17_a_card_nobody_measured_gets_the_largest_over_the_known_ones() {
    // What was reserved on three kinds of card, in MiB: each in the environment of its own framework build.
    for order in [[4_495, 3_020, 9_789], [9_789, 4_495, 3_020], [3_020, 9_789, 4_495]] {
        let lines = order.map(|mib: u64| {
            let environment = HardEnvironment { framework: format!("build for the card of {mib}"), ..hard() };
            ShippedLine { coefficients: Coefficients::flat(mib << 20), ..shipped(environment, 0) }
        });
        let built_ins = built_ins(lines.to_vec());
        let unseen = built_ins.find(&HardEnvironment { framework: "another build".into(), ..hard() }, &line()).unwrap();
        assert_eq!(unseen.estimate(units(1024), 0).empirical_bytes, 9_789 << 20, "{order:?}");
        for shipped in &lines {
            let own = built_ins.find(&shipped.environment, &line()).unwrap();
            assert_eq!(own.estimate(units(1024), 0).empirical_bytes, shipped.coefficients.bytes_at(units(1024)));
        }
    }
}

/// Public report 13, its figures: three clips that were measured, and what a longer one was seen to need.
fn r13_three_clips_price_a_fourth_that_needs_three_times_as_much() {
    let clips = [(512 * 768 * 49, 13_300), (768 * 1_152 * 17, 10_200), (1_024 * 1_536 * 9, 9_800)];
    let mega = 1_000_000;
    let point = |(units, megabytes): (u64, u64)| Point { units, demand_bytes: megabytes * mega, analytic_bytes: 0 };
    let fit = fit(&clips.map(point)).unwrap();
    let costs = Costs { units: 768 * 512 * 121, analytic_bytes: 0, predicted_bytes: None };
    let reserved = resolve(&costs, Some(&fit), None, 0).reservation_bytes;
    assert!(
        reserved >= 33_900 * mega && reserved < 36_000 * mega,
        "33,900 million bytes were needed, {reserved} are reserved"
    );
}
