//! The report's file format: which version it is, who can read it, and what to say when that fails.

use std::path::{Path, PathBuf};

use headroom_base::mutant;
use serde::{Deserialize, Serialize};

use crate::report::{Check, Outcome, Report};

/// The version this program writes and the newest it reads.
///
/// Version 2 added whether a run was stopped, and in merged reports which report a trial comes from; version 3 trials that
/// were not run because of that.
pub const FORMAT_VERSION: u32 = 3;

/// Two numbers at the head of a report. A change that older programs survive raises `version` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormatVersion {
    /// The version of the program that wrote it.
    pub version: u32,
    /// The oldest version that can still read it.
    pub readable_by: u32,
}

impl FormatVersion {
    /// What this program writes.
    pub const CURRENT: Self = Self { version: FORMAT_VERSION, readable_by: 1 };

    /// What this program writes of trials that were not run, an outcome which older programs do not know.
    pub const WITH_NOT_RUN: Self = Self { version: FORMAT_VERSION, readable_by: 3 };

    /// What this program writes of these trials.
    pub fn of(trials: &[Check]) -> Self {
        let any = trials.iter().any(|trial| trial.outcome == Outcome::NotRun);
        if any { Self::WITH_NOT_RUN } else { Self::CURRENT }
    }

    /// Whether this program can read it.
    pub const fn is_readable(self) -> bool {
        self.readable_by <= FORMAT_VERSION
    }
}

/// Why a file is not a report that can be used. It was left as it is.
#[derive(Debug, thiserror::Error)]
pub enum ReadReportError {
    /// The file cannot be opened or read.
    #[error("cannot read the report {}: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file ends in the middle.
    #[error("the report {} ends after line {line} in the middle of a value: copy it again from where it was written", .path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The last line.
        line: usize,
    },
    /// It is JSON no report looks like, or no JSON.
    #[error("{} is not a report: {message} (field `{field}`, line {line}, column {column})", .path.display())]
    NotAReport {
        /// The file.
        path: PathBuf,
        /// The path of the field that does not fit, `.` for the whole.
        field: String,
        /// What does not fit.
        message: String,
        /// Where.
        line: usize,
        /// Where.
        column: usize,
    },
    /// A newer program wrote it.
    #[error("the report {} has format {version}, readable from {readable_by} on; this program reads up to {FORMAT_VERSION}: use a newer headroom", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// The oldest version that can read it.
        readable_by: u32,
    },
}

/// Reads one report.
///
/// # Errors
/// When the file cannot be read, is cut off, is something else, or was written by a newer program.
pub fn read_report(path: &Path) -> Result<Report, ReadReportError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ReadReportError::Unreadable { path: path.to_owned(), source })?;
    parse_report(path, &text)
}

/// Reads a report from its text; `path` is only named in errors.
///
/// # Errors
/// When the text is cut off, is something else, or was written by a newer program.
pub fn parse_report(path: &Path, text: &str) -> Result<Report, ReadReportError> {
    let format: FormatVersion = parse(path, text)?;
    let readable = mutant!(
        "newer_report_read",
        "a report of a newer format is read as if its fields meant what they mean today",
        right: format.is_readable(),
        wrong: true,
    );
    if !readable {
        let FormatVersion { version, readable_by } = format;
        return Err(ReadReportError::Newer { path: path.to_owned(), version, readable_by });
    }
    parse(path, text)
}

fn parse<'de, T: Deserialize<'de>>(path: &Path, text: &'de str) -> Result<T, ReadReportError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let field = error.path().to_string();
        as_read_error(path, field, &error.into_inner())
    })?;
    deserializer.end().map_err(|error| as_read_error(path, ".".into(), &error))?;
    Ok(value)
}

fn as_read_error(path: &Path, field: String, error: &serde_json::Error) -> ReadReportError {
    let (path, line, column) = (path.to_owned(), error.line(), error.column());
    if error.is_eof() {
        return ReadReportError::Truncated { path, line };
    }
    let full = error.to_string();
    let message = full.split(" at line ").next().unwrap_or(&full).to_owned();
    ReadReportError::NotAReport { path, field, message, line, column }
}
