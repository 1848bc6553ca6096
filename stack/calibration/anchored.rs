//! Pricing by a program's prediction, anchored to what was measured: an alternative to the envelope.
//!
//! A program knows what a line over cost units cannot: that an algorithm changes with size, and in which steps an
//! allocator grows. So the prediction gives the shape and the measurements correct it. Scored beside the envelope by
//! [`cross_validation`](crate::cross_validation) over every recorded line it is too small less often over all of them
//! and by far less, but not never, and under the native allocator more often; its median excess over all lines is no
//! smaller. So the envelope stays what reservations are made of.

use crate::fit::{LEAST_SIZES, Point};

/// A counted window with what its program predicts for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictedPoint {
    /// Size and need.
    pub point: Point,
    /// The predicted need, the analytic part included.
    pub predicted_bytes: u64,
}

/// What is known of a line's predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PredictionTerms {
    /// The step in which the allocator's reserve grows: two runs of one case can differ by it.
    pub step_bytes: u64,
    /// Whether predictions are upper bounds, as they are for the stream-ordered pool. Nothing is added to a bound
    /// that held for every window.
    pub is_upper_bound: bool,
}

/// Predictions of a line, corrected by the most that any measured window was above its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchored {
    shortfall_bytes: u64,
    terms: PredictionTerms,
}

/// Anchors predictions to windows. None below three distinct sizes, and where a prediction missed a window by
/// more than a tenth of it or two growth steps: such a program does not describe this device, and the envelope
/// is the guard.
pub fn anchor(points: &[PredictedPoint], terms: PredictionTerms) -> Option<Anchored> {
    let mut sizes: Vec<u64> = points.iter().map(|known| known.point.units).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() < LEAST_SIZES || !points.iter().all(|known| describes(known, terms)) {
        return None;
    }
    let short = |known: &PredictedPoint| known.point.demand_bytes.saturating_sub(known.predicted_bytes);
    let shortfall_bytes = points.iter().map(short).max()?;
    Some(Anchored { shortfall_bytes, terms })
}

fn describes(known: &PredictedPoint, terms: PredictionTerms) -> bool {
    let (demand, predicted) = (known.point.demand_bytes, known.predicted_bytes);
    let is_near = demand.abs_diff(predicted) <= (predicted / 10).max(2 * terms.step_bytes);
    is_near || (terms.is_upper_bound && predicted >= demand)
}

impl Anchored {
    /// The reservation for a predicted need: the prediction, the largest known shortfall, and for what no window
    /// showed, two growth steps or 3 % of the part that is not known exactly, whichever is larger.
    pub fn reservation_bytes(&self, predicted_bytes: u64, analytic_bytes: u64) -> u64 {
        let corrected = predicted_bytes.max(analytic_bytes).saturating_add(self.shortfall_bytes);
        let unseen_bytes = if self.terms.is_upper_bound && self.shortfall_bytes == 0 {
            0
        } else {
            let percent = (corrected - analytic_bytes).div_ceil(100);
            percent.saturating_mul(3).max(2 * self.terms.step_bytes)
        };
        corrected.saturating_add(unseen_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: PredictionTerms = PredictionTerms { step_bytes: 20, is_upper_bound: false };

    fn known(sizes: &[(u64, u64, u64)]) -> Vec<PredictedPoint> {
        let point = |units, demand_bytes| Point { units, demand_bytes, analytic_bytes: 0 };
        sizes
            .iter()
            .map(|(units, demand, predicted)| PredictedPoint {
                point: point(*units, *demand),
                predicted_bytes: *predicted,
            })
            .collect()
    }

    #[test]
    fn the_largest_shortfall_and_the_larger_of_two_steps_and_three_percent_are_added() {
        let anchored = anchor(&known(&[(1, 1_000, 1_000), (2, 2_030, 2_000), (3, 2_900, 3_000)]), STEP).unwrap();
        assert_eq!(anchored.reservation_bytes(500, 0), 500 + 30 + 40);
        assert_eq!(anchored.reservation_bytes(10_000, 0), 10_030 + 303);
        // What is known exactly gets nothing added but the shortfall and the steps.
        assert_eq!(anchored.reservation_bytes(10_000, 9_970), 10_030 + 40);
    }

    #[test]
    fn nothing_is_added_to_a_bound_that_held() {
        let bound = PredictionTerms { is_upper_bound: true, ..STEP };
        let held = anchor(&known(&[(1, 700, 1_000), (2, 1_999, 2_000), (3, 2_900, 3_000)]), bound).unwrap();
        assert_eq!(held.reservation_bytes(5_000, 0), 5_000);
        let broken = anchor(&known(&[(1, 700, 1_000), (2, 2_001, 2_000), (3, 2_900, 3_000)]), bound).unwrap();
        assert_eq!(broken.reservation_bytes(5_000, 0), 5_001 + 153);
    }

    #[test]
    fn a_program_that_missed_a_window_by_a_tenth_is_not_believed() {
        let missed = |demand| anchor(&known(&[(1, 1_000, 1_000), (2, demand, 2_000), (3, 3_000, 3_000)]), STEP);
        assert!(missed(2_200).is_some() && missed(1_800).is_some());
        assert!(missed(2_201).is_none() && missed(1_799).is_none());
        assert!(anchor(&known(&[(1, 1, 1), (2, 2, 2)]), STEP).is_none(), "two sizes");
    }
}
