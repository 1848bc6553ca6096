//! An attached card's allocator beside a simulated one: the same requests, and every counter the same after each.

use std::collections::{HashMap, HashSet};

use headroom_base::{AllocatorKind, Bytes, Case, Verdict};
use headroom_device::Settings;
use headroom_device::allocator::{Allocator, Counters};
use headroom_device::device::{AllocatorMemory, DeviceMemory, Holding};
use headroom_device::driver::{Address, CardSettings, SimulatedCard};
use headroom_family::PipelineStep;
use headroom_runners::StepRequest;
use headroom_runners::cuda::Executed;
use headroom_runners::programs::{Program, Role, Step, TensorId};

use super::{CheckError, Claim, Evidence, built_in_price, place, verdict};
use crate::bench::{Asked, Bench, Ground, Log, Noted, Place, Setup, Subject, lines_of};
use crate::gpu::OpenGpu;
use crate::trials::NOTHING_TO_SEE;

/// Runs the pipeline on an attached card. What its runner asked of the allocator is the program with the workspaces that
/// the libraries really took, and a simulated card under the same allocator counts the same after every request. Where
/// the libraries took other workspaces than the table says, the notes say which.
///
/// # Errors
/// The first request or counter that differs.
pub fn same_counters(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let Place::Gpu(gpu) = subject.place else {
        return Err(CheckError::violated("a simulated card beside a simulated card shows nothing"));
    };
    let log = Log::default();
    let runner = Some(log.marking(gpu.attached().runner()));
    let bench = subject.bench(&Setup { parts: Some(log.watching()), runner, ..Setup::default() })?;
    let mut evidence = Evidence::default();
    let mut kept = HashSet::new();
    let mut differences = Vec::new();
    for step in &steps(subject) {
        let before = log.noted().len();
        let Some(executed) = run_step(&bench, gpu, step, ground)? else { continue };
        let noted = &log.noted()[before..];
        follows(&executed.program, &mut kept, noted).map_err(|text| {
            CheckError::violated(format!(
                "{}: {} is not executed as its program says: {text}",
                place(subject),
                step.case
            ))
        })?;
        differences.extend(executed.differences.iter().map(ToString::to_string));
    }
    let noted = log.noted();
    let counted = match subject.allocator {
        AllocatorKind::CudaMallocAsync => {
            "; only that they are its programs', since the pool's counters are the driver's"
        }
        AllocatorKind::Native | AllocatorKind::ExpandableSegments => {
            counts_the_same(subject, &noted)?;
            ""
        }
    };
    evidence.seen = noted.iter().filter(|noted| !matches!(noted.asked, Asked::Begun(_) | Asked::Ended)).count();
    if noted.is_empty() {
        evidence.notes.push(format!("{NOTHING_TO_SEE}: {}: no step fits on this card", place(subject)));
        return Ok(evidence);
    }
    let wrong = differences.len();
    differences.sort_unstable();
    differences.dedup();
    evidence.notes.push(format!(
        "{}: {} requests, {wrong} convolutions with another workspace than the table's, {} of them distinct{counted}",
        place(subject),
        evidence.seen,
        differences.len()
    ));
    if subject.allocator == AllocatorKind::Native {
        evidence.notes.extend(differences);
    }
    Ok(evidence)
}

/// One operation to run.
struct Asking {
    model: String,
    with: Vec<String>,
    case: Case,
}

/// The pipeline's steps, and the largest case of each line that is calibrated.
fn steps(subject: &Subject<'_>) -> Vec<Asking> {
    let of_a_step =
        |step: &PipelineStep| Asking { model: step.model.clone(), with: step.with.clone(), case: step.case };
    let mut steps: Vec<Asking> = subject.family.pipeline.iter().map(of_a_step).collect();
    for (model, lines) in lines_of(subject) {
        let largest = lines.iter().filter_map(|line| line.cases.last());
        let known: Vec<_> = steps.iter().map(|step| (step.model.clone(), step.case)).collect();
        let new = largest.filter(|case| !known.contains(&(model.key.clone(), **case)));
        let asking = |case: &Case| Asking { model: model.key.clone(), with: subject.locked_beside(model), case: *case };
        steps.extend(new.map(asking));
    }
    steps
}

/// Runs a step, where the card holds it and a program is known for it; how the runner executed it.
fn run_step(
    bench: &Bench<'_>,
    gpu: &OpenGpu,
    step: &Asking,
    ground: Ground<'_>,
) -> Result<Option<Executed>, CheckError> {
    let subject = &bench.subject;
    let Some(model) = subject.family.model(&step.model) else { return Ok(None) };
    if model.architecture().is_none() {
        return Ok(None);
    }
    let Some((_, estimate)) = built_in_price(subject, model, &step.case, ground, bench.floor_bytes) else {
        return Ok(None);
    };
    if verdict(bench, model, &step.case, estimate, ground) != Verdict::Fits {
        return Ok(None);
    }
    let working_bytes = Some(estimate.reservation_bytes);
    bench.session.run(&StepRequest { model: &step.model, with: &step.with, case: step.case, working_bytes })?;
    let executed = gpu.attached().executed(&bench.session.work(&step.model, step.case)?);
    Ok(Some(executed.map_err(|error| CheckError::violated(error.to_string()))?))
}

