//! How a way of pricing does on sizes it never saw: leave one size out, price it from the rest, compare.
//!
//! The shares here are for people and are floating point; no reservation is made of them.

use headroom_base::{Estimate, Source};
use serde::Serialize;

use crate::anchored::{PredictedPoint, PredictionTerms, anchor};
use crate::fit::{Point, fit};

/// A counted window, as far as pricing is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Size and need.
    pub point: Point,
    /// What its program predicts that it needs; none where there is no program.
    pub predicted_bytes: Option<u64>,
}

/// The samples of one line on one device, under one environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledLine {
    /// What it is, for people.
    pub name: String,
    /// What is known of its predictions.
    pub predictions: PredictionTerms,
    /// Its samples.
    pub samples: Vec<Sample>,
}

/// A way of pricing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// The upper envelope over cost units with the margin: what reservations are made of.
    Envelope,
    /// Predictions anchored to the measurements; the envelope where there are none or they are not believed.
    AnchoredPrediction,
}

impl Method {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Envelope, Self::AnchoredPrediction];

    /// The reservation for a sample from others; none where too few sizes are known.
    pub fn price(self, known: &[Sample], asked: &Sample, predictions: PredictionTerms) -> Option<u64> {
        match self {
            Self::Envelope => by_envelope(known, asked),
            Self::AnchoredPrediction => by_prediction(known, asked, predictions).or_else(|| by_envelope(known, asked)),
        }
    }
}

fn by_envelope(known: &[Sample], asked: &Sample) -> Option<u64> {
    let points: Vec<Point> = known.iter().map(|sample| sample.point).collect();
    let line = fit(&points).ok()?.coefficients;
    let (analytic_bytes, numerator) = (asked.point.analytic_bytes, line.numerator_at(asked.point.units));
    let estimate = Estimate::of_fraction(analytic_bytes, numerator, line.denominator(), Source::User);
    Some(estimate.reservation_bytes)
}

fn by_prediction(known: &[Sample], asked: &Sample, predictions: PredictionTerms) -> Option<u64> {
    let predicted =
        |sample: &Sample| Some(PredictedPoint { point: sample.point, predicted_bytes: sample.predicted_bytes? });
    let points: Vec<PredictedPoint> = known.iter().map(predicted).collect::<Option<_>>()?;
    let anchored = anchor(&points, predictions)?;
    Some(anchored.reservation_bytes(asked.predicted_bytes?, asked.point.analytic_bytes))
}

/// A sample whose size was left out, with the price it got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldOut {
    /// The line's name.
    pub line: String,
    /// Its cost units.
    pub units: u64,
    /// What it needed.
    pub demand_bytes: u64,
    /// What was reserved.
    pub reservation_bytes: u64,
    /// Whether its size lies between sizes that were left in.
    pub inside: bool,
}

impl HeldOut {
    /// What was reserved beyond the need, as a share of the need; negative where it was too little.
    pub fn over_share(&self) -> f64 {
        self.reservation_bytes as f64 / self.demand_bytes as f64 - 1.0
    }

    /// Whether too little was reserved.
    pub const fn is_under(&self) -> bool {
        self.reservation_bytes < self.demand_bytes
    }
}

/// Leaves out each size of a line in turn, all samples of it at once. A line with fewer than four sizes gives
/// nothing: three must remain.
pub fn leave_one_size_out(line: &SampledLine, method: Method) -> Vec<HeldOut> {
    let mut sizes: Vec<u64> = line.samples.iter().map(|sample| sample.point.units).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut held_out = Vec::new();
    for units in &sizes {
        let (out, known): (Vec<Sample>, Vec<Sample>) =
            line.samples.iter().partition(|sample| sample.point.units == *units);
        for sample in out {
            let Some(reservation_bytes) = method.price(&known, &sample, line.predictions) else { continue };
            held_out.push(HeldOut {
                line: line.name.clone(),
                units: *units,
                demand_bytes: sample.point.demand_bytes,
                reservation_bytes,
                inside: sizes.first() < Some(units) && Some(units) < sizes.last(),
            });
        }
    }
    held_out
}

/// How a way of pricing did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Score {
    /// Samples that were priced.
    pub held_out: usize,
    /// How many of them were reserved too little.
    pub under: usize,
    /// The largest share of such a reservation that was missing.
    pub worst_short_share: f64,
    /// The largest rate of such samples that is still likely (95 %, exact binomial, one-sided).
    pub under_rate_upper: f64,
    /// The median of what was reserved beyond the need, as a share of it.
    pub over_p50: f64,
    /// The 95th percentile of it.
    pub over_p95: f64,
    /// The largest of it.
    pub over_worst: f64,
}

