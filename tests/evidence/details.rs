//! The evidence folder's own README: every comparison, case by case and term by term.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use headroom::catalogue::Catalogue;
use headroom_base::{Bytes, RunKind};
use headroom_reports::{Outcome, WindowRecord};

use super::kept::Runs;
use super::peaks::{beside_simulator, beside_torch, cases, table};
use super::priced::is_of_a_calibration;
use super::{books, driver_trials, family_e2e, loops, mutants, summary, two_cards, workspaces};

pub(crate) fn block(catalogue: &Catalogue, runs: &Runs) -> String {
    let by_model = |asked: &super::beside::Asked| format!("{} {} {}", asked.0, asked.1.operation, asked.1.dtype);
    let heading = "model, operation, element type | ";
    let parts = [
        ("Trials by family", trials(runs)),
        ("Peaks beside PyTorch's recordings", table(heading, &beside_torch(catalogue, runs), by_model)),
        ("Peaks beside PyTorch's, case by case, in MiB", cases(catalogue, runs)),
        (
            "Peaks beside the simulator with its own workspaces",
            table(heading, &beside_simulator(catalogue, runs), by_model),
        ),
        ("SDXL's decode, calibrated on the card and run at held-out sizes", sdxl(catalogue, runs)),
        ("What the driver sees of the process, in MiB", books::table(runs)),
        ("Convolutions with another workspace than the table's", workspaces::lists(runs)),
        ("A warm server", told(runs, "warm_server", |note| !note.contains(" run "))),
        ("Out of memory, and the next run", told(runs, "out_of_memory", |_| true)),
        ("The least capacity that completes", told(runs, "capacity", |_| true)),
        ("Windows above what is reserved", told(runs, "calibration", summary::is_above)),
        ("Wrong decisions, graded on a card", mutants::matrix()),
        ("Two cards in one run", two_cards::block()),
        ("The driver's own trials", driver_trials::block()),
        ("Uploads beside the plain pinned copy of the same run", loops::copies(super::kept::MEASURED, |_| true)),
    ];
    parts.map(|(title, body)| format!("## {title}\n\n{body}\n")).concat() + &family_e2e::block()
}

/// One row a family: how its trials ended, and how many measured windows of undisturbed calibrations were taken for
/// fragmented.
fn trials(runs: &Runs) -> String {
    let mut table =
        String::from("| family | commit | trials | passed | seconds | windows | elsewhere | clean | fragmented |\n");
    table.push_str("|---|---|---:|---:|---:|---:|---:|---:|---:|\n");
    for (family, report) in runs {
        let (clean, flagged) = summary::clean_windows(report, None);
        let seconds: f64 = report.trials.iter().map(|trial| trial.seconds).sum();
        let (trials, passed, windows) = (report.trials.len(), report.count(Outcome::Passed), report.windows.len());
        let elsewhere = report.windows.iter().filter(|record| is_elsewhere(record)).count();
        let commit = report.provenance[0].commit.as_deref().unwrap_or("unknown");
        let _ = writeln!(
            table,
            "| {family} | `{commit}` | {trials} | {passed} | {seconds:.0} | {windows} | {elsewhere} | {clean} | {flagged} |"
        );
    }
    table.push_str(
        "\nClean are measured windows of undisturbed calibrations; fragmented those of them that the rule takes for it. \
         Elsewhere are windows of runs outside every calibration and warm server; where there are none, a size that was left \
         out of a calibration has what it needed beside its price, and no window.\n",
    );
    table
}

/// Whether a window is of a run outside every calibration and warm server.
fn is_elsewhere(record: &WindowRecord) -> bool {
    let check = record.trial.as_deref().and_then(|trial| trial.rsplit("::").next());
    !is_of_a_calibration(record) && check != Some("warm_server")
}

/// SDXL's decode calibrated for real: each size beside what is shipped.
fn sdxl(catalogue: &Catalogue, runs: &Runs) -> String {
    let mut table = String::from(
        "| allocator | case | needed | reserved | priced by | calibrated ÷ built-in | windows |\n|---|---|---:|---:|---|---:|---|\n",
    );
    for row in summary::sdxl_rows(catalogue, runs) {
        let (needed, reserved) = (Bytes(row.demand_bytes), Bytes(row.reserved_bytes));
        let ratio = row.of_shipped.map_or_else(String::new, |ratio| format!("{ratio:.3}"));
        let of_plan = if row.is_calibrated { "calibrated" } else { "left out" };
        let flagged = if row.is_flagged { ", taken for fragmented" } else { "" };
        let (allocator, case, source) = (row.allocator, row.case, row.source.name());
        let _ = writeln!(
            table,
            "| {allocator} | {case} | {needed} | {reserved} | {source} | {ratio} | {of_plan}{flagged} |"
        );
    }
    let windows = runs.iter().filter(|(family, _)| family == "sdxl").flat_map(|(_, report)| &report.windows);
    let clean = windows.filter(|record| is_of_a_calibration(record));
    let mut runs: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for record in clean {
        let (warm, measured) = runs.entry(record.window.environment.hard.allocator.to_string()).or_default();
        *if record.window.kind == RunKind::Measured { measured } else { warm } += 1;
    }
    for (allocator, (warm, measured)) in runs {
        let _ = writeln!(table, "\n{allocator}: {warm} warm-up and {measured} measured runs.");
    }
    table
}

fn told(runs: &Runs, check: &str, wanted: impl Fn(&str) -> bool) -> String {
    let notes = summary::notes(runs, check).filter(|(_, note)| wanted(note));
    notes.map(|(family, note)| format!("- {family}: {}\n", summary::without_card(note))).collect()
}
