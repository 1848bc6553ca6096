//! The same under disturbances that the fit is not told of: a simulation must not merely agree with itself.

use headroom_base::{Bytes, RunKind, Validity};
use headroom_calibration::Record;

use super::{CheckError, Evidence, ensure, place};
use crate::bench::{Ground, MeasuredModel, Setup, Subject, calibrate, describe, lines_of};
use crate::checks::calibration::{is_fragmented, price_after};

/// The seeds that are tried.
const SEEDS: [u64; 3] = [11, 23, 47];

/// Calibrates under seeded disturbances: steps in workspaces and driver jitter are in the demand and must be
/// covered; another process's growth is not ours and must not be billed.
///
/// # Errors
/// The first thing that does not hold.
pub fn perturbed(subject: &Subject<'_>, ground: Ground<'_>) -> Result<Evidence, CheckError> {
    let mut evidence = Evidence::default();
    let (mut covered, mut flagged) = (0, 0);
    for seed in SEEDS {
        for (model, lines) in lines_of(subject) {
            let bench = subject.bench(&Setup { perturbation_seed: Some(seed), ..Setup::default() })?;
            let measured = MeasuredModel { model, lines: &lines };
            let record = Record::empty(subject.class());
            let calibration = calibrate(&bench, measured, record, ground, |_, _| {})?;
            for (window, counted) in calibration.windows.iter().zip(&calibration.verdicts) {
                let what = || format!("{} seed {seed}: {}", place(subject), describe(window));
                ensure(window.measurement.validity == Validity::Valid, what)?;
                let process = window.measurement.deltas.driver_bytes.known().unwrap_or(0);
                let own = window.measurement.deltas.reserved_peak_bytes;
                ensure(process >= own, || format!("{}: the driver saw less than the allocator", what()))?;
                evidence.seen += 1;
                if let Some(reason) = counted.reason() {
                    let may_be = window.kind == RunKind::Warmup || is_fragmented(counted);
                    ensure(may_be, || format!("{} does not count: {reason}", what()))?;
                    flagged += usize::from(is_fragmented(counted));
                    continue;
                }
                // A disturbance may look like fragmentation; a line that loses a size to it falls back.
                let Some(_) = calibration.knowledge.fits().get(&window.line) else { continue };
                let (estimate, _) = price_after(subject, model, &window.case, &calibration, ground)?;
                ensure(window.measurement.demand_bytes <= estimate.reservation_bytes, || {
                    format!("{} is under-reserved: {} reserved", what(), Bytes(estimate.reservation_bytes))
                })?;
                covered += 1;
            }
        }
    }
    ensure(covered + flagged > 0, || format!("{}: no line kept a fit under the disturbances", place(subject)))?;
    if covered == 0 {
        let lost = "every line lost sizes to it, and none kept a fit";
        let note = format!("{}: {flagged} disturbed windows look fragmented: {lost}", place(subject));
        evidence.notes.push(note);
    }
    Ok(evidence)
}
