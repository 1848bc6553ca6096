//! A store that a command prices from and does not change: what it knows of a device, and what is said where that is
//! nothing.

use std::path::{Path, PathBuf};

use headroom_base::{LineKey, SoftEnvironment};
use headroom_calibration::{Context, Facts, Knowledge, Platform, State, Store, state};

use super::error::CliError;

/// What a store knows of a device under some software.
pub(super) struct Stored {
    folder: PathBuf,
    /// What follows from it.
    pub(super) knowledge: Knowledge,
}

impl Stored {
    /// Reads what a store keeps of the context's device.
    ///
    /// # Errors
    /// For a folder that is not there, and a file that cannot be used. It stays as it is.
    pub(super) fn read(folder: &Path, context: Context, soft: SoftEnvironment) -> Result<Self, CliError> {
        let shown = folder.display();
        if !folder.is_dir() {
            return Err(CliError::Value(format!(
                "there is no folder `{shown}` of measurements: `headroom calibrate --store {shown}` makes one; leave --store \
                 out to go by what is shipped"
            )));
        }
        let record = Store::open(folder).read(&context.device)?;
        Ok(Self { folder: folder.to_owned(), knowledge: Knowledge::new(record, context, soft) })
    }

    /// What is said of those lines, each with the model that it is asked for, that nothing in the store prices.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub(super) fn notes<'a>(
        &self,
        lines: impl IntoIterator<Item = (&'a str, &'a LineKey)>,
    ) -> Result<Vec<String>, CliError> {
        let mut unpriced: Vec<(State, Vec<String>)> = Vec::new();
        for (model, line) in lines {
            if self.knowledge.fits().get(line).is_some() {
                continue;
            }
            let platform = Platform { supported: true, generation_devices: 1, method_verified: true };
            let found = state(&Facts::gather(Some(&self.knowledge), line, model, platform)).state;
            match unpriced.iter_mut().find(|(known, _)| *known == found) {
                Some((_, lines)) if lines.contains(&line.to_string()) => {}
                Some((_, lines)) => lines.push(line.to_string()),
                None => unpriced.push((found, vec![line.to_string()])),
            }
        }
        let record = self.knowledge.record();
        if !unpriced.is_empty() && record.attempts.is_empty() && record.windows.is_empty() {
            return Ok(vec![self.holds_others()?]);
        }
        Ok(unpriced.iter().map(|(found, lines)| self.note(found, &lines.join(", "))).collect())
    }

    /// The store has no measurement of the device.
    fn holds_others(&self) -> Result<String, CliError> {
        let mut devices: Vec<_> = Store::open(&self.folder).devices()?.iter().map(ToString::to_string).collect();
        devices.sort_unstable();
        let held = if devices.is_empty() { "nothing at all".to_owned() } else { devices.join(", ") };
        let device = &self.knowledge.context().device;
        Ok(format!("the store {} prices nothing here: it has no {device}, it holds {held}", self.folder.display()))
    }

    fn note(&self, found: &State, lines: &str) -> String {
        let why = match found {
            // Its process may have been killed.
            State::Running { finished_runs, planned_runs } => {
                format!("its calibration is unfinished: {finished_runs} of {planned_runs} runs")
            }
            State::NeverCalibrated => format!("never calibrated, it holds {}", self.lines_held()),
            other => other.to_string(),
        };
        format!("the store {} prices nothing of {lines}: {why}", self.folder.display())
    }

    /// The lines that were measured, counted or not.
    fn lines_held(&self) -> String {
        let mut lines: Vec<_> = self.knowledge.record().windows.iter().map(|window| window.line.to_string()).collect();
        lines.sort_unstable();
        lines.dedup();
        if lines.is_empty() { "no window".to_owned() } else { lines.join(", ") }
    }
}
