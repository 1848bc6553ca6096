//! The same under disturbances that the fit is not told of: a simulation must not merely agree with itself.

use headroom_base::{Bytes, RunKind, Validity};
use headroom_calibration::Record;

use super::{CheckError, Evidence, ensure, place};
use crate::bench::{Ground, MeasuredModel, Setup, Subject, calibrate, describe, lines_of};
use crate::checks::calibration::{price_after, summary_of};

/// The seeds that are tried.
const SEEDS: [u64; 3] = [11, 23, 47];

/// Calibrates under seeded disturbances: steps in workspaces and driver jitter are in the demand and must be
/// covered; another process's growth is not ours and must not be billed.
///
/// # Errors
/// The first thing that does not hold.
pub fn perturbed(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let mut evidence = Evidence::default();
    for seed in SEEDS {
        for (model, lines) in lines_of(subject) {
            let bench = subject.bench(&Setup { perturbation_seed: Some(seed), ..Setup::default() })?;
            let measured = MeasuredModel { model, lines: &lines };
            let calibration = calibrate(&bench, measured, Record::empty(subject.class()), ground, |_, _| {})?;
            for (window, counted) in calibration.windows.iter().zip(&calibration.verdicts) {
                let what = || format!("{} seed {seed}: {}", place(subject), describe(window));
                ensure(window.measurement.validity == Validity::Valid, what)?;
                let process = window.measurement.deltas.driver_bytes.known().unwrap_or(0);
                let own = window.measurement.deltas.reserved_peak_bytes;
                ensure(process >= own, || format!("{}: the driver saw less than the allocator", what()))?;
                evidence.seen += 1;
                if !counted.counts() {
                    ensure(window.kind == RunKind::Warmup || is_fragmented(counted), what)?;
                    continue;
                }
                let (estimate, _) = price_after(subject, model, &window.case, &calibration, ground)?;
                ensure(window.measurement.demand_bytes <= estimate.reservation_bytes, || {
                    format!("{} is under-reserved by {}", what(), Bytes(estimate.reservation_bytes))
                })?;
            }
            let summary = summary_of(subject, &calibration, ground);
            evidence.notes.extend(summary.fits.is_empty().then(|| format!("{} seed {seed}: no fit", place(subject))));
        }
    }
    Ok(evidence)
}

/// Disturbances may look like fragmentation, in which case the built-in holds.
fn is_fragmented(counted: &headroom_calibration::Counted) -> bool {
    matches!(counted.reason(), Some(headroom_calibration::Uncounted::Fragmented(_)))
}
