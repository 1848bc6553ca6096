//! EVIDENCE.md's block about real GPUs, and the README's: what is most asked for, in short.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use headroom::catalogue::Catalogue;
use headroom_base::{AllocatorKind, Bytes, Source, Window};
use headroom_calibration::cross_validation::upper_bound;
use headroom_reports::{Outcome, Report};

use super::kept::Runs;
use super::peaks::{beside_simulator, beside_torch, reserved_beside_torch, table};
use super::priced::{Priced, is_clean, is_flagged, priced};
use super::{books, bound, family_e2e, loops, mutants, two_cards, undisturbed, warm};

pub(crate) fn block(catalogue: &Catalogue, runs: &Runs) -> String {
    let torch = beside_torch(catalogue, runs);
    let by_family = |asked: &super::beside::Asked| asked.0.split(':').next().unwrap_or_default().to_owned();
    let mut text = intro(runs) + &mutants::sentence() + &two_cards::sentence() + &family_e2e::sentence();
    text.push_str(&undisturbed::sentence(runs));
    text.push_str(&results(runs));
    text.push_str("Peaks on the card beside PyTorch's recordings of the same cases:\n\n");
    text.push_str(&table("family | ", &torch, by_family));
    text.push_str(&reserved_beside_torch(catalogue, runs));
    text.push_str(&simulator(catalogue, runs));
    text.push_str(&shortfalls(catalogue, runs));
    text.push_str(&sdxl(catalogue, runs));
    text.push_str(&warm::block(runs));
    text.push_str(&books::block(runs));
    text.push_str(&pool_capacity(runs));
    text.push_str(&out_of_memory(runs));
    text.push_str(&loops::uploads());
    text.push_str(&loops::pairs());
    text
}

/// What the README shows of it.
pub(crate) fn in_short(catalogue: &Catalogue, runs: &Runs) -> String {
    intro(runs)
        + &mutants::sentence()
        + &two_cards::sentence()
        + &family_e2e::sentence()
        + &books::outside_allocators(runs)
        + &shortfalls(catalogue, runs)
}

/// A size as notes say it.
pub(crate) fn bytes_of(size: &str) -> Option<u64> {
    size.replace(',', "").parse::<Bytes>().ok().map(|Bytes(bytes)| bytes)
}

/// A note without the name of the card at its beginning.
pub(crate) fn without_card(note: &str) -> &str {
    let (first, rest) = note.split_once(' ').unwrap_or(("", note));
    if first == "gpu" || first.starts_with("gpu-") { rest } else { note }
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

/// Measured windows of undisturbed calibrations, and those of them that are taken for fragmented; on one allocator or all.
pub(crate) fn clean_windows(report: &Report, allocator: Option<AllocatorKind>) -> (usize, usize) {
    let is_of_it = |window: &Window| allocator.is_none_or(|kind| window.environment.hard.allocator == kind);
    let clean = report.windows.iter().filter(|record| is_clean(record) && is_of_it(&record.window));
    clean.fold((0, 0), |(clean, flagged), record| (clean + 1, flagged + usize::from(is_flagged(record))))
}

fn intro(runs: &Runs) -> String {
    let mut sums = [0; 3];
    for (_, report) in runs {
        let counts = [report.trials.len(), report.count(Outcome::Passed), report.windows.len()];
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [trials, passed, windows] = sums;
    let flagged = AllocatorKind::ALL.map(|kind| {
        let of_kind = runs.iter().map(|(_, report)| clean_windows(report, Some(kind)));
        let (clean, flagged) = of_kind.fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
        format!("{flagged} of {clean} under {kind}")
    });
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
        "`headroom run --family F --device gpu` for {} families on {} ({names}, driver {drivers}, {frameworks}), \
         {days}; {}. {passed} of {trials} trials passed, {windows} windows. Of the measured windows of undisturbed \
         calibrations these are taken for fragmented: {}.\n\n",
        runs.len(),
        if cards.len() == 1 { "one card".to_owned() } else { format!("{} cards", cards.len()) },
        commits.join(", "),
        flagged.join(", ")
    )
}

/// Each once.
fn joined(words: impl Iterator<Item = String>) -> String {
    words.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" and ")
}

/// Sizes of one kind on one allocator: how many, and how many were reserved below their need.
#[derive(Default)]
struct Sizes {
    sizes: usize,
    under: usize,
    /// The largest share of a need that was missing, with the bytes and the case.
    worst: Option<(f64, u64, String)>,
}

impl Sizes {
    fn take(&mut self, price: &Priced) {
        self.sizes += 1;
        let short_bytes = price.short_bytes();
        self.under += usize::from(short_bytes > 0);
        let share = short_bytes as f64 / price.demand_bytes.max(1) as f64;
        if share > self.worst.as_ref().map_or(0.0, |(worst, ..)| *worst) {
            self.worst = Some((share, short_bytes, format!("{} {}", price.family, price.case)));
        }
    }

    fn row(&self) -> String {
        let worst = self.worst.as_ref().map_or_else(
            || "-".to_owned(),
            |(share, short, case)| format!("{:.1} % ({}), {case}", 100.0 * share, Bytes(*short)),
        );
        let bound = 100.0 * upper_bound(self.under, self.sizes);
        format!("{} of {} (≤ {bound:.1} %) | {worst}", self.under, self.sizes)
    }
}

