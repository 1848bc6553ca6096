//! Byte counts as people read and write them: binary units only, parsed and printed nowhere else.

use std::fmt;
use std::str::FromStr;

/// 2^10 bytes.
pub const KIB: u64 = 1 << 10;
/// 2^20 bytes.
pub const MIB: u64 = 1 << 20;
/// 2^30 bytes.
pub const GIB: u64 = 1 << 30;

/// A number of bytes that prints as MiB (below 10 GiB) or GiB and parses from either.
///
/// Inside the program sizes are plain `u64`; this type exists at the edges, where people are.
///
/// ```
/// use headroom_base::Bytes;
/// assert_eq!("12GiB".parse::<Bytes>().unwrap().0, 12 << 30);
/// assert_eq!(Bytes(2_434 << 20).to_string(), "2,434 MiB");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// A signed number of bytes (a budget can be negative), printed like [`Bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SignedBytes(pub i64);

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseBytesError {
    /// A decimal unit, which this project never uses.
    #[error("`{text}` uses a decimal unit: write `{number}{binary}` (2^{power}) instead")]
    DecimalUnit {
        /// What was written.
        text: String,
        /// Its number.
        number: String,
        /// The binary unit of the same name.
        binary: &'static str,
        /// The binary unit's power of two.
        power: u32,
    },
    /// Not a number followed by a known unit.
    #[error("`{text}` is not a size: write a number and KiB, MiB or GiB, for example `12GiB`")]
    NotASize {
        /// What was written.
        text: String,
    },
    /// More bytes than fit in 64 bits.
    #[error("`{text}` is more bytes than 64 bits hold")]
    TooLarge {
        /// What was written.
        text: String,
    },
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_' && c != ',');
        let (digits, unit) = trimmed.split_at(split.unwrap_or(trimmed.len()));
        let number = digits.replace(['_', ','], "");
        let not_a_size = || ParseBytesError::NotASize { text: text.to_owned() };
        let unit = unit.trim();
        // A binary unit means one thing however it is written.
        let scale = match unit.to_ascii_lowercase().as_str() {
            "kib" => KIB,
            "mib" => MIB,
            "gib" => GIB,
            _ if unit.is_empty() || unit == "B" => 1,
            decimal => return Err(decimal_unit(text, &number, decimal).unwrap_or_else(not_a_size)),
        };
        scaled(&number, scale).map_err(|kind| match kind {
            ScaleError::Malformed => not_a_size(),
            ScaleError::Overflow => ParseBytesError::TooLarge { text: text.to_owned() },
        })
    }
}

fn decimal_unit(text: &str, number: &str, unit: &str) -> Option<ParseBytesError> {
    let (binary, power) = match unit {
        "k" | "kb" => ("KiB", 10),
        "m" | "mb" => ("MiB", 20),
        "g" | "gb" => ("GiB", 30),
        _ => return None,
    };
    let (text, number) = (text.to_owned(), number.to_owned());
    Some(ParseBytesError::DecimalUnit { text, number, binary, power })
}

enum ScaleError {
    Malformed,
    Overflow,
}

/// Multiplies a decimal number by a unit in integers, so that `1.5GiB` is exact; a fraction of a byte is dropped.
fn scaled(number: &str, scale: u64) -> Result<Bytes, ScaleError> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || fraction.len() > 9 {
        return Err(ScaleError::Malformed);
    }
    let whole: u128 = whole.parse().map_err(|_| ScaleError::Overflow)?;
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| ScaleError::Malformed)? };
    let denominator = 10_u128.pow(fraction.len() as u32);
    let bytes =
        whole.checked_mul(u128::from(scale)).ok_or(ScaleError::Overflow)? + part * u128::from(scale) / denominator;
    u64::try_from(bytes).map(Bytes).map_err(|_| ScaleError::Overflow)
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= 10 * GIB {
            f.pad(&format!("{}.{:02} GiB", self.0 / GIB, self.0 % GIB * 100 / GIB))
        } else if self.0 >= MIB || self.0 == 0 {
            let tenths = (u128::from(self.0) * 10 + u128::from(MIB) / 2) / u128::from(MIB);
            let whole = grouped((tenths / 10) as u64);
            f.pad(&if tenths % 10 == 0 { format!("{whole} MiB") } else { format!("{whole}.{} MiB", tenths % 10) })
        } else {
            f.pad(&format!("{:.3} MiB", self.0 as f64 / MIB as f64))
        }
    }
}

impl fmt::Display for SignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = Bytes(self.0.unsigned_abs());
        if self.0 < 0 { f.pad(&format!("-{size}")) } else { f.pad(&size.to_string()) }
    }
}

/// `1152` as `1,152`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_print_in_binary_units_only() {
        let cases = [
            (0, "0 MiB"),
            (512, "0.000 MiB"),
            (MIB, "1 MiB"),
            (1_152 * MIB, "1,152 MiB"),
            (MIB + MIB / 2, "1.5 MiB"),
            (48 * GIB, "48.00 GiB"),
            (u64::MAX, "17179869183.99 GiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(SignedBytes(-(72 * MIB as i64)).to_string(), "-72 MiB");
    }

    #[test]
    fn sizes_parse_with_binary_units_and_a_bare_number_is_bytes() {
        let cases =
            [("12GiB", 12 * GIB), ("1.5 GiB", 3 * GIB / 2), ("1,024 MiB", GIB), ("4096", 4096), ("7 KiB", 7 * KIB)];
        let in_any_case = [("12gib", 12 * GIB), ("3 MIB", 3 * MIB), ("7kiB", 7 * KIB)];
        for (text, bytes) in cases.into_iter().chain(in_any_case) {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn decimal_units_are_refused_with_the_binary_one() {
        for (text, hint) in [("12GB", "12GiB"), ("3mb", "3MiB"), ("5G", "5GiB")] {
            let error = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains(hint), "{error}");
        }
    }

    #[test]
    fn nonsense_is_an_error_and_never_a_panic() {
        for text in ["", "GiB", "-1GiB", "1.2.3MiB", "1e9", "12 parsecs", "12b", "99999999999999999999GiB", ".5GiB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }
}
