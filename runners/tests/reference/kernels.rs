//! Elementwise functions, reductions, rows by index and repeated pixels, against values worked out by hand.

use headroom_runners::programs::Element;
use headroom_runners::programs::computation::{Kernel, Pointwise as P, Reduction, View};

use super::sketch::{BF16, FP16, FP32, Sketch, assert_near, narrowed, permuted};

/// An elementwise function of one operand, from one element type to another.
fn mapped(function: P, from: Element, values: &[f64], to: Element) -> Vec<f64> {
    let mut sketch = Sketch::new();
    let sizes = [values.len() as u64];
    let a = sketch.input(&sizes, from, values);
    let output = sketch.computed(Kernel::Pointwise(function), &[&a], &sizes, to);
    sketch.values(&[&output]).remove(0)
}

/// An elementwise function of several operands of one value each.
fn of(function: P, operands: &[f64]) -> f64 {
    let mut sketch = Sketch::new();
    let views: Vec<View> = operands.iter().map(|value| sketch.input(&[1], FP32, &[*value])).collect();
    let output = sketch.computed(Kernel::Pointwise(function), &views.iter().collect::<Vec<_>>(), &[1], FP32);
    sketch.values(&[&output])[0][0]
}

#[test]
fn functions_of_one_operand_have_their_values() {
    let e = std::f64::consts::E;
    let expected = [
        (P::Copy, 1.5, 1.5),
        (P::ConstantOver(3.0), 2.0, 1.5),
        (P::Affine { factor: 2.0, summand: -1.0 }, 3.0, 5.0),
        (P::Over(4.0), 6.0, 1.5),
        (P::Clamp { low: -1.0, high: 2.0 }, 5.0, 2.0),
        (P::Clamp { low: -1.0, high: 2.0 }, -5.0, -1.0),
        (P::Clamp { low: -1.0, high: 2.0 }, 0.5, 0.5),
        (P::Silu, 2.0, 2.0 / (1.0 + (-2f64).exp())),
        (P::Relu, -2.0, 0.0),
        (P::Relu, 2.0, 2.0),
        (P::Tanh, 0.5, (e - 1.0) / (e + 1.0)),
        (P::Sigmoid, 1.0, e / (1.0 + e)),
        (P::Exp, 1.0, e),
        (P::PowerOf(10000.0), 0.5, 100.0),
        (P::Power(3.0), 2.0, 8.0),
        (P::Log, e, 1.0),
        (P::InverseRoot, 4.0, 0.5),
        (P::Sine, std::f64::consts::FRAC_PI_6, 0.5),
        (P::Cosine, std::f64::consts::FRAC_PI_3, 0.5),
        (P::Magnitude, -3.0, 3.0),
        (P::IsInfinite, f64::INFINITY, 1.0),
        (P::IsInfinite, 3.0, 0.0),
        (P::Equals(3.0), 3.0, 1.0),
        (P::Equals(3.0), 2.0, 0.0),
        (P::IsPositive, 0.0, 0.0),
        (P::IsPositive, 0.5, 1.0),
        (P::IsLess(2.0), 1.0, 1.0),
        (P::IsLess(2.0), 2.0, 0.0),
    ];
    for (function, operand, value) in expected {
        assert_near(&[of(function, &[operand])], &[value], 4e-7 * value.abs());
    }
}

#[test]
fn the_gaussian_error_unit_has_its_published_values_and_the_approximation_its_own() {
    // Φ(1) and Φ(2) of the normal distribution's tables, seven digits.
    for (a, phi) in [(1.0, 0.841_344_7), (2.0, 0.977_249_9)] {
        assert_near(&[of(P::Gelu { tanh: false }, &[a])], &[a * phi], 4e-7);
        assert_near(&[of(P::Gelu { tanh: false }, &[-a])], &[-a * (1.0 - phi)], 4e-7);
    }
    let approximation = 0.5 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * 1.044_715).tanh());
    assert_near(&[of(P::Gelu { tanh: true }, &[1.0])], &[approximation], 2e-7);
    assert!((of(P::Gelu { tanh: true }, &[1.0]) - of(P::Gelu { tanh: false }, &[1.0])).abs() > 1e-5);
}

#[test]
fn functions_of_several_operands_have_their_values() {
    let expected: [(P, &[f64], f64); 10] = [
        (P::Add, &[2.0, 3.0], 5.0),
        (P::Subtract, &[2.0, 3.0], -1.0),
        (P::Multiply, &[2.0, 3.0], 6.0),
        (P::Divide, &[3.0, 2.0], 1.5),
        (P::Minimum, &[2.0, 3.0], 2.0),
        (P::Minimum, &[3.0, 2.0], 2.0),
        (P::ClampTo, &[5.0, -1.0, 2.0], 2.0),
        (P::ClampTo, &[-5.0, -1.0, 2.0], -1.0),
        (P::Choose, &[1.0, 7.0, 8.0], 7.0),
        (P::Choose, &[0.0, 7.0, 8.0], 8.0),
    ];
    for (function, operands, value) in expected {
        assert_eq!(of(function, operands), value, "{function:?}");
    }
}

