//! What an attached card computes: a small relative of every model beside a plain reference on the host, and the
//! family's own largest cases, whose results must be numbers.

use headroom_base::{AllocatorKind, Case, DType, Verdict};
use headroom_family::{Architecture, Model};
use headroom_runners::StepRequest;
use headroom_runners::programs::small::{operations, small, small_case};
use headroom_runners::programs::{Computation, computation};
use headroom_runners::reference::{Contents, Tolerance, compare, execute};

use super::{CheckError, Evidence, built_in_price, ensure, place, verdict};
use crate::bench::{Bench, Ground, Place, Setup, Subject, lines_of};
use crate::gpu::OpenGpu;

/// Executes a small relative of each of the family's models, in each element type, on the card and by the reference, and
/// holds the results against each other; then runs the largest case of each line and counts what is no finite number.
///
/// What is computed does not depend on the allocator, so it is looked at under the native one alone.
///
/// # Errors
/// The first result that is not the reference's, or not finite.
pub fn computes(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let Place::Gpu(gpu) = subject.place else {
        return Err(CheckError::violated("a simulated card computes nothing"));
    };
    if subject.allocator != AllocatorKind::Native {
        return Ok(Evidence::default());
    }
    let bench = subject.bench(&Setup::default())?;
    let mut evidence = Evidence::default();
    let mut compared: Vec<(Architecture, Case)> = Vec::new();
    for (architecture, case) in small_works(subject) {
        if compared.contains(&(architecture.clone(), case)) {
            continue;
        }
        evidence.absorb(beside_the_reference(&bench, gpu, &architecture, case)?);
        compared.push((architecture, case));
    }
    for (model, lines) in lines_of(subject) {
        for line in lines {
            let largest = line.cases.iter().max_by_key(|case| {
                model.architecture().map(|known| headroom_runners::programs::cost_units(known, case))
            });
            if let Some(case) = largest {
                evidence.absorb(finite(&bench, gpu, model, *case, ground)?);
            }
        }
    }
    Ok(evidence)
}

/// The small relatives of the family's models, each with a case of every operation in every element type.
fn small_works(subject: &Subject<'_>) -> Vec<(Architecture, Case)> {
    let family = subject.family;
    let steps = family.pipeline.iter().map(|step| (step.model.as_str(), step.case));
    let lines = family.calibration.lines.iter();
    let cases = steps.chain(lines.flat_map(|line| line.cases.iter().map(|case| (line.model.as_str(), *case))));
    let mut works = Vec::new();
    for (key, case) in cases {
        let Some(architecture) = family.model(key).and_then(Model::architecture) else { continue };
        let relative = small(architecture);
        for operation in operations(architecture) {
            for dtype in DType::ALL {
                let tiling = case.tiling.filter(|_| operation == case.operation);
                let case = Case { operation, dtype, batch: case.batch.min(2), tiling, ..case };
                works.push((relative.clone(), small_case(architecture, &case)));
            }
        }
    }
    works
}

fn beside_the_reference(
    bench: &Bench<'_>,
    gpu: &OpenGpu,
    architecture: &Architecture,
    case: Case,
) -> Result<Evidence, CheckError> {
    let subject = &bench.subject;
    let execution = bench.runner.execution(&subject.environment().hard);
    let what = || format!("{} {} {case}", place(subject), architecture.kind());
    let failed = |error: &dyn std::fmt::Display| CheckError::violated(format!("{}: {error}", what()));
    let computation: Computation = computation(architecture, &case, &execution).map_err(|error| failed(&error))?;
    let expected = execute(&computation, &Contents::default()).map_err(|error| failed(&error))?;
    let tolerance = Tolerance::of_computation(&computation);
    let device = bench.session.cache().device();
    let found = gpu.attached().results(device, computation).map_err(|error| failed(&error))?;
    ensure(found.len() == expected.outputs.len(), || {
        format!("{}: {} results, the reference has {}", what(), found.len(), expected.outputs.len())
    })?;
    let mut worst = 0.0_f64;
    for (expected, found) in expected.outputs.iter().zip(&found) {
        let deviation = compare(expected, found, tolerance);
        worst = worst.max(deviation.as_ref().map_or(0.0, |deviation| deviation.rms));
        let text = || deviation.as_ref().err().map(ToString::to_string).unwrap_or_default();
        ensure(deviation.is_ok(), || format!("{}: {}", what(), text()))?;
    }
    let note =
        format!("{}: off the reference by {worst:.1e} of its root mean square, {:.1e} allowed", what(), tolerance.rms);
    Ok(Evidence { seen: found.len(), notes: vec![note], ..Evidence::default() })
}

/// Runs a case of its own size and counts what of its results is infinite or no number.
fn finite(
    bench: &Bench<'_>,
    gpu: &OpenGpu,
    model: &Model,
    case: Case,
    ground: Ground<'_>,
) -> Result<Evidence, CheckError> {
    let subject = &bench.subject;
    let Some((_, estimate)) = built_in_price(subject, model, &case, ground, bench.floor_bytes) else {
        return Ok(Evidence::default());
    };
    if verdict(bench, model, &case, estimate, ground) != Verdict::Fits {
        return Ok(Evidence::default());
    }
    let with = subject.locked_beside(model);
    let working_bytes = Some(estimate.reservation_bytes);
    let request = StepRequest { model: &model.key, with: &with, case, working_bytes };
    let wrong = bench.session.inspect(&request, |device, work| gpu.attached().not_finite(device, work))?;
    ensure(wrong == 0, || format!("{} {case}: {wrong} results are infinite or no numbers", place(subject)))?;
    let note = format!("{} {case}: every result is a finite number", place(subject));
    Ok(Evidence { seen: 1, notes: vec![note], ..Evidence::default() })
}
