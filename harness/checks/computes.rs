//! What an attached card computes: a small relative of every model beside a plain reference on the host, and the
//! family's own largest cases, whose results must be numbers.

use headroom_base::{AllocatorKind, Case, DType, Estimate, MemoryLayout, Verdict};
use headroom_family::{Architecture, Model};
use headroom_runners::StepRequest;
use headroom_runners::cuda::Convolutions;
use headroom_runners::programs::small::{operations, small, small_case};
use headroom_runners::programs::{Computation, Execution, computation};
use headroom_runners::reference::{Contents, Tolerance, compare, execute};

use super::{CheckError, Evidence, built_in_price, ensure, place, verdict};
use crate::bench::{Bench, Ground, Place, Setup, Subject, lines_of};
use crate::gpu::OpenGpu;

/// Executes a small relative of each of the family's models, in each element type, on the card and by the reference, and
/// holds the results against each other; then runs the largest case of each line that fits there, counts what is no finite
/// number, and looks that results vary wherever the reference's do, and that the library computes convolutions.
///
/// What is computed does not depend on the allocator, so it is looked at under the native one alone.
///
/// # Errors
/// The first result that is not the reference's, not finite, or all the same; or that not one of several convolutions, or
/// of several with channels innermost, went by the library.
pub fn computes(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let Place::Gpu(gpu) = subject.place else {
        return Err(CheckError::violated("a simulated card computes nothing"));
    };
    if subject.allocator != AllocatorKind::Native {
        return Ok(Evidence::default());
    }
    let bench = subject.bench(&Setup::default())?;
    let mut evidence = Evidence::default();
    let mut compared: Vec<Compared> = Vec::new();
    let mut innermost = Convolutions::default();
    for (architecture, case) in small_works(subject) {
        if compared.iter().any(|known| known.architecture == architecture && known.case == case) {
            continue;
        }
        let Beside { evidence: seen, vary, .. } =
            beside_the_reference(&bench, gpu, &architecture, case, MemoryLayout::default())?;
        evidence.absorb(seen);
        if lies_otherwise(&bench, &architecture, case) {
            let seen = beside_the_reference(&bench, gpu, &architecture, case, MemoryLayout::ChannelsLast)?;
            evidence.absorb(seen.evidence);
            innermost += seen.convolutions;
        }
        compared.push(Compared { architecture, case, vary });
    }
    let mut convolutions = Convolutions::default();
    for (model, lines) in lines_of(subject) {
        for line in lines {
            let fitting = line.cases.iter().filter_map(|case| Some((*case, fitting(&bench, model, case, ground)?)));
            let largest = fitting.max_by_key(|(case, _)| {
                model.architecture().map(|known| headroom_runners::programs::cost_units(known, case))
            });
            if largest.is_none() {
                let sizes: Vec<String> = line.cases.iter().map(ToString::to_string).collect();
                let text = "none of these sizes fits, so none was computed at its own size";
                evidence.notes.push(format!("{}: {}: {text}: {}", place(subject), model.key, sizes.join(", ")));
            }
            if let Some((case, estimate)) = largest {
                let vary = model.architecture().and_then(|known| {
                    let relative = small(known);
                    let same =
                        |seen: &&Compared| seen.architecture == relative && seen.case.operation == case.operation;
                    compared.iter().find(same)
                });
                let vary = vary.map_or(&[][..], |seen| &seen.vary);
                evidence.absorb(of_full_size(&bench, gpu, (model, case, estimate), vary, &mut convolutions)?);
            }
        }
    }
    for (whose, convolutions) in [("", convolutions), ("small models, channels last: ", innermost)] {
        let note = format!("{}: {whose}{convolutions}", place(subject));
        let Convolutions { by_library, by_own_kernel } = convolutions;
        ensure(by_library > 0 || by_own_kernel < SEVERAL, || note.clone())?;
        evidence.notes.push(note);
    }
    Ok(evidence)
}

/// So many convolutions are not all something that a library has no algorithm for.
const SEVERAL: usize = 3;

