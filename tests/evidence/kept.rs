//! The reports that are kept, and what makes one evidence.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use headroom::catalogue::Catalogue;
use headroom_base::{AllocatorKind, Operation, Origin, RunKind, Window};
use headroom_calibration::{Context, Counted, EstimatorVersions, Uncounted, count};
use headroom_reports::{Outcome, Report};

use super::priced::priced;

/// What every kept file's name begins with: the day, the card, the runner.
const BEGINNING: &str = "2026-11-30-h200-cuda";
/// What `headroom devices --measure --json` printed, and what PyTorch's own loop did before and after it on one host.
pub(crate) const MEASURED: &str = "2026-11-30-h200-cuda-measured.json";
pub(crate) const TORCH_ALLOCATOR: [&str; 2] =
    ["2026-11-30-h200-torch-allocator-1.json", "2026-11-30-h200-torch-allocator-2.json"];
/// The same on a host of 16 processors, measured twice; PyTorch's loop ran before and after the second.
pub(crate) const MEASURED_ON_16: [&str; 2] =
    ["2026-11-30-h200-16-processors-measured-1.json", "2026-11-30-h200-16-processors-measured-2.json"];
pub(crate) const TORCH_ALLOCATOR_ON_16: [&str; 2] =
    ["2026-11-30-h200-16-processors-torch-allocator-1.json", "2026-11-30-h200-16-processors-torch-allocator-2.json"];
/// Decisions that were graded on another card at a later commit, before a check was mended.
pub(crate) const GRADED_LATER: &str = "2026-11-30-h200-mutants-taesd-later.json";
/// A run on two cards at once.
pub(crate) const TWO_CARDS: &str = "2026-11-30-h200-cuda-two-cards.json";
/// What the driver's own trials printed on two cards, what `headroom devices` listed by three orders of them, and what a
/// second process said that wanted one of them meanwhile.
pub(crate) const DRIVER_TRIALS: &str = "2026-11-30-h200-trials-of-the-driver.txt";
/// The same at a later commit on one card.
pub(crate) const DRIVER_TRIALS_ON_ONE: &str = "2026-11-30-h200-trials-of-the-driver-one-card.txt";
pub(crate) const LISTED: &str = "2026-11-30-h200-devices.txt";
pub(crate) const SECOND_PROCESS: &str = "2026-11-30-h200-busy-second-process.txt";
/// What `cargo test --test family_e2e` printed on a GPU.
pub(crate) const FAMILY_E2E: &str = "2026-11-30-h200-family-e2e.txt";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/evidence")
}

pub(crate) fn text(name: &str) -> String {
    let path = folder().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a text that no report stands behind says of itself: the lines that begin with `# `, which name commit, command and
/// cards.
pub(crate) fn header(name: &str) -> Vec<String> {
    text(name).lines().filter_map(|line| Some(line.strip_prefix("# ")?.to_owned())).collect()
}

/// The same, to stand above what is derived of it.
pub(crate) fn header_block(name: &str) -> String {
    header(name)
        .iter()
        .map(|line| format!("> {line}\n"))
        .chain((!header(name).is_empty()).then(|| "\n".to_owned()))
        .collect()
}

/// The names of all kept files that begin alike, in order.
pub(crate) fn names() -> Vec<String> {
    let names = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(BEGINNING)).collect();
    names.sort();
    names
}

