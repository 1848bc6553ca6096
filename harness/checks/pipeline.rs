//! The whole pipeline: load, lock with the estimate, run, unlock, next. Once as a server does, once measured.

use headroom_base::Verdict;
use headroom_device::cache::ModelKey;
use headroom_device::probe::Scope;
use headroom_family::{PipelineStep, Weights};
use headroom_runners::StepRequest;

use super::apart::{measure_apart, resident, undisturbed, with_windows};
use super::{CheckError, Evidence, built_in_price, ensure, place, verdict};
use crate::bench::{Bench, Ground, MEASURING_ALLOWANCE_BYTES, Setup, Subject};

/// Runs the family's pipeline on one device, first unmeasured and then measured, in one process.
///
/// # Errors
/// The first thing that does not hold.
pub fn pipeline(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let bench = subject.bench(&Setup::default())?;
    let mut evidence = Evidence::default();
    for measured in [false, true] {
        for step in &subject.family.pipeline {
            evidence.absorb_all(run_step(&bench, step, measured, ground))?;
        }
    }
    Ok(evidence)
}

/// Runs the family's pipeline once as a server does.
pub(super) fn run_unmeasured(bench: &Bench<'_>, ground: Ground<'_>) -> Result<(), CheckError> {
    bench.subject.family.pipeline.iter().try_for_each(|step| run_step(bench, step, false, ground).map(drop))
}

fn run_step(
    bench: &Bench<'_>,
    step: &PipelineStep,
    measured: bool,
    ground: Ground<'_>,
) -> Result<Evidence, CheckError> {
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
        return Ok(Evidence { seen: 1, ..Evidence::default() });
    }
    if !measured {
        bench.session.run(&request)?;
        return Ok(Evidence { seen: 1, ..Evidence::default() });
    }
    let scope = Scope::new(MEASURING_ALLOWANCE_BYTES);
    let mut windows = Vec::new();
    let outcome = measure_apart(bench, &scope, &request, ground, &mut windows).map_err(CheckError::from);
    let looked = outcome.and_then(|report| resident(undisturbed(report, what)?, what));
    with_windows(subject, windows, looked.map(|_| Evidence { seen: 1, ..Evidence::default() }))
}

/// A model known by its size alone is loaded as far as the budget allows, and unlocked.
fn load_only(bench: &Bench<'_>, step: &PipelineStep, opaque: bool) -> Result<Evidence, CheckError> {
    ensure(opaque, || format!("`{}` has an architecture that does not run {}", step.model, step.case))?;
    let cache = bench.session.cache();
    let locked = cache.lock(&ModelKey::from(step.model.as_str()), None)?;
    locked.unlock();
    Ok(Evidence { seen: 1, ..Evidence::default() })
}
