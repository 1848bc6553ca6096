//! Predictions against every window that was recorded on an H200.

mod recorded;

use headroom_runners::programs::evidence::{Compared, compare, describe, read_windows, table};

fn compared(name: &str) -> Vec<Compared> {
    let text = std::fs::read_to_string(recorded::path(name)).unwrap_or_default();
    let windows = read_windows(&text).unwrap();
    let (compared, left_out) = compare(&windows, recorded::architecture);
    for (reason, count) in left_out {
        println!("{count} windows left out: {reason}");
    }
    compared
}

#[test]
fn probe() {
    for name in ["windows.jsonl", "windows-options.jsonl", "windows-held-out.jsonl"] {
        let compared = compared(name);
        println!("## {name}\n\n{}", table(&compared));
        let mut misses: Vec<_> =
            compared.iter().filter(|entry| !entry.allocated_holds() || !entry.reserved_holds()).collect();
        misses.sort_by(|a, b| b.reserved_error().abs().total_cmp(&a.reserved_error().abs()));
        for entry in &compared {
            let (p, r) = (entry.predicted.allocated_baseline_bytes, entry.baseline_bytes);
            if p != r.0 && !entry.warmup {
                println!("BASE {} {} {} {:?} {} {:?} diff {}", entry.recorded.family, entry.recorded.case, entry.allocator, entry.recorded.options, p, r, p as i64 - r.0 as i64);
            }
        }
        println!("{} of {} miss", misses.len(), compared.len());
        for miss in misses {
            println!("- {}", describe(miss));
        }
    }
}
