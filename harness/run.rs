//! Runs trials, several at once, and gathers what they saw into one report.

use std::sync::Mutex;
use std::time::SystemTime;

use headroom_reports::{Check, Outcome, Provenance, Report, Trust};
use rayon::prelude::*;

use crate::checks;
use crate::trials::{Ended, Trial};

/// Told about each trial as it ends.
pub type OnEnd<'a> = &'a (dyn Fn(&Ended, usize) + Sync);

/// Runs the trials and reports. `on_end` is told of each, with the number of trials that have ended.
pub fn run_trials(trials: &[Trial], provenance: Provenance, on_end: OnEnd<'_>) -> Report {
    let ended = Mutex::new(0_usize);
    let mut results: Vec<(usize, Ended)> = trials
        .par_iter()
        .enumerate()
        .map(|(index, trial)| {
            let result = trial.run();
            let mut count = ended.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *count += 1;
            on_end(&result, *count);
            (index, result)
        })
        .collect();
    results.sort_by_key(|(index, _)| *index);
    let report_id = provenance.report_id.clone();
    let mut report = Report::new(provenance);
    for (_, Ended { check, evidence }) in results {
        let name = check.name();
        let checks::Evidence { attempts, windows, summaries, devices, notes, .. } = evidence;
        report.attempts.extend(attempts.into_iter().map(|mut record| {
            record.report_id.clone_from(&report_id);
            record
        }));
        report.windows.extend(windows.into_iter().map(|mut record| {
            record.trial = Some(name.clone());
            record
        }));
        for device in devices {
            if !report.devices.contains(&device) {
                report.devices.push(device);
            }
        }
        report.families.extend(summaries);
        report.trials.push(Check { notes, ..check });
    }
    report
}

/// Where a report of this program, run now with these arguments, comes from.
pub fn provenance(arguments: Vec<String>) -> Provenance {
    let created = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let trust = if std::env::var_os("CI").is_some() { Trust::Ci } else { Trust::Contributed };
    Provenance {
        report_id: format!("headroom-{created}"),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: option_env!("HEADROOM_COMMIT").map(str::to_owned),
        created,
        arguments,
        trust,
        withdrawn: None,
    }
}

/// Whether nothing failed and something passed.
pub fn holds(report: &Report) -> bool {
    report.count(Outcome::Failed) == 0 && report.count(Outcome::Busy) == 0 && report.count(Outcome::Passed) > 0
}
