//! EVIDENCE.md's block about real GPUs, and the README's: what is most asked for, in short.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use headroom::catalogue::Catalogue;
use headroom_base::{AllocatorKind, Bytes, RunKind};
use headroom_calibration::BuiltIns;
use headroom_reports::{Outcome, Report, WindowRecord};

use super::kept::Runs;
use super::loops;
use super::peaks::{above_the_bound, beside_simulator, beside_torch, table};

pub(crate) fn block(catalogue: &Catalogue, runs: &Runs) -> String {
    let torch = beside_torch(catalogue, runs);
    let by_family = |asked: &super::beside::Asked| asked.0.split(':').next().unwrap_or_default().to_owned();
    let mut text = intro(runs);
    text.push_str(&results(runs));
    text.push_str("Peaks on the card beside PyTorch's recordings of the same cases:\n\n");
    text.push_str(&table("family | ", &torch, by_family));
    text.push_str(&simulator(catalogue, runs));
    text.push_str(&shortfalls(runs));
    text.push_str(&sdxl(runs));
    text.push_str(&warm(runs));
    text.push_str(&books(runs));
    text.push_str("Uploads of 4 GiB beside the plain pinned copy of the same run; a piece is 2 MiB:\n\n");
    text.push_str(&loops::copies(|row| row.is_usual()));
    text.push_str(&loops::pairs());
    text
}

/// What the README shows of it.
pub(crate) fn in_short(runs: &Runs) -> String {
    intro(runs) + &shortfalls(runs)
}

/// Notes of a check, each with its family.
pub(crate) fn notes<'a>(runs: &'a Runs, check: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let trials = runs.iter().flat_map(|(family, report)| report.trials.iter().map(move |trial| (family, trial)));
    let trials = trials.filter(move |(_, trial)| trial.check == check);
    trials.flat_map(|(family, trial)| trial.notes.iter().map(move |note| (family.as_str(), note.as_str())))
}

/// Whether a calibration's note is about a window that needs more than is reserved.
pub(crate) fn is_above(note: &str) -> bool {
    ["above what is reserved", " short outside what is promised", " short of its need"]
        .iter()
        .any(|words| note.contains(words))
}

/// Whether a window is of an undisturbed calibration.
pub(crate) fn is_of_a_calibration(record: &WindowRecord) -> bool {
    record.trial.as_deref().is_some_and(|trial| trial.ends_with("::calibration"))
}

/// Whether a window was measured in one.
fn is_clean(record: &WindowRecord) -> bool {
    record.window.kind == RunKind::Measured && is_of_a_calibration(record)
}

/// Measured windows of undisturbed calibrations, and those of them that are taken for fragmented.
pub(crate) fn clean_windows(report: &Report) -> (usize, usize) {
    let clean = report.windows.iter().filter(|record| is_clean(record));
    let is_flagged = |reason: &str| reason.starts_with("fragmented");
    clean.fold((0, 0), |(clean, flagged), record| {
        (clean + 1, flagged + usize::from(record.excluded_reason.as_deref().is_some_and(is_flagged)))
    })
}

fn intro(runs: &Runs) -> String {
    let mut sums = [0; 5];
    for (_, report) in runs {
        let (clean, flagged) = clean_windows(report);
        let counts = [report.trials.len(), report.count(Outcome::Passed), report.windows.len(), clean, flagged];
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [trials, passed, windows, clean, flagged] = sums;
    let devices = || runs.iter().flat_map(|(_, report)| &report.devices);
    let cards: BTreeSet<_> = devices().map(|device| device.uuid_hash.clone()).collect();
    let names = joined(devices().map(|device| device.class.name.clone()));
    let drivers = joined(devices().map(|device| device.driver.clone()));
    let windows_of = runs.iter().flat_map(|(_, report)| &report.windows);
    let frameworks = joined(windows_of.map(|record| record.window.environment.hard.framework.clone()));
    let from = || runs.iter().map(|(_, report)| &report.provenance[0]);
    let days = joined(from().map(|from| from.created[..10].to_owned()));
    let mut commits: BTreeMap<&str, usize> = BTreeMap::new();
    from().for_each(|from| *commits.entry(from.commit.as_deref().unwrap_or("unknown")).or_default() += 1);
    let commits: Vec<_> = commits.into_iter().map(|(commit, count)| format!("{count} of `{commit}`")).collect();
    format!(
        "`headroom run --family F --device gpu` for {} families on {} cards ({names}, driver {drivers}, {frameworks}), \
         {days}; {}. {passed} of {trials} trials passed, {windows} windows. {flagged} of {clean} measured windows of \
         undisturbed calibrations are taken for fragmented.\n\n",
        runs.len(),
        cards.len(),
        commits.join(", ")
    )
}

/// Each once.
fn joined(words: impl Iterator<Item = String>) -> String {
    words.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" and ")
}

