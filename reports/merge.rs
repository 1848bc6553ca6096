//! Several reports as one, the same one in whatever order they come.

use std::collections::BTreeMap;

use headroom_base::{AttemptId, mutant};
use serde::Serialize;

use crate::format::FormatVersion;
use crate::merged_trials::merged_trials;
use crate::report::{AttemptRecord, MutantGrade, MutantReport, Provenance, Report, WindowRecord};

/// Why reports cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// Nothing to merge.
    #[error("there is no report to merge: name at least one")]
    Nothing,
    /// Two reports have one id and say different things.
    #[error(
        "two different reports are called `{report_id}` ({what} differs): one of them was changed or given another's id"
    )]
    SameIdOtherContent {
        /// The id.
        report_id: String,
        /// What differs.
        what: String,
    },
}

/// Merges reports. A report that is there twice, alone or inside a merged one, counts once; one that is
/// withdrawn in any copy is withdrawn, and one that was written while its run went on gives way to a later one. Attempts
/// are named `report/attempt`, so that two machines' attempts of
/// one name stay two.
///
/// # Errors
/// When there is none, or two different ones have the same id.
pub fn merge(reports: &[Report]) -> Result<Report, MergeError> {
    if reports.is_empty() {
        return Err(MergeError::Nothing);
    }
    let trials = merged_trials(reports)?;
    let mut merged = Report {
        format: FormatVersion::of(&trials),
        provenance: merged_provenance(reports)?,
        devices: reports.iter().flat_map(|report| report.devices.clone()).collect(),
        attempts: merged_attempts(reports)?,
        windows: merged_windows(reports)?,
        trials,
        families: reports.iter().flat_map(|report| report.families.clone()).collect(),
        mutants: merged_mutants(reports),
    };
    merged.devices.sort();
    merged.devices.dedup();
    sort_by_text(&mut merged.families);
    Ok(merged)
}

fn merged_provenance(reports: &[Report]) -> Result<Vec<Provenance>, MergeError> {
    let mut merged: BTreeMap<&str, Provenance> = BTreeMap::new();
    for from in reports.iter().flat_map(|report| &report.provenance) {
        let Some(known) = merged.get_mut(from.report_id.as_str()) else {
            merged.insert(&from.report_id, from.clone());
            continue;
        };
        let withdrawn = mutant!(
            "withdrawal_forgotten",
            "figures that were found to be wrong come back with an old copy of their report",
            right: known.withdrawn.clone().max(from.withdrawn.clone()),
            wrong: None,
        );
        let stopped = known.stopped && from.stopped;
        known.withdrawn.clone_from(&withdrawn);
        known.stopped = stopped;
        if *known != (Provenance { withdrawn, stopped, ..from.clone() }) {
            let what = "where it comes from".to_owned();
            return Err(MergeError::SameIdOtherContent { report_id: from.report_id.clone(), what });
        }
    }
    Ok(merged.into_values().collect())
}

/// The name of an attempt wherever its report is merged into.
fn full_name(id: &AttemptId, report_id: &str) -> AttemptId {
    let is_full = id.0.strip_prefix(report_id).is_some_and(|rest| rest.starts_with('/'));
    mutant!(
        "attempts_of_one_name_pooled",
        "two machines' attempts are judged as one, and the clean one makes the other look fragmented",
        right: if is_full { id.clone() } else { AttemptId(format!("{report_id}/{id}")) },
        wrong: id.clone(),
    )
}

fn merged_attempts(reports: &[Report]) -> Result<Vec<AttemptRecord>, MergeError> {
    let mut merged: BTreeMap<AttemptId, AttemptRecord> = BTreeMap::new();
    for record in reports.iter().flat_map(|report| &report.attempts) {
        let mut record = record.clone();
        record.attempt.id = full_name(&record.attempt.id, &record.report_id);
        match merged.get(&record.attempt.id) {
            Some(known) if *known != record => {
                let what = format!("attempt {}", record.attempt.id);
                return Err(MergeError::SameIdOtherContent { report_id: record.report_id, what });
            }
            _ => drop(merged.insert(record.attempt.id.clone(), record)),
        }
    }
    Ok(merged.into_values().collect())
}

