//! Softmax and the normalisations: what must hold of their results.

use headroom_runners::programs::computation::Kernel;

use super::sketch::{FP32, Sketch, assert_near, numbers};

/// Mean and mean square.
fn moments(values: &[f64]) -> [f64; 2] {
    let count = values.len() as f64;
    [values.iter().sum::<f64>() / count, values.iter().map(|value| value * value).sum::<f64>() / count]
}

#[test]
fn softmax_rows_sum_to_one_and_keep_their_order_however_large() {
    let mut sketch = Sketch::new();
    let small = numbers(1, 12);
    let large: Vec<f64> = small.iter().map(|value| value + 4096.0).collect();
    let a = sketch.input(&[3, 4], FP32, &small);
    let b = sketch.input(&[3, 4], FP32, &large);
    let a = sketch.computed(Kernel::Softmax, &[&a], &[3, 4], FP32);
    let b = sketch.computed(Kernel::Softmax, &[&b], &[3, 4], FP32);
    let values = sketch.values(&[&a, &b]);
    for (row, scores) in values[0].chunks(4).zip(small.chunks(4)) {
        assert_near(&[row.iter().sum()], &[1.0], 1e-6);
        assert_near(&[(row[0] / row[1]).ln()], &[scores[0] - scores[1]], 1e-5);
    }
    // fp32 keeps ten bits behind the point beside 4096.
    assert_near(&values[0], &values[1], 1e-3);
}

#[test]
fn softmax_gives_what_is_hidden_no_weight() {
    let mut sketch = Sketch::new();
    let a = sketch.input(&[1, 3], FP32, &[0.0, f64::NEG_INFINITY, 0.0]);
    let output = sketch.computed(Kernel::Softmax, &[&a], &[1, 3], FP32);
    assert_eq!(sketch.values(&[&output]), [[0.5, 0.0, 0.5]]);
}

#[test]
fn a_group_norm_has_mean_zero_and_variance_one_and_says_how() {
    let (items, channels, groups, space) = (2, 6, 3, 20);
    let sizes = [items, channels, 4, 5];
    let values: Vec<f64> = numbers(1, items * channels * space).iter().map(|value| 3.0 * value + 7.0).collect();
    let mut sketch = Sketch::new();
    let a = sketch.input(&sizes, FP32, &values);
    let b = sketch.input(&[channels], FP32, &[1.0; 6]);
    let c = sketch.input(&[channels], FP32, &[0.0; 6]);
    let output = sketch.tensor(&sizes, FP32);
    let statistics = [groups, groups, channels, channels].map(|count| sketch.tensor(&[items, count], FP32));
    let [mean, inverse, factor, summand] = &statistics;
    let kernel = Kernel::GroupNorm { groups, epsilon: 1e-6 };
    sketch.launch(kernel, &[&a, &b, &c], &[&output, mean, inverse, factor, summand]);
    let found = sketch.values(&[&output, mean, inverse, factor, summand]);
    for (group, normalised) in found[0].chunks(40).enumerate() {
        assert_near(&moments(normalised), &[0.0, 1.0], 1e-5);
        let own = &values[group * 40..][..40];
        let [centre, square] = moments(own);
        assert_near(&[found[1][group], found[2][group]], &[centre, (square - centre * centre).powf(-0.5)], 1e-5);
    }
    let again = values.iter().enumerate().map(|(at, value)| value * found[3][at / 20] + found[4][at / 20]);
    assert_near(&found[0], &again.collect::<Vec<_>>(), 1e-5);
}

#[test]
fn a_group_norm_scales_and_shifts_each_channel() {
    let mut sketch = Sketch::new();
    let a = sketch.input(&[1, 2, 2], FP32, &[-1.0, 1.0, 1.0, -1.0]);
    let b = sketch.input(&[2], FP32, &[2.0, 3.0]);
    let c = sketch.input(&[2], FP32, &[10.0, 20.0]);
    let output = sketch.tensor(&[1, 2, 2], FP32);
    let statistics = [1, 1, 2, 2].map(|count| sketch.tensor(&[1, count], FP32));
    let [mean, inverse, factor, summand] = &statistics;
    let kernel = Kernel::GroupNorm { groups: 1, epsilon: 3.0 };
    sketch.launch(kernel, &[&a, &b, &c], &[&output, mean, inverse, factor, summand]);
    // Variance 1 and epsilon 3 halve every value.
    let found = sketch.values(&[&output, mean, inverse, factor, summand]);
    assert_eq!(found[0], [9.0, 11.0, 21.5, 18.5]);
    assert_eq!(found[1..], [vec![0.0], vec![0.5], vec![1.0, 1.5], vec![10.0, 20.0]]);
}

#[test]
fn a_layer_norm_has_mean_zero_and_variance_one_before_scale_and_shift() {
    let values = numbers(1, 3 * 8);
    let (scale, shift) = (numbers(2, 8), numbers(3, 8));
    let mut sketch = Sketch::new();
    let a = sketch.input(&[1, 3, 8], FP32, &values);
    let b = sketch.input(&[8], FP32, &scale);
    let c = sketch.input(&[8], FP32, &shift);
    let mut normalised = Vec::new();
    let mut means = Vec::new();
    for reads in [vec![&a], vec![&a, &b], vec![&a, &b, &c]] {
        let [output, mean, inverse] = [&[1, 3, 8][..], &[3], &[3]].map(|sizes| sketch.tensor(sizes, FP32));
        sketch.launch(Kernel::LayerNorm { epsilon: 1e-12 }, &reads, &[&output, &mean, &inverse]);
        normalised.push(output);
        means.push(mean);
    }
    let found = sketch.values(&[&normalised[0], &normalised[1], &normalised[2], &means[0]]);
    for (row, (plain, own)) in found[0].chunks(8).zip(values.chunks(8)).enumerate() {
        assert_near(&moments(plain), &[0.0, 1.0], 1e-5);
        assert_near(&[found[3][row]], &[moments(own)[0]], 1e-6);
    }
    for (at, plain) in found[0].iter().enumerate() {
        let scaled = plain * scale[at % 8];
        assert_near(&[found[1][at], found[2][at]], &[scaled, scaled + shift[at % 8]], 1e-6);
    }
}

#[test]
fn a_root_mean_square_norm_has_mean_square_one_and_keeps_the_mean() {
    let mut sketch = Sketch::new();
    let a = sketch.input(&[2, 2], FP32, &[3.0, 4.0, 0.5, 0.5]);
    let b = sketch.input(&[2], FP32, &[1.0, 2.0]);
    let output = sketch.tensor(&[2, 2], FP32);
    let inverse = sketch.tensor(&[2, 1], FP32);
    sketch.launch(Kernel::RmsNorm { epsilon: 0.0 }, &[&a, &b], &[&output, &inverse]);
    let found = sketch.values(&[&output, &inverse]);
    let root = 12.5f64.sqrt();
    assert_near(&found[0], &[3.0 / root, 8.0 / root, 1.0, 2.0], 1e-6);
    assert_near(&found[1], &[1.0 / root, 2.0], 1e-6);
}
