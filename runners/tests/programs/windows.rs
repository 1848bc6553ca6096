//! Predictions against every window that was recorded on an H200.

use std::fmt::Write as _;

use headroom_base::AllocatorKind;
use headroom_runners::programs::evidence::{Compared, compare, describe, read_windows, table};

use crate::recorded;

pub(super) fn compared(name: &str) -> Vec<Compared> {
    let text = std::fs::read_to_string(recorded::path(name)).unwrap();
    let windows = read_windows(&text).unwrap();
    let (compared, left_out) = compare(&windows, recorded::architecture);
    assert!(left_out.is_empty(), "{name}: no prediction for {left_out:?}");
    assert_eq!(compared.iter().map(|entry| entry.windows).sum::<usize>(), windows.len());
    println!("\n### {name}\n\n{}", table(&compared));
    compared
}

/// A comparison that is reported and not held to the limits, with the reason.
struct Exempt {
    what: &'static str,
    applies: fn(&Compared) -> bool,
}

const EXEMPT: [Exempt; 2] = [
    Exempt {
        what: "a convolution search tries algorithms of any workspace",
        applies: |entry| entry.warmup && entry.recorded.options.contains("convolution benchmark"),
    },
    Exempt {
        what: "where an operation takes little, expandable segments show the pages that earlier models of the process left",
        applies: |entry| {
            entry.allocator == AllocatorKind::ExpandableSegments
                && entry.reserved_bytes.1 < 256 << 20
                && entry.allocated_error_bytes() == 0
        },
    },
];

/// Names every comparison outside the limits that no reason is known for.
fn unexplained(compared: &[Compared]) -> Vec<String> {
    let misses = compared.iter().filter(|entry| !entry.allocated_holds() || !entry.reserved_holds());
    misses
        .filter(|entry| match EXEMPT.iter().find(|exempt| (exempt.applies)(entry)) {
            Some(exempt) => {
                println!("- {}: {}", exempt.what, describe(entry));
                false
            }
            None => true,
        })
        .map(describe)
        .collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn every_recorded_window_is_predicted_within_the_limits() {
    let mut all = compared("h200/windows.jsonl");
    all.extend(compared("h200/windows-options.jsonl"));
    let unexplained = unexplained(&all);
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
    let exact = all.iter().filter(|entry| entry.allocated_error_bytes() == 0).count();
    println!("{exact} of {} allocated peaks are exact", all.len());
    assert!(exact * 10 >= all.len() * 8, "only {exact} of {} allocated peaks are exact", all.len());
}

#[test]
fn held_out_windows_are_predicted_within_the_limits_with_few_exceptions() {
    let all = compared("h200/windows-held-out.jsonl");
    let misses = unexplained(&all);
    for miss in &misses {
        println!("- {miss}");
    }
    // Partial sums of most two-dimensional convolutions are not modelled: they show where the whole operation takes
    // little. Long clips under the native allocator turn on ties between equal blocks, which addresses decide.
    assert!(misses.len() * 25 <= all.len(), "{} of {} miss", misses.len(), all.len());
    let allocated = all.iter().filter(|entry| entry.allocated_holds()).count();
    assert!(allocated * 100 >= all.len() * 98, "{allocated} of {} allocated peaks hold", all.len());
}

/// One row per allocator: how many comparisons are exact and within the limits, and the middle of the reserved error.
fn counts(all: &[Compared]) -> String {
    let mut text = String::from(
        "| allocator | comparisons | allocated exact | allocated within 2 % | reserved within | reserved error, median |\n|---|---:|---:|---:|---:|---:|\n",
    );
    for allocator in AllocatorKind::ALL {
        let of: Vec<&Compared> = all.iter().filter(|entry| entry.allocator == allocator).collect();
        let count = |holds: &dyn Fn(&Compared) -> bool| of.iter().filter(|entry| holds(entry)).count();
        let _ = writeln!(
            text,
            "| {allocator} | {} | {} | {} | {} | {:+.2} % |",
            of.len(),
            count(&|entry| entry.allocated_error_bytes() == 0),
            count(&Compared::allocated_holds),
            count(&Compared::reserved_holds),
            100.0 * median(of.iter().map(|entry| entry.reserved_error()).collect()),
        );
    }
    text
}

/// Recorded after the programs and their workspace rules were frozen, at commit 313f4eb (`git log -1 --format=%h --
/// runners/programs`, both when it was recorded and when it was first compared): sizes and lengths that nobody who
/// wrote them had seen. No miss is left out as explained.
#[test]
fn fresh_windows_are_predicted_within_the_limits_with_few_exceptions() {
    let all = compared("h200/windows-fresh.jsonl");
    println!("{}", counts(&all));
    let outside: Vec<&Compared> =
        all.iter().filter(|entry| !entry.allocated_holds() || !entry.reserved_holds()).collect();
    println!("{} of {} comparisons outside the limits:", outside.len(), all.len());
    for entry in &outside {
        let exempt = EXEMPT.iter().find(|exempt| (exempt.applies)(entry));
        println!("- {}{}", describe(entry), exempt.map_or(String::new(), |exempt| format!(" [{}]", exempt.what)));
    }
    // Floors against getting worse, below what came out at first: 16 of 498 outside, every allocated peak within, 468
    // of them exact.
    assert!(outside.len() * 20 <= all.len(), "{} of {} miss", outside.len(), all.len());
    let allocated = all.iter().filter(|entry| entry.allocated_holds()).count();
    assert!(allocated * 100 >= all.len() * 98, "{allocated} of {} allocated peaks hold", all.len());
    let exact = all.iter().filter(|entry| entry.allocated_error_bytes() == 0).count();
    assert!(exact * 10 >= all.len() * 8, "only {exact} of {} allocated peaks are exact", all.len());
}

#[test]
fn the_bound_for_the_stream_ordered_pool_is_within_a_fifth_at_the_median() {
    let mut all = compared("h200/windows.jsonl");
    all.extend(compared("h200/windows-options.jsonl"));
    all.retain(|entry| entry.allocator == AllocatorKind::CudaMallocAsync && !entry.warmup);
    let errors: Vec<f64> = all.iter().map(Compared::reserved_error).collect();
    let middle = median(errors);
    println!("median excess of {} cases: {:.1} %", all.len(), 100.0 * middle);
    assert!(middle <= 0.20, "median excess {:.1} %", 100.0 * middle);
}

/// The README counts these among the misses; an exemption must not grow to hide another.
#[test]
fn eight_recorded_comparisons_are_exempt_and_each_is_outside_by_reserved_pages_or_a_search() {
    let mut all = compared("h200/windows.jsonl");
    all.extend(compared("h200/windows-options.jsonl"));
    let outside = all.iter().filter(|entry| !entry.allocated_holds() || !entry.reserved_holds());
    let (searched, left): (Vec<&Compared>, Vec<&Compared>) = outside.partition(|entry| (EXEMPT[0].applies)(entry));
    assert_eq!(
        (searched.len(), left.len()),
        (3, 5),
        "{:?}",
        left.iter().map(|entry| describe(entry)).collect::<Vec<_>>()
    );
    for entry in left {
        // Three pages of 20 MiB at most, either way, where the allocated peak is exact to the byte.
        assert!(entry.allocated_error_bytes() == 0 && (EXEMPT[1].applies)(entry), "{}", describe(entry));
        assert!(entry.reserved_error_bytes().unsigned_abs() <= 60 << 20, "{}", describe(entry));
    }
}
