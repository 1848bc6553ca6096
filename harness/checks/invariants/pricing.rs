//! From counted windows to reservations: envelope, margin, and where which line holds.

use headroom_base::{AllocatorKind, AttentionKernel, GIB, HardEnvironment, MIB, RunKind, Source};
use headroom_calibration::{BuiltIns, Coefficients, Costs, Knowledge, Shipped, ShippedLine, UnitRange};

use super::stage::{Size, Stage};
use crate::bench::Setup;
use crate::checks::{CheckError, Claim};

super::invariants![
    the_margin_is_on_the_measured_part_alone_and_once,
    no_counted_window_lies_above_the_line,
    every_demand_is_covered,
    above_and_below_the_measured_sizes_the_larger_line_holds,
    two_sizes_make_no_line,
    an_unknown_allocator_gets_the_most_that_is_shipped,
    of_two_runs_of_a_size_the_larger_counts,
    a_predicted_case_carries_the_margin_on_what_is_not_exact,
    another_kernels_figures_are_nobodys,
];

/// What is known after one calibration.
fn calibrated(stage: &Stage<'_>) -> Result<Knowledge, CheckError> {
    let bench = stage.bench()?;
    let mut record = stage.record();
    stage.calibrate(&bench, &mut record, "first")?;
    Ok(stage.knowledge(&record))
}

fn costs_of(size: &Size) -> Costs {
    Costs { units: size.units, analytic_bytes: size.analytic_bytes, predicted_bytes: None }
}

/// The line passes through the smallest and the largest size, so their reservations follow from the script alone.
fn the_margin_is_on_the_measured_part_alone_and_once(stage: &Stage<'_>) -> Result<(), CheckError> {
    let knowledge = calibrated(stage)?;
    for size in [stage.smallest(), stage.largest()] {
        let estimate = knowledge.price(&stage.key, &costs_of(size), stage.ground().built_ins, 0);
        let expected = size.analytic_bytes + (size.remainder_bytes() * 21).div_ceil(20);
        let reserved = estimate.reservation_bytes;
        Claim::MarginOnTheMeasuredPartOnce.equal(&format!("reserved for {}", size.case), reserved, expected)?;
        Claim::ReservationIsTheFits.equal("the source of the reservation", estimate.source, Source::User)?;
    }
    Ok(())
}

fn no_counted_window_lies_above_the_line(stage: &Stage<'_>) -> Result<(), CheckError> {
    let knowledge = calibrated(stage)?;
    let fit = knowledge.fits().get(&stage.key).map(|user| &user.fit);
    let fit = fit.ok_or_else(|| CheckError::violated("a calibration of three sizes left no fit"))?;
    for size in &stage.sizes {
        let (on_the_line, needed) = (fit.coefficients.bytes_at(size.units), size.remainder_bytes());
        Claim::LineIsAboveEveryCountedWindow
            .holds(on_the_line >= needed, || format!("{}: {on_the_line} on the line, {needed} needed", size.case))?;
    }
    Ok(())
}

fn every_demand_is_covered(stage: &Stage<'_>) -> Result<(), CheckError> {
    let knowledge = calibrated(stage)?;
    for window in knowledge.record().windows.iter().filter(|window| window.kind == RunKind::Measured) {
        let Some(size) = stage.size_of(window) else { continue };
        let estimate = knowledge.price(&stage.key, &costs_of(size), stage.ground().built_ins, 0);
        let (reserved, demand) = (estimate.reservation_bytes, window.measurement.demand_bytes);
        Claim::DemandIsCovered
            .holds(demand < reserved, || format!("{}: {reserved} reserved, {demand} needed", window.case))?;
    }
    Ok(())
}

/// The shipped line asks a quarter more than the card needs, so outside the measured sizes it is the larger.
fn above_and_below_the_measured_sizes_the_larger_line_holds(stage: &Stage<'_>) -> Result<(), CheckError> {
    let knowledge = calibrated(stage)?;
    let uncalibrated = stage.knowledge(&stage.record());
    for units in [stage.smallest().units - 1, stage.largest().units + 1] {
        let costs = Costs { units, analytic_bytes: stage.smallest().analytic_bytes, predicted_bytes: None };
        let price = |known: &Knowledge| known.price(&stage.key, &costs, stage.ground().built_ins, 0);
        let (now, shipped) = (price(&knowledge), price(&uncalibrated));
        let what = format!("reserved for {units} cost units");
        Claim::FitHoldsInsideItsRangeOnly.equal(&what, now.reservation_bytes, shipped.reservation_bytes)?;
        Claim::FitHoldsInsideItsRangeOnly.equal("its source", now.source, Source::LargerOfBoth)?;
    }
    Ok(())
}

