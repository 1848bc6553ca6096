//! The whole pipeline: load, lock with the estimate, run, unlock, next. Once as a server does, once measured.

use headroom_base::{Bytes, Verdict};
use headroom_device::cache::ModelKey;
use headroom_device::probe::Scope;
use headroom_family::{PipelineStep, Weights};
use headroom_runners::StepRequest;

use super::apart::{measure_apart, resident, undisturbed, with_windows};
use super::{CheckError, Evidence, built_in_price, ensure, place, verdict};
use crate::bench::{Bench, Ground, MEASURING_ALLOWANCE_BYTES, Setup, Subject};
use crate::trials::NOTHING_TO_SEE;

/// Runs the family's pipeline on one device, first unmeasured and then measured, in one process. Only windows are seen:
/// where no step can be measured there, the notes say of each why.
///
/// # Errors
/// The first thing that does not hold.
pub fn pipeline(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let bench = subject.bench(&Setup::default())?;
    let mut evidence = Evidence::default();
    run_unmeasured(&bench, ground)?;
    let mut unmeasured = Vec::new();
    for step in &subject.family.pipeline {
        match run_step(&bench, step, true, ground) {
            Ok(Ran::Measured(seen)) => evidence.absorb(*seen),
            Ok(Ran::Unmeasured(why)) => unmeasured.push(format!("{} of `{}` {why}", step.case, step.model)),
            Err(error) => return Err(error.after(evidence)),
        }
    }
    if evidence.seen == 0 && !unmeasured.is_empty() {
        let steps = unmeasured.join(", ");
        evidence.notes.push(format!("{NOTHING_TO_SEE}: {}: no step can be measured: {steps}", place(subject)));
    }
    Ok(evidence)
}

/// Runs the family's pipeline once as a server does.
pub(super) fn run_unmeasured(bench: &Bench<'_>, ground: Ground<'_>) -> Result<(), CheckError> {
    bench.subject.family.pipeline.iter().try_for_each(|step| run_step(bench, step, false, ground).map(drop))
}

/// How a step ran.
enum Ran {
    /// In a window.
    Measured(Box<Evidence>),
    /// In none, for this reason.
    Unmeasured(String),
}

fn run_step(bench: &Bench<'_>, step: &PipelineStep, measured: bool, ground: Ground<'_>) -> Result<Ran, CheckError> {
    let subject = &bench.subject;
    let model = subject
        .family
        .model(&step.model)
        .ok_or_else(|| CheckError::violated(format!("the pipeline names `{}`, which is no model", step.model)))?;
    let Some((_, estimate)) = built_in_price(subject, model, &step.case, ground, bench.floor_bytes) else {
        return load_only(bench, step, matches!(model.weights, Weights::Bytes { .. }));
    };
    let fits = verdict(bench, model, &step.case, estimate, ground) == Verdict::Fits;
    let request = StepRequest {
        model: &step.model,
        with: &step.with,
        case: step.case,
        working_bytes: Some(estimate.reservation_bytes),
    };
    let what = || format!("{} {}", place(subject), step.case);
    if !fits {
        // What the plan refuses may still run with a part of the model on the device. It must not break anything.
        let outcome = bench.session.run(&request);
        let ended = outcome.as_ref().err().is_none_or(headroom_runners::StepError::is_out_of_memory);
        ensure(ended, || {
            format!("{}: {}", what(), outcome.as_ref().map_or_else(ToString::to_string, |_| String::new()))
        })?;
        return Ok(Ran::Unmeasured(format!("does not fit ({} reserved)", Bytes(estimate.reservation_bytes))));
    }
    if !measured {
        bench.session.run(&request)?;
        return Ok(Ran::Unmeasured("ran as a server runs it".to_owned()));
    }
    let scope = Scope::new(MEASURING_ALLOWANCE_BYTES);
    let mut windows = Vec::new();
    let outcome = measure_apart(bench, &scope, &request, ground, &mut windows).map_err(CheckError::from);
    let looked = outcome.and_then(|report| resident(undisturbed(report, what)?, what));
    let seen = with_windows(subject, windows, looked.map(|_| Evidence { seen: 1, ..Evidence::default() }))?;
    Ok(Ran::Measured(Box::new(seen)))
}

/// A model known by its size alone is loaded as far as the budget allows, and unlocked.
fn load_only(bench: &Bench<'_>, step: &PipelineStep, opaque: bool) -> Result<Ran, CheckError> {
    ensure(opaque, || format!("`{}` has an architecture that does not run {}", step.model, step.case))?;
    let cache = bench.session.cache();
    let locked = cache.lock(&ModelKey::from(step.model.as_str()), None)?;
    locked.unlock();
    Ok(Ran::Unmeasured("is known by its size alone".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::World;

    #[test]
    fn steps_of_which_none_can_be_measured_are_no_windows_and_the_notes_say_of_each_why() {
        let world = World::load(None).unwrap();
        let family = world.catalogue.family("cogview4").unwrap();
        let seen_on = |device| {
            let subject = Subject::usual(family, device, headroom_base::AllocatorKind::Native);
            pipeline(&subject, world.ground()).unwrap()
        };
        let [smallest, largest] = [family.devices.iter().min_by_key(bytes), family.devices.iter().max_by_key(bytes)];
        let small = seen_on(smallest.unwrap().into());
        assert_eq!((small.seen, small.windows.len()), (0, 0));
        let [note] = &small.notes[..] else { panic!("{:?}", small.notes) };
        assert!(note.starts_with(NOTHING_TO_SEE) && note.contains("does not fit"), "{note}");
        for step in &family.pipeline {
            assert!(note.contains(&format!("{} of `{}`", step.case, step.model)), "{note}");
        }
        let large = seen_on(largest.unwrap().into());
        assert_eq!((large.seen, large.notes.len()), (large.windows.len(), 0));
        assert!(large.seen > 0);
    }

    fn bytes(device: &&headroom_family::SimulatedDevice) -> u64 {
        device.memory_bytes
    }
}
