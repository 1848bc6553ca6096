//! Windows of a real GPU beside those that PyTorch left in the recordings, and beside what the simulator says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use headroom::catalogue::Catalogue;
use headroom_base::{AllocatorKind, Case, MIB, Operation, RunKind, Window};
use headroom_family::{Architecture, Model};
use headroom_reports::import_windows::{H200_TOTAL_BYTES, ImportError, Pricing, Recording, import_windows};
use headroom_runners::programs::{self, Execution};

use super::kept::Runs;
use super::priced::is_of_a_calibration;

const RECORDINGS: [&str; 4] =
    ["windows.jsonl", "windows-options.jsonl", "windows-held-out.jsonl", "windows-fresh.jsonl"];

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

    /// In MiB, both ends where they differ.
    pub(crate) fn in_mib(self) -> String {
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / MIB as f64);
        let (least, most) = (mib(self.least), mib(self.most));
        if least == most { least } else { format!("{least}–{most}") }
    }

    /// Whether both ends are multiples.
    pub(crate) fn is_of_whole(self, step_bytes: u64) -> bool {
        self.least.is_multiple_of(step_bytes) && self.most.is_multiple_of(step_bytes)
    }

    /// Whether nothing of the other range lies above this one's lower end.
    pub(crate) fn covers(self, other: Self) -> bool {
        other.most <= self.least
    }

    fn plus(self, bytes: u64) -> Self {
        Self { least: self.least + bytes, most: self.most + bytes }
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

    fn plus(self, bytes: u64) -> Self {
        Self { allocated: self.allocated.plus(bytes), reserved: self.reserved.plus(bytes) }
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
        let family = record.trial.as_deref()?.split("::").next()?;
        is_of_a_calibration(record).then(|| (format!("{family}:{}", record.window.model), record.window.clone()))
    }))
}

/// Recorded names that no family says it is recorded under, with a model of that architecture.
const RECORDED_TOO: [(&str, &str, &str); 6] = [
    ("cogview4", "cogview4", "vae"),
    ("flux2", "flux2", "vae"),
    ("sd3", "sd3", "vae"),
    ("sdxl", "sdxl-img2img", "unet"),
    ("sdxl-clip-l", "sd15", "text_encoder"),
    ("z-image", "z-image", "vae"),
];

/// The architecture that was recorded under a name and runs the operation.
fn architecture_of<'a>(catalogue: &'a Catalogue, recorded: &str, operation: Operation) -> Option<&'a Architecture> {
    let models = catalogue.families().iter().flat_map(|family| &family.models);
    let said = models.filter(|model| model.recorded_as.as_deref() == Some(recorded));
    let too = RECORDED_TOO.iter().filter(|(name, ..)| *name == recorded);
    let too = too.filter_map(|(_, family, key)| catalogue.family(family).ok()?.model(key));
    said.chain(too).filter_map(Model::architecture).find(|architecture| architecture.runs(operation))
}

/// Every line of every recording as a window, or why it is none.
fn recorded_lines(catalogue: &Catalogue) -> Vec<Result<Window, ImportError>> {
    let price = |recorded: &str, case: &Case| {
        let architecture = architecture_of(catalogue, recorded, case.operation)?;
        let (line, cost_units) = (programs::line(architecture, case), programs::cost_units(architecture, case));
        Some(Pricing { model: recorded.to_owned(), line, cost_units, analytic_bytes: 0 })
    };
    let total_bytes = |_: &str| Some(H200_TOTAL_BYTES);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/h200");
    let mut lines = Vec::new();
    for name in RECORDINGS {
        let recording = Recording { name, report_id: "h200", total_bytes: &total_bytes, price: &price };
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        for line in text.lines() {
            match import_windows(recording, line) {
                Ok(imported) => lines.extend(imported.windows.into_iter().map(|(window, _)| Ok(window))),
                Err(error) => lines.push(Err(error)),
            }
        }
    }
    lines
}

/// What PyTorch was recorded to need, by the recorded name.
pub(crate) fn recorded(catalogue: &Catalogue) -> BTreeMap<Asked, Peaks> {
    // Lines of architectures that no family has, or with options of no environment, are not compared here.
    let windows = recorded_lines(catalogue).into_iter().filter_map(Result::ok);
    let plain = |window: &Window| {
        let hard = &window.environment.hard;
        let usual = Execution::default();
        hard.memory_layout == usual.memory_layout && hard.attention == usual.attention && !hard.convolution_benchmark
    };
    gathered(windows.filter(plain).map(|window| (window.model.clone(), window)))
}

