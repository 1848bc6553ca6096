//! Windows of a real GPU beside those that PyTorch left in the recordings, and beside what the simulator says.

use std::collections::BTreeMap;
use std::path::Path;

use headroom::catalogue::Catalogue;
use headroom::recorded::pricing;
use headroom_base::{AllocatorKind, Case, RunKind, Window};
use headroom_reports::import_windows::{H200_TOTAL_BYTES, Recording, import_windows};
use headroom_runners::programs::{self, Execution};

use super::kept::Runs;

const RECORDINGS: [&str; 3] = ["windows.jsonl", "windows-held-out.jsonl", "windows-fresh.jsonl"];

/// A model of a family, a case, an allocator.
pub(crate) type Asked = (String, Case, AllocatorKind);

/// The least and the most of what runs of one case came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Range {
    least: u64,
    most: u64,
}

impl Range {
    fn of(bytes: u64) -> Self {
        Self { least: bytes, most: bytes }
    }

    fn take(&mut self, bytes: u64) {
        self.least = self.least.min(bytes);
        self.most = self.most.max(bytes);
    }

    /// How far the other range lies outside this one, as a share of this one's nearer end; 0 inside.
    fn off(self, other: Self) -> f64 {
        let (under, over) = self.outside(other);
        if over >= under { over as f64 / self.most as f64 } else { -(under as f64) / self.least as f64 }
    }

    /// Bytes by which the other range lies below this one, and above it.
    fn outside(self, other: Self) -> (u64, u64) {
        (self.least.saturating_sub(other.least), other.most.saturating_sub(self.most))
    }
}

/// How far other peaks lie from some.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Off {
    /// Of the allocated ones, as a share.
    pub(crate) allocated: f64,
    /// Of the reserved ones, as a share.
    pub(crate) reserved: f64,
    /// The same in bytes, whichever way.
    pub(crate) reserved_bytes: u64,
}

/// Peaks above the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Peaks {
    pub(crate) allocated: Range,
    pub(crate) reserved: Range,
}

impl Peaks {
    fn of(window: &Window) -> Self {
        let deltas = &window.measurement.deltas;
        Self { allocated: Range::of(deltas.allocated_peak_bytes), reserved: Range::of(deltas.reserved_peak_bytes) }
    }

    fn take(&mut self, other: Self) {
        self.allocated.take(other.allocated.least);
        self.reserved.take(other.reserved.least);
    }

    /// How far another's peaks lie from these.
    pub(crate) fn off(self, other: Self) -> Off {
        let (under, over) = self.reserved.outside(other.reserved);
        Off {
            allocated: self.allocated.off(other.allocated),
            reserved: self.reserved.off(other.reserved),
            reserved_bytes: under.max(over),
        }
    }
}

fn gathered(windows: impl Iterator<Item = (String, Window)>) -> BTreeMap<Asked, Peaks> {
    let mut all: BTreeMap<Asked, Peaks> = BTreeMap::new();
    for (model, window) in windows {
        if window.kind != RunKind::Measured || !window.measurement.validity.is_valid() {
            continue;
        }
        let peaks = Peaks::of(&window);
        let asked = (model, window.case, window.environment.hard.allocator);
        all.entry(asked).and_modify(|known| known.take(peaks)).or_insert(peaks);
    }
    all
}

/// What clean calibrations measured.
pub(crate) fn measured(runs: &Runs) -> BTreeMap<Asked, Peaks> {
    gathered(runs.iter().flat_map(|(_, report)| &report.windows).filter_map(|record| {
        let mut parts = record.trial.as_deref()?.split("::");
        let (family, check) = (parts.next()?, parts.nth(1)?);
        (check == "calibration").then(|| (format!("{family}:{}", record.window.model), record.window.clone()))
    }))
}

/// What PyTorch was recorded to need, by the model of ours that says it is recorded under that name.
pub(crate) fn recorded(catalogue: &Catalogue) -> BTreeMap<Asked, Peaks> {
    let price = |family: &str, case: &Case| pricing(catalogue, family, case);
    let total_bytes = |_: &str| Some(H200_TOTAL_BYTES);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/h200");
    let mut windows = Vec::new();
    for name in RECORDINGS {
        let recording = Recording { name, report_id: "h200", total_bytes: &total_bytes, price: &price };
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        // Lines of families that no file has, or with options of no environment, are not compared here.
        windows
            .extend(text.lines().filter_map(|line| import_windows(recording, line).ok()).flat_map(|all| all.windows));
    }
    let plain = |window: &Window| {
        let hard = &window.environment.hard;
        let usual = Execution::default();
        hard.memory_layout == usual.memory_layout && hard.attention == usual.attention && !hard.convolution_benchmark
    };
    gathered(windows.into_iter().map(|(window, _)| (window.model.clone(), window)).filter(|(_, window)| plain(window)))
}

/// What the simulator says of the same, with its own table of workspaces.
pub(crate) fn simulated(catalogue: &Catalogue, asked: &Asked) -> Option<Peaks> {
    let (name, case, allocator) = asked;
    let (family, key) = name.split_once(':')?;
    let model = catalogue.family(family).ok()?.model(key)?;
    let stored = (model.dtype != case.dtype).then_some(model.dtype);
    let execution = Execution { stored, ..Execution::default() };
    let later = programs::predict(model.architecture()?, case, &execution, *allocator).ok()?.later;
    Some(Peaks { allocated: Range::of(later.allocated_peak_bytes), reserved: Range::of(later.reserved_peak_bytes) })
}

#[test]
fn a_range_is_off_by_its_farther_end_and_not_at_all_inside() {
    let range = |least, most| Range { least, most };
    assert_eq!(range(100, 200).off(range(120, 180)), 0.0);
    assert_eq!(range(100, 200).off(range(120, 220)), 20.0 / 200.0);
    assert_eq!(range(100, 200).off(range(50, 210)), -0.5);
}
