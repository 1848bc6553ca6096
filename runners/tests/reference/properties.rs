//! What holds of any values and shapes.

use headroom_runners::programs::Element;
use headroom_runners::programs::computation::{Filling, Given, Kernel, Pointwise as P, View};
use headroom_runners::reference::{filled, rounded};
use proptest::prelude::*;

use super::sketch::{BF16, FP16, FP32, Sketch, numbers, permuted};

const ELEMENTS: [Element; 7] = [FP32, FP16, BF16, Element::Fp64, Element::Int64, Element::Int32, Element::Bool];

fn orders() -> impl Strategy<Value = Vec<usize>> {
    Just(vec![0, 1, 2, 3]).prop_shuffle()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rounding_again_changes_nothing(value in -1e6f64..1e6, which in 0usize..7) {
        let once = rounded(value, ELEMENTS[which]);
        prop_assert_eq!(rounded(once, ELEMENTS[which]), once);
    }

    #[test]
    fn a_rounded_value_is_within_half_a_step(value in -1e4f64..1e4) {
        for (element, roundoff) in [(FP32, 2f64.powi(-24)), (FP16, 2f64.powi(-11)), (BF16, 2f64.powi(-8))] {
            let error = (rounded(value, element) - value).abs();
            // Below the least normal number of fp16 steps no longer shrink.
            prop_assert!(error <= value.abs() * roundoff || error <= 2f64.powi(-25), "{value} in {element:?}");
        }
    }

    #[test]
    fn a_copy_through_any_order_of_dimensions_and_back_is_the_same(
        sizes in prop::collection::vec(1u64..5, 4), order in orders(), seed in 0u64..1000,
    ) {
        let values = numbers(seed, sizes.iter().product());
        let mut sketch = Sketch::new();
        let a = sketch.input(&sizes, FP32, &values);
        let turned = permuted(&a, &order);
        let copy = sketch.computed(Kernel::Pointwise(P::Copy), &[&turned], &turned.sizes, FP32);
        let mut back = vec![0; 4];
        for (to, from) in order.iter().enumerate() {
            back[*from] = to;
        }
        let again = permuted(&copy, &back);
        prop_assert_eq!(sketch.values(&[&again]).remove(0), values);
    }

    #[test]
    fn a_convolution_is_linear_in_its_input(
        channels in 1u64..4, outputs in 1u64..4, side in 3u64..6, stride in 1u64..3, padding in 0u64..2, seed in 0u64..1000,
    ) {
        let sizes = [1, channels, side, side];
        let out = (side + 2 * padding - 3) / stride + 1;
        let mut sketch = Sketch::new();
        let count = sizes.iter().product();
        let [a, b] = [seed, seed + 1].map(|seed| sketch.input(&sizes, Element::Fp64, &numbers(seed, count)));
        let taps = sketch.input(&[outputs, channels, 3, 3], Element::Fp64, &numbers(seed + 2, outputs * channels * 9));
        let convolution = Kernel::Convolution { stride: vec![stride; 2], padding: vec![padding; 2], workspace: None };
        let convolve = |sketch: &mut Sketch, a: &View| {
            sketch.computed(convolution.clone(), &[a, &taps], &[1, outputs, out, out], Element::Fp64)
        };
        let sum = sketch.computed(Kernel::Pointwise(P::Add), &[&a, &b], &sizes, Element::Fp64);
        let whole = convolve(&mut sketch, &sum);
        let [first, second] = [&a, &b].map(|part| convolve(&mut sketch, part));
        let values = sketch.values(&[&whole, &first, &second]);
        for (at, whole) in values[0].iter().enumerate() {
            prop_assert!((whole - values[1][at] - values[2][at]).abs() < 1e-9);
        }
    }

    #[test]
    fn attention_lies_between_the_values_that_it_sees(
        queries in 1u64..5, keys in 1u64..5, causal in any::<bool>(), seed in 0u64..1000,
    ) {
        let mut sketch = Sketch::new();
        let mut tokens = |seed, count| sketch.input(&[1, 1, count, 2], FP32, &numbers(seed, count * 2));
        let (a, b, c) = (tokens(seed, queries), tokens(seed + 1, keys), tokens(seed + 2, keys));
        let output = sketch.computed(Kernel::Attention { scale: 3.0, causal }, &[&a, &b, &c], &[1, 1, queries, 2], FP32);
        let values = numbers(seed + 2, keys * 2);
        let found = sketch.values(&[&output]).remove(0);
        for (query, row) in found.chunks(2).enumerate() {
            let seen = if causal { (query + 1).min(keys as usize) } else { keys as usize };
            for (channel, value) in row.iter().enumerate() {
                let column = || values.chunks(2).take(seen).map(|key| key[channel]);
                let (low, high) = column().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
                prop_assert!((low - 1e-6..=high + 1e-6).contains(value), "{value} is not in {low}..{high}");
            }
        }
    }

    #[test]
    fn fillings_are_within_their_bounds_and_are_the_same_wherever_they_are_made(
        name in "[a-z.]{1,12}", centre in -2f32..2.0, amplitude in 0f32..1.0, below in 1u64..60000,
    ) {
        let given = |element, filling| Given { name: name.clone(), elements: 64, element, filling };
        let around = filled(&given(FP32, Filling::Around { centre, amplitude }));
        let (low, high) = (f64::from(centre - amplitude), f64::from(centre + amplitude));
        prop_assert!(around.iter().all(|value| (low - 1e-6..=high + 1e-6).contains(value)));
        let half = filled(&given(FP16, Filling::Around { centre, amplitude }));
        prop_assert_eq!(half, around.iter().map(|value| rounded(*value, FP16)).collect::<Vec<_>>());
        let whole = filled(&given(Element::Int64, Filling::Below(below)));
        prop_assert!(whole.iter().all(|value| value.fract() == 0.0 && (0.0..below as f64).contains(value)));
        let counting = filled(&given(Element::Int32, Filling::Counting));
        prop_assert!(counting.iter().enumerate().all(|(at, value)| at as f64 == *value));
    }
}

#[test]
fn fillings_spread_over_their_range_and_differ_from_name_to_name() {
    let given = |name: &str| Given {
        name: name.to_owned(),
        elements: 4096,
        element: FP32,
        filling: Filling::Around { centre: 0.0, amplitude: 1.0 },
    };
    let [one, other] = ["conv_in.weight", "conv_in.bias"].map(|name| filled(&given(name)));
    // A uniform distribution has the variance 1/3; the mean of 4096 values is 0.009 off it at one standard deviation.
    let mean = one.iter().sum::<f64>() / 4096.0;
    let square = one.iter().map(|value| value * value).sum::<f64>() / 4096.0;
    assert!(mean.abs() < 0.04 && (square - 1.0 / 3.0).abs() < 0.03, "{mean} {square}");
    let product = one.iter().zip(&other).map(|(one, other)| one * other).sum::<f64>() / 4096.0;
    assert!(product.abs() < 0.03, "{product}");
}
