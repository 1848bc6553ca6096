//! A figure as a message prints it, how far the true one may be from it, and how sizes are echoed.

use std::fmt;

use headroom_base::bytes::ParseBytesError;
use headroom_base::{Bytes, KIB};

/// Above this a figure is an all-ones word or a difference gone below 0, not a size.
const LARGEST_BYTES: u64 = 1 << 50;

/// A size that was printed with a few decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Figure {
    /// The printed size; a fraction of a byte counts as one, so that the printed decimals come back.
    pub bytes: u64,
    /// The true size is at most this far away: half of the last printed digit.
    pub error_bytes: u64,
}

impl Figure {
    /// Reads a number and its unit; nothing where they are none, and nonsense where no device can have so much.
    pub(super) fn read(number: &str, unit: &str) -> Option<Printed> {
        let scale_bytes = format!("1 {unit}").parse::<Bytes>().ok()?.0;
        // A number that is too large for 64 bits is nonsense too, not the end of the reading.
        let floor_bytes = match format!("{number} {unit}").parse::<Bytes>() {
            Ok(Bytes(bytes)) => bytes,
            Err(ParseBytesError::TooLarge { .. }) => u64::MAX,
            Err(_) => return None,
        };
        if floor_bytes > LARGEST_BYTES {
            return Some(Printed::Nonsense);
        }
        let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let parts = 10_u64.pow(u32::try_from(decimals).unwrap_or(9).min(9));
        let is_whole = (u128::from(floor_bytes) * u128::from(parts)).is_multiple_of(u128::from(scale_bytes));
        let error_bytes = if scale_bytes == 1 { 0 } else { scale_bytes.div_ceil(2 * parts) };
        Some(Printed::Size(Self { bytes: floor_bytes + u64::from(!is_whole), error_bytes }))
    }

    /// The least that it can be.
    pub const fn least(self) -> u64 {
        self.bytes.saturating_sub(self.error_bytes)
    }

    /// The most that it can be.
    pub const fn most(self) -> u64 {
        self.bytes.saturating_add(self.error_bytes)
    }

    /// Both together.
    pub const fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), ..self.uncertain_as(other) }
    }

    /// What is left without the other, 0 at least.
    pub const fn minus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(other.bytes), ..self.uncertain_as(other) }
    }

    /// Whether it is larger whatever the digits that were not printed are.
    pub const fn surely_exceeds(self, other: Self) -> bool {
        self.least() > other.most()
    }

    /// Whether it is as large at least, whatever the digits that were not printed are.
    pub const fn surely_covers(self, other: Self) -> bool {
        self.least() >= other.most()
    }

    const fn uncertain_as(self, other: Self) -> Self {
        Self { bytes: 0, error_bytes: self.error_bytes.saturating_add(other.error_bytes) }
    }
}

/// What a number and its unit are.
pub(super) enum Printed {
    /// A size.
    Size(Figure),
    /// More than any device has.
    Nonsense,
}

/// A size as sentences here echo it: a few bytes are not 0 MiB.
pub(super) struct Size(pub(super) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes @ 1..KIB => write!(f, "{bytes} bytes"),
            bytes => Bytes(bytes).fmt(f),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Size(self.bytes).fmt(f)
    }
}
