//! Why a setting is refused: the variable, the key, the value, and what to write instead.

/// What is wrong with a setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// PyTorch 2.11 has no such key.
    #[error("PyTorch 2.11 knows no such key; it knows {}", known.join(", "))]
    UnknownKey {
        /// The keys it knows.
        known: Vec<&'static str>,
    },
    /// The key has no value.
    #[error("a value is missing; write `key:value`")]
    NoValue,
    /// Something follows the value that does not belong there.
    #[error("settings are separated by commas and lists stand in [ ]")]
    Syntax,
    /// Not one of the words it can be.
    #[error("it can be {}", allowed.join(" or "))]
    NotOneOf {
        /// The words it can be.
        allowed: Vec<&'static str>,
    },
    /// Not a whole number in the range.
    #[error("it must be a whole number of {least} or more")]
    NotAWholeNumber {
        /// The least it can be.
        least: u64,
    },
    /// Not a share.
    #[error("it must be a number between 0 and 1{}", if *ends_included { "" } else { ", neither of them" })]
    NotAShare {
        /// Whether 0 and 1 themselves are allowed.
        ends_included: bool,
    },
    /// Not a power of two.
    #[error("sizes and steps must be powers of two (steps may be 0)")]
    NotAPowerOfTwo,
    /// Pages of virtual memory of a size that the driver does not make.
    #[error(
        "expandable segments are made of pages of this size, and the driver makes pages of 2 MiB and multiples; write an \
         even number, or leave expandable_segments off"
    )]
    OddPages,
}

/// A setting that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: `{key}` is set to `{value}`: {problem}")]
pub struct SettingsError {
    /// The environment variable, or whatever the text came from.
    pub variable: String,
    /// The key.
    pub key: String,
    /// The value as written.
    pub value: String,
    /// What is wrong.
    pub problem: Problem,
}
