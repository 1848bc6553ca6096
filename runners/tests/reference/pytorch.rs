//! The programs against PyTorch: small models that diffusers and transformers ran on a CPU, with the same numbers in
//! every parameter and input.

use std::path::PathBuf;
use std::{env, fs};

use headroom_base::Case;
use headroom_runners::programs::computation::{Filling, Given};
use headroom_runners::reference::{Output, Tolerance, compare};
use serde::Deserialize;
use serde_json::{Value, json};

use super::models::{Executed, Model, executed, models};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/reference").join(name)
}

fn given(given: &Given) -> Value {
    let filling = match given.filling {
        Filling::Around { centre, amplitude } => json!({ "around": [centre, amplitude] }),
        Filling::Below(below) => json!({ "below": below }),
        Filling::Counting => json!("counting"),
    };
    json!([given.name, given.elements, filling])
}

/// What `reference.py` builds and runs: one line for each model.
fn described(model: &Model) -> String {
    let list = |list: &[Given]| list.iter().map(given).collect::<Vec<_>>();
    let runs: Vec<_> = executed().iter().filter(|run| run.model.name == model.name).collect();
    let case = |run: &&Executed| json!({ "case": run.case, "inputs": list(&run.computation.inputs) });
    let line = json!({
        "model": model.name,
        "architecture": model.architecture,
        "parameters": list(&runs[0].computation.parameters),
        "cases": runs.iter().map(case).collect::<Vec<_>>(),
    });
    format!("{line}\n")
}

/// Run with `HEADROOM_BLESS=1` to write the file anew after a wanted change, and then `reference.py`, which stands with
/// the scripts that record.
#[test]
fn the_models_that_pytorch_ran_are_those_that_are_executed_here() {
    let described: String = models().iter().map(described).collect();
    if env::var_os("HEADROOM_BLESS").is_some() {
        fs::write(path("models.jsonl"), &described).unwrap();
    }
    let stored = fs::read_to_string(path("models.jsonl")).unwrap();
    assert!(stored == described, "run again with HEADROOM_BLESS=1, and run reference.py");
}

/// What PyTorch computed in one case of one model.
#[derive(Deserialize)]
struct Recorded {
    model: String,
    case: Case,
    outputs: Vec<Sample>,
}

/// Every so-manieth value of an output.
#[derive(Deserialize)]
struct Sample {
    sizes: Vec<u64>,
    step: usize,
    values: Vec<f64>,
}

/// PyTorch sums in single precision, in an order of its own: errors of 2⁻²⁴ that add up over some hundred operators, a
/// millionth of the root mean square. Sines of angles up to 7000, of which fp32 knows 2⁻¹² at best, make it some more.
const TOLERANCE: Tolerance = Tolerance { rms: 1e-5, largest: 1e-4 };

#[test]
fn every_program_computes_what_pytorch_computes() {
    let text = fs::read_to_string(path("outputs.jsonl")).unwrap();
    let recorded: Vec<Recorded> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(recorded.len(), executed().len());
    for run in executed() {
        let of = |line: &&Recorded| line.model == run.model.name && line.case == run.case;
        let expected = recorded.iter().find(of).unwrap_or_else(|| panic!("PyTorch did not run {run}"));
        let found = &run.outputs().outputs;
        assert_eq!(found.len(), expected.outputs.len(), "{run}");
        for (number, (found, expected)) in found.iter().zip(&expected.outputs).enumerate() {
            assert_eq!(found.sizes, expected.sizes, "{run}, output {number}");
            let sample = found.values.iter().copied().step_by(expected.step).collect();
            let sample = Output { values: sample, ..found.clone() };
            if let Err(error) = compare(&sample, &expected.values, TOLERANCE) {
                panic!("{run}, output {number}: {error}");
            }
        }
    }
}