/// Whether the requests between a beginning and an end are a program's, in order. What lives at its end is freed in any
/// order. Library workspaces are `kept` after their first use.
fn follows(program: &Program, kept: &mut HashSet<&'static str>, noted: &[Noted]) -> Result<(), String> {
    let inside = noted.iter().skip_while(|noted| !matches!(noted.asked, Asked::Begun(_))).skip(1);
    let mut inside = inside.take_while(|noted| noted.asked != Asked::Ended).map(|noted| &noted.asked);
    let mut live: HashMap<TensorId, u64> = HashMap::new();
    for (at, step) in program.steps.iter().enumerate() {
        match step {
            Step::Allocate { role: Role::Persistent, label, .. } if !kept.insert(label.operator) => {}
            Step::Allocate { tensor, bytes, label, role } => match inside.next() {
                Some(Asked::Allocated { number, bytes: asked, .. }) if asked == bytes => {
                    if *role != Role::Persistent {
                        live.insert(*tensor, *number);
                    }
                }
                other => return Err(format!("step {at}, {label}: {} expected, found {other:?}", Bytes(*bytes))),
            },
            Step::Free { tensor } => {
                let Some(number) = live.remove(tensor) else { continue };
                let found = inside.next();
                if found != Some(&Asked::Freed { number }) {
                    return Err(format!("step {at}: request {number} freed expected, found {found:?}"));
                }
            }
        }
    }
    match inside.find(|asked| !matches!(asked, Asked::Freed { number } if live.values().any(|live| live == number))) {
        Some(other) => Err(format!("after the last step: {other:?}")),
        None => Ok(()),
    }
}

/// Asks a simulated card's allocator the same, with each segment where the driver placed it.
fn counts_the_same(subject: &Subject<'_>, noted: &[Noted]) -> Result<(), CheckError> {
    let card = SimulatedCard::new(CardSettings::new(subject.place.memory_bytes()));
    if subject.allocator == AllocatorKind::Native {
        card.script_addresses(segments(noted));
    }
    let mut memory = AllocatorMemory::new(Allocator::new(card.driver(), Settings::of_kind(subject.allocator)));
    let mut held: HashMap<u64, Holding> = HashMap::new();
    let what = |at: usize| format!("{}, request {at} ({:?})", place(subject), noted[at].asked);
    for (at, Noted { asked, counters }) in noted.iter().enumerate() {
        let failed = |error: &dyn std::fmt::Display| CheckError::violated(format!("{}: simulated: {error}", what(at)));
        match asked {
            Asked::Allocated { number, bytes, .. } => {
                let holding = memory.allocate(*bytes).map_err(|error| failed(&error))?;
                held.insert(*number, holding);
            }
            Asked::Refused { bytes } => {
                let refused = memory.allocate(*bytes).is_err();
                Claim::AllocatorCountsAsRecorded
                    .holds(refused, || format!("{}: the simulated card has room", what(at)))?;
            }
            Asked::Freed { number } => {
                let holding = held.remove(number).ok_or_else(|| failed(&"it holds no such memory"))?;
                memory.free(holding).map_err(|error| failed(&error))?;
            }
            Asked::Emptied => memory.empty_cache().map_err(|error| failed(&error))?,
            Asked::PeaksReset => memory.reset_peaks().map_err(|error| failed(&error))?,
            Asked::Begun(_) | Asked::Ended => continue,
        }
        let found: Counters = memory.counters().map_err(|error| failed(&error))?;
        Claim::AllocatorCountsAsRecorded.holds(counters.as_ref() == Some(&found), || {
            format!("{}: the attached card counts {counters:?}, the simulated one {found:?}", what(at))
        })?;
    }
    Ok(())
}

/// Where the driver placed each segment: a request that made the reserve grow is answered at its segment's beginning.
fn segments(noted: &[Noted]) -> Vec<(Address, u64)> {
    let mut reserved = 0;
    let mut segments = Vec::new();
    for Noted { asked, counters } in noted {
        let Some(counters) = counters else { continue };
        let now = counters.reserved.current;
        if let (Asked::Allocated { address: Some(address), .. }, true) = (asked, now > reserved) {
            segments.push((Address(*address), now - reserved));
        }
        reserved = now;
    }
    segments
}
