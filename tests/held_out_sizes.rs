//! Every recorded line with four sizes or more, each size priced by the others: the envelope, and predictions
//! anchored to the measurements, in one table. Printed with `--nocapture`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use headroom::catalogue::Catalogue;
use headroom_base::{AllocatorKind, Case, HardEnvironment, Operation, RunKind, Window};
use headroom_calibration::Point;
use headroom_calibration::anchored::PredictionTerms;
use headroom_calibration::cross_validation::{HeldOut, Method, Sample, SampledLine, Score, leave_one_size_out};
use headroom_family::{Architecture, Model};
use headroom_reports::import_windows::{H200_TOTAL_BYTES, Pricing, Recording, import_windows};
use headroom_runners::programs::{self, Execution};
use rayon::prelude::*;

const RECORDINGS: [&str; 3] = ["windows.jsonl", "windows-options.jsonl", "windows-held-out.jsonl"];

/// What a recorded family runs an operation on: a model that says it is recorded under that name, or one of the
/// family of that name.
fn architecture<'a>(catalogue: &'a Catalogue, family: &str, operation: Operation) -> Option<&'a Architecture> {
    let recorded = |known: &str, model: &Model| model.recorded_as.as_deref() == Some(family) || known == family;
    let models = catalogue.families().iter().flat_map(|known| known.models.iter().map(move |model| (known, model)));
    models
        .filter(|(known, model)| recorded(&known.name, model))
        .filter_map(|(_, model)| model.architecture())
        .find(|architecture| architecture.runs(operation))
}

/// Every measured window; its model is the recorded family's name.
fn windows(catalogue: &Catalogue) -> Vec<Window> {
    let price = |family: &str, case: &Case| {
        let architecture = architecture(catalogue, family, case.operation)?;
        let terms = programs::analytic_terms(architecture, case, case.dtype);
        Some(Pricing {
            model: family.to_owned(),
            line: programs::line(architecture, case),
            cost_units: programs::cost_units(architecture, case),
            analytic_bytes: terms.iter().map(|term| term.bytes).sum(),
        })
    };
    // Two recorded models belong to no family, and one option is part of no environment.
    let is_known =
        |line: &str| !["\"taef1\"", "\"sdxl-clip-l\"", "\"activation\""].iter().any(|name| line.contains(name));
    let total_bytes = |_: &str| Some(H200_TOTAL_BYTES);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/h200");
    let read = |name: &&str| {
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        let text: String = text.lines().filter(|line| is_known(line)).flat_map(|line| [line, "\n"]).collect();
        import_windows(Recording { name, report_id: "h200", total_bytes: &total_bytes, price: &price }, &text).unwrap()
    };
    let all = RECORDINGS.iter().map(read).flat_map(|imported| imported.windows);
    all.map(|(window, _)| window)
        .filter(|window| window.kind == RunKind::Measured && window.measurement.validity.is_valid())
        .collect()
}

type Asked = (String, Case, HardEnvironment);

fn asked(window: &Window) -> Asked {
    (window.model.clone(), window.case, window.environment.hard.clone())
}

/// What each case's program predicts, where there is one.
fn predictions(catalogue: &Catalogue, windows: &[Window]) -> HashMap<Asked, u64> {
    let mut cases: Vec<Asked> = windows.iter().map(asked).collect();
    cases.sort();
    cases.dedup();
    let predict = |(family, case, hard): Asked| {
        let execution = Execution {
            attention: hard.attention,
            memory_layout: hard.memory_layout,
            convolution_benchmark: hard.convolution_benchmark,
            ..Execution::default()
        };
        let architecture = architecture(catalogue, &family, case.operation)?;
        let predicted = programs::predict(architecture, &case, &execution, hard.allocator).ok()?;
        Some(((family, case, hard), predicted.demand_bytes()))
    };
    cases.into_par_iter().filter_map(predict).collect()
}

/// A line's allocator and operation, and its samples.
type Line = (AllocatorKind, Operation, SampledLine);

fn lines(windows: &[Window], predictions: &HashMap<Asked, u64>) -> Vec<Line> {
    let mut lines: BTreeMap<(&HardEnvironment, String), Vec<&Window>> = BTreeMap::new();
    for window in windows {
        lines.entry((&window.environment.hard, window.line.to_string())).or_default().push(window);
    }
    let sample = |window: &&Window| Sample {
        point: Point::from(*window),
        predicted_bytes: predictions.get(&asked(window)).copied(),
    };
    lines
        .into_iter()
        .map(|((hard, name), windows)| {
            let terms = PredictionTerms {
                step_bytes: hard.allocator.growth_step_bytes(),
                is_upper_bound: hard.allocator == AllocatorKind::CudaMallocAsync,
            };
            let samples = windows.iter().map(sample).collect();
            let line = SampledLine { name: format!("{name}, {}", hard.allocator), predictions: terms, samples };
            (hard.allocator, windows[0].line.operation, line)
        })
        .collect()
}

/// The held-out samples of some lines.
fn held_out(lines: &[Line], method: Method, keep: impl Fn(AllocatorKind, Operation) -> bool) -> Vec<HeldOut> {
    let kept = lines.iter().filter(|(allocator, operation, _)| keep(*allocator, *operation));
    kept.flat_map(|(_, _, line)| leave_one_size_out(line, method)).collect()
}

fn print(name: &str, method: Method, score: &Score) {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    eprintln!(
        "| {name} | {method:?} | {} of {} (≤ {}) | {} | {} | {} | {} |",
        score.under,
        score.held_out,
        percent(score.under_rate_upper),
        percent(score.worst_short_share),
        percent(score.over_p50),
        percent(score.over_p95),
        percent(score.over_worst),
    );
}

#[test]
fn anchored_predictions_are_under_less_often_than_the_envelope_and_tighter() {
    let catalogue = Catalogue::load(None).unwrap();
    let windows = windows(&catalogue);
    let predictions = predictions(&catalogue, &windows);
    let lines = lines(&windows, &predictions);
    let is_vae = |operation| matches!(operation, Operation::VaeDecode | Operation::VaeEncode);
    eprintln!("| lines | priced by | under (95 % bound) | worst short | over: median | p95 | worst |");
    eprintln!("|---|---|---|---|---|---|---|");
    for allocator in AllocatorKind::ALL {
        for (kind, vae) in [("autoencoders", true), ("denoise and text", false)] {
            for method in Method::ALL {
                let samples = held_out(&lines, method, |of, operation| of == allocator && is_vae(operation) == vae);
                if let Some(score) = Score::of(&samples) {
                    print(&format!("{kind}, {allocator}"), method, &score);
                }
            }
        }
    }
    for method in Method::ALL {
        let mut samples = held_out(&lines, method, |of, _| of != AllocatorKind::CudaMallocAsync);
        samples.retain(|sample| sample.inside);
        print("native and expandable, inside the range", method, &Score::of(&samples).unwrap());
        for sample in samples.iter().filter(|sample| sample.is_under()) {
            eprintln!("under: {} at {} units: {:.1} %", sample.line, sample.units, 100.0 * sample.over_share());
        }
    }
    let [envelope, anchored] = Method::ALL.map(|method| {
        let score = Score::of(&held_out(&lines, method, |_, _| true)).unwrap();
        print("all", method, &score);
        score
    });
    assert_eq!(envelope.held_out, anchored.held_out);
    assert!(anchored.under < envelope.under && anchored.over_p95 < envelope.over_p95);
}
