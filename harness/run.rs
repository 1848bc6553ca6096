//! Runs trials, several at once, and gathers what they saw into one report.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use headroom_reports::{Check, FormatVersion, Provenance, Report, STOPPED, Trust};
use rayon::prelude::*;

use crate::checks;
use crate::trials::{Ended, Trial};
use crate::variables::{says_yes, value_of};

/// Told about each trial as it ends, with all that have ended.
pub type OnEnd<'a> = &'a (dyn Fn(&Ended, &SoFar<'_>) + Sync);

/// Trials that have ended, of those that were begun.
#[derive(Debug)]
pub struct SoFar<'a> {
    trials: &'a [Trial],
    provenance: &'a Provenance,
    /// Each with its place among the trials.
    ended: Vec<(usize, Ended)>,
}

impl SoFar<'_> {
    /// How many have ended.
    pub fn count(&self) -> usize {
        self.ended.len()
    }

    /// The report as it would be if the run were stopped now, which it says: what has not ended was not run.
    pub fn report(&self) -> Report {
        self.stopped(STOPPED)
    }

    fn stopped(&self, why: &str) -> Report {
        let mut ended = self.ended.clone();
        for (index, trial) in self.trials.iter().enumerate() {
            if !self.ended.iter().any(|(known, _)| *known == index) {
                ended.push((index, trial.not_run(why)));
            }
        }
        gathered(Provenance { stopped: true, ..self.provenance.clone() }, ended)
    }
}

/// The report of a run of which no trial has ended. Whoever finds it knows that the run was stopped.
pub fn begun(trials: &[Trial], provenance: &Provenance) -> Report {
    SoFar { trials, provenance, ended: Vec::new() }.report()
}

/// The report of a run that could not begin, with the reason.
pub fn not_begun(trials: &[Trial], provenance: &Provenance, why: &str) -> Report {
    SoFar { trials, provenance, ended: Vec::new() }.stopped(why)
}

/// Runs the trials and reports. `on_end` is told of each.
///
/// Trials of simulated devices run on all cores; each attached card has a thread of its own, which runs its trials one
/// after the other and waits for no core's turn.
pub fn run_trials(trials: &[Trial], provenance: Provenance, on_end: OnEnd<'_>) -> Report {
    let so_far = Mutex::new(SoFar { trials, provenance: &provenance, ended: Vec::with_capacity(trials.len()) });
    let run = |(index, trial): (usize, &Trial)| {
        let result = trial.run();
        let mut so_far = so_far.lock().unwrap_or_else(PoisonError::into_inner);
        so_far.ended.push((index, result));
        if let Some((_, result)) = so_far.ended.last() {
            on_end(result, &so_far);
        }
    };
    let mut by_card: BTreeMap<Option<&str>, Vec<(usize, &Trial)>> = BTreeMap::new();
    for (index, trial) in trials.iter().enumerate() {
        by_card.entry(trial.card().map(|card| card.name())).or_default().push((index, trial));
    }
    let anywhere = by_card.remove(&None).unwrap_or_default();
    std::thread::scope(|scope| {
        let of_a_card = |trials: Vec<_>| trials.into_iter().for_each(run);
        let cards: Vec<_> = by_card.into_values().map(|trials| scope.spawn(move || of_a_card(trials))).collect();
        anywhere.into_par_iter().for_each(run);
        // A trial catches its own panics; what else can panic here may as well end the run.
        cards.into_iter().for_each(|card| card.join().unwrap_or_else(|panic| resume_unwind(panic)));
    });
    let ended = so_far.into_inner().unwrap_or_else(PoisonError::into_inner).ended;
    gathered(provenance, ended)
}

/// One report of what trials saw, in the order of the trials.
fn gathered(provenance: Provenance, mut ended: Vec<(usize, Ended)>) -> Report {
    ended.sort_by_key(|(index, _)| *index);
    let report_id = provenance.report_id.clone();
    let mut report = Report::new(provenance);
    for (_, Ended { check, evidence }) in ended {
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
    report.format = FormatVersion::of(&report.trials);
    report
}

/// Where a report of this program, run now with these arguments, comes from.
pub fn provenance(arguments: Vec<String>) -> Provenance {
    let created = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let trust = if says_yes(value_of("CI").as_deref()) { Trust::Ci } else { Trust::Contributed };
    Provenance {
        // Machines that begin in one second are told apart by what the system hands out at random.
        report_id: format!("headroom-{created}-{:016x}", RandomState::new().build_hasher().finish()),
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: option_env!("HEADROOM_COMMIT").map(str::to_owned),
        created,
        arguments,
        trust,
        withdrawn: None,
        stopped: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_second_with_the_same_arguments_have_reports_of_their_own() {
        let ids: std::collections::BTreeSet<String> = (0..50).map(|_| provenance(Vec::new()).report_id).collect();
        assert_eq!(ids.len(), 50);
        assert!(ids.iter().all(|id| id.starts_with("headroom-2")), "{ids:?}");
    }
}
