//! What is reserved for a case, with the terms it is made of.

use serde::{Deserialize, Serialize};

use crate::mutant;

/// Where an estimate comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The user's own calibration.
    User,
    /// Shipped coefficients.
    BuiltIn,
    /// Outside the user's measured range: the larger of the user's fit and the shipped one.
    LargerOfBoth,
    /// The program's prediction: nothing was measured.
    Predicted,
    /// Nothing is known: the device's working memory.
    Floor,
}

impl Source {
    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::BuiltIn => "built_in",
            Self::LargerOfBoth => "larger_of_both",
            Self::Predicted => "predicted",
            Self::Floor => "floor",
        }
    }
}

/// A reservation: `analytic + empirical + margin`, the margin being on the empirical part alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Estimate {
    /// What is reserved.
    pub reservation_bytes: u64,
    /// The part that is known exactly.
    pub analytic_bytes: u64,
    /// The part that was measured or predicted, without margin.
    pub empirical_bytes: u64,
    /// What is added to the empirical part.
    pub margin_bytes: u64,
    /// Where the empirical part comes from.
    pub source: Source,
}

/// The share added to what was measured: 5 %, rounded up to a whole byte.
///
/// ```
/// assert_eq!(headroom_base::margin_bytes(4 << 30), (4_u64 << 30).div_ceil(20));
/// ```
pub const fn margin_bytes(empirical_bytes: u64) -> u64 {
    empirical_bytes.div_ceil(20)
}

impl Estimate {
    /// The one place where the margin is applied.
    pub fn new(analytic_bytes: u64, empirical_bytes: u64, source: Source) -> Self {
        let margin_bytes = mutant!(
            "margin_left_out",
            "the next run that needs one byte more than the measured ones runs out of memory",
            right: mutant!(
                "margin_on_the_whole_reservation",
                "terms that are known exactly would be inflated as if they had been measured",
                right: mutant!(
                    "margin_applied_twice",
                    "every reservation is 5 % too large and models leave the card for nothing",
                    right: margin_bytes(empirical_bytes),
                    wrong: margin_bytes(empirical_bytes) + margin_bytes(empirical_bytes + margin_bytes(empirical_bytes)),
                ),
                wrong: margin_bytes(analytic_bytes + empirical_bytes),
            ),
            wrong: 0,
        );
        let reservation_bytes = analytic_bytes + empirical_bytes + margin_bytes;
        Self { reservation_bytes, analytic_bytes, empirical_bytes, margin_bytes, source }
    }

    /// An estimate for a case nobody measured and no program predicts: what the device keeps free anyway.
    pub const fn floor(floor_bytes: u64) -> Self {
        Self {
            reservation_bytes: floor_bytes,
            analytic_bytes: 0,
            empirical_bytes: floor_bytes,
            margin_bytes: 0,
            source: Source::Floor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GIB;

    #[test]
    fn the_margin_is_on_the_empirical_part_alone() {
        let estimate = Estimate::new(2 * GIB, 4 * GIB, Source::User);
        assert_eq!(estimate.margin_bytes, (4 * GIB).div_ceil(20));
        assert_eq!(estimate.reservation_bytes * 10 / GIB, 62);
        assert_eq!(
            estimate.reservation_bytes,
            estimate.analytic_bytes + estimate.empirical_bytes + estimate.margin_bytes
        );
    }

    #[test]
    fn a_fraction_of_a_byte_is_rounded_up() {
        for (empirical, margin) in [(0, 0), (1, 1), (20, 1), (21, 2)] {
            assert_eq!(margin_bytes(empirical), margin);
        }
    }
}
