//! The envelope against a search over every candidate line.

use super::*;
use proptest::prelude::*;

fn point(units: u64, demand_bytes: u64) -> Point {
    Point { units, demand_bytes, analytic_bytes: 0 }
}

/// A line `(a + b·u) / d` in whole numbers, found without any geometry.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    intercept: i128,
    slope: i128,
    denominator: i128,
}

/// Every line that can be an optimum: through two points, level through a point, from the origin through a point.
fn candidates(tops: &[Top]) -> Vec<Candidate> {
    let wide = |(units, bytes): Top| (i128::from(units), i128::from(bytes));
    let points: Vec<_> = tops.iter().copied().map(wide).collect();
    let mut lines = Vec::new();
    for (u, y) in &points {
        lines.push(Candidate { intercept: *y, slope: 0, denominator: 1 });
        if *u > 0 {
            lines.push(Candidate { intercept: 0, slope: *y, denominator: *u });
        }
        for (v, z) in points.iter().filter(|(v, _)| v > u) {
            lines.push(Candidate { intercept: y * (v - u) - (z - y) * u, slope: z - y, denominator: v - u });
        }
    }
    lines
}

/// The least excess among all candidates, and of those the steepest line.
fn brute_force(tops: &[Top]) -> Candidate {
    let feasible = |line: &Candidate| {
        line.intercept >= 0
            && line.slope >= 0
            && tops
                .iter()
                .all(|(u, y)| line.intercept + line.slope * i128::from(*u) >= i128::from(*y) * line.denominator)
    };
    let excess =
        |line: &Candidate| -> i128 { tops.iter().map(|(u, _)| line.intercept + line.slope * i128::from(*u)).sum() };
    candidates(tops)
        .into_iter()
        .filter(feasible)
        .reduce(|best, line| {
            let (left, right) = (excess(&line) * best.denominator, excess(&best) * line.denominator);
            let steeper = line.slope * best.denominator > best.slope * line.denominator;
            if left < right || (left == right && steeper) { line } else { best }
        })
        .expect("the level line through the highest point is always above all")
}

fn as_coefficients(line: Candidate) -> Coefficients {
    Coefficients::new(line.intercept as u128, line.slope as u128, line.denominator as u64).unwrap()
}

