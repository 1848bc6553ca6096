//! What to try after a message, and whether it can be enough by itself.

use std::fmt;

use super::Api;
use super::figure::Size;

/// How to need less.
const LESS: &str = "decode in tiles, a smaller size or batch, or fewer models on the device";

/// Something to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Help {
    /// Set this in the environment before Python starts.
    Environment {
        /// `NAME=value`.
        line: String,
        /// Why it would help.
        why: &'static str,
    },
    /// Lift Metal's limit, which the message itself names and warns of.
    LiftWatermark,
    /// Need less: tiles, a smaller size, a smaller batch, or fewer models on the device.
    NeedLess {
        /// By at least this much.
        bytes: u64,
    },
    /// Need less, where it is not known how much less is enough.
    NeedSomeLess {
        /// By this much at most, where that is known.
        at_most_bytes: Option<u64>,
    },
    /// Ask for less at once.
    SmallerRequests {
        /// The largest request that can be served.
        limit_bytes: u64,
    },
    /// Close other programs on the device, or use another device.
    FreeOthers {
        /// What they hold.
        bytes: u64,
    },
    /// See whether other programs hold a part of what is not accounted for.
    FindOthers {
        /// What is not accounted for.
        bytes: u64,
    },
    /// Raise or drop the limit on this process.
    RaiseLimit {
        /// What it is.
        limit_bytes: u64,
    },
    /// Free the computer's own memory.
    FreeHost,
    /// Paste the message again, as it was printed.
    PasteAgain,
    /// Record a snapshot, so that what pins the memory can be named.
    RecordSnapshot,
}

/// Why something cannot be enough by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// It gives a part of what is missing.
    OfMissing {
        /// At most this much.
        gives_bytes: u64,
        /// Of this.
        missing_bytes: u64,
    },
    /// It gives what was counted as unused already, and more is missing.
    StillMissing {
        /// At most this much.
        gives_bytes: u64,
        /// What is missing beside.
        missing_bytes: u64,
    },
    /// It gives what is missing only if all that is unused in the allocator can be used too.
    WithUnused {
        /// What is unused.
        unused_bytes: u64,
    },
}

/// Something to try, with what speaks against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// What to try.
    pub help: Help,
    /// Why it cannot be enough by itself; none where it can be, or where the message does not say.
    pub short: Option<Short>,
}

impl From<Help> for Suggestion {
    fn from(help: Help) -> Self {
        Self { help, short: None }
    }
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.short {
            None => write!(f, "{}", self.help),
            Some(short) => write!(f, "{}; {short}", self.help),
        }
    }
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OfMissing { gives_bytes, missing_bytes } => write!(
                f,
                "not enough alone: it gives at most {} of the {} that are missing",
                Size(*gives_bytes),
                Size(*missing_bytes)
            ),
            Self::StillMissing { gives_bytes, missing_bytes } => write!(
                f,
                "not enough alone: it gives at most the {} that are unused, and {} stay missing",
                Size(*gives_bytes),
                Size(*missing_bytes)
            ),
            Self::WithUnused { unused_bytes } => write!(
                f,
                "not enough alone: the {} that are unused in the allocator must become usable too",
                Size(*unused_bytes)
            ),
        }
    }
}

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment { line, why } => write!(f, "set {line} before Python starts: {why}"),
            Self::LiftWatermark => write!(
                f,
                "set {}=0.0 before Python starts: it disables the upper limit, and the message warns that the system may fail",
                Api::Mps.variable()
            ),
            Self::NeedLess { bytes } => write!(f, "need at least {} less: {LESS}", Size(*bytes)),
            Self::NeedSomeLess { at_most_bytes: Some(bytes) } => {
                write!(f, "need up to {} less, how much does not follow from the figures: {LESS}", Size(*bytes))
            }
            Self::NeedSomeLess { at_most_bytes: None } => {
                write!(f, "need less, how much does not follow from the figures: {LESS}")
            }
            Self::SmallerRequests { limit_bytes } => {
                write!(f, "ask for less than {} at once: decode in tiles, a smaller size or batch", Size(*limit_bytes))
            }
            Self::FreeOthers { bytes } => {
                write!(f, "close other programs on this device ({}) or use another one", Size(*bytes))
            }
            Self::FindOthers { bytes } => write!(
                f,
                "see which other programs hold a part of the {} that are not accounted for, and close them or use another \
                 device",
                Size(*bytes)
            ),
            Self::RaiseLimit { limit_bytes } => {
                write!(f, "raise the limit of {} (set_per_process_memory_fraction)", Size(*limit_bytes))
            }
            Self::FreeHost => f.write_str("free the computer's own memory: close other programs, or enlarge the page file"),
            Self::PasteAgain => f.write_str("paste the message again, all of it and as it was printed"),
            Self::RecordSnapshot => f.write_str(
                "record a memory snapshot (torch.cuda.memory._record_memory_history, then _dump_snapshot) and replay it here: \
                 it names what pins the memory and what other settings would have reserved",
            ),
        }
    }
}
