//! Forgetting what one model measured, and saying what still applies afterwards.

use std::collections::BTreeMap;

use headroom_base::{AttemptId, DeviceClass, LineKey, mutant};
use serde::{Deserialize, Serialize};

use crate::attempt::AttemptState;
use crate::counting::{Context, count};
use crate::store::{Record, Store, StoreError};

/// What a reset did and what it left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetAnswer {
    /// The model.
    pub model: String,
    /// Windows that were removed.
    pub removed_windows: usize,
    /// The lines it had measured, each with the models whose windows still apply there; the line is back to
    /// the built-in figures where there are none.
    pub lines: Vec<RemainingLine>,
}

/// What still applies on a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemainingLine {
    /// The line.
    pub line: LineKey,
    /// Whose windows count there, each with their number, by name.
    pub measured_by: Vec<MeasuredBy>,
}

/// A model and how many of its windows count on a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MeasuredBy {
    /// The model's key.
    pub model: String,
    /// Its counted windows.
    pub windows: usize,
}

/// Why a model was not reset.
#[derive(Debug, thiserror::Error)]
pub enum ResetError {
    /// It is being measured.
    #[error("{model} is being calibrated (attempt {attempt}): stop that first")]
    Running {
        /// The model.
        model: String,
        /// Its attempt.
        attempt: AttemptId,
    },
    /// The record was not read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ResetAnswer {
    /// What a person should know, in one sentence.
    pub fn summary(&self) -> String {
        let mut others: Vec<&str> =
            self.lines.iter().flat_map(|line| &line.measured_by).map(|by| by.model.as_str()).collect();
        others.sort_unstable();
        others.dedup();
        let removed = format!("{} windows of {} were removed", self.removed_windows, self.model);
        match others[..] {
            [] => format!("{removed}; built-in figures apply again."),
            _ => format!("{removed}; measurements of {} still apply.", others.join(", ")),
        }
    }
}

/// Removes a model's windows and attempts from a record, on every line, and nothing of any other model.
///
/// What the driver retains is a figure of the card and stays.
///
/// # Errors
/// While the model is being measured: nothing is removed then.
pub fn reset(record: &mut Record, model: &str, context: &Context) -> Result<ResetAnswer, ResetError> {
    let own = |attempt: &&crate::attempt::Attempt| attempt.model == model;
    if let Some(running) = record.attempts.iter().filter(own).find(|attempt| attempt.state == AttemptState::Running) {
        return Err(ResetError::Running { model: model.to_owned(), attempt: running.id.clone() });
    }
    let mut lines: Vec<LineKey> =
        record.windows.iter().filter(|window| window.model == model).map(|window| window.line.clone()).collect();
    lines.sort();
    lines.dedup();
    let before = record.windows.len();
    record.windows.retain(|window| {
        let own = mutant!(
            "reset_removes_other_models",
            "one model's reset throws away what another one measured on the same line",
            right: window.model == model,
            wrong: lines.contains(&window.line),
        );
        let removed = mutant!(
            "reset_removes_too_little",
            "a model that was reset is still priced by its old windows on another line",
            right: own,
            wrong: own && lines.first() == Some(&window.line),
        );
        !removed
    });
    record.attempts.retain(|attempt| attempt.model != model);
    let removed_windows = before - record.windows.len();
    let lines = remaining(record, lines, context);
    Ok(ResetAnswer { model: model.to_owned(), removed_windows, lines })
}

/// Resets a model in the record of one device class; other classes' records are not touched.
///
/// # Errors
/// As [`Store::update`], and [`ResetError::Running`] while the model is being measured: nothing is written then.
pub fn reset_stored(
    store: &Store,
    device: &DeviceClass,
    model: &str,
    context: &Context,
) -> Result<ResetAnswer, ResetError> {
    let others: Vec<DeviceClass> = mutant!(
        "reset_removes_other_devices",
        "a reset on this card throws away what the model measured on every other one",
        right: Vec::new(),
        wrong: store.devices()?,
    );
    for other in others.iter().filter(|other| *other != device) {
        store.update(other, |record| reset(record, model, context))??;
    }
    store.update(device, |record| reset(record, model, context))?
}

fn remaining(record: &Record, lines: Vec<LineKey>, context: &Context) -> Vec<RemainingLine> {
    let mut counted: BTreeMap<&LineKey, BTreeMap<&str, usize>> = BTreeMap::new();
    let verdicts = count(&record.windows, &record.attempts, context);
    for (window, _) in record.windows.iter().zip(&verdicts).filter(|(_, verdict)| verdict.counts()) {
        *counted.entry(&window.line).or_default().entry(&window.model).or_default() += 1;
    }
    let measured_by = |line: &LineKey| {
        let models = counted.get(line).into_iter().flatten();
        models.map(|(model, windows)| MeasuredBy { model: (*model).to_owned(), windows: *windows }).collect()
    };
    lines.into_iter().map(|line| RemainingLine { measured_by: measured_by(&line), line }).collect()
}
