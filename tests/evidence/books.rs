//! What the driver says of the process beside the sum of its terms.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use headroom_base::{AllocatorKind, Bytes, KIB};

use super::kept::Runs;
use super::summary::{bytes_of, notes, without_card};

/// One look at the process: its figure and the terms of that.
struct Look<'a> {
    family: &'a str,
    note: &'a str,
    figure_bytes: u64,
    cublas_bytes: u64,
    cudnn_bytes: u64,
    kernels_bytes: u64,
    /// What no term explains, whichever way.
    residue_bytes: u64,
}

impl<'a> Look<'a> {
    /// From a note: `PLACE WHEN: N of this process by the driver = C context + L cuBLAS + …, residue R`.
    fn of(family: &'a str, note: &'a str) -> Option<Self> {
        let (figure, terms) = note.split_once(": ")?.1.split_once(" of this process by the driver = ")?;
        let (terms, residue) = terms.split_once(", residue ")?;
        let term = |name: &str| terms.split(" + ").find_map(|term| bytes_of(term.strip_suffix(name)?.trim_end()));
        Some(Self {
            family,
            note,
            figure_bytes: bytes_of(figure)?,
            cublas_bytes: term("cuBLAS")?,
            cudnn_bytes: term("cuDNN")?,
            kernels_bytes: term("kernels")?,
            residue_bytes: residue.strip_suffix(" KiB")?.parse::<i64>().ok()?.unsigned_abs() * KIB,
        })
    }
}

fn looks(runs: &Runs) -> Vec<Look<'_>> {
    let read = notes(runs, "reconcile").map(|(family, note)| {
        Look::of(family, note).unwrap_or_else(|| panic!("{family}: a look reads otherwise than here: {note}"))
    });
    read.collect()
}

/// The least and the most of what looks say.
fn range(looks: &[Look<'_>], bytes: impl Fn(&Look<'_>) -> u64) -> String {
    let all = || looks.iter().map(&bytes);
    format!("{} to {}", Bytes(all().min().unwrap_or(0)), Bytes(all().max().unwrap_or(0)))
}

/// What a process holds outside every allocator beside its context, in one sentence.
pub(crate) fn outside_allocators(runs: &Runs) -> String {
    let looks = looks(runs);
    format!(
        "Outside every allocator, beside the context, cuBLAS and cuDNN hold {} together in {} looks at a process, and the \
         kernels of this program {}.\n\n",
        range(&looks, |look| look.cublas_bytes + look.cudnn_bytes),
        looks.len(),
        range(&looks, |look| look.kernels_bytes)
    )
}

/// The driver's figure against the sum of its terms, and counters against the simulated allocator's.
pub(crate) fn block(runs: &Runs) -> String {
    let looks = looks(runs);
    let mut requests = [0_u64; 3];
    for (_, note) in notes(runs, "same_counters").filter(|(_, note)| note.contains(" requests, ")) {
        let (what, _) = note.split_once(" requests, ").unwrap();
        let (place, count) = what.rsplit_once(": ").unwrap();
        let kind = AllocatorKind::ALL.iter().position(|kind| place.ends_with(&kind.to_string())).unwrap();
        requests[kind] += count.parse::<u64>().unwrap();
    }
    let [native, expandable, _] = requests;
    format!(
        "NVML's figure for the process is context + libraries + kernels + segments in {} of {} looks{}. Every counter equals \
         the simulated allocator's after each of {native} requests (native) and {expandable} (expandable segments).\n\n{}",
        looks.iter().filter(|look| look.residue_bytes == 0).count(),
        looks.len(),
        left_over(&looks),
        outside_allocators(runs)
    )
}

/// What of the figure no term explains, and of whose process.
fn left_over(looks: &[Look<'_>]) -> String {
    let left: Vec<_> = looks.iter().filter(|look| look.residue_bytes > 0).collect();
    let most = left.iter().map(|look| look.residue_bytes).max().unwrap_or(0);
    let share = left.iter().map(|look| 100.0 * look.residue_bytes as f64 / look.figure_bytes as f64);
    if left.is_empty() {
        return String::new();
    }
    format!(
        "; in {} ({}) {} at most are left over, {:.1} % of the figure: it came at no library's or kernel's call that was \
         watched",
        left.len(),
        left.iter().map(|look| look.family).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", "),
        Bytes(most),
        share.fold(0.0, f64::max)
    )
}

/// One row a look: the terms of the driver's figure.
pub(crate) fn table(runs: &Runs) -> String {
    let mut table = String::from("| family | allocator, when | the driver's figure = its terms |\n|---|---|---|\n");
    for look in looks(runs) {
        let (what, terms) = look.note.split_once(": ").unwrap_or(("", look.note));
        let terms = terms.replace(" of this process by the driver", "");
        let _ = writeln!(table, "| {} | {} | {terms} |", look.family, without_card(what.trim()));
    }
    table
}

/// Of every family under every allocator, after its pipeline and after everything was moved off.
#[test]
fn the_terms_of_every_look_are_the_drivers_figure_within_a_percent() {
    let runs = super::kept::runs(&headroom::catalogue::Catalogue::load(None).unwrap());
    let looks = looks(&runs);
    for look in &looks {
        assert!(look.residue_bytes * 100 <= look.figure_bytes, "{}: {}", look.family, look.note);
    }
    for (family, _) in &runs {
        for kind in AllocatorKind::ALL {
            let own: Vec<_> = looks.iter().filter(|look| look.family == family && is_under(look.note, kind)).collect();
            for when in ["after the pipeline", "after everything was moved off"] {
                assert_eq!(own.iter().filter(|look| look.note.contains(when)).count(), 1, "{family} {kind} {when}");
            }
        }
    }
}

fn is_under(note: &str, kind: AllocatorKind) -> bool {
    note.split(' ').any(|word| word == kind.to_string())
}
