//! A card whose true line is a tenth off the shipped one: the calibration must follow it, in both directions.

use std::collections::HashMap;
use std::sync::Arc;

use headroom_base::{Bytes, Case, MIB, Verdict};
use headroom_calibration::{Basis, Record};
use headroom_family::{CalibrationLine, Model};
use headroom_runners::ScriptedRunner;

use super::{CheckError, Evidence, built_in_price, ensure, place};
use crate::bench::{Ground, MeasuredModel, Setup, Subject, calibrate, lines_of};
use crate::checks::calibration::price_after;
use crate::trials::NOTHING_TO_SEE;

/// A tenth of less than this is lost in the steps of the allocator.
const LEAST_BYTES: u64 = 256 * MIB;

/// Calibrates on cards that need 90 % and 110 % of the shipped line: reserved is strictly less, and more.
///
/// # Errors
/// The first size whose reservation does not follow.
pub fn scripted(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let mut evidence = Evidence::default();
    for (model, lines) in lines_of(subject) {
        for line in lines {
            for percent in [90, 110] {
                evidence.absorb(follow(subject, model, line, percent, ground)?);
            }
        }
    }
    if evidence.seen == 0 {
        let note = "no line of the family is shipped for this environment and large enough to be scaled";
        evidence.notes.push(format!("{NOTHING_TO_SEE}: {}: {note}", place(subject)));
    }
    Ok(evidence)
}

/// What each size needs on the scripted card; none where nothing is shipped for the line, or it is too small.
fn needs(
    subject: &Subject<'_>,
    model: &Model,
    line: &CalibrationLine,
    percent: u64,
    ground: Ground<'_>,
) -> Option<HashMap<Case, u64>> {
    let hard = subject.environment().hard;
    let mut needs = HashMap::new();
    for case in &line.cases {
        let (to_plan, estimate) = built_in_price(subject, model, case, ground, 0)?;
        let shipped = ground.built_ins.find(&hard, &to_plan.line)?;
        if shipped.basis() != Basis::SameEnvironment || estimate.empirical_bytes < LEAST_BYTES {
            return None;
        }
        needs.insert(*case, estimate.analytic_bytes + estimate.empirical_bytes / 100 * percent);
    }
    Some(needs)
}

fn follow(
    subject: &Subject<'_>,
    model: &Model,
    line: &CalibrationLine,
    percent: u64,
    ground: Ground<'_>,
) -> Result<Evidence, CheckError> {
    let mut evidence = Evidence::default();
    let Some(needs) = needs(subject, model, line, percent, ground) else { return Ok(evidence) };
    let runner = ScriptedRunner::new(move |work| needs.get(&work.case).copied().unwrap_or(0));
    let bench = subject.bench(&Setup { runner: Some(Arc::new(runner)), ..Setup::default() })?;
    let lines = [line];
    let measured = MeasuredModel { model, lines: &lines };
    let calibration = calibrate(&bench, measured, Record::empty(subject.class()), ground, |_, _| {})?;
    if calibration.plan.cases.iter().any(|planned| planned.verdict != Verdict::Fits) {
        return Ok(evidence);
    }
    for planned in &calibration.plan.cases {
        let case = &planned.priced.case;
        let shipped = planned.priced.estimate.reservation_bytes;
        let (estimate, _) = price_after(subject, model, case, &calibration, ground)?;
        let follows =
            if percent < 100 { estimate.reservation_bytes < shipped } else { estimate.reservation_bytes > shipped };
        ensure(follows, || {
            format!(
                "{}: {case} needs {percent} % of the shipped line, and {} are reserved where the shipped line says {}",
                place(subject),
                Bytes(estimate.reservation_bytes),
                Bytes(shipped)
            )
        })?;
        evidence.seen += 1;
    }
    Ok(evidence)
}
