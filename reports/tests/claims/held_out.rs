//! Sizes that were left out are priced from the others: how many come out too low, by how much, and how sure that is.

use std::collections::BTreeMap;

use headroom_base::AllocatorKind;
use headroom_calibration::Point;
use headroom_calibration::anchored::PredictionTerms;
use headroom_calibration::cross_validation::{HeldOut, Method, Sample, SampledLine, Score, leave_one_size_out};

use crate::recorded::h200;

crate::claims![no_size_inside_the_range_is_priced_too_low_where_the_allocator_is_ours_and_the_rest_is_said];

/// Every line of four sizes or more of the recordings, its sizes left out one at a time, by allocator.
fn held_out() -> BTreeMap<AllocatorKind, Vec<HeldOut>> {
    let report = h200();
    let mut lines: BTreeMap<_, Vec<Sample>> = BTreeMap::new();
    for record in report.windows.iter().filter(|record| record.counting.counts()) {
        let window = &record.window;
        let sample = Sample { point: Point::from(window), predicted_bytes: None };
        lines.entry((window.line.clone(), window.environment.hard.clone())).or_default().push(sample);
    }
    let mut held_out: BTreeMap<AllocatorKind, Vec<HeldOut>> = BTreeMap::new();
    for ((line, environment), samples) in lines {
        let step_bytes = environment.allocator.growth_step_bytes();
        let predictions = PredictionTerms { step_bytes, is_upper_bound: false };
        let line = SampledLine { name: line.to_string(), predictions, samples };
        held_out.entry(environment.allocator).or_default().extend(leave_one_size_out(&line, Method::Envelope));
    }
    held_out
}

fn no_size_inside_the_range_is_priced_too_low_where_the_allocator_is_ours_and_the_rest_is_said() {
    for (allocator, held_out) in held_out() {
        for (place, inside) in [("inside the range", true), ("at its ends", false)] {
            let of_place: Vec<&HeldOut> = held_out.iter().filter(|sample| sample.inside == inside).collect();
            let score = Score::of(of_place.iter().copied()).expect("lines of four sizes");
            said(format!(
                "{allocator} {place}: {} of {} under, worst {:.2} % short, under at most {:.2} % (95 %), over {:.1} % at \
                 the median and {:.1} % at most",
                score.under,
                score.held_out,
                100.0 * score.worst_short_share,
                100.0 * score.under_rate_upper,
                100.0 * score.over_p50,
                100.0 * score.over_worst,
            ));
            let under: Vec<_> = of_place.iter().filter(|sample| sample.is_under()).collect();
            if inside && allocator != AllocatorKind::CudaMallocAsync {
                assert!(under.is_empty(), "{under:#?}");
            }
        }
    }
}

/// Prints a figure; not while mutants are graded, when every claim runs many times.
fn said(figure: String) {
    if cfg!(not(feature = "mutants")) {
        eprintln!("{figure}");
    }
}
