//! The upper envelope: the lowest line that no counted window exceeds.

pub use headroom_base::plan::LEAST_SIZES;
use headroom_base::{Window, mutant};
use serde::{Deserialize, Serialize};

use crate::coefficients::Coefficients;

/// What a window contributes to a fit: its size and what it needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// Cost units of its case.
    pub units: u64,
    /// What it needed.
    pub demand_bytes: u64,
    /// The part of that which is known exactly and is not fitted.
    pub analytic_bytes: u64,
}

impl Point {
    /// What is fitted: the demand beyond the analytic part, not below 0.
    pub const fn remainder_bytes(&self) -> u64 {
        self.demand_bytes.saturating_sub(self.analytic_bytes)
    }
}

impl From<&Window> for Point {
    fn from(window: &Window) -> Self {
        Self {
            units: window.cost_units,
            demand_bytes: window.measurement.demand_bytes,
            analytic_bytes: window.analytic_bytes,
        }
    }
}

/// The sizes a fit was measured at, from the smallest to the largest, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UnitRange {
    /// Cost units of the smallest size.
    pub least_units: u64,
    /// Cost units of the largest size.
    pub largest_units: u64,
}

impl UnitRange {
    /// Whether a size lies between the smallest and the largest, or is one of them.
    pub const fn contains(&self, units: u64) -> bool {
        self.least_units <= units && units <= self.largest_units
    }
}

/// A window that needed less than its analytic part: the analytic terms are wrong for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NegativeRemainder {
    /// Its cost units.
    pub units: u64,
    /// How much less it needed.
    pub short_bytes: u64,
}

/// An upper envelope over counted windows.
///
/// One enormous window counts like any other: a valid, fully resident window of a finished attempt was
/// needed, and leaving it out because it is large would make the next such run fail. It raises the line
/// at other sizes too: at smaller ones at most to what it needed itself, at larger ones at most in proportion
/// to the size. Resetting the model is the way to drop it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fit {
    /// The line, without margin.
    pub coefficients: Coefficients,
    /// The sizes it was measured at.
    #[serde(flatten)]
    pub range: UnitRange,
    /// Distinct sizes behind it.
    pub sizes: usize,
    /// Windows behind it.
    pub windows: usize,
    /// Windows whose analytic part is larger than what they needed, fitted as 0; smallest size first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub negative_remainders: Vec<NegativeRemainder>,
}

/// Why there is no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "error")]
pub enum FitError {
    /// Fewer than three distinct sizes were counted.
    #[error("too few sizes: {sizes} of the {LEAST_SIZES} that a line needs; measure another size")]
    TooFewSizes {
        /// How many there are.
        sizes: usize,
    },
}

/// Fits the line `a + b·u`, a and b not negative, that no point's remainder exceeds, with the least total
/// excess over the largest remainder of each distinct size; among several such lines the steepest.
///
/// Order and repetition of the points make no difference to the coefficients.
///
/// # Errors
/// [`FitError::TooFewSizes`] below three distinct sizes.
pub fn fit(points: &[Point]) -> Result<Fit, FitError> {
    let tops = largest_of_each_size(points);
    let least_sizes = mutant!(
        "too_few_sizes_accepted",
        "a line through two sizes is taken for knowledge of all the sizes between",
        right: LEAST_SIZES,
        wrong: 1,
    );
    let (Some(first), Some(last)) = (tops.first(), tops.last()) else {
        return Err(FitError::TooFewSizes { sizes: 0 });
    };
    if tops.len() < least_sizes {
        return Err(FitError::TooFewSizes { sizes: tops.len() });
    }
    let coefficients = mutant!(
        "least_squares_instead_of_envelope",
        "half of the runs need more than is reserved for them",
        right: envelope(&tops),
        wrong: least_squares(&tops),
    );
    let mut negative_remainders: Vec<_> = points
        .iter()
        .filter(|point| point.demand_bytes < point.analytic_bytes)
        .map(|point| NegativeRemainder { units: point.units, short_bytes: point.analytic_bytes - point.demand_bytes })
        .collect();
    negative_remainders.sort_unstable_by_key(|negative| (negative.units, negative.short_bytes));
    let range = UnitRange { least_units: first.0, largest_units: last.0 };
    Ok(Fit { coefficients, range, sizes: tops.len(), windows: points.len(), negative_remainders })
}

/// A size and the largest remainder seen at it.
type Top = (u64, u64);

