//! A figure that may be unknown, which is never the same as zero.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// A number of bytes that a reader gave, or could not give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(from = "Option<u64>", into = "Option<u64>")]
pub enum Reading {
    /// The reader could not tell.
    #[default]
    Unknown,
    /// What the reader said.
    Bytes(u64),
}

impl Reading {
    /// The figure, or nothing where it is unknown.
    pub const fn known(self) -> Option<u64> {
        match self {
            Self::Unknown => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }

    /// The growth from `before` to `self`; unknown where either is. A shrinkage is negative.
    pub fn growth_since(self, before: Self) -> Option<i64> {
        let (after, before) = (i64::try_from(self.known()?).ok()?, i64::try_from(before.known()?).ok()?);
        Some(after - before)
    }
}

impl From<Option<u64>> for Reading {
    fn from(figure: Option<u64>) -> Self {
        figure.map_or(Self::Unknown, Self::Bytes)
    }
}

impl From<Reading> for Option<u64> {
    fn from(reading: Reading) -> Self {
        reading.known()
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.pad("unknown"),
            Self::Bytes(bytes) => Bytes(*bytes).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_is_null_in_json_and_zero_is_zero() {
        assert_eq!(serde_json::to_string(&[Reading::Unknown, Reading::Bytes(0)]).unwrap(), "[null,0]");
        let back: [Reading; 2] = serde_json::from_str("[null,0]").unwrap();
        assert_eq!(back, [Reading::Unknown, Reading::Bytes(0)]);
    }

    #[test]
    fn growth_of_an_unknown_figure_is_unknown() {
        assert_eq!(Reading::Bytes(5).growth_since(Reading::Bytes(7)), Some(-2));
        assert_eq!(Reading::Bytes(5).growth_since(Reading::Unknown), None);
        assert_eq!(Reading::Unknown.growth_since(Reading::Bytes(7)), None);
    }
}