#[test]
fn what_is_no_number_stays_none_in_limits() {
    for function in [P::Relu, P::Clamp { low: 0.0, high: 1.0 }] {
        assert!(of(function, &[f64::NAN]).is_nan(), "{function:?}");
    }
    assert!(of(P::Minimum, &[1.0, f64::NAN]).is_nan());
    assert!(of(P::Minimum, &[f64::NAN, 1.0]).is_nan());
}

#[test]
fn constants_and_indices_need_no_operand() {
    let mut sketch = Sketch::new();
    let constant = sketch.computed(Kernel::Pointwise(P::Constant(2.5)), &[], &[2], FP32);
    let index = sketch.computed(Kernel::Pointwise(P::Index { dimension: 1, step: 0.5 }), &[], &[2, 3], FP32);
    let values = sketch.values(&[&constant, &index]);
    assert_eq!(values, [vec![2.5; 2], vec![0.0, 0.5, 1.0, 0.0, 0.5, 1.0]]);
}

#[test]
fn stored_values_are_those_of_their_element_type() {
    // Halfway between two neighbours goes to the even one; 65520 is the first that fp16 rounds to infinity.
    let ties = [2049.0, 2051.0, 65519.0, 65520.0];
    assert_eq!(mapped(P::Copy, FP32, &ties, FP16), [2048.0, 2052.0, 65504.0, f64::INFINITY]);
    assert_eq!(mapped(P::Copy, FP32, &[257.0, 259.0], BF16), [256.0, 260.0]);
    assert_eq!(mapped(P::Copy, Element::Fp64, &[16_777_217.0], FP32), [16_777_216.0]);
    assert_eq!(mapped(P::Copy, FP32, &[1.75, -1.75], Element::Int64), [1.0, -1.0]);
    assert_eq!(mapped(P::Copy, FP32, &[0.25, 0.0, -3.0], Element::Bool), [1.0, 0.0, 1.0]);
}

#[test]
fn arithmetic_is_in_single_precision_unless_a_wider_type_takes_part() {
    // In fp32 the constant vanishes beside 2²⁴ and the sum falls back; in fp64 it does not.
    let function = P::Affine { factor: 1.0, summand: 1.0 };
    assert_eq!(mapped(function, FP32, &[16_777_216.0], FP32), [16_777_216.0]);
    assert_eq!(mapped(function, FP32, &[16_777_216.0], Element::Fp64), [16_777_217.0]);
    assert_eq!(mapped(function, FP32, &[16_777_216.0], Element::Int32), [16_777_217.0]);
    let third = f64::from(1.0f32 / 3.0);
    assert_eq!(mapped(P::Over(3.0), FP32, &[1.0], FP32), [third]);
    assert_ne!(mapped(P::Over(3.0), Element::Fp64, &[1.0], Element::Fp64), [third]);
}

