//! Why a command did not do what it was asked, and the exit code that says so.

use std::io;
use std::path::PathBuf;

use headroom_calibration::{ShippedError, StoreError};
use headroom_device::allocator::SettingsError;
use headroom_family::FamilyError;
use headroom_reports::import_windows::ImportError;
use headroom_reports::merge::MergeError;
use headroom_reports::{OutputError, ReadReportError};

use super::exit::Exit;
use super::options::OptionError;
use crate::bench::{BenchError, CalibrationError};
use crate::catalogue::CatalogueError;
use crate::gpu::{GpuNameError, NoTurn};
use crate::recorded::RecordedError;
use crate::replay::{MaterialError, ReplayError};

/// Every way in which a command can fail. A check that does not hold is no failure of the command: it is a result.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// A family file is wrong, or something in it is not there.
    #[error("{0}")]
    Catalogue(#[from] CatalogueError),
    /// The file given to `check` is wrong.
    #[error("{0}")]
    Family(#[from] FamilyError),
    /// An option of an operation is wrong.
    #[error("{0}")]
    Option(#[from] OptionError),
    /// A value is wrong; the text says which, and what to write instead.
    #[error("{0}")]
    Value(String),
    /// A file given to the command cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A report cannot be used.
    #[error("{0}")]
    Report(#[from] ReadReportError),
    /// Reports cannot be merged.
    #[error("{0}")]
    Merge(#[from] MergeError),
    /// A recording cannot be used.
    #[error("{0}")]
    Import(#[from] ImportError),
    /// The recordings kept in a repository cannot be used.
    #[error("{0}")]
    Recorded(#[from] RecordedError),
    /// A file of shipped coefficients cannot be used. It stays as it is.
    #[error("{}: {}", path.display(), shipped(source))]
    Shipped {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ShippedError,
    },
    /// A file cannot be replayed.
    #[error("{0}")]
    Material(#[from] MaterialError),
    /// A recording lacks what a replay needs.
    #[error("{}: {source}", path.display())]
    Replay {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<ReplayError>,
    },
    /// A setting of the allocator is wrong.
    #[error("{0}")]
    Setting(#[from] SettingsError),
    /// A store of measurements cannot be used.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A calibration did not run to its end.
    #[error("{0}")]
    Calibration(#[from] Box<CalibrationError>),
    /// What was asked for is not there.
    #[error("{0}")]
    Unavailable(String),
    /// A name means no attached card.
    #[error("{0}")]
    GpuName(#[from] GpuNameError),
    /// Somebody else has the card.
    #[error("{0}")]
    Busy(String),
    /// A file could not be written.
    #[error("{0}")]
    Output(#[from] OutputError),
    /// The result could not be printed.
    #[error("cannot print the result: {0}")]
    Print(#[from] io::Error),
}

impl CliError {
    /// The exit code.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Catalogue(CatalogueError::UnknownDevice { .. }) | Self::GpuName(_) | Self::Unavailable(_) => {
                Exit::Unavailable
            }
            Self::Busy(_) => Exit::Busy,
            Self::Calibration(error) if !matches!(**error, CalibrationError::Unpriced { .. }) => Exit::CheckFailed,
            Self::Store(
                StoreError::Io { .. }
                | StoreError::NotSynced { .. }
                | StoreError::Locked { .. }
                | StoreError::Attempt(_),
            )
            | Self::Output(_)
            | Self::Print(_) => Exit::Output,
            Self::Catalogue(_)
            | Self::Family(_)
            | Self::Option(_)
            | Self::Value(_)
            | Self::Unreadable { .. }
            | Self::Report(_)
            | Self::Merge(_)
            | Self::Import(_)
            | Self::Recorded(_)
            | Self::Shipped { .. }
            | Self::Material(_)
            | Self::Replay { .. }
            | Self::Setting(_)
            | Self::Calibration(_)
            | Self::Store(_) => Exit::BadInput,
        }
    }
}

impl From<NoTurn> for CliError {
    fn from(no_turn: NoTurn) -> Self {
        match no_turn {
            NoTurn::Busy(text) => Self::Busy(text),
            NoTurn::Unusable(text) => Self::Unavailable(text),
        }
    }
}

impl From<BenchError> for CliError {
    /// A card whose driver fails is not there to be worked on; what a cache refuses was wrong before.
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Driver(_) | BenchError::NotOnAnAttachedCard => Self::Unavailable(error.to_string()),
            BenchError::Cache(_) => Self::Value(error.to_string()),
        }
    }
}

impl From<CalibrationError> for CliError {
    /// What cannot be kept is the store's failure, whenever it shows.
    fn from(error: CalibrationError) -> Self {
        match error {
            CalibrationError::Store(error) => Self::Store(error),
            other => Self::Calibration(Box::new(other)),
        }
    }
}

/// What is wrong with a shipped file, and how a broken one is built anew. One of another format was written by another
/// program, and is not undone.
fn shipped(error: &ShippedError) -> String {
    match error {
        ShippedError::Unreadable { source } => format!(
            "the shipped data cannot be read: {source}; `headroom ship --accept` takes it as absent and builds it again, \
             so pass the reports of all its lines"
        ),
        ShippedError::OtherVersion { .. } => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use headroom_device::DriverError;
    use headroom_device::driver::DriverCall;

    use super::*;

    #[test]
    fn a_busy_card_is_worth_another_try_and_one_whose_driver_fails_is_no_wrong_value() {
        let failed = DriverError::Failed { call: DriverCall::Context, code: 719, reason: "planted".to_owned() };
        for (error, expected) in [
            (CliError::from(NoTurn::Busy("leased".to_owned())), Exit::Busy),
            (NoTurn::Unusable("lost".to_owned()).into(), Exit::Unavailable),
            (BenchError::Driver(failed).into(), Exit::Unavailable),
        ] {
            assert_eq!(error.exit(), expected, "{error}");
        }
    }
}