/// Reservations of all families below a demand: after a calibration on the card, at its sizes and at those left out.
fn shortfalls(runs: &Runs) -> String {
    #[derive(Default)]
    struct Row {
        sizes: usize,
        under: usize,
        worst: Option<(u64, f64, String)>,
    }
    let mut rows: BTreeMap<AllocatorKind, Row> = BTreeMap::new();
    for (family, report) in runs {
        let mut demands: BTreeMap<(AllocatorKind, String), (u64, u64)> = BTreeMap::new();
        for record in report.families.iter().flat_map(|summary| &summary.estimates) {
            let key = (record.environment.hard.allocator, format!("{family} {}", record.case));
            let demand = record.demand_bytes.unwrap_or(0);
            demands.entry(key).or_insert((record.estimate.reservation_bytes, 0)).1 = demand;
        }
        // A size that was left out of its fit has a window and no demand beside its price.
        for record in report.windows.iter().filter(|record| is_clean(record)) {
            let window = &record.window;
            let key = (window.environment.hard.allocator, format!("{family} {}", window.case));
            if let Some((_, demand)) = demands.get_mut(&key) {
                *demand = (*demand).max(window.measurement.demand_bytes);
            }
        }
        for ((allocator, case), (reserved, demand)) in demands {
            let row = rows.entry(allocator).or_default();
            row.sizes += 1;
            let short = demand.saturating_sub(reserved);
            row.under += usize::from(short > 0);
            if short > row.worst.as_ref().map_or(0, |(worst, ..)| *worst) {
                row.worst = Some((short, short as f64 / demand as f64, case));
            }
        }
    }
    let mut text = String::from("Sizes of all families after a calibration on the card, calibrated and left out:\n\n");
    text.push_str("| allocator | sizes | reserved below the need | worst |\n|---|---:|---:|---|\n");
    for (allocator, Row { sizes, under, worst }) in rows {
        let worst = worst.map_or_else(
            || "-".to_owned(),
            |(short, share, case)| format!("{} ({:.1} %) short, {case}", Bytes(short), 100.0 * share),
        );
        let _ = writeln!(text, "| {allocator} | {sizes} | {under} | {worst} |");
    }
    text + "\nA trial passes with such a size where only a bound is known (the driver's own pool), where less than one growth \
           step is missing beside a margin of less than one, and where the size's windows were taken for fragmented.\n\n"
}

/// How far the card's results lie from the reference's, by element type.
fn results(runs: &Runs) -> String {
    let mut worst: BTreeMap<&str, (usize, f64, f64)> = BTreeMap::new();
    let mut finite = 0;
    for (_, note) in notes(runs, "computes") {
        finite += usize::from(note.contains("every result is a finite number"));
        let Some((what, off)) = note.split_once(": off the reference by ") else { continue };
        let dtype = ["fp16", "bf16", "fp32"].into_iter().find(|dtype| what.split(' ').any(|word| word == *dtype));
        let mut numbers = off.split(' ').filter_map(|word| word.trim_end_matches(',').parse::<f64>().ok());
        if let (Some(dtype), Some(rms), Some(allowed)) = (dtype, numbers.next(), numbers.next()) {
            let entry = worst.entry(dtype).or_insert((0, 0.0, f64::INFINITY));
            entry.0 += 1;
            if rms / allowed > entry.1 / entry.2 {
                (entry.1, entry.2) = (rms, allowed);
            }
        }
    }
    assert!(worst.len() == 3 && finite > 0, "the notes about results read otherwise than here");
    let mut text = format!(
        "Results against the plain reference on the host, and {finite} large operations whose every result is a finite \
         number:\n\n| element type | small models | nearest to its limit (root mean square) | limit |\n|---|---:|---:|---:|\n"
    );
    for (dtype, (count, rms, allowed)) in worst {
        let _ = writeln!(text, "| {dtype} | {count} | {rms:.1e} | {allowed:.1e} |");
    }
    text + "\n"
}

fn simulator(catalogue: &Catalogue, runs: &Runs) -> String {
    let beside = beside_simulator(catalogue, runs);
    let over = above_the_bound(&beside).into_iter().map(|((model, case, _), off)| {
        format!("{model} {case} by {} ({:.1} %)", Bytes(off.reserved_bytes), 100.0 * off.reserved)
    });
    let over: Vec<_> = over.collect();
    let which = match over.len() {
        0 => "In no case did the card take more of the driver's own pool than the bound".to_owned(),
        cases => {
            format!("In {cases} cases the card took more of the driver's own pool than the bound: {}", over.join("; "))
        }
    };
    format!(
        "\nBeside the simulator with its own table of workspaces, and its bound on the driver's own pool:\n\n{}\nEqual is \
         within 0.05 % in both peaks; near within 2 % of the allocated peak, and within 5 % or one growth step of the \
         reserved one. {which}.\n\n",
        table("", &beside, |_| String::new()),
    )
}