fn two_sizes_make_no_line(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench()?;
    let mut record = stage.record();
    stage.calibrate(&bench, &mut record, "first")?;
    let third = stage.sizes[2].units;
    record.windows.retain(|window| window.cost_units < third);
    let knowledge = stage.knowledge(&record);
    let sizes = record.windows.iter().map(|window| window.cost_units).collect::<std::collections::BTreeSet<_>>().len();
    Claim::TwoSizesMakeNoLine.holds(knowledge.fits().get(&stage.key).is_none(), || {
        format!("{sizes} sizes were measured, and the line has a fit")
    })?;
    let size = stage.smallest();
    let estimate = knowledge.price(&stage.key, &costs_of(size), stage.ground().built_ins, 0);
    Claim::TwoSizesMakeNoLine.equal("the source of the reservation", estimate.source, Source::BuiltIn)
}

/// A shipped line that asks the same for every size.
fn flat(stage: &Stage<'_>, environment: HardEnvironment, bytes: u64) -> ShippedLine {
    ShippedLine {
        line: stage.key.clone(),
        environment,
        coefficients: Coefficients::flat(bytes),
        range: UnitRange { least_units: 1, largest_units: u64::MAX },
        windows: 0,
        sizes: Vec::new(),
        left_out_above: Vec::new(),
        sources: Vec::new(),
    }
}

fn an_unknown_allocator_gets_the_most_that_is_shipped(stage: &Stage<'_>) -> Result<(), CheckError> {
    let native = stage.subject.environment().hard;
    let (thrifty, hungry) = (1 << 30, 2 << 30);
    let files = [(AllocatorKind::Native, thrifty), (AllocatorKind::ExpandableSegments, hungry)];
    let shipped = BuiltIns::new(files.map(|(allocator, bytes)| {
        let line = flat(stage, HardEnvironment { allocator, ..native.clone() }, bytes);
        Shipped::new(native.backend, allocator, vec![line])
    }));
    let unknown = HardEnvironment { allocator: AllocatorKind::CudaMallocAsync, ..native };
    let found = shipped.find(&unknown, &stage.key).map(|built_in| built_in.estimate(1, 0).empirical_bytes);
    Claim::UnknownAllocatorGetsTheMost.equal("shipped for an allocator that was never measured", found, Some(hungry))
}

/// The second measured run of each size takes less than the first.
fn of_two_runs_of_a_size_the_larger_counts(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench_with(Setup::default(), |scene| {
        let less = if scene.runs_before % 3 == 2 { 40 * MIB } else { 0 };
        scene.take(scene.need_bytes - less)
    })?;
    let mut record = stage.record();
    stage.calibrate(&bench, &mut record, "first")?;
    let knowledge = stage.knowledge(&record);
    let fit = knowledge.fits().get(&stage.key).ok_or_else(|| CheckError::violated("there is no fit"))?;
    for size in &stage.sizes {
        let (on_the_line, needed) = (fit.fit.coefficients.bytes_at(size.units), size.remainder_bytes());
        Claim::LineIsAboveEveryCountedWindow
            .holds(on_the_line >= needed, || format!("{}: {on_the_line} on the line, {needed} needed", size.case))?;
    }
    Ok(())
}

/// Nothing is shipped and nothing was measured: the program's prediction, in which the exact part is contained.
fn a_predicted_case_carries_the_margin_on_what_is_not_exact(stage: &Stage<'_>) -> Result<(), CheckError> {
    let knowledge = stage.knowledge(&stage.record());
    let size = stage.largest();
    let predicted = size.need_bytes + GIB;
    let costs = Costs { units: size.units, analytic_bytes: GIB, predicted_bytes: Some(predicted) };
    let estimate = knowledge.price(&stage.key, &costs, &BuiltIns::default(), 0);
    let expected = GIB + (size.need_bytes * 21).div_ceil(20);
    let reserved = estimate.reservation_bytes;
    Claim::MarginOnTheMeasuredPartOnce.equal("reserved for a predicted case", reserved, expected)
}

fn another_kernels_figures_are_nobodys(stage: &Stage<'_>) -> Result<(), CheckError> {
    let here = stage.subject.environment().hard;
    let materialised = HardEnvironment { attention: AttentionKernel::Math, ..here.clone() };
    let line = flat(stage, materialised, GIB);
    let shipped = BuiltIns::new([Shipped::new(here.backend, here.allocator, vec![line])]);
    let found = shipped.find(&here, &stage.key).is_some();
    Claim::OtherSoftwareNeverCounts
        .holds(!found, || "what is shipped for another attention kernel prices this one".to_owned())
}
