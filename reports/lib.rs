//! What leaves the program and what comes in from elsewhere: reports, recordings, published figures, snapshots.
//!
//! Everything here is a pure function over values, except [`output::OutputFolder`], the one owner of
//! a folder that is written to, and the `read` functions that open one named file.

pub mod family_summary;
pub mod format;
mod free_text;
pub mod html;
pub mod import_public;
pub mod import_windows;
pub mod junit;
pub mod merge;
mod merged_trials;
pub mod oom_text;
pub mod output;
pub mod recordings;
pub mod redact;
pub mod report;
pub mod ship;
pub mod snapshot;
pub mod summary;
pub mod verdicts;

pub use family_summary::{Coverage, EstimateRecord, FamilySummary, FitRecord, Tally};
pub use format::{FORMAT_VERSION, FormatVersion, ReadReportError, read_report};
pub use output::{OutputError, OutputFolder, folder_of};
pub use redact::Redaction;
pub use report::{
    AttemptRecord, Check, DeviceRecord, MutantGrade, MutantReport, Outcome, Provenance, Report, STOPPED, Trust,
    WindowRecord,
};
