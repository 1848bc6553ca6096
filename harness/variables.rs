//! Environment variables that change how trials run. A value that nobody meant hides failures or invents them, so each is
//! read before the first trial, and a wrong one ends the run.

use std::ffi::OsString;
use std::time::Duration;

/// Whether a trial that needs a GPU fails where there is none.
const REQUIRED: &str = "HEADROOM_REQUIRE_GPU";

/// Each trial's time limit, in seconds.
pub(crate) const LIMIT: &str = "HEADROOM_TRIAL_SECONDS";

/// How long a trial waits for a card that another process has leased, in seconds.
pub(crate) const PATIENCE: &str = "HEADROOM_GPU_PATIENCE_SECONDS";

/// How long a trial may take unless [`LIMIT`] says otherwise.
const DEFAULT_LIMIT: Duration = Duration::from_secs(300);

/// For as many trials as a test runner starts at once.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(900);

/// Reads every variable.
///
/// # Errors
/// For the first that is set to something it cannot be.
pub fn check() -> Result<(), String> {
    required(value_of(REQUIRED))?;
    time_limit()?;
    patience().map(drop)
}

/// What a variable is set to. Bytes that are no text are shown as a text that no variable may have, so that they are
/// refused as any other wrong value is.
pub(crate) fn value_of(name: &str) -> Option<String> {
    std::env::var_os(name).map(as_text)
}

fn as_text(value: OsString) -> String {
    value.into_string().unwrap_or_else(|bytes| bytes.to_string_lossy().into_owned())
}

/// Whether a variable by which programs say yes or no (`CI`, `GITHUB_ACTIONS`) says yes.
pub(crate) fn says_yes(value: Option<&str>) -> bool {
    value.is_some_and(|value| ["1", "true", "yes", "on"].iter().any(|yes| value.eq_ignore_ascii_case(yes)))
}

/// Whether a trial that needs a GPU fails where there is none. A value that is neither yes nor no counts as yes.
pub fn gpu_is_required() -> bool {
    required(value_of(REQUIRED)).unwrap_or(true)
}

fn required(value: Option<String>) -> Result<bool, String> {
    match value.as_deref() {
        Some("1") => Ok(true),
        None | Some("" | "0") => Ok(false),
        Some(other) => Err(format!("{REQUIRED} is `{other}`: write 1 where a GPU must be there, 0 where it need not")),
    }
}

/// How long a trial may take.
///
/// # Errors
/// When the variable is set to something else than a number of seconds above 0.
pub(crate) fn time_limit() -> Result<Duration, String> {
    seconds(LIMIT, value_of(LIMIT), 1, DEFAULT_LIMIT)
}

/// How long trials wait for a card that another process has leased.
///
/// # Errors
/// When the variable is set to something else than a number of seconds.
pub fn patience() -> Result<Duration, String> {
    patience_or(DEFAULT_PATIENCE)
}

/// The same, where so long is waited unless the variable says otherwise.
///
/// # Errors
/// When the variable is set to something else than a number of seconds.
pub(crate) fn patience_or(default: Duration) -> Result<Duration, String> {
    seconds(PATIENCE, value_of(PATIENCE), 0, default)
}

fn seconds(name: &str, value: Option<String>, least: u64, default: Duration) -> Result<Duration, String> {
    let Some(text) = value else { return Ok(default) };
    let seconds = text.parse().ok().filter(|seconds| *seconds >= least);
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| format!("{name} is `{text}`: write whole seconds, for example {}", default.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_required_by_one_and_by_nothing_that_is_not_understood_silently() {
        for (value, expected) in [(None, false), (Some(""), false), (Some("0"), false), (Some("1"), true)] {
            assert_eq!(required(value.map(str::to_owned)), Ok(expected), "{value:?}");
        }
        for value in ["yes", "true", "2", " 1"] {
            let error = required(Some(value.to_owned())).unwrap_err();
            assert!(error.contains(REQUIRED) && error.contains(value) && error.contains("write 1"), "{error}");
        }
    }

    #[test]
    fn only_what_means_yes_says_yes() {
        for value in ["1", "true", "TRUE", "yes", "on"] {
            assert!(says_yes(Some(value)), "{value}");
        }
        for value in [None, Some(""), Some("0"), Some("false"), Some("no"), Some("off"), Some("maybe")] {
            assert!(!says_yes(value), "{value:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn bytes_that_are_no_text_are_no_value() {
        use std::os::unix::ffi::OsStringExt as _;
        for bytes in [&b"\xff"[..], b"1\xff", b"\xff1"] {
            let text = as_text(OsString::from_vec(bytes.to_vec()));
            assert!(required(Some(text.clone())).is_err() && text.parse::<crate::shard::Shard>().is_err(), "{text}");
            assert!(seconds("X", Some(text), 0, Duration::ZERO).is_err());
        }
    }

    #[test]
    fn seconds_are_whole_and_not_below_the_least() {
        let read = |text: &str, least| seconds("X", Some(text.to_owned()), least, Duration::from_secs(7));
        assert_eq!(read("30", 1), Ok(Duration::from_secs(30)));
        assert_eq!(read("0", 0), Ok(Duration::ZERO));
        assert_eq!(seconds("X", None, 1, Duration::from_secs(7)), Ok(Duration::from_secs(7)));
        for (text, least) in [("0", 1), ("-1", 0), ("1.5", 0), ("soon", 0), ("", 0)] {
            let error = read(text, least).unwrap_err();
            assert!(error.contains("X is") && error.contains("for example 7"), "{error}");
        }
    }
}