impl Score {
    /// The score of samples; nothing for none.
    pub fn of<'a>(held_out: impl IntoIterator<Item = &'a HeldOut>) -> Option<Self> {
        let mut over = Vec::new();
        let (mut under, mut worst_short_share) = (0, 0.0_f64);
        for sample in held_out {
            over.push(sample.over_share());
            if sample.is_under() {
                under += 1;
                let short = sample.demand_bytes as f64 / sample.reservation_bytes.max(1) as f64 - 1.0;
                worst_short_share = worst_short_share.max(short);
            }
        }
        over.sort_unstable_by(f64::total_cmp);
        let at = |percent: usize| over.get((over.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        Some(Self {
            held_out: over.len(),
            under,
            worst_short_share,
            under_rate_upper: upper_bound(under, over.len()),
            over_p50: at(50)?,
            over_p95: at(95)?,
            over_worst: at(100)?,
        })
    }
}

/// The Clopper–Pearson upper bound at 95 %, one-sided: the rate at which `failures` or fewer of `trials` would
/// come up one time in twenty.
pub fn upper_bound(failures: usize, trials: usize) -> f64 {
    if failures >= trials {
        return 1.0;
    }
    let (mut low, mut high) = (failures as f64 / trials as f64, 1.0);
    // 60 halvings are below the spacing of floating point numbers.
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if at_most(failures, trials, middle) > 0.05 { low = middle } else { high = middle }
    }
    high
}

/// The probability of at most `failures` in `trials` at a given rate.
fn at_most(failures: usize, trials: usize, rate: f64) -> f64 {
    let (mut log_ways, mut sum) = (0.0_f64, 0.0);
    for count in 0..=failures {
        if count > 0 {
            log_ways += ((trials - count + 1) as f64 / count as f64).ln();
        }
        sum += (log_ways + count as f64 * rate.ln() + (trials - count) as f64 * (1.0 - rate).ln()).exp();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(units: u64, demand_bytes: u64) -> Sample {
        Sample { point: Point { units, demand_bytes, analytic_bytes: 0 }, predicted_bytes: None }
    }

    fn line(samples: Vec<Sample>) -> SampledLine {
        SampledLine {
            name: "line".into(),
            predictions: PredictionTerms { step_bytes: 1, is_upper_bound: false },
            samples,
        }
    }

    #[test]
    fn the_bound_agrees_with_published_tables() {
        // 1 - 0.05^(1/n) for none; 6 of 220 and 3 of 20 from the beta quantiles.
        for (failures, trials, expected) in [(0, 220, 0.013_525), (0, 1, 0.95), (3, 20, 0.343_664), (6, 220, 0.053_124)]
        {
            let bound = upper_bound(failures, trials);
            assert!((bound - expected).abs() < 5e-4, "{failures} of {trials}: {bound}");
        }
        assert_eq!(upper_bound(5, 5), 1.0);
    }

    #[test]
    fn a_size_is_priced_without_any_of_its_own_samples() {
        // The size of 3 units needs more than the line through the others.
        let straight = vec![sample(1, 1_000), sample(2, 2_000), sample(3, 9_000), sample(3, 3_000), sample(4, 4_000)];
        let held_out = leave_one_size_out(&line(straight), Method::Envelope);
        assert_eq!(held_out.len(), 5);
        let of_three: Vec<_> = held_out.iter().filter(|sample| sample.units == 3).collect();
        assert!(of_three.iter().all(|sample| sample.reservation_bytes == 3_150 && sample.inside));
        let score = Score::of(&held_out).unwrap();
        assert_eq!(score.under, 1);
        assert!((score.worst_short_share - (9_000.0 / 3_150.0 - 1.0)).abs() < 1e-12);
    }

    #[test]
    fn a_prediction_prices_where_there_is_one_for_every_sample() {
        // A need that jumps at 4 units, as its program says.
        let needs = [(1, 1_000), (2, 2_000), (3, 3_000), (4, 9_000), (5, 10_000)];
        let mut samples: Vec<Sample> = needs.iter().map(|(units, demand)| sample(*units, *demand)).collect();
        samples.iter_mut().for_each(|sample| sample.predicted_bytes = Some(sample.point.demand_bytes));
        let worst = |samples: &[Sample], method| {
            Score::of(&leave_one_size_out(&line(samples.to_vec()), method)).unwrap().over_worst
        };
        assert!(worst(&samples, Method::AnchoredPrediction) < 0.031);
        assert!(worst(&samples, Method::Envelope) > 0.4);
        samples[0].predicted_bytes = None;
        assert_eq!(worst(&samples, Method::AnchoredPrediction), worst(&samples, Method::Envelope));
    }

    #[test]
    fn three_sizes_give_nothing_to_leave_out() {
        let held_out = leave_one_size_out(&line(vec![sample(1, 1), sample(2, 2), sample(3, 3)]), Method::Envelope);
        assert!(held_out.is_empty() && Score::of(&held_out).is_none());
    }
}