/// Reservations of all families below a demand after a calibration on the card: at its own sizes, which an envelope covers
/// by construction unless their windows did not count, and at those left out, which alone say what a fit is worth.
fn shortfalls(catalogue: &Catalogue, runs: &Runs) -> String {
    let mut rows: BTreeMap<AllocatorKind, [Sizes; 2]> = BTreeMap::new();
    let priced = priced(catalogue, runs);
    for price in &priced {
        rows.entry(price.allocator).or_default()[usize::from(!price.is_calibrated)].take(price);
    }
    let mut text = String::from(
        "Sizes of all families after a calibration on the card, reserved below their need (95 % bound), and the largest \
         share of a need that was missing:\n\n| allocator | left out of the calibration | worst | calibrated | worst \
         |\n|---|---:|---|---:|---|\n",
    );
    for (allocator, [calibrated, left_out]) in rows {
        let _ = writeln!(text, "| {allocator} | {} | {} |", left_out.row(), calibrated.row());
    }
    let by_a_step = priced.iter().filter(|price| price.is_short_by_a_step()).map(|price| {
        let taken = if price.is_flagged { ", taken for fragmented" } else { "" };
        format!("{} {} under {}{taken}", price.family, price.case, price.allocator)
    });
    let by_a_step = by_a_step.collect::<Vec<_>>();
    let by_a_step = if by_a_step.is_empty() { "none".to_owned() } else { by_a_step.join("; ") };
    text + &format!(
        "\nA trial passes with such a size where only a bound is known (the driver's own pool), where less than one growth step \
         is missing beside a margin of less than one, and where the size's windows were taken for fragmented. Short by a \
         growth step or more: {by_a_step}.\n\n"
    )
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
    format!(
        "\nBeside the simulator with its own table of workspaces, and its bound on the driver's own pool:\n\n{}\nEqual is \
         within 0.05 % in both peaks; near within 2 % of the allocated peak, and within 5 % or one growth step of the \
         reserved one. {}",
        table("", &beside, |_| String::new()),
        bound::sentence(catalogue)
    )
}

/// SDXL's decode at calibrated and held-out sizes.
pub(crate) fn sdxl_rows(catalogue: &Catalogue, runs: &Runs) -> Vec<Priced> {
    priced(catalogue, runs).into_iter().filter(|price| price.family == "sdxl").collect()
}

fn sdxl(catalogue: &Catalogue, runs: &Runs) -> String {
    let mut text = String::from("SDXL's decode, calibrated on the card and run at sizes left out of that:\n\n");
    text.push_str(
        "| allocator | runs of the calibration | left out: under | calibrated: under | priced by the calibration | calibrated ÷ \
         built-in, of those |\n|---|---:|---:|---:|---:|---:|\n",
    );
    let (rows, report) = (sdxl_rows(catalogue, runs), runs.iter().find(|(family, _)| family == "sdxl"));
    for allocator in AllocatorKind::ALL {
        let rows: Vec<_> = rows.iter().filter(|row| row.allocator == allocator).collect();
        let under = |calibrated: bool| {
            let kind = || rows.iter().filter(|row| row.is_calibrated == calibrated);
            format!("{} of {}", kind().filter(|row| row.short_bytes() > 0).count(), kind().count())
        };
        let own = || rows.iter().filter(|row| row.source == Source::User);
        let ratios = || own().filter_map(|row| row.of_shipped);
        let (least, most) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
        let ratios = if ratios().next().is_none() { "-".to_owned() } else { format!("{least:.3}–{most:.3}") };
        let [planned, finished, _] = report.map_or([0; 3], |(_, report)| undisturbed::runs_under(report, allocator));
        let (left_out, calibrated, by_user, all) = (under(false), under(true), own().count(), rows.len());
        let _ = writeln!(
            text,
            "| {allocator} | {finished} of {planned} | {left_out} | {calibrated} | {by_user} of {all} | {ratios} |"
        );
    }
    text + "\nA line whose windows were taken for fragmented is priced by what is shipped.\n\n"
}

/// How often the driver's own pool needed more than its reservation when a card was made just large enough for that.
fn pool_capacity(runs: &Runs) -> String {
    let notes: Vec<&str> = notes(runs, "capacity").map(|(_, note)| note).collect();
    let pool = || notes.iter().filter(|note| note.contains("cuda_malloc_async"));
    let that = |words: &str| pool().filter(|note| note.contains(words)).count();
    format!(
        "On a card of weights, context and reservation the driver's own pool needed more in some of {} trials, which native and \
         expandable segments never may: {} after another history, {} step by step up to a quarter of the reservation.\n\n",
        that("the least capacity that completes"),
        that("more is needed after another history"),
        that("needed this beyond the reservation")
    )
}

/// What an operation did on a card of which other allocations left less than it reserves, and less than its peak.
fn out_of_memory(runs: &Runs) -> String {
    let notes: Vec<&str> =
        notes(runs, "out_of_memory").map(|(_, note)| note).filter(|note| note.contains("in a page less")).collect();
    let that = |words: &str| notes.iter().filter(|note| note.contains(words)).count();
    let (all, completes) = (notes.len(), that("less than the reservation it completes"));
    let without = that("less than the reservation it completes with no retry");
    assert_eq!(completes, without + that("less than the reservation it completes after retries"));
    let (fails, below, after) = (
        that("less than the reservation it runs out of memory"),
        that("less than the peak it runs out of memory"),
        that("and after each it runs"),
    );
    assert!(
        all > 30 && completes + fails == all && below == all && after == all,
        "{all}, {completes}, {fails}, {below}, {after}"
    );
    format!(
        "On a card of which other allocations leave a page less than the reservation, the operation fails cleanly in {fails} \
         of {all} cases and completes in {completes}, in {without} of them with no retry; with a page less than its allocated \
         peak it fails cleanly in {below} of {all}. The run after each works in {after} of {all}.\n\n"
    )
}