fn largest_of_each_size(points: &[Point]) -> Vec<Top> {
    let mut tops: Vec<Top> = points.iter().map(|point| (point.units, point.remainder_bytes())).collect();
    mutant!(
        "smallest_demand_of_each_size_fitted",
        "of two runs of a size the thriftier one is believed, and the other one runs out of memory",
        right: tops.sort_unstable_by_key(|(units, bytes)| (*units, std::cmp::Reverse(*bytes))),
        wrong: tops.sort_unstable(),
    );
    tops.dedup_by_key(|(units, _)| *units);
    tops
}

/// The optimal line through sorted tops of distinct sizes.
///
/// The total excess is `n·(a + b·ū)` less a constant, ū being the mean size: the optimum is the line that is
/// lowest at ū. Lines above all points are the lines above their upper hull; `a ≥ 0` means above the origin
/// too, and `b ≥ 0` means that the hull goes on level behind its highest point. The lowest such line at ū
/// contains the hull's edge there, and where ū is a corner, the edge to its left is the steeper.
fn envelope(tops: &[Top]) -> Coefficients {
    let total_units: u128 = tops.iter().map(|(units, _)| u128::from(*units)).sum();
    let count = tops.len() as u128;
    let hull = upper_hull(tops);
    let summit = hull.iter().max_by_key(|(units, bytes)| (*bytes, std::cmp::Reverse(*units))).copied();
    let (summit_units, summit_bytes) = summit.unwrap_or((0, 0));
    if count * u128::from(summit_units) < total_units {
        return Coefficients::flat(summit_bytes);
    }
    let edge = hull.windows(2).find(|edge| total_units <= count * u128::from(edge[1].0));
    let through = edge.and_then(|edge| through(edge[0], edge[1]));
    through.unwrap_or(Coefficients::flat(summit_bytes))
}

/// The corners of the smallest concave curve over the origin and the points, from left to right.
fn upper_hull(tops: &[Top]) -> Vec<Top> {
    let mut hull: Vec<Top> = Vec::with_capacity(tops.len() + 1);
    if tops.first().is_some_and(|(units, _)| *units > 0) {
        hull.push((0, 0));
    }
    for top in tops {
        while let [.., before, corner] = hull[..] {
            if is_below(before, corner, *top) {
                hull.pop();
            } else {
                break;
            }
        }
        hull.push(*top);
    }
    hull
}

/// Whether `middle` lies on or under the straight line from `left` to `right`.
fn is_below(left: Top, middle: Top, right: Top) -> bool {
    let run = |to: Top| to.0 - left.0;
    // A product of two differences of 64 bits needs all 128, and so has its sign beside it.
    let product = |to: Top, other: Top| u128::from(left.1.abs_diff(to.1)) * u128::from(run(other));
    let (to_middle, to_right) = (product(middle, right), product(right, middle));
    match (middle.1 >= left.1, right.1 >= left.1) {
        (true, true) => to_middle <= to_right,
        (false, false) => to_middle >= to_right,
        (middle_rises, _) => !middle_rises,
    }
}

/// The line through two points of different sizes, the right one not lower.
fn through(left: Top, right: Top) -> Option<Coefficients> {
    let run = right.0.checked_sub(left.0)?;
    let rise = right.1.checked_sub(left.1)?;
    let at_zero = u128::from(left.1) * u128::from(run);
    Coefficients::new(at_zero.checked_sub(u128::from(rise) * u128::from(left.0))?, u128::from(rise), run)
}

/// The wrong twin of [`envelope`]: through the middle of the points instead of above them.
#[cfg(feature = "mutants")]
fn least_squares(tops: &[Top]) -> Coefficients {
    let count = tops.len() as f64;
    let mean_units = tops.iter().map(|(units, _)| *units as f64).sum::<f64>() / count;
    let mean_bytes = tops.iter().map(|(_, bytes)| *bytes as f64).sum::<f64>() / count;
    let covariance: f64 = tops.iter().map(|(u, y)| (*u as f64 - mean_units) * (*y as f64 - mean_bytes)).sum();
    let variance: f64 = tops.iter().map(|(u, _)| (*u as f64 - mean_units).powi(2)).sum();
    let slope = (covariance / variance).max(0.0);
    let intercept = (mean_bytes - slope * mean_units).max(0.0);
    const SCALE: u64 = 1 << 20;
    Coefficients::new((intercept * SCALE as f64) as u128, (slope * SCALE as f64) as u128, SCALE)
        .unwrap_or(Coefficients::flat(0))
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
