//! The line `a + b·u` as exact fractions: what a fit finds, a file keeps and an estimate evaluates.

use std::fmt;

use serde::{Deserialize, Serialize};

/// `a + b·u` bytes for `u` cost units, a and b not negative, without any margin.
///
/// Both share one denominator, so that evaluating is one multiplication and one division and is the
/// same on every machine. In files each is written as a reduced fraction, `"1234/7"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Coefficients {
    intercept: u128,
    slope: u128,
    denominator: u64,
}

/// Why two fractions are no coefficients.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoefficientsError {
    /// Not `numerator/denominator` in decimal digits.
    #[error("`{text}` is no fraction: write numerator/denominator, for example `1234/7`")]
    NotAFraction {
        /// What was written.
        text: String,
    },
    /// Too large to be evaluated exactly.
    #[error("{intercept} + {slope}·u cannot be brought to one denominator below 2^64")]
    TooLarge {
        /// The intercept as written.
        intercept: String,
        /// The slope as written.
        slope: String,
    },
}

/// The form in files.
#[derive(Serialize, Deserialize)]
struct Written {
    /// a, in bytes.
    intercept_bytes: String,
    /// b, in bytes per cost unit.
    bytes_per_unit: String,
}

impl Coefficients {
    /// `(intercept + slope·u) / denominator`, reduced; nothing for a denominator of 0.
    pub fn new(intercept: u128, slope: u128, denominator: u64) -> Option<Self> {
        if denominator == 0 {
            return None;
        }
        let shared = gcd(gcd(intercept, slope), u128::from(denominator));
        let denominator = u64::try_from(u128::from(denominator) / shared).ok()?;
        Some(Self { intercept: intercept / shared, slope: slope / shared, denominator })
    }

    /// The same number of bytes whatever the size.
    pub const fn flat(bytes: u64) -> Self {
        Self { intercept: bytes as u128, slope: 0, denominator: 1 }
    }

    /// The numerator of `a + b·u`; [`denominator`](Self::denominator) is what it is divided by.
    ///
    /// Saturates where 128 bits do not hold it, which no device's memory reaches.
    pub const fn numerator_at(&self, units: u64) -> u128 {
        self.intercept.saturating_add(self.slope.saturating_mul(units as u128))
    }

    /// The shared denominator, never 0.
    pub const fn denominator(&self) -> u64 {
        self.denominator
    }

    /// `⌈a + b·u⌉` in bytes, without margin; saturates at 2^64 − 1.
    pub fn bytes_at(&self, units: u64) -> u64 {
        headroom_base::divided_up(self.numerator_at(units), self.denominator)
    }

    /// a in bytes, rounded up, for people.
    pub fn intercept_bytes(&self) -> u64 {
        self.bytes_at(0)
    }

    /// b in bytes per cost unit, rounded, for people and charts; no decision uses it.
    pub fn approximate_bytes_per_unit(&self) -> f64 {
        self.slope as f64 / self.denominator as f64
    }
}

impl fmt::Display for Coefficients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let intercept = headroom_base::Bytes(self.intercept_bytes());
        write!(f, "{intercept} + {:.3} bytes per unit", self.approximate_bytes_per_unit())
    }
}

impl From<Coefficients> for Written {
    fn from(value: Coefficients) -> Self {
        let fraction = |numerator: u128| {
            let denominator = u128::from(value.denominator);
            let shared = gcd(numerator, denominator);
            format!("{}/{}", numerator / shared, denominator / shared)
        };
        Self { intercept_bytes: fraction(value.intercept), bytes_per_unit: fraction(value.slope) }
    }
}

impl TryFrom<Written> for Coefficients {
    type Error = CoefficientsError;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let (intercept, intercept_denominator) = parse(&written.intercept_bytes)?;
        let (slope, slope_denominator) = parse(&written.bytes_per_unit)?;
        let scale = slope_denominator / gcd(intercept_denominator, slope_denominator);
        intercept_denominator
            .checked_mul(scale)
            .and_then(|denominator| {
                let intercept = intercept.checked_mul(denominator / intercept_denominator)?;
                let slope = slope.checked_mul(denominator / slope_denominator)?;
                Self::new(intercept, slope, u64::try_from(denominator).ok()?)
            })
            .ok_or(CoefficientsError::TooLarge { intercept: written.intercept_bytes, slope: written.bytes_per_unit })
    }
}

fn parse(text: &str) -> Result<(u128, u128), CoefficientsError> {
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse::<u128>().ok())?;
    text.split_once('/')
        .and_then(|(numerator, denominator)| Some((digits(numerator)?, digits(denominator)?)))
        .filter(|(_, denominator)| *denominator != 0)
        .ok_or_else(|| CoefficientsError::NotAFraction { text: text.to_owned() })
}

fn gcd(left: u128, right: u128) -> u128 {
    let (mut left, mut right) = (left, right);
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn evaluation_rounds_up_and_only_up() {
        let line = Coefficients::new(10, 1, 3).unwrap();
        let expected = [(0, 4), (1, 4), (2, 4), (3, 5), (5, 5), (6, 6)];
        for (units, bytes) in expected {
            assert_eq!(line.bytes_at(units), bytes, "(10 + {units})/3");
        }
    }

    #[test]
    fn a_file_shows_reduced_fractions_and_refuses_nonsense() {
        let line = Coefficients::new(6, 4, 8).unwrap();
        let json = serde_json::to_string(&line).unwrap();
        assert_eq!(json, r#"{"intercept_bytes":"3/4","bytes_per_unit":"1/2"}"#);
        for bad in ["1", "1/0", "-1/2", "1/", "/2", "0x1/2", "1/2/3"] {
            let json = format!(r#"{{"intercept_bytes":"{bad}","bytes_per_unit":"1/2"}}"#);
            let error = serde_json::from_str::<Coefficients>(&json).unwrap_err().to_string();
            assert!(error.contains("1234/7"), "{bad}: {error}");
        }
        let huge = format!(r#"{{"intercept_bytes":"1/{}","bytes_per_unit":"1/{}"}}"#, u64::MAX, u64::MAX - 1);
        assert!(serde_json::from_str::<Coefficients>(&huge).unwrap_err().to_string().contains("denominator"));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_the_same(a in 0..u128::MAX >> 2, b in 0..1u128 << 64, d in 1..u64::MAX) {
            let line = Coefficients::new(a, b, d).unwrap();
            let json = serde_json::to_string(&line).unwrap();
            prop_assert_eq!(serde_json::from_str::<Coefficients>(&json).unwrap(), line);
        }
    }
}
