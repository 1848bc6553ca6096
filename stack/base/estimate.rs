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

/// `⌈numerator / denominator⌉`, at most 2^64 − 1.
///
/// # Panics
/// For a denominator of 0.
pub fn divided_up(numerator: u128, denominator: u64) -> u64 {
    match u64::try_from(numerator) {
        Ok(numerator) => numerator.div_ceil(denominator),
        Err(_) => u64::try_from(numerator.div_ceil(u128::from(denominator))).unwrap_or(u64::MAX),
    }
}

impl Estimate {
    /// An estimate whose empirical part is a whole number of bytes.
    pub fn new(analytic_bytes: u64, empirical_bytes: u64, source: Source) -> Self {
        Self::of_fraction(analytic_bytes, u128::from(empirical_bytes), 1, source)
    }

    /// The one place where the margin is applied: `analytic + ⌈1.05 × numerator / denominator⌉`.
    ///
    /// A fit's value is a fraction of bytes. The margin is taken of it before it is rounded, so that rounding
    /// never adds a second byte; the parts shown are whole and add up to the reservation.
    ///
    /// # Panics
    /// For a denominator of 0.
    pub fn of_fraction(analytic_bytes: u64, numerator: u128, denominator: u64, source: Source) -> Self {
        let empirical_bytes = divided_up(numerator, denominator);
        // ⌈21n/20⌉ as n + ⌈n/20⌉, which never exceeds what 128 bits hold where n alone does not.
        let with_margin = |numerator: u128| divided_up(numerator.saturating_add(numerator.div_ceil(20)), denominator);
        let margin_bytes = mutant!(
            "margin_left_out",
            "the next run that needs one byte more than the measured ones runs out of memory",
            right: mutant!(
                "margin_on_the_whole_reservation",
                "terms that are known exactly would be inflated as if they had been measured",
                right: mutant!(
                    "margin_applied_twice",
                    "every reservation is 5 % too large and models leave the card for nothing",
                    right: with_margin(numerator) - empirical_bytes,
                    wrong: with_margin(numerator.saturating_mul(21).div_ceil(20)) - empirical_bytes,
                ),
                wrong: with_margin(numerator + u128::from(analytic_bytes) * u128::from(denominator))
                    - analytic_bytes
                    - empirical_bytes,
            ),
            wrong: 0,
        );
        let reservation_bytes = analytic_bytes.saturating_add(empirical_bytes).saturating_add(margin_bytes);
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
    fn the_margin_is_taken_before_rounding() {
        // 1.05 × 41/2 = 21.525: 22 bytes, where rounding first would give 21 + 2.
        let estimate = Estimate::of_fraction(100, 41, 2, Source::User);
        assert_eq!((estimate.empirical_bytes, estimate.margin_bytes, estimate.reservation_bytes), (21, 1, 122));
        for empirical in [0, 1, 19, 20, 21, 399, 400, 401, GIB + 7] {
            assert_eq!(Estimate::new(0, empirical, Source::User).margin_bytes, margin_bytes(empirical));
        }
    }

    #[test]
    fn a_figure_beyond_every_device_saturates() {
        assert_eq!(divided_up(u128::MAX, 3), u64::MAX);
        assert_eq!(Estimate::of_fraction(u64::MAX, u128::from(u64::MAX), 1, Source::User).reservation_bytes, u64::MAX);
    }

    #[test]
    fn a_fraction_of_a_byte_is_rounded_up() {
        for (empirical, margin) in [(0, 0), (1, 1), (20, 1), (21, 2)] {
            assert_eq!(margin_bytes(empirical), margin);
        }
    }
}
