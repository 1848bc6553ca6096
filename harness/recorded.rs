//! The recordings kept in the repository as reports: which of them shipped data is built from, and what they price on.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use headroom_base::{Case, HardEnvironment, MemoryLayout, Operation, Window};
use headroom_calibration::EstimatorVersions;
use headroom_family::{Architecture, Family, Model};
use headroom_reports::import_windows::{H200_TOTAL_BYTES, ImportError, Pricing, report_of};
use headroom_reports::verdicts::judge;
use headroom_reports::{Provenance, Report, Trust};
use headroom_runners::programs;
use serde::Deserialize;

use crate::catalogue::Catalogue;
use crate::pricing::estimator_versions;

/// Where the recordings lie below the repository's root.
const FOLDER: &str = "tests/data/h200";

/// Every line of it is an input of shipped data.
const USUAL: &str = "windows.jsonl";

/// The same recording, for families to be held against wherever the program runs.
const COMPILED_IN: (&str, &str) = (USUAL, include_str!("../tests/data/h200/windows.jsonl"));

/// Its lines under switches or tile by tile are inputs; those under none are sizes to try the others' fits on.
const WITH_OPTIONS: &str = "windows-options.jsonl";

/// What the report of the recordings is called in shipped data.
pub const RECORDED_REPORT_ID: &str = "h200-2026-11-30";

/// When they were recorded.
const RECORDED_AT: &str = "2026-11-30T00:00:00Z";

/// Why the inputs kept in a repository cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordedError {
    /// A recording cannot be read.
    #[error("cannot read {}: {source}; name the repository with --repository", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line of one is not a window.
    #[error("{0}")]
    Import(#[from] ImportError),
}

/// The windows of a recording as a report of one machine, each with its verdict. `name` stands in errors and attempts.
///
/// # Errors
/// At the first line that is not a window of a family and a card that are known.
pub fn recorded_windows(catalogue: &Catalogue, name: &str, text: &str) -> Result<Report, ImportError> {
    let mut report = unjudged(catalogue, name, text)?;
    judge(&mut report, &versions(catalogue));
    Ok(report)
}

/// What shipped data is built from when no report is named.
pub struct ShippedInputs {
    /// All of it as one report.
    pub report: Report,
    /// Windows of the recordings that are none of it: those under no options of the recording with options, which the
    /// lines of the others are tried on.
    pub kept_apart: usize,
}

/// What shipped data is built from when no report is named.
///
/// # Errors
/// When a recording is not there or not one.
pub fn shipped_inputs(catalogue: &Catalogue, repository: &Path) -> Result<ShippedInputs, RecordedError> {
    let read = |name: &str| {
        let path = repository.join(FOLDER).join(name);
        std::fs::read_to_string(&path).map_err(|source| RecordedError::Unreadable { path, source })
    };
    let mut report = unjudged(catalogue, USUAL, &read(USUAL)?)?;
    let mut with_options = unjudged(catalogue, WITH_OPTIONS, &read(WITH_OPTIONS)?)?;
    let all = with_options.windows.len();
    with_options.windows.retain(|record| has_options(&record.window));
    let kept_apart = all - with_options.windows.len();
    let kept: HashSet<_> = with_options.windows.iter().filter_map(|record| record.window.attempt_id.clone()).collect();
    with_options.attempts.retain(|record| kept.contains(&record.attempt.id));
    report.windows.extend(with_options.windows);
    report.attempts.extend(with_options.attempts);
    judge(&mut report, &versions(catalogue));
    Ok(ShippedInputs { report, kept_apart })
}

/// Whose windows a line of a recording is.
#[derive(Deserialize)]
struct Whose<'a> {
    family: &'a str,
    operation: Operation,
}

/// What `recorded_as` of a family may say: every name in the recording that families are held against, in order.
pub fn recording_names() -> Vec<&'static str> {
    let (_, text) = COMPILED_IN;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Whose<'static>>(line).ok());
    lines.map(|whose| whose.family).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The windows that families are held against, as far as they are of these: a folder need not hold all that are recorded.
