//! Runs trials, several at once, and gathers what they saw into one report.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use headroom_reports::{Check, Outcome, Provenance, Report, Trust};
use rayon::prelude::*;

use crate::checks;
use crate::trials::{Ended, Trial};

/// Told about each trial as it ends.
pub type OnEnd<'a> = &'a (dyn Fn(&Ended, usize) + Sync);

/// Runs the trials and reports. `on_end` is told of each, with the number of trials that have ended.
///
/// Trials of simulated devices run on all cores; each attached card has a thread of its own, which runs its trials one
/// after the other and waits for no core's turn.
pub fn run_trials(trials: &[Trial], provenance: Provenance, on_end: OnEnd<'_>) -> Report {
    let ended = Mutex::new(0_usize);
    let run = |(index, trial): (usize, &Trial)| {
        let result = trial.run();
        let mut count = ended.lock().unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        on_end(&result, *count);
        (index, result)
    };
    let mut by_card: BTreeMap<Option<&str>, Vec<(usize, &Trial)>> = BTreeMap::new();
    for (index, trial) in trials.iter().enumerate() {
        by_card.entry(trial.card().map(|card| card.name())).or_default().push((index, trial));
    }
    let anywhere = by_card.remove(&None).unwrap_or_default();
    let mut results: Vec<(usize, Ended)> = std::thread::scope(|scope| {
        let of_a_card = |trials: Vec<_>| trials.into_iter().map(run).collect::<Vec<_>>();
        let cards: Vec<_> = by_card.into_values().map(|trials| scope.spawn(move || of_a_card(trials))).collect();
        let mut results: Vec<_> = anywhere.into_par_iter().map(run).collect();
        // A trial catches its own panics; what else can panic here may as well end the run.
        results.extend(cards.into_iter().flat_map(|card| card.join().unwrap_or_else(|panic| resume_unwind(panic))));
        results
    });
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