/// A small relative that was compared.
struct Compared {
    architecture: Architecture,
    case: Case,
    /// For each output whether the reference's values vary.
    vary: Vec<bool>,
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

/// Whether a case is computed otherwise with channels innermost.
fn lies_otherwise(bench: &Bench<'_>, architecture: &Architecture, case: Case) -> bool {
    let usual = bench.runner.execution(&bench.subject.environment().hard);
    let innermost = Execution { memory_layout: MemoryLayout::ChannelsLast, ..usual.clone() };
    let [usual, innermost] = [usual, innermost].map(|execution| computation(architecture, &case, &execution).ok());
    innermost.is_some() && usual != innermost
}

/// What was seen of a small relative beside the reference.
struct Beside {
    evidence: Evidence,
    /// For each output whether the reference's values vary.
    vary: Vec<bool>,
    convolutions: Convolutions,
}

fn beside_the_reference(
    bench: &Bench<'_>,
    gpu: &OpenGpu,
    architecture: &Architecture,
    case: Case,
    memory_layout: MemoryLayout,
) -> Result<Beside, CheckError> {
    let subject = &bench.subject;
    let execution = Execution { memory_layout, ..bench.runner.execution(&subject.environment().hard) };
    let layout = if memory_layout == MemoryLayout::default() { "" } else { " channels last" };
    let what = || format!("{} {} {case}{layout}", place(subject), architecture.kind());
    let failed = |error: &dyn std::fmt::Display| CheckError::violated(format!("{}: {error}", what()));
    let computation: Computation = computation(architecture, &case, &execution).map_err(|error| failed(&error))?;
    let expected = execute(&computation, &Contents::default()).map_err(|error| failed(&error))?;
    let tolerance = Tolerance::of_computation(&computation);
    let device = bench.session.cache().device();
    let (found, convolutions) = gpu.attached().results(device, computation).map_err(|error| failed(&error))?;
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
    let vary = expected.outputs.iter().map(|output| output.values.windows(2).any(|pair| pair[0] != pair[1]));
    let evidence = Evidence { seen: found.len(), notes: vec![note], ..Evidence::default() };
    Ok(Beside { evidence, vary: vary.collect(), convolutions })
}

/// What is reserved for a case that the card holds.
fn fitting(bench: &Bench<'_>, model: &Model, case: &Case, ground: Ground<'_>) -> Option<Estimate> {
    let (_, estimate) = built_in_price(&bench.subject, model, case, ground, bench.floor_bytes)?;
    (verdict(bench, model, case, estimate, ground) == Verdict::Fits).then_some(estimate)
}

/// Runs a case of its own size, counts what of its results is infinite or no number, looks that those vary which do at a
/// small size, and adds who computed its convolutions.
fn of_full_size(
    bench: &Bench<'_>,
    gpu: &OpenGpu,
    (model, case, estimate): (&Model, Case, Estimate),
    vary: &[bool],
    convolutions: &mut Convolutions,
) -> Result<Evidence, CheckError> {
    let subject = &bench.subject;
    let with = subject.locked_beside(model);
    let working_bytes = Some(estimate.reservation_bytes);
    let request = StepRequest { model: &model.key, with: &with, case, working_bytes };
    let seen = bench.session.inspect(&request, |device, work| gpu.attached().outputs_seen(device, work))?;
    let wrong = seen.not_finite;
    ensure(wrong == 0, || format!("{} {case}: {wrong} results are infinite or no numbers", place(subject)))?;
    let same = vary.iter().zip(&seen.vary).position(|(small, large)| *small && !large);
    ensure(same.is_none(), || {
        let output = same.map_or(0, |index| index + 1);
        format!(
            "{} {case}: result {output} is the same number throughout, which it is not at a small size",
            place(subject)
        )
    })?;
    let executed = gpu.attached().executed(&bench.session.work(&model.key, case)?);
    *convolutions += executed.map_err(|error| CheckError::violated(error.to_string()))?.convolutions;
    let note = format!("{} {case}: every result is a finite number, and they vary", place(subject));
    Ok(Evidence { seen: 1, notes: vec![note], ..Evidence::default() })
}