///
/// # Errors
/// At the first line that is not a window.
pub fn windows_of_theirs(catalogue: &Catalogue) -> Result<Report, ImportError> {
    let (name, text) = COMPILED_IN;
    let is_of_others = |line: &str| {
        let whose = serde_json::from_str::<Whose<'_>>(line);
        whose.is_ok_and(|whose| recorded_model(catalogue, whose.family, whose.operation).is_none())
    };
    // The others' lines stay as empty ones, so that an error names the line of the file.
    let theirs: Vec<&str> = text.lines().map(|line| if is_of_others(line) { "" } else { line }).collect();
    recorded_windows(catalogue, name, &theirs.join("\n"))
}

fn unjudged(catalogue: &Catalogue, name: &str, text: &str) -> Result<Report, ImportError> {
    let from = Provenance {
        report_id: RECORDED_REPORT_ID.to_owned(),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: None,
        created: RECORDED_AT.to_owned(),
        arguments: Vec::new(),
        trust: Trust::Maintainer,
        withdrawn: None,
        stopped: false,
    };
    report_of(from, &[(name, text)], &total_bytes, &|family, case| pricing(catalogue, family, case))
}

/// What the driver says of the cards that recordings were made on.
fn total_bytes(device: &str) -> Option<u64> {
    (device == "NVIDIA H200").then_some(H200_TOTAL_BYTES)
}

/// The model that says it is recorded under that name and runs the operation.
fn recorded_model<'a>(
    catalogue: &'a Catalogue,
    recorded_family: &str,
    operation: Operation,
) -> Option<(&'a Family, &'a Model, &'a Architecture)> {
    let models = catalogue.families().iter().flat_map(|family| family.models.iter().map(move |model| (family, model)));
    let mut recorded = models.filter(|(_, model)| model.recorded_as.as_deref() == Some(recorded_family));
    recorded.find_map(|(family, model)| {
        let architecture = model.architecture().filter(|known| known.runs(operation))?;
        Some((family, model, architecture))
    })
}

/// What a recorded family's case prices on: the model that says it is recorded under that name and runs the operation.
pub fn pricing(catalogue: &Catalogue, recorded_family: &str, case: &Case) -> Option<Pricing> {
    let (family, model, architecture) = recorded_model(catalogue, recorded_family, case.operation)?;
    // Recorded models were built in the element type they ran in: no copy of weights is in their windows.
    let terms = programs::analytic_terms(architecture, case, case.dtype);
    Some(Pricing {
        model: format!("{}:{}", family.name, model.key),
        line: programs::line(architecture, case),
        cost_units: programs::cost_units(architecture, case),
        analytic_bytes: terms.iter().map(|term| term.bytes).sum(),
    })
}

fn versions(catalogue: &Catalogue) -> EstimatorVersions {
    estimator_versions(catalogue.families())
}