/// What makes a window the same one in two reports: its attempt, run and try. A window of no attempt is
/// known by its report, by all it says, and by how often the report said that before.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum WindowKey {
    OfAttempt(AttemptId, u32, u32),
    OfReport(Option<String>, String, usize),
}

fn merged_windows(reports: &[Report]) -> Result<Vec<WindowRecord>, MergeError> {
    let mut merged: BTreeMap<WindowKey, WindowRecord> = BTreeMap::new();
    for report in reports {
        let mut names = WindowNames::of(report);
        for record in &report.windows {
            let mut record = record.clone();
            let key = names.key(&mut record);
            match merged.get(&key) {
                Some(known) if known.window != record.window => {
                    let what = format!("run {} of {}", record.window.run, record.window.model);
                    return Err(MergeError::SameIdOtherContent { report_id: names.report_of(&record), what });
                }
                Some(known) if as_text(known) <= as_text(&record) => {}
                _ => drop(merged.insert(key, record)),
            }
        }
    }
    Ok(merged.into_values().collect())
}

/// What windows of one report are called in the merged one.
struct WindowNames<'a> {
    /// Attempt → its report, by the attempt's name here and by its full one.
    owners: BTreeMap<AttemptId, &'a str>,
    /// The report itself; none where it is merged already, because then its windows say it.
    report_id: Option<&'a str>,
    seen: BTreeMap<(Option<String>, String), usize>,
}

impl<'a> WindowNames<'a> {
    fn of(report: &'a Report) -> Self {
        let owners = report.attempts.iter().flat_map(|record| {
            let (id, owner) = (&record.attempt.id, record.report_id.as_str());
            [(id.clone(), owner), (full_name(id, owner), owner)]
        });
        let report_id = match &report.provenance[..] {
            [only] => Some(only.report_id.as_str()),
            _ => None,
        };
        Self { owners: owners.collect(), report_id, seen: BTreeMap::new() }
    }

    /// Gives a window its full name and says what makes it the same one elsewhere.
    fn key(&mut self, record: &mut WindowRecord) -> WindowKey {
        let owner = record.window.attempt_id.as_ref().and_then(|id| self.owners.get(id).copied());
        if let (Some(id), Some(owner)) = (&mut record.window.attempt_id, owner) {
            *id = full_name(id, owner);
            return WindowKey::OfAttempt(id.clone(), record.window.run, record.window.retry);
        }
        if record.report_id.is_none() {
            record.report_id = self.report_id.map(str::to_owned);
        }
        let name = (record.report_id.clone(), as_text(&record.window));
        let before = self.seen.entry(name.clone()).or_default();
        *before += 1;
        WindowKey::OfReport(name.0, name.1, *before)
    }

    fn report_of(&self, record: &WindowRecord) -> String {
        let owner = record.window.attempt_id.as_ref().and_then(|id| self.owners.get(id));
        owner.map_or_else(String::new, ToString::to_string)
    }
}

/// A mutant graded in several reports is graded once: seen where any check saw it.
fn merged_mutants(reports: &[Report]) -> Option<MutantReport> {
    let mut merged: BTreeMap<&str, MutantGrade> = BTreeMap::new();
    for grade in reports.iter().filter_map(|report| report.mutants.as_ref()).flat_map(|mutants| &mutants.grades) {
        let known = merged.entry(&grade.name).or_insert_with(|| grade.clone());
        // Reports of two commits may describe one decision in two ways.
        known.harm = known.harm.clone().max(grade.harm.clone());
        known.place = known.place.clone().max(grade.place.clone());
        known.milliseconds = known.milliseconds.max(grade.milliseconds);
        let lists = [
            (&mut known.claims, &grade.claims),
            (&mut known.killed_by, &grade.killed_by),
            (&mut known.failed_otherwise, &grade.failed_otherwise),
            (&mut known.reached_by, &grade.reached_by),
        ];
        for (list, more) in lists {
            list.extend_from_slice(more);
            list.sort();
            list.dedup();
        }
    }
    let any = reports.iter().any(|report| report.mutants.is_some());
    any.then(|| MutantReport { grades: merged.into_values().collect() })
}

/// Orders values that have no order of their own by their text, and drops repetitions.
pub(crate) fn sort_by_text<T: Serialize>(values: &mut Vec<T>) {
    values.sort_by_cached_key(as_text);
    values.dedup_by_key(|value| as_text(value));
}

pub(crate) fn as_text<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
