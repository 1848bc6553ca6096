//! What it takes for other values to count as the reference's.

use headroom_base::DType;
use headroom_runners::programs::computation::{Kernel, Pointwise};
use headroom_runners::reference::{Mismatch, Output, Tolerance, compare, rounded};

use super::sketch::{FP32, numbers};
use headroom_runners::programs::Element;

fn output(values: Vec<f64>) -> Output {
    Output { element: FP32, sizes: vec![values.len() as u64], values }
}

#[test]
fn the_same_values_do_not_deviate() {
    let reference = output(numbers(1, 64));
    let deviation = compare(&reference, &reference.values, Tolerance::EXACT).unwrap();
    assert_eq!((deviation.rms, deviation.largest), (0.0, 0.0));
    let zeros = output(vec![0.0; 4]);
    assert!(compare(&zeros, &[0.0; 4], Tolerance::EXACT).is_ok());
    assert!(compare(&zeros, &[0.0, 0.0, 0.0, 1e-9], Tolerance::EXACT).is_err());
}

#[test]
fn deviations_are_parts_of_the_root_mean_square_and_say_where() {
    let reference = output(vec![30.0, -40.0, 0.0, 0.0]);
    let other = [30.0, -40.0, 5.0, 0.0];
    let allowed = Tolerance { rms: 1.0, largest: 1.0 };
    let deviation = compare(&reference, &other, allowed).unwrap();
    assert_eq!((deviation.rms, deviation.largest), (0.1, 0.2));
    assert_eq!((deviation.at, deviation.reference, deviation.other), (2, 0.0, 5.0));
    for narrow in [Tolerance { rms: 0.09, ..allowed }, Tolerance { largest: 0.19, ..allowed }] {
        let error = compare(&reference, &other, narrow).unwrap_err();
        assert!(error.to_string().contains("1.00e-1 in the root mean square"), "{error}");
        assert!(error.to_string().contains("element 2: 5 for 0"), "{error}");
    }
}

#[test]
fn what_is_no_finite_number_never_counts() {
    let reference = output(vec![1.0, f64::INFINITY]);
    let anything = Tolerance { rms: f64::INFINITY, largest: f64::INFINITY };
    assert!(matches!(compare(&reference, &reference.values, anything), Err(Mismatch::NotFinite { at: 1, .. })));
    let finite = output(vec![1.0, 2.0]);
    assert!(matches!(compare(&finite, &[f64::NAN, 2.0], anything), Err(Mismatch::NotFinite { at: 0, .. })));
    assert!(matches!(compare(&finite, &[1.0], anything), Err(Mismatch::Length { found: 1, expected: 2 })));
}

fn product(count: usize) -> Vec<Kernel> {
    vec![Kernel::MatrixProduct; count]
}

#[test]
fn one_operator_may_round_every_value_and_do_no_more() {
    let reference = output(numbers(7, 4096));
    let rounded_to =
        |dtype| reference.values.iter().map(|value| rounded(*value, Element::Float(dtype))).collect::<Vec<_>>();
    for dtype in [DType::Fp16, DType::Bf16] {
        let tolerance = Tolerance::of(dtype, &product(1));
        compare(&reference, &rounded_to(dtype), tolerance).unwrap();
        let off = |part: f64| reference.values.iter().map(|value| value * (1.0 + part)).collect::<Vec<_>>();
        assert!(compare(&reference, &off(0.9 * tolerance.rms), tolerance).is_ok());
        assert!(compare(&reference, &off(1.1 * tolerance.rms), tolerance).is_err());
    }
    assert!(compare(&reference, &rounded_to(DType::Bf16), Tolerance::of(DType::Fp16, &product(1))).is_err());
    assert!(compare(&reference, &rounded_to(DType::Fp16), Tolerance::of(DType::Fp32, &product(1))).is_err());
}

#[test]
fn tolerance_grows_with_the_root_of_the_operators_and_with_the_width_of_the_type() {
    for dtype in DType::ALL {
        let [one, many] = [1, 100].map(|count| Tolerance::of(dtype, &product(count)));
        assert!((many.rms / one.rms - 10.0).abs() < 1e-9);
        assert!(many.largest > one.largest && one.largest >= 6.0 * one.rms);
        assert!(many.rms < 0.05, "a wrong kernel is further off than that");
    }
    let of = |dtype| Tolerance::of(dtype, &product(1)).rms;
    assert_eq!((of(DType::Bf16), of(DType::Fp16)), (8.0 * of(DType::Fp16), 512.0 * of(DType::Fp32)));
}

#[test]
fn single_precision_is_known_to_eleven_bits_after_convolutions_and_sines_and_moves_cost_nothing() {
    let convolution = Kernel::Convolution { stride: vec![1; 2], padding: vec![0; 2], workspace: None };
    for coarse in [convolution, Kernel::Pointwise(Pointwise::Sine), Kernel::Pointwise(Pointwise::Cosine)] {
        assert_eq!(Tolerance::of(DType::Fp32, [&coarse]), Tolerance::of(DType::Fp16, &product(1)));
        assert_eq!(Tolerance::of(DType::Bf16, [&coarse]), Tolerance::of(DType::Bf16, &product(1)));
    }
    let moves = [Kernel::Pointwise(Pointwise::Copy), Kernel::Gather, Kernel::PickRow, Kernel::UpsampleNearest];
    assert_eq!(Tolerance::of(DType::Fp16, &moves), Tolerance::EXACT);
}
