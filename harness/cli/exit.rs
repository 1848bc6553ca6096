//! What the process tells its caller: documented exit codes.

use std::process::ExitCode;

/// How a command ended. `headroom --help` lists these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything held that could be run here.
    Success,
    /// A check failed, a merged report is of a run that was stopped, a comparison was unequal, or the shipped data is out of
    /// date.
    CheckFailed,
    /// The command line could not be read.
    Usage,
    /// A file or a value given to the command is wrong.
    BadInput,
    /// The shipped data was not changed because the change needs a person's consent.
    Refused,
    /// What was asked for is not there: no such device, one that a calibration does not fit on, a feature left out of
    /// this build.
    Unavailable,
    /// The output could not be written.
    Output,
    /// Nothing failed, and a GPU was busy with another process's work: worth another try.
    Busy,
}

impl Exit {
    /// The number.
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::CheckFailed => 1,
            Self::Usage => 2,
            Self::BadInput => 3,
            Self::Refused => 4,
            Self::Unavailable => 5,
            Self::Output => 6,
            Self::Busy => 7,
        }
    }
}

/// The list that `--help` ends with.
pub const EXIT_CODES_HELP: &str = "Exit codes:
  0  everything held that could be run here
  1  a check failed, a merged report is of a stopped run, a comparison was unequal, or shipped data is out of date
  2  the command line could not be read
  3  a file or a value is wrong (the message names it)
  4  shipped data was not changed: the change needs --accept
  5  not available here: no such device, none of a calibration fits on it, or a feature left out of this build
  6  the output could not be written
  7  nothing failed, and a GPU was busy with another process's work: try again";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_documented_and_no_two_are_equal() {
        let all = [
            Exit::Success,
            Exit::CheckFailed,
            Exit::Usage,
            Exit::BadInput,
            Exit::Refused,
            Exit::Unavailable,
            Exit::Output,
            Exit::Busy,
        ];
        for (index, exit) in all.into_iter().enumerate() {
            assert!(EXIT_CODES_HELP.contains(&format!("\n  {}  ", exit.code())), "{exit:?}");
            assert!(all[..index].iter().all(|other| other.code() != exit.code()), "{exit:?}");
        }
    }
}
