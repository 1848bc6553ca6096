//! Judges every window where it was measured: on its own kind of card, under its own software.

use std::collections::BTreeMap;

use headroom_base::{DeviceClass, HardEnvironment, Window};
use headroom_calibration::{Attempt, Context, Counted, EstimatorVersions, Uncounted, count};

use crate::report::Report;

/// Whether each window counts in its own place, in the order given.
///
/// A device's fits judge windows against the place where they are to be used; a report has windows of
/// many places, and each is asked only whether it would count in its own.
pub fn verdicts(windows: &[Window], attempts: &[Attempt], versions: &EstimatorVersions) -> Vec<Counted> {
    let mut places: BTreeMap<(&DeviceClass, &HardEnvironment), Vec<usize>> = BTreeMap::new();
    for (index, window) in windows.iter().enumerate() {
        places.entry((&window.device, &window.environment.hard)).or_default().push(index);
    }
    let mut verdicts = vec![Counted::Excluded(Uncounted::NoAttempt); windows.len()];
    for ((device, hard), indices) in places {
        let context = Context { device: device.clone(), hard: hard.clone(), versions: versions.clone() };
        let here: Vec<Window> = indices.iter().map(|index| windows[*index].clone()).collect();
        for (index, verdict) in indices.into_iter().zip(count(&here, attempts, &context)) {
            verdicts[index] = verdict;
        }
    }
    verdicts
}

/// Writes the verdict on each window of a report beside it.
pub fn judge(report: &mut Report, versions: &EstimatorVersions) {
    let windows: Vec<Window> = report.windows.iter().map(|record| record.window.clone()).collect();
    let attempts: Vec<Attempt> = report.attempts.iter().map(|record| record.attempt.clone()).collect();
    for (record, verdict) in report.windows.iter_mut().zip(verdicts(&windows, &attempts, versions)) {
        record.judge(verdict);
    }
}
