//! What an allocator happens to hold is told from what an operation needs.

use headroom_base::{AllocatorKind, Window};
use headroom_calibration::{UserFits, count};

use crate::fixture::{MIB, context, finished, line, soft, units, window};

crate::claims![
    a_clean_growth_of_1_095_counts,
    a_ratio_that_rises_at_flat_allocated_does_not_count,
    a_ratio_of_exactly_a_tenth_more_counts_and_a_byte_more_does_not,
    a_ratio_that_rises_with_allocated_counts,
    a_surplus_of_one_growth_step_counts_and_one_byte_more_does_not,
    the_step_is_the_allocators,
    attempts_are_judged_apart,
    the_smallest_ratio_of_the_smallest_size_that_can_be_judged_is_the_reference,
];

/// A window of 1 MiB allocated per 1,024 units and the given ratio of reserved to allocated in thousandths.
fn at(attempt: &str, run: u32, side: u32, ratio_thousandths: u64) -> Window {
    let mut window = window(attempt, run, side, 0);
    let allocated = units(side) * 1024;
    window.measurement.deltas.allocated_peak_bytes = allocated;
    window.measurement.deltas.reserved_peak_bytes = allocated * ratio_thousandths / 1000;
    window.measurement.demand_bytes = window.measurement.deltas.demand_bytes();
    window
}

/// Whether each window is flagged, all of finished attempts.
fn flags(windows: &[Window]) -> Vec<bool> {
    let attempts = ["a", "b"].map(|id| finished(id, windows));
    count(windows, &attempts, &context()).iter().map(|verdict| !verdict.counts()).collect()
}

fn a_clean_growth_of_1_095_counts() {
    assert_eq!(flags(&[at("a", 0, 512, 1_200), at("a", 1, 768, 1_250), at("a", 2, 1024, 1_314)]), [false; 3]);
}

fn a_ratio_that_rises_at_flat_allocated_does_not_count() {
    let windows = [at("a", 0, 512, 1_000), at("a", 1, 768, 1_300), at("a", 2, 1024, 1_050), at("a", 3, 1152, 1_470)];
    assert_eq!(flags(&windows), [false, true, false, true]);
    let verdicts = count(&windows, &[finished("a", &windows)], &context());
    let reason = verdicts[1].reason().unwrap().to_string();
    let expected = "fragmented: reserved is 1.300 times allocated where the smallest size had 1.000 (345.6 MiB more than expected)";
    assert_eq!(reason, expected);
    // What is left is fitted without them: two sizes only.
    let fits = UserFits::of(&windows, &[finished("a", &windows)], &context(), &soft("driver 1"));
    assert!(fits.why_not(&line()).is_some());
}

fn a_ratio_of_exactly_a_tenth_more_counts_and_a_byte_more_does_not() {
    let with = |beyond_bytes: u64| {
        let mut larger = at("a", 1, 1280, 1_000);
        let deltas = &mut larger.measurement.deltas;
        assert_eq!(deltas.allocated_peak_bytes % 10, 0);
        deltas.reserved_peak_bytes = deltas.allocated_peak_bytes / 10 * 11 + beyond_bytes;
        flags(&[at("a", 0, 640, 1_000), larger])[1]
    };
    assert_eq!([0, 1].map(with), [false, true]);
}

fn a_ratio_that_rises_with_allocated_counts() {
    let with_allocated = |percent: u64| {
        let mut larger = at("a", 1, 1024, 1_500);
        let deltas = &mut larger.measurement.deltas;
        deltas.allocated_peak_bytes = deltas.allocated_peak_bytes * percent / 100;
        deltas.reserved_peak_bytes = deltas.allocated_peak_bytes * 3 / 2;
        flags(&[at("a", 0, 512, 1_000), larger])[1]
    };
    assert_eq!([94, 96, 100, 104, 106].map(with_allocated), [false, true, true, true, false]);
}

fn with_surplus(allocator: AllocatorKind, surplus_bytes: u64) -> bool {
    // 40 MiB at the smaller size, 90 at the larger: the surplus is far over 10 % and near one step.
    let (mut small, mut large) = (at("a", 0, 128, 1_000), at("a", 1, 192, 1_000));
    for (window, allocated) in [(&mut small, 40 * MIB), (&mut large, 90 * MIB)] {
        window.environment.hard.allocator = allocator;
        window.measurement.deltas.allocated_peak_bytes = allocated;
        window.measurement.deltas.reserved_peak_bytes = allocated;
    }
    large.measurement.deltas.reserved_peak_bytes += surplus_bytes;
    let mut context = context();
    context.hard.allocator = allocator;
    let windows = [small, large];
    !count(&windows, &[finished("a", &windows)], &context)[1].counts()
}

fn a_surplus_of_one_growth_step_counts_and_one_byte_more_does_not() {
    assert!(!with_surplus(AllocatorKind::Native, 20 * MIB));
    assert!(with_surplus(AllocatorKind::Native, 20 * MIB + 1));
}

fn the_step_is_the_allocators() {
    assert!(!with_surplus(AllocatorKind::CudaMallocAsync, 32 * MIB));
    assert!(with_surplus(AllocatorKind::CudaMallocAsync, 32 * MIB + 1));
    assert!(with_surplus(AllocatorKind::ExpandableSegments, 20 * MIB + 1));
}

fn attempts_are_judged_apart() {
    // The second attempt ran with another library whose reserve is a quarter larger at every size.
    let first = [at("a", 0, 512, 1_000), at("a", 1, 1024, 1_000)];
    let second = [at("b", 0, 512, 1_250), at("b", 1, 1024, 1_250)];
    assert_eq!(flags(&[first, second].concat()), [false; 4]);
}

fn the_smallest_ratio_of_the_smallest_size_that_can_be_judged_is_the_reference() {
    // 64² is below one growth step: its ratio of 4 only says how segments are rounded.
    let windows = [
        at("a", 0, 64, 4_000),
        at("a", 1, 512, 1_400),
        at("a", 2, 512, 1_000),
        at("a", 3, 1024, 1_100),
        at("a", 4, 1024, 1_101),
    ];
    assert_eq!(flags(&windows), [false, true, false, false, true]);
}