/// The names under which a model of ours was recorded: those of its architecture.
fn recorded_names(catalogue: &Catalogue, (name, case, _): &Asked) -> Vec<String> {
    let Some(model) = model_of(catalogue, name) else { return Vec::new() };
    let said =
        catalogue.families().iter().flat_map(|family| &family.models).filter_map(|model| model.recorded_as.clone());
    let names: BTreeSet<String> = said.chain(RECORDED_TOO.map(|(name, ..)| name.to_owned())).collect();
    let is_its = |name: &String| architecture_of(catalogue, name, case.operation) == model.architecture();
    names.into_iter().filter(is_its).collect()
}

/// A model by `FAMILY:KEY`.
fn model_of<'a>(catalogue: &'a Catalogue, name: &str) -> Option<&'a Model> {
    name.split_once(':').and_then(|(family, key)| catalogue.family(family).ok()?.model(key))
}

/// The copy of all weights that a run holds whose model keeps them in another element type, to the byte. Recorded models
/// kept theirs in the type they ran in.
pub(crate) fn copy_bytes(catalogue: &Catalogue, (name, case, _): &Asked) -> u64 {
    let Some((model, architecture)) = model_of(catalogue, name).and_then(|model| Some((model, model.architecture()?)))
    else {
        return 0;
    };
    let known =
        |stored| programs::analytic_terms(architecture, case, stored).iter().map(|term| term.bytes).sum::<u64>();
    known(model.dtype) - known(case.dtype)
}

/// What PyTorch needs of the same by its recordings, with the copy of the weights where there is one.
pub(crate) fn of_torch(catalogue: &Catalogue, recorded: &BTreeMap<Asked, Peaks>, asked: &Asked) -> Option<Peaks> {
    let names = recorded_names(catalogue, asked);
    let theirs = names.into_iter().find_map(|name| recorded.get(&(name, asked.1, asked.2)))?;
    Some(theirs.plus(copy_bytes(catalogue, asked)))
}

/// What the simulator says of the same, with its own table of workspaces.
pub(crate) fn simulated(catalogue: &Catalogue, asked: &Asked) -> Option<Peaks> {
    let (name, case, allocator) = asked;
    let model = model_of(catalogue, name)?;
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

/// From the recordings to the card's cases, the other way round than they are compared.
#[test]
fn every_measured_case_that_pytorch_was_recorded_at_is_compared() {
    let catalogue = Catalogue::load(None).unwrap();
    let (own, recorded) = (measured(&super::kept::runs(&catalogue)), recorded(&catalogue));
    let mut expected: BTreeSet<&Asked> = BTreeSet::new();
    for (recorded, case, allocator) in recorded.keys() {
        let architecture = architecture_of(&catalogue, recorded, case.operation).unwrap();
        let of_case = own.keys().filter(|(_, of, under)| of == case && under == allocator);
        let is_its = |name: &str| model_of(&catalogue, name).and_then(Model::architecture) == Some(architecture);
        expected.extend(of_case.filter(|(name, ..)| is_its(name)));
    }
    let compared: BTreeSet<&Asked> =
        own.keys().filter(|asked| of_torch(&catalogue, &recorded, asked).is_some()).collect();
    assert_eq!(compared, expected);
    let families = |asked: &BTreeSet<&Asked>| {
        asked.iter().filter_map(|(name, ..)| name.split(':').next().map(str::to_owned)).collect::<BTreeSet<_>>()
    };
    let all = catalogue.families().iter().filter(|family| !family.models.is_empty()).map(|family| family.name.clone());
    assert_eq!(families(&compared), all.collect::<BTreeSet<_>>(), "each family has a case that was recorded");
}

#[test]
fn a_recorded_line_is_left_out_for_its_architecture_or_its_activation_alone() {
    let catalogue = Catalogue::load(None).unwrap();
    let mut unpriced = BTreeSet::new();
    for line in recorded_lines(&catalogue) {
        match line {
            Ok(_) => {}
            Err(ImportError::Unpriced { family, .. }) => {
                unpriced.insert(family);
            }
            // CLIP with another activation than its recorded name stands for.
            Err(ImportError::Field { field, .. }) if field == "options.activation" => {}
            Err(error) => panic!("{error}"),
        }
    }
    for name in &unpriced {
        assert!(
            Operation::ALL.iter().all(|operation| architecture_of(&catalogue, name, *operation).is_none()),
            "{name}"
        );
    }
    assert_eq!(unpriced.into_iter().collect::<Vec<_>>(), ["taef1"]);
}
