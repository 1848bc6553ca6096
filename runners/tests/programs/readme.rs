//! EVIDENCE.md's figures about programs: a block of it that is written from the recordings, and compared with them.

use std::fmt::Write as _;

use headroom_base::AllocatorKind;
use headroom_runners::programs::evidence::{Compared, table};

use super::{convolutions, published, traces, windows};
use crate::shown;

/// The recordings of windows, and what each is.
const RECORDINGS: [(&str, &str); 4] = [
    ("h200/windows.jsonl", "every family at three to five sizes; the programs were written with it at hand"),
    ("h200/windows-options.jsonl", "tiling, batch 2, channels last, math attention, odd sizes; likewise"),
    (
        "h200/windows-held-out.jsonl",
        "other sizes, element types and lengths; looked at while the last workspace rules were fitted",
    ),
    (
        "h200/windows-fresh.jsonl",
        "recorded after the rules were frozen; of these figures only the bound on the stream-ordered pool was changed since",
    ),
];

const INTRODUCTION: &str = "
A comparison is one case on one allocator, all its runs together; first and later runs count apart. The
limit of reserved memory is 5 % or one growth step, whichever is larger; for the stream-ordered pool it is
never to be under. No comparison is left out here: the test lists those outside, with the reason where one
is known.

";

/// One row a recording and allocator: how many comparisons are exact and within the limits.
fn summary(recordings: &[(&str, Vec<Compared>)]) -> String {
    let mut text = String::from(
        "| recording | allocator | comparisons | allocated exact | allocated within 2 % | reserved within its limit |\n|---|---|---:|---:|---:|---:|\n",
    );
    for (name, compared) in recordings {
        for allocator in AllocatorKind::ALL {
            let of = || compared.iter().filter(|entry| entry.allocator == allocator);
            let _ = writeln!(
                text,
                "| `{}` | {allocator} | {} | {} | {} | {} |",
                name.trim_start_matches("h200/"),
                of().count(),
                of().filter(|entry| entry.allocated_error_bytes() == 0).count(),
                of().filter(|entry| entry.allocated_holds()).count(),
                of().filter(|entry| entry.reserved_holds()).count(),
            );
        }
    }
    text
}

fn details(title: &str, body: &str) -> String {
    format!("<details><summary>{title}</summary>\n\n{body}\n</details>\n\n")
}

fn followed() -> String {
    let mut text = String::from("| trace | events | equal, in order |\n|---|---:|---:|\n");
    let mut all = traces::all();
    all.sort_by(|left, right| left.2.total_cmp(&right.2).then_with(|| left.0.cmp(&right.0)));
    for (label, events, share) in &all {
        let _ = writeln!(text, "| {} | {events} | {:.2} % |", label.trim_end(), 100.0 * share);
    }
    let exact = all.iter().filter(|(.., share)| *share == 1.0).count();
    let least = all.first().map_or(0.0, |(.., share)| 100.0 * share);
    let title = format!("Events: {exact} of {} traces are followed one by one, the worst to {least:.2} %", all.len());
    details(&title, &text)
}

fn block() -> String {
    let recordings = RECORDINGS.map(|(name, _)| (name, windows::compared(name)));
    let mut text = String::from(INTRODUCTION);
    text.push_str(&summary(&recordings));
    text.push('\n');
    for ((name, what), (_, compared)) in RECORDINGS.iter().zip(&recordings) {
        let title = format!("{}: {what} (worst first)", name.trim_start_matches("h200/"));
        text.push_str(&details(&title, &table(compared)));
    }
    text.push_str(&followed());
    let title = "Workspaces of 9,676 single convolution calls, by kind: the thresholds of the rules are fitted to them";
    text.push_str(&details(title, &convolutions::report()));
    let title = "Peaks that others published for an RTX 4090 (native): a second table explains allocated peaks of Stable Diffusion, and neither FLUX.1's decodes and fp32 nor reserved peaks in fp32";
    text.push_str(&details(title, &published::report()));
    text
}

#[test]
fn the_evidence_shows_what_the_programs_come_to() {
    shown::block("../EVIDENCE.md", "programs", &block());
}