pub(crate) fn report(name: &str) -> Report {
    serde_json::from_str(&text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The run of each family that has trials on a GPU, in the catalogue's order. One that is missing fails.
pub(crate) fn runs(catalogue: &Catalogue) -> Vec<(String, Report)> {
    let families = catalogue.families().iter().filter(|family| !family.models.is_empty());
    families.map(|family| (family.name.clone(), report(&format!("{BEGINNING}-{}.json", family.name)))).collect()
}

/// Families, each with the report of its run.
pub(crate) type Runs = [(String, Report)];

/// Every kept report: those of the families, of the graded decisions, and of two cards.
pub(crate) fn all_reports() -> impl Iterator<Item = (String, Report)> {
    let names = names().into_iter().filter(|name| name != MEASURED).chain([GRADED_LATER.to_owned()]);
    names.map(|name| {
        let report = report(&name);
        (name, report)
    })
}

#[test]
fn every_kept_report_says_where_it_comes_from() {
    let mut seen = 0;
    for (name, report) in all_reports() {
        let [from] = &*report.provenance else { panic!("{name} is of several reports") };
        assert!(from.commit.is_some() && !from.arguments.is_empty() && !from.stopped, "{name}: commit and arguments");
        assert!(!report.devices.is_empty(), "{name}: devices");
        for device in &report.devices {
            assert!(!device.simulated && device.uuid_hash.as_ref().is_some_and(|hash| hash.len() == 16), "{name}");
        }
        for record in &report.windows {
            assert_eq!(record.window.origin, Origin::Measured, "{name}");
            assert_eq!(record.counting.counts(), record.excluded_reason.is_none(), "{name}: a reason for each");
        }
        seen += 1;
    }
    assert!(seen > 14, "{seen} reports");
}

#[test]
fn no_kept_file_names_a_card_a_user_or_a_place_outside_the_project() {
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let lowered = text.to_lowercase();
        // The beginning of a UUID stands for a card; the group behind it would say more.
        let says_more = |rest: &&str| {
            let group = rest.get(8..13).and_then(|group| group.strip_prefix('-'));
            group.is_some_and(|group| group.chars().all(|digit| digit.is_ascii_hexdigit()))
        };
        let named = lowered.split("gpu-").skip(1).find(says_more);
        assert!(named.is_none(), "{} names a card", path.display());
        for place in ["/home/", "/root/", "/tmp/", "/mnt/"] {
            assert!(!text.contains(place), "{} names {place}", path.display());
        }
    }
}

/// The checks that a family has on an attached card, written down apart from the code that makes the trials.
pub(crate) fn checks_on_a_card(catalogue: &Catalogue, family: &str) -> BTreeSet<&'static str> {
    const OF_EVERY_FAMILY: [&str; 8] =
        ["plan", "pipeline", "calibration", "reconcile", "computes", "capacity", "out_of_memory", "same_counters"];
    let calibration = &catalogue.family(family).unwrap().calibration;
    let mut cases = calibration.lines.iter().flat_map(|line| line.cases.as_slice());
    let decodes = cases.any(|case| case.operation == Operation::VaeDecode);
    OF_EVERY_FAMILY.into_iter().chain(decodes.then_some("warm_server")).collect()
}

#[test]
fn every_check_of_a_card_passed_once_for_every_family_and_left_windows() {
    let catalogue = Catalogue::load(None).unwrap();
    for (name, report) in runs(&catalogue) {
        let checks: BTreeSet<&str> = report.trials.iter().map(|trial| trial.check.as_str()).collect();
        assert_eq!(checks, checks_on_a_card(&catalogue, &name), "{name}");
        assert_eq!(checks.len(), report.trials.len(), "{name}: each once");
        assert!(report.trials.iter().all(|trial| trial.family == name) && !report.windows.is_empty(), "{name}");
        for trial in &report.trials {
            assert_eq!(trial.outcome, Outcome::Passed, "{name} {}: {:?}", trial.name(), trial.message);
        }
    }
}

/// Of the driver's own pool only a bound is known. Of a case whose windows were taken for fragmented, the need is in those:
/// EVIDENCE.md names such cases.
#[test]
fn demands_are_covered_or_short_by_less_than_a_growth_step_unless_they_were_taken_for_fragmented() {
    let catalogue = Catalogue::load(None).unwrap();
    let runs = runs(&catalogue);
    let priced = priced(&catalogue, &runs);
    let (mut seen, mut short) = (0, 0);
    for price in priced.iter().filter(|price| price.allocator != AllocatorKind::CudaMallocAsync) {
        seen += 1;
        short += usize::from(price.short_bytes() > 0);
        let (family, case, missing_bytes) = (&price.family, price.case, price.short_bytes());
        assert!(!price.is_short_by_a_step() || price.is_flagged, "{family} {case}: {missing_bytes} bytes short");
    }
    assert!(seen > 300 && short * 20 < seen, "{short} of {seen}");
}

/// Whether a window is left out because it found room that others left, whatever else may be said of it.
fn found_room(window: &Window) -> bool {
    let context = Context {
        device: window.device.clone(),
        hard: window.environment.hard.clone(),
        versions: EstimatorVersions::default(),
    };
    let verdicts = count(std::slice::from_ref(window), &[], &context);
    matches!(verdicts[..], [Counted::Excluded(Uncounted::InRoomLeft { .. })])
}

#[test]
fn no_window_of_a_fresh_process_is_taken_for_one_in_room_left_by_others_and_many_on_warm_cards_are() {
    let (mut fresh, mut warm) = (Vec::new(), Vec::new());
    for (_, report) in runs(&Catalogue::load(None).unwrap()) {
        for record in report
            .windows
            .iter()
            .filter(|record| record.window.kind == RunKind::Measured && record.window.attempt_id.is_some())
        {
            let check = record.trial.as_deref().and_then(|trial| trial.rsplit("::").next());
            match check {
                Some("calibration") => fresh.push(found_room(&record.window)),
                Some("warm_server") => warm.push(found_room(&record.window)),
                _ => {}
            }
        }
    }
    let found = |windows: &[bool]| windows.iter().filter(|found| **found).count();
    assert!(fresh.len() > 600 && found(&fresh) == 0, "{} of {}", found(&fresh), fresh.len());
    assert!(found(&warm) > warm.len() / 4, "{} of {}", found(&warm), warm.len());
}