/// Mostly rising, sometimes falling or level, with ties: the shapes in which optima differ in kind.
fn points() -> impl Strategy<Value = Vec<Point>> {
    let small = prop::collection::vec((0_u64..12, 0_u64..12), 3..9);
    let rising = prop::collection::vec((1_u64..1 << 24, 0_u64..1 << 20), 3..9)
        .prop_map(|pairs| pairs.into_iter().map(|(u, noise)| (u, u * 600 + noise * 300)).collect::<Vec<_>>());
    let any = prop::collection::vec((0_u64..1 << 30, 0_u64..1 << 40), 3..9);
    prop_oneof![small, rising, any].prop_map(|pairs| pairs.into_iter().map(|(u, y)| point(u, y)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_feasible_line_has_less_excess_and_no_equal_one_is_steeper(points in points()) {
        let tops = largest_of_each_size(&points);
        match fit(&points) {
            Ok(fit) => prop_assert_eq!(fit.coefficients, as_coefficients(brute_force(&tops))),
            Err(FitError::TooFewSizes { sizes }) => prop_assert!(sizes == tops.len() && sizes < 3),
        }
    }

    #[test]
    fn no_counted_point_is_above_the_line(points in points()) {
        if let Ok(fit) = fit(&points) {
            for point in &points {
                prop_assert!(fit.coefficients.bytes_at(point.units) >= point.demand_bytes);
            }
        }
    }

    #[test]
    fn order_and_repetition_change_nothing(
        (points, shuffled) in points().prop_flat_map(|points| (Just(points.clone()), Just(points).prop_shuffle())),
        again in any::<prop::sample::Index>(),
    ) {
        let mut repeated = shuffled;
        repeated.push(points[again.index(points.len())]);
        let line = |points: &[Point]| fit(points).map(|fit| (fit.coefficients, fit.range, fit.sizes));
        prop_assert_eq!(line(&points), line(&repeated));
    }
}

#[test]
fn fewer_than_three_distinct_sizes_make_no_line() {
    let two_sizes = [point(1, 5), point(2, 9), point(2, 8), point(1, 5)];
    assert_eq!(fit(&two_sizes), Err(FitError::TooFewSizes { sizes: 2 }));
    assert_eq!(fit(&[]), Err(FitError::TooFewSizes { sizes: 0 }));
    assert!(FitError::TooFewSizes { sizes: 2 }.to_string().contains("2 of the 3"));
}

#[test]
fn each_kind_of_optimum_is_found() {
    let coefficients = |pairs: &[Top]| fit(&pairs.iter().map(|(u, y)| point(*u, *y)).collect::<Vec<_>>()).unwrap();
    let line = |intercept, slope, denominator| Coefficients::new(intercept, slope, denominator).unwrap();
    let cases = [
        ("an edge in the middle", vec![(1, 4), (2, 6), (3, 8), (6, 9)], line(2, 2, 1)),
        ("level, where larger sizes need less", vec![(1, 9), (2, 5), (3, 4)], line(9, 0, 1)),
        ("through the origin, where a would be negative", vec![(1, 1), (2, 3), (3, 9)], line(0, 3, 1)),
        ("the steeper of two with equal excess", vec![(1, 0), (2, 4), (3, 4)], line(0, 2, 1)),
        ("nothing at all", vec![(1, 0), (2, 0), (3, 0)], line(0, 0, 1)),
    ];
    for (kind, pairs, expected) in cases {
        assert_eq!(coefficients(&pairs).coefficients, expected, "{kind}");
    }
}

#[test]
fn analytic_parts_are_not_fitted_and_a_negative_remainder_is_reported() {
    let points = [
        Point { units: 1, demand_bytes: 110, analytic_bytes: 100 },
        Point { units: 2, demand_bytes: 120, analytic_bytes: 100 },
        Point { units: 3, demand_bytes: 90, analytic_bytes: 100 },
    ];
    let fit = fit(&points).unwrap();
    assert_eq!(fit.coefficients, Coefficients::new(0, 10, 1).unwrap());
    assert_eq!(fit.negative_remainders, [NegativeRemainder { units: 3, short_bytes: 10 }]);
}

#[test]
fn one_enormous_window_counts_and_raises_larger_sizes_at_most_in_proportion_and_smaller_ones_to_itself() {
    for odd in 0..5 {
        let mut points: Vec<_> = (1..=5).map(|size| point(size * 1_000, size * 2_000_000)).collect();
        points[odd].demand_bytes *= 1_000;
        let outlier = points[odd];
        let fit = fit(&points).unwrap();
        assert!(fit.coefficients.bytes_at(outlier.units) >= outlier.demand_bytes);
        for point in &points {
            let in_proportion = outlier.demand_bytes * point.units.max(outlier.units) / outlier.units;
            assert!(fit.coefficients.bytes_at(point.units) <= in_proportion, "size {} with {odd}", point.units);
        }
    }
}

#[test]
fn sizes_beyond_every_device_do_not_overflow() {
    let huge = 1_u64 << 62;
    let points = [point(huge - 2, huge), point(huge - 1, huge - 5), point(huge, huge + 1), point(1, 1)];
    let fit = fit(&points).unwrap();
    assert!(points.iter().all(|point| fit.coefficients.bytes_at(point.units) >= point.demand_bytes));
}

/// Sizes and needs up to the last number that 64 bits hold, those of a file that somebody wrote by hand.
fn extremes() -> impl Strategy<Value = Vec<Point>> {
    let odd = || prop_oneof![0_u64..4, (u64::MAX - 4)..=u64::MAX, (1_u64 << 62)..(1 << 63) + 3, any::<u64>()];
    prop::collection::vec((odd(), odd(), odd()), 3..9).prop_map(|triples| {
        let point = |(units, demand_bytes, analytic_bytes)| Point { units, demand_bytes, analytic_bytes };
        triples.into_iter().map(point).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn whatever_a_file_says_no_point_is_above_its_line_and_no_price_below_it(points in extremes()) {
        if let Ok(fit) = fit(&points) {
            for point in &points {
                let line = fit.coefficients;
                prop_assert!(line.bytes_at(point.units) >= point.remainder_bytes(), "{point:?}");
                let (numerator, denominator) = (line.numerator_at(point.units), line.denominator());
                let source = headroom_base::Source::User;
                let estimate =
                    headroom_base::Estimate::of_fraction(point.analytic_bytes, numerator, denominator, source);
                prop_assert!(estimate.reservation_bytes >= point.demand_bytes, "{point:?} {estimate:?}");
                prop_assert!(estimate.empirical_bytes.checked_add(estimate.margin_bytes).is_some());
            }
        }
    }
}
