//! Measured runs that belong to no calibration: their windows are in the report, with that as the reason why no fit is made
//! of them.

use headroom_base::{InvalidReason, Measurement, Residency, Validity, Window};
use headroom_calibration::{Counted, Uncounted};
use headroom_device::probe::Scope;
use headroom_reports::WindowRecord;
use headroom_reports::verdicts::verdicts;
use headroom_runners::{StepError, StepReport, StepRequest};

use super::{CheckError, Claim, Evidence};
use crate::bench::{Bench, Ground, Subject};
use crate::pricing::price_without_prediction;

/// Measures a run of no calibration. Its window is kept, whatever became of the run.
pub(super) fn measure_apart(
    bench: &Bench<'_>,
    scope: &Scope,
    request: &StepRequest<'_>,
    ground: Ground<'_>,
    kept: &mut Vec<WindowRecord>,
) -> Result<StepReport, StepError> {
    let outcome = bench.session.measure(scope, request);
    let measurement = match &outcome {
        Ok(report) => report.measurement.as_ref(),
        Err(StepError::Run { measurement, .. }) => measurement.as_deref(),
        // It ended before its window was opened.
        Err(_) => None,
    };
    // What leaves a window is known layer by layer, and so has a line.
    let model = bench.subject.family.model(request.model);
    let priced = model.and_then(|model| Some((model, price_without_prediction(model, &request.case)?)));
    if let (Some(measurement), Some((model, priced))) = (measurement, priced) {
        let window = bench.subject.window(model, request.case, priced, measurement.clone());
        kept.push(apart(window, ground));
    }
    outcome
}

/// A window as one of no calibration, with the verdict that this is.
pub(super) fn apart(window: Window, ground: Ground<'_>) -> WindowRecord {
    let window = Window { attempt_id: None, ..window };
    let verdict = verdicts(std::slice::from_ref(&window), &[], ground.versions).pop();
    WindowRecord::new(window, verdict.unwrap_or(Counted::Excluded(Uncounted::NoAttempt)))
}

/// What was measured of a run that nothing disturbed.
pub(super) fn undisturbed(report: StepReport, what: impl Fn() -> String) -> Result<Measurement, CheckError> {
    let measurement = report.measurement.ok_or_else(|| CheckError::violated(format!("{}: no window", what())))?;
    let validity = &measurement.validity;
    Claim::UndisturbedWindowIsValid.holds(*validity == Validity::Valid, || format!("{}: {validity:?}", what()))?;
    Ok(measurement)
}

/// The same of a run that had all of its model on the device.
pub(super) fn resident(measurement: Measurement, what: impl Fn() -> String) -> Result<Measurement, CheckError> {
    let residency = measurement.residency;
    Claim::MeasuredModelIsResident.holds(residency == Residency::Full, || {
        format!("{}: the measured model is partly resident: {residency:?}", what())
    })?;
    Ok(measurement)
}

/// What a part of a check came to, with the windows of no calibration that it left, whether it holds or not.
pub(super) fn with_windows(
    subject: &Subject<'_>,
    windows: Vec<WindowRecord>,
    part: Result<Evidence, CheckError>,
) -> Result<Evidence, CheckError> {
    let devices = if windows.is_empty() { Vec::new() } else { vec![subject.place.record()] };
    let mut seen = Evidence { windows, devices, ..Evidence::default() };
    seen.absorb_all(part)?;
    Ok(seen)
}

/// Whether a window without retries is valid, and one with them invalid for these and for nothing else.
pub(super) fn is_invalid_for_retries_alone(validity: &Validity, retried: u64) -> bool {
    match validity {
        Validity::Valid => retried == 0,
        Validity::Invalid(InvalidReason::AllocatorRetry { retries }) => *retries > 0 && *retries == retried,
        Validity::Invalid(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use headroom_base::AllocatorKind;
    use headroom_calibration::Uncounted;

    use super::*;
    use crate::bench::{Setup, lines_of, weights_bytes};
    use crate::world::World;

    #[test]
    fn a_run_without_all_of_its_model_on_the_device_is_kept_says_so_and_is_refused() {
        let world = World::load(None).unwrap();
        let family = world.catalogue.family("sdxl").unwrap();
        let subject = Subject::usual(family, (&family.devices[0]).into(), AllocatorKind::Native);
        let bench = subject.bench(&Setup { floor_bytes: Some(0), ..Setup::default() }).unwrap();
        let (model, lines) = lines_of(&subject).remove(0);
        // So much working memory is asked for that half of the weights have no place.
        let free = bench.card.total_bytes() - bench.card.own_bytes().unwrap() - subject.place.outside_bytes();
        let working_bytes = Some(free - weights_bytes(model) / 2);
        let case = lines[0].cases.as_slice()[0];
        let request = StepRequest { model: &model.key, with: &[], case, working_bytes };
        let mut kept = Vec::new();
        let report = measure_apart(&bench, &Scope::new(0), &request, world.ground(), &mut kept).unwrap();
        let [record] = &kept[..] else { panic!("{} windows", kept.len()) };
        assert!(matches!(record.counting.reason(), Some(Uncounted::PartlyResident { .. })), "{record:?}");
        assert_eq!((&record.window.attempt_id, record.window.case), (&None, case));
        let what = || "a run".to_owned();
        let measurement = undisturbed(report, what).unwrap();
        let refused = resident(measurement, what).unwrap_err();
        assert!(matches!(refused, CheckError::Broken { claim: Claim::MeasuredModelIsResident, .. }), "{refused}");
    }

    #[test]
    fn a_run_that_completed_by_retries_is_invalid_for_these_and_for_nothing_else() {
        let retry = |retries| Validity::Invalid(InvalidReason::AllocatorRetry { retries });
        let other = Validity::Invalid(InvalidReason::Spill { bytes: 1 });
        for (validity, retried, holds) in [
            (Validity::Valid, 0, true),
            (retry(2), 2, true),
            (Validity::Valid, 2, false),
            (retry(1), 2, false),
            (retry(0), 0, false),
            (other.clone(), 2, false),
            (other, 0, false),
        ] {
            assert_eq!(is_invalid_for_retries_alone(&validity, retried), holds, "{validity:?} after {retried}");
        }
    }
}
