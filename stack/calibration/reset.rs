//! Forgetting what one model measured, and saying what still applies afterwards.

use std::collections::{BTreeMap, BTreeSet};

use headroom_base::plan::LEAST_SIZES;
use headroom_base::{AttemptId, DeviceClass, LineKey, Window, mutant};
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
    /// The lines it had measured, each with the models whose windows still count there; where it had measured nothing,
    /// every line that anybody has.
    pub lines: Vec<RemainingLine>,
}

/// What still applies on a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemainingLine {
    /// The line.
    pub line: LineKey,
    /// Whose windows count there, each with their number, by name.
    pub measured_by: Vec<MeasuredBy>,
    /// Distinct sizes that those windows are of. Below [`LEAST_SIZES`] they make no line, and the built-in figures
    /// apply in spite of them.
    pub sizes: usize,
}

impl RemainingLine {
    /// Whether the line is still priced by measurements.
    pub const fn is_calibrated(&self) -> bool {
        self.sizes >= LEAST_SIZES
    }
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
    /// What a person should know, in one sentence: what went, whose measurements still apply, and whose are kept
    /// but are too few to apply.
    pub fn summary(&self) -> String {
        let apply = self.models_where(RemainingLine::is_calibrated);
        let too_few = self.models_where(|line| !line.is_calibrated());
        let kept = if too_few.is_empty() {
            String::new()
        } else {
            format!("; those of {too_few} are kept and too few to apply")
        };
        if self.removed_windows == 0 {
            let by_what = match apply.as_str() {
                "" => "built-in figures apply".to_owned(),
                apply => format!("measurements of {apply} still apply on their lines"),
            };
            return format!("{} had measured nothing; {by_what}{kept}.", self.model);
        }
        let removed = format!("{} windows of {} were removed", self.removed_windows, self.model);
        let back = match (self.lines.iter().all(RemainingLine::is_calibrated), apply.is_empty()) {
            (_, true) => "; built-in figures apply again",
            (false, false) => "; on its other lines built-in figures apply again",
            (true, false) => "",
        };
        let still = if apply.is_empty() { String::new() } else { format!("; measurements of {apply} still apply") };
        format!("{removed}{still}{back}{kept}.")
    }

    /// The models whose windows count on such lines, by name.
    fn models_where(&self, keep: impl Fn(&RemainingLine) -> bool) -> String {
        let lines = self.lines.iter().filter(|line| keep(line));
        let models: BTreeSet<&str> = lines.flat_map(|line| &line.measured_by).map(|by| by.model.as_str()).collect();
        models.into_iter().collect::<Vec<_>>().join(", ")
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
    let mut own_attempts = record.attempts.iter().filter(own);
    let running = mutant!(
        "reset_while_running",
        "a calibration goes on into a record that no longer knows its attempt, and all its runs are lost",
        right: own_attempts.find(|attempt| attempt.state == AttemptState::Running),
        wrong: own_attempts.find(|_| false),
    );
    if let Some(running) = running {
        return Err(ResetError::Running { model: model.to_owned(), attempt: running.id.clone() });
    }
    let lines = lines_of(record.windows.iter().filter(|window| window.model == model));
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
    // What a model prices on is not known here: of one that measured nothing, it may be any line.
    let lines = if removed_windows == 0 { lines_of(&record.windows) } else { lines };
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

/// The lines that windows are of, each once.
fn lines_of<'w>(windows: impl IntoIterator<Item = &'w Window>) -> Vec<LineKey> {
    let lines: BTreeSet<&LineKey> = windows.into_iter().map(|window| &window.line).collect();
    lines.into_iter().cloned().collect()
}

fn remaining(record: &Record, lines: Vec<LineKey>, context: &Context) -> Vec<RemainingLine> {
    let verdicts = count(&record.windows, &record.attempts, context);
    let counted: Vec<&Window> = record
        .windows
        .iter()
        .zip(&verdicts)
        .filter(|(_, verdict)| verdict.counts())
        .map(|(window, _)| window)
        .collect();
    let remaining = |line: LineKey| {
        let (mut models, mut sizes): (BTreeMap<&str, usize>, BTreeSet<u64>) = Default::default();
        for window in counted.iter().filter(|window| window.line == line) {
            *models.entry(&window.model).or_default() += 1;
            sizes.insert(window.cost_units);
        }
        let by = |(model, windows): (&str, usize)| MeasuredBy { model: model.to_owned(), windows };
        RemainingLine { measured_by: models.into_iter().map(by).collect(), sizes: sizes.len(), line }
    };
    lines.into_iter().map(remaining).collect()
}
