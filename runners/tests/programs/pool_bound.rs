//! The bound for the stream-ordered pool against every recorded window of that backend: never under, and how far over.

use headroom_base::AllocatorKind;
use headroom_runners::programs::evidence::{Compared, compare, describe, read_windows};

use crate::recorded;

/// The one kind of window that no bound is claimed for: while cuDNN searches for the fastest convolution it tries
/// algorithms of any workspace, up to all that the card has left.
fn is_a_search(entry: &Compared) -> bool {
    entry.warmup && entry.recorded.options.contains("convolution benchmark")
}

/// How far the bound lies above the largest recorded peak of each window's case, and the cases it lies under.
fn excesses(name: &str) -> (Vec<f64>, Vec<String>) {
    let text = std::fs::read_to_string(recorded::path(name)).unwrap();
    let mut windows = read_windows(&text).unwrap();
    windows.retain(|window| window.allocator == AllocatorKind::CudaMallocAsync);
    let (compared, left_out) = compare(&windows, recorded::architecture);
    assert!(left_out.is_empty(), "{name}: no prediction for {left_out:?}");
    let (searches, compared): (Vec<_>, Vec<_>) = compared.into_iter().partition(is_a_search);
    for search in &searches {
        println!("left out, a search: {}", describe(search));
    }
    let under = compared.iter().filter(|entry| entry.predicted.reserved_peak_bytes < entry.reserved_bytes.1);
    let under = under.map(describe).collect();
    let each = compared.iter().flat_map(|entry| {
        let excess = entry.predicted.reserved_peak_bytes as f64 / entry.reserved_bytes.1.max(1) as f64 - 1.0;
        std::iter::repeat_n(excess, entry.windows)
    });
    let mut each: Vec<f64> = each.collect();
    assert_eq!(each.len() + searches.iter().map(|entry| entry.windows).sum::<usize>(), windows.len());
    each.sort_by(f64::total_cmp);
    (each, under)
}

#[test]
fn no_recorded_window_of_the_stream_ordered_pool_reserves_more_than_the_bound() {
    let mut all = Vec::new();
    let files = ["windows", "windows-options", "windows-held-out", "windows-fresh"];
    for name in files.map(|file| format!("h200/{file}.jsonl")) {
        let (each, under) = excesses(&name);
        println!(
            "{name}: {} windows, {} under, median {:+.1} %",
            each.len(),
            under.len(),
            100.0 * each[each.len() / 2]
        );
        assert!(under.is_empty(), "{name}: the bound is under {}", under.join("\n"));
        all.extend(each);
    }
    all.sort_by(f64::total_cmp);
    let median = all[all.len() / 2];
    println!("{} windows, median {:+.1} %", all.len(), 100.0 * median);
    assert!(median <= 0.20, "the median excess is {median}");
}