/// One price of a case after a calibration on the card.
pub(crate) struct Priced {
    pub(crate) allocator: AllocatorKind,
    pub(crate) case: String,
    pub(crate) needed_bytes: u64,
    pub(crate) reserved_bytes: u64,
    /// Beside what is shipped.
    pub(crate) ratio: f64,
}

/// SDXL's decode at calibrated and held-out sizes.
pub(crate) fn sdxl_rows(runs: &Runs) -> Vec<Priced> {
    let reports = runs.iter().filter(|(family, _)| family == "sdxl").map(|(_, report)| report);
    let mut seen = BTreeSet::new();
    let mut rows = Vec::new();
    for record in reports.flat_map(|report| &report.families).flat_map(|summary| &summary.estimates) {
        let hard = &record.environment.hard;
        let shipped = BuiltIns::compiled_in().find(hard, &record.line);
        let shipped = shipped.map(|line| line.estimate(record.cost_units, record.estimate.analytic_bytes));
        let (Some(shipped), Some(needed_bytes)) = (shipped, record.demand_bytes) else { continue };
        let (allocator, case) = (hard.allocator, record.case.to_string());
        if seen.insert((allocator, case.clone())) {
            let reserved_bytes = record.estimate.reservation_bytes;
            let ratio = reserved_bytes as f64 / shipped.reservation_bytes as f64;
            rows.push(Priced { allocator, case, needed_bytes, reserved_bytes, ratio });
        }
    }
    rows
}

fn sdxl(runs: &Runs) -> String {
    let mut text = String::from("SDXL's decode, calibrated on the card and run at held-out sizes:\n\n");
    text.push_str("| allocator | sizes | under | calibrated ÷ built-in |\n|---|---:|---:|---:|\n");
    let rows = sdxl_rows(runs);
    for allocator in AllocatorKind::ALL {
        let rows: Vec<_> = rows.iter().filter(|row| row.allocator == allocator).collect();
        let under = rows.iter().filter(|row| row.needed_bytes > row.reserved_bytes).count();
        let ratios = || rows.iter().map(|row| row.ratio);
        let (least, most) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
        let _ = writeln!(text, "| {allocator} | {} | {under} | {least:.3}–{most:.3} |", rows.len());
    }
    text + "\n"
}

/// What the rule about fragmentation says after other models were loaded and dropped.
fn warm(runs: &Runs) -> String {
    let mut counts: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (_, note) in notes(runs, "warm_server") {
        let Some(counted) = note.strip_suffix(" windows are fragmented by the rule") else { continue };
        let words: Vec<&str> = counted.split(' ').collect();
        let [.., flagged, "of", all] = words[..] else { panic!("{note}") };
        let entry = counts.entry(words[1]).or_default();
        entry.0 += flagged.parse::<u64>().unwrap();
        entry.1 += all.parse::<u64>().unwrap();
    }
    assert!(!counts.is_empty(), "the notes about warm servers read otherwise than here");
    let said = counts.iter().map(|(allocator, (flagged, all))| format!("{allocator} {flagged} of {all}"));
    let said = said.collect::<Vec<_>>().join(", ");
    format!("On a warm server (other models loaded and dropped before) the rule takes for fragmented: {said}.\n\n")
}

/// The driver's figure against the sum of its terms, and counters against the simulated allocator's.
fn books(runs: &Runs) -> String {
    let residues = notes(runs, "reconcile").map(|(_, note)| {
        let (_, residue) = note.rsplit_once("residue ").unwrap_or_else(|| panic!("{note}"));
        residue.trim_end_matches(" KiB").parse::<i64>().unwrap().abs()
    });
    let residues: Vec<i64> = residues.collect();
    let mut requests = [0_u64; 3];
    for (_, note) in notes(runs, "same_counters").filter(|(_, note)| note.contains(" requests, ")) {
        let (what, _) = note.split_once(" requests, ").unwrap();
        let (place, count) = what.rsplit_once(": ").unwrap();
        let kind = AllocatorKind::ALL.iter().position(|kind| place.ends_with(&kind.to_string())).unwrap();
        requests[kind] += count.parse::<u64>().unwrap();
    }
    let [native, expandable, _] = requests;
    format!(
        "NVML's figure for the process is context + libraries + kernels + segments in {} looks, with at most {} KiB left \
         over. Every counter equals the simulated allocator's after each of {native} requests (native) and {expandable} \
         (expandable segments).\n\n",
        residues.len(),
        residues.iter().max().unwrap()
    )
}
