//! The trials of merged reports: each once, and none that says two things.

use std::collections::{BTreeMap, BTreeSet};

use crate::merge::{MergeError, as_text, sort_by_text};
use crate::report::{Check, Outcome, Report};

/// What makes a trial the same one in two reports: its report, its name, and how often the report named it before.
type TrialKey = (String, String, usize);

/// A trial as one copy of its report has it.
struct Copy {
    trial: Check,
    /// The copy is of a run that was stopped, and may have more to say elsewhere.
    stopped: bool,
}

impl Copy {
    /// Whether the trial had not ended when this copy was written. Older programs called such a trial ignored.
    fn gives_way(&self) -> bool {
        self.stopped && matches!(self.trial.outcome, Outcome::NotRun | Outcome::Ignored)
    }
}

/// Merges trials.
///
/// # Errors
/// When two copies of one report say different things about a trial that had ended in both.
pub(crate) fn merged_trials(reports: &[Report]) -> Result<Vec<Check>, MergeError> {
    let mut merged: BTreeMap<TrialKey, Copy> = BTreeMap::new();
    // Reports that were merged by an older program do not say where their trials come from.
    let mut of_unknown_reports: Vec<Check> = Vec::new();
    for report in reports {
        let mut named: BTreeMap<(String, String), usize> = BTreeMap::new();
        for trial in &report.trials {
            let mut trial = trial.clone();
            let Some(report_id) = owner(report, &trial) else {
                of_unknown_reports.push(trial);
                continue;
            };
            trial.report_id = Some(report_id.clone());
            let before = named.entry((report_id.clone(), trial.name())).or_default();
            *before += 1;
            let key = (report_id, trial.name(), *before);
            let stopped = report.provenance.iter().any(|from| from.report_id == key.0 && from.stopped);
            add(&mut merged, key, Copy { trial, stopped })?;
        }
    }
    let mut trials: Vec<Check> = merged.into_values().map(|copy| copy.trial).collect();
    let of_no_report = |trial: &Check| as_text(&Check { report_id: None, ..trial.clone() });
    let known: BTreeSet<String> = trials.iter().map(of_no_report).collect();
    trials.extend(of_unknown_reports.into_iter().filter(|trial| !known.contains(&as_text(trial))));
    sort_by_text(&mut trials);
    Ok(trials)
}

fn owner(report: &Report, trial: &Check) -> Option<String> {
    match (&trial.report_id, &report.provenance[..]) {
        (Some(report_id), _) => Some(report_id.clone()),
        (None, [only]) => Some(only.report_id.clone()),
        (None, _) => None,
    }
}

fn add(merged: &mut BTreeMap<TrialKey, Copy>, key: TrialKey, copy: Copy) -> Result<(), MergeError> {
    let holds = match merged.get(&key) {
        None => false,
        Some(known) => match (known.gives_way(), copy.gives_way()) {
            (true, false) => false,
            (false, true) => true,
            (true, true) => as_text(&known.trial) <= as_text(&copy.trial),
            (false, false) if known.trial == copy.trial => true,
            (false, false) => {
                let (report_id, name, _) = key;
                return Err(MergeError::SameIdOtherContent { report_id, what: format!("trial {name}") });
            }
        },
    };
    if !holds {
        merged.insert(key, copy);
    }
    Ok(())
}