#[test]
fn operands_are_broadcast_to_the_output() {
    let mut sketch = Sketch::new();
    let map = sketch.input(&[2, 3], FP32, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let row = sketch.input(&[3], FP32, &[10.0, 20.0, 30.0]);
    let column = sketch.input(&[2, 1], FP32, &[100.0, 200.0]);
    let one = sketch.computed(Kernel::Pointwise(P::Add), &[&map, &row], &[2, 3], FP32);
    let two = sketch.computed(Kernel::Pointwise(P::Add), &[&one, &column], &[2, 3], FP32);
    assert_eq!(sketch.values(&[&two]), [[110.0, 121.0, 132.0, 213.0, 224.0, 235.0]]);
}

#[test]
fn a_causal_mask_leaves_what_is_not_later() {
    let mut sketch = Sketch::new();
    let scores = sketch.input(&[2, 2, 2], FP32, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let output = sketch.computed(Kernel::Pointwise(P::MaskLater), &[&scores], &[2, 2, 2], FP32);
    let hidden = f64::NEG_INFINITY;
    assert_eq!(sketch.values(&[&output]), [[1.0, hidden, 3.0, 4.0, 5.0, hidden, 7.0, 8.0]]);
}

#[test]
fn an_elementwise_function_works_in_place() {
    let mut sketch = Sketch::new();
    let a = sketch.input(&[2], FP32, &[1.0, 2.0]);
    let sum = sketch.computed(Kernel::Pointwise(P::Copy), &[&a], &[2], FP32);
    sketch.pointwise(P::Add, &[&sum, &a], &sum);
    sketch.pointwise(P::Affine { factor: 10.0, summand: 0.0 }, &[&sum], &sum);
    assert_eq!(sketch.values(&[&sum]), [[20.0, 40.0]]);
}

#[test]
fn reductions_have_their_values_along_any_dimension() {
    let rows = [3.0, 0.0, -4.0, 0.0, 0.0, 0.0];
    let along_rows = [
        (Reduction::Mean, [-1.0 / 3.0, 0.0]),
        (Reduction::Length, [5.0, 0.0]),
        (Reduction::Any, [1.0, 0.0]),
        (Reduction::All, [0.0, 0.0]),
        (Reduction::FirstLargest, [0.0, 0.0]),
    ];
    let along_columns = [
        (Reduction::Mean, [1.5, 0.0, -2.0]),
        (Reduction::Length, [3.0, 0.0, 4.0]),
        (Reduction::Any, [1.0, 0.0, 1.0]),
        (Reduction::All, [0.0, 0.0, 0.0]),
        (Reduction::FirstLargest, [0.0, 0.0, 1.0]),
    ];
    let reduced = |reduction, dimension, sizes: &[u64]| {
        let mut sketch = Sketch::new();
        let a = sketch.input(&[2, 3], FP32, &rows);
        let output = sketch.computed(Kernel::Reduce { reduction, dimension }, &[&a], sizes, Element::Fp64);
        sketch.values(&[&output]).remove(0)
    };
    for (reduction, values) in along_rows {
        assert_near(&reduced(reduction, 1, &[2, 1]), &values, 1e-12);
        assert_eq!(reduced(reduction, 1, &[2]), reduced(reduction, 1, &[2, 1]));
    }
    for (reduction, values) in along_columns {
        assert_near(&reduced(reduction, 0, &[1, 3]), &values, 1e-12);
    }
}

#[test]
fn rows_are_gathered_by_index_and_picked_for_each_item() {
    let mut sketch = Sketch::new();
    let table = sketch.input(&[3, 2], FP32, &[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);
    let ids = sketch.input(&[2, 2], Element::Int64, &[2.0, 0.0, 1.0, 1.0]);
    let rows = sketch.computed(Kernel::Gather, &[&table, &ids], &[2, 2, 2], FP32);
    let last = sketch.input(&[2], Element::Int64, &[1.0, 0.0]);
    let picked = sketch.computed(Kernel::PickRow, &[&rows, &last], &[2, 2], FP32);
    let values = sketch.values(&[&rows, &picked]);
    assert_eq!(values[0], [20.0, 21.0, 0.0, 1.0, 10.0, 11.0, 10.0, 11.0]);
    assert_eq!(values[1], [0.0, 1.0, 10.0, 11.0]);
}

#[test]
fn pixels_are_repeated_by_whole_and_broken_factors() {
    let mut sketch = Sketch::new();
    let a = sketch.input(&[1, 1, 2, 2], FP32, &[1.0, 2.0, 3.0, 4.0]);
    let output = sketch.computed(Kernel::UpsampleNearest, &[&a], &[1, 1, 2, 3], FP32);
    let twice = sketch.computed(Kernel::UpsampleNearest, &[&a], &[1, 1, 4, 4], FP32);
    let values = sketch.values(&[&output, &twice]);
    assert_eq!(values[0], [1.0, 1.0, 2.0, 3.0, 3.0, 4.0]);
    assert_eq!(values[1], [1., 1., 2., 2., 1., 1., 2., 2., 3., 3., 4., 4., 3., 3., 4., 4.]);
}

#[test]
fn padding_and_joining_are_copies_to_parts() {
    let mut sketch = Sketch::new();
    let a = sketch.input(&[1, 2], FP32, &[1.0, 2.0]);
    let b = sketch.input(&[2, 1], FP32, &[3.0, 4.0]);
    let joined = sketch.tensor(&[1, 4], FP32);
    sketch.pointwise(P::Copy, &[&a], &narrowed(&joined, 1, 0, 2));
    sketch.pointwise(P::Copy, &[&permuted(&b, &[1, 0])], &narrowed(&joined, 1, 2, 2));
    let padded = sketch.tensor(&[3, 3], FP32);
    sketch.pointwise(P::Constant(0.0), &[], &padded);
    sketch.pointwise(P::Copy, &[&a], &narrowed(&narrowed(&padded, 0, 1, 1), 1, 1, 2));
    let values = sketch.values(&[&joined, &padded]);
    assert_eq!(values[0], [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(values[1], [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0]);
}