/// Whether something but size, element type and allocator decides a window's memory.
fn has_options(window: &Window) -> bool {
    let HardEnvironment { attention, convolution_benchmark, memory_layout, .. } = &window.environment.hard;
    window.case.tiling.is_some()
        || *attention != headroom_base::AttentionKernel::default()
        || *convolution_benchmark
        || *memory_layout != MemoryLayout::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use headroom_base::{Bytes, RunKind};

    fn inputs() -> Report {
        let catalogue = Catalogue::load(None).unwrap();
        let inputs = shipped_inputs(&catalogue, Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert_eq!(inputs.kept_apart, 36);
        inputs.report
    }

    #[test]
    fn every_window_of_the_usual_recording_is_an_input_and_only_those_with_options_of_the_other() {
        let report = inputs();
        let of = |name: &str| {
            let in_it = report.windows.iter().filter(|record| {
                record.window.attempt_id.as_ref().is_some_and(|id| id.0.starts_with(&format!("{name}/")))
            });
            in_it.collect::<Vec<_>>()
        };
        assert_eq!(of(USUAL).len(), 507);
        assert!(!of(WITH_OPTIONS).is_empty());
        assert!(of(WITH_OPTIONS).iter().all(|record| has_options(&record.window)));
        assert_eq!(of(USUAL).len() + of(WITH_OPTIONS).len(), report.windows.len());
    }

    /// The measured windows of a report, and those among them that do not count.
    fn flagged(report: &Report) -> (usize, Vec<&Window>) {
        let measured = report.windows.iter().filter(|record| record.window.kind == RunKind::Measured);
        let mut windows = Vec::new();
        for (reason, window) in measured.clone().filter_map(|kept| Some((kept.excluded_reason.as_ref()?, &kept.window)))
        {
            assert!(reason.starts_with("fragmented"), "{}: {reason}", window.case);
            eprintln!("  {} {} {}: {reason}", window.model, window.case, window.environment.hard.allocator);
            windows.push(window);
        }
        (measured.count(), windows)
    }

    /// Every one of these recordings but the last is of a clean process, so that each flag is a false one; what the
    /// rule misses on the last is counted beside the rule.
    #[test]
    fn flags_over_clean_windows_and_over_a_warm_server_are_counted() {
        let catalogue = Catalogue::load(None).unwrap();
        for (name, expected) in [(USUAL, (6, 337)), (WITH_OPTIONS, (10, 150)), ("warm-server.jsonl", (0, 36))] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER).join(name);
            let report = recorded_windows(&catalogue, name, &std::fs::read_to_string(path).unwrap()).unwrap();
            let (measured, windows) = flagged(&report);
            eprintln!("{name}: {} of {measured} measured windows flagged as fragmented", windows.len());
            assert_eq!((windows.len(), measured), expected, "{name}");
        }
    }

    /// The false flags are behind no shipped line, so that a line may reserve too little for them: how often it does
    /// is counted, and that nothing else of the inputs is left out.
    #[test]
    fn inputs_that_are_left_out_are_flagged_and_the_shortfall_of_their_lines_is_counted() {
        let report = inputs();
        let (measured, windows) = flagged(&report);
        let mut under = 0;
        for window in &windows {
            let Some(shipped) = headroom_calibration::built_in(&window.environment.hard, &window.line) else {
                continue;
            };
            let reserved_bytes = shipped.estimate(window.cost_units, window.analytic_bytes).reservation_bytes;
            let demand_bytes = window.measurement.demand_bytes;
            if demand_bytes > reserved_bytes {
                under += 1;
                let (model, case) = (&window.model, window.case);
                eprintln!("under: {model} {case}: {} reserved, {} needed", Bytes(reserved_bytes), Bytes(demand_bytes));
            }
        }
        eprintln!("{} of {measured} inputs left out, {under} of them above their shipped line", windows.len());
        assert_eq!((windows.len(), measured, under), (14, 463, 5));
    }

    #[test]
    fn every_shipped_family_names_a_recording_and_every_recording_is_of_a_shipped_family() {
        let catalogue = Catalogue::load(None).unwrap();
        let models = catalogue.families().iter().flat_map(|family| &family.models);
        let named: BTreeSet<&str> = models.filter_map(|model| model.recorded_as.as_deref()).collect();
        assert_eq!(named.into_iter().collect::<Vec<_>>(), recording_names());
    }

    #[test]
    fn a_folder_of_one_recorded_family_has_the_windows_of_that_one_alone() {
        let folder = tempfile::tempdir().unwrap();
        let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("families");
        std::fs::copy(families.join("taesd.yaml"), folder.path().join("taesd.yaml")).unwrap();
        let models = |catalogue: &Catalogue| {
            let report = windows_of_theirs(catalogue).unwrap();
            report.windows.into_iter().map(|record| record.window.model).collect::<Vec<_>>()
        };
        let alone = models(&Catalogue::load(Some(folder.path())).unwrap());
        assert_eq!(alone, vec!["taesd:vae"; 36]);
        let all = models(&Catalogue::load(None).unwrap());
        assert_eq!(all.len(), 507);
        assert_eq!(all.iter().filter(|model| **model == "taesd:vae").count(), 36);
    }

    #[test]
    fn models_that_share_blocks_share_a_line_and_others_do_not() {
        let catalogue = Catalogue::load(None).unwrap();
        let case = Case::image(headroom_base::Operation::VaeDecode, headroom_base::DType::Fp16, 1024, 1024);
        let line = |family: &str| pricing(&catalogue, family, &case).unwrap().line;
        assert_eq!(line("sdxl"), line("flux"));
        assert_ne!(line("sdxl"), line("taesd"));
        assert!(pricing(&catalogue, "nobody", &case).is_none());
    }
}
