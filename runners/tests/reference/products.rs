//! Convolutions, matrix products and attention, against their definitions written in another order.

use headroom_runners::programs::computation::{Kernel, Pointwise as P, View};

use super::sketch::{FP32, Sketch, assert_near, numbers, permuted};

/// Output sizes and values of a convolution, by adding each pixel to every output that it contributes to.
fn scattered(
    a: (&[u64], &[f64]),
    b: (&[u64], &[f64]),
    bias: &[f64],
    stride: u64,
    padding: u64,
) -> (Vec<u64>, Vec<f64>) {
    let ((from, pixels), (weights, taps)) = (a, b);
    let size = |d: usize| (from[d] + 2 * padding - weights[d]) / stride + 1;
    let out = [from[0], weights[0], size(2), size(3), size(4)];
    let mut values = vec![0.0; out.iter().product::<u64>() as usize];
    let place =
        |sizes: &[u64], index: [u64; 5]| index.iter().zip(sizes).fold(0, |at, (i, size)| at * size + i) as usize;
    let over = |sizes: &[u64]| {
        let sizes = sizes.to_vec();
        (0..sizes.iter().product::<u64>()).map(move |mut at| {
            let mut index = [0; 5];
            for d in (0..5).rev() {
                (index[d], at) = (at % sizes[d], at / sizes[d]);
            }
            index
        })
    };
    for [n, i, z, y, x] in over(from) {
        for [o, j, dz, dy, dx] in over(weights).filter(|tap| tap[1] == i) {
            let target = [(z, dz), (y, dy), (x, dx)].map(|(at, tap)| (at + padding).checked_sub(tap));
            let [Some(tz), Some(ty), Some(tx)] = target else { continue };
            let hit = [tz, ty, tx].iter().zip(&out[2..]).all(|(t, size)| t % stride == 0 && t / stride < *size);
            if hit {
                let index = [n, o, tz / stride, ty / stride, tx / stride];
                values[place(&out, index)] +=
                    pixels[place(from, [n, i, z, y, x])] * taps[place(weights, [o, j, dz, dy, dx])];
            }
        }
    }
    for (index, value) in over(&out).zip(&mut values) {
        *value += bias.get(index[1] as usize).copied().unwrap_or(0.0);
    }
    (out.to_vec(), values)
}

fn convolved(sizes: &[u64], kernel: &[u64], bias: bool, [stride, padding]: [u64; 2]) -> (Vec<f64>, Vec<f64>) {
    let (pixels, taps) = (numbers(1, sizes.iter().product()), numbers(2, kernel.iter().product()));
    let shifts = if bias { numbers(3, kernel[0]) } else { Vec::new() };
    let (out, expected) = scattered((sizes, &pixels), (kernel, &taps), &shifts, stride, padding);
    let mut sketch = Sketch::new();
    let a = sketch.input(sizes, FP32, &pixels);
    let b = sketch.input(kernel, FP32, &taps);
    let c = bias.then(|| sketch.input(&[kernel[0]], FP32, &shifts));
    let reads: Vec<&View> = [&a, &b].into_iter().chain(&c).collect();
    let convolution = Kernel::Convolution { stride: vec![stride; 3], padding: vec![padding; 3], workspace: None };
    let output = sketch.computed(convolution, &reads, &out, FP32);
    (sketch.values(&[&output]).remove(0), expected)
}

#[test]
fn a_convolution_is_its_definition_in_any_stride_and_padding() {
    for step in [[1, 0], [1, 1], [2, 1], [2, 0], [3, 2]] {
        for bias in [false, true] {
            let (found, expected) = convolved(&[2, 3, 4, 5, 6], &[4, 3, 3, 2, 1], bias, step);
            assert_near(&found, &expected, 1e-6);
        }
    }
}

/// A flat map of these sizes with all its values, seen as (batch, channels, rows, columns) with channels innermost.
fn channels_last(sketch: &mut Sketch, sizes: [u64; 4], row_major: &[f64]) -> View {
    let [n, c, h, w] = sizes;
    let at = |i: u64| {
        let (channel, pixel) = (i % c, i / c);
        row_major[((pixel / (h * w) * c + channel) * h * w + pixel % (h * w)) as usize]
    };
    let values: Vec<f64> = (0..n * c * h * w).map(at).collect();
    permuted(&sketch.input(&[n, h, w, c], FP32, &values), &[0, 3, 1, 2])
}

#[test]
fn a_convolution_is_the_same_in_both_layouts() {
    let (pixels, taps) = (numbers(1, 2 * 3 * 4 * 5), numbers(2, 6 * 3 * 3 * 3));
    let kernel = Kernel::Convolution { stride: vec![2, 1], padding: vec![1, 1], workspace: None };
    let mut sketch = Sketch::new();
    let a = sketch.input(&[2, 3, 4, 5], FP32, &pixels);
    let b = sketch.input(&[6, 3, 3, 3], FP32, &taps);
    let row_major = sketch.computed(kernel.clone(), &[&a, &b], &[2, 6, 2, 5], FP32);
    let a = channels_last(&mut sketch, [2, 3, 4, 5], &pixels);
    let b = channels_last(&mut sketch, [6, 3, 3, 3], &taps);
    let memory = sketch.tensor(&[2, 2, 5, 6], FP32);
    let innermost = permuted(&memory, &[0, 3, 1, 2]);
    sketch.launch(kernel, &[&a, &b], &[&innermost]);
    let values = sketch.values(&[&row_major, &innermost]);
    assert_eq!(values[0], values[1]);
}

#[test]
fn a_kernel_of_ones_counts_the_neighbours_that_are_there() {
    let mut sketch = Sketch::new();
    let a = sketch.input(&[1, 1, 3, 3], FP32, &[1.0; 9]);
    let b = sketch.input(&[1, 1, 3, 3], FP32, &[1.0; 9]);
    let kernel = Kernel::Convolution { stride: vec![1; 2], padding: vec![1; 2], workspace: None };
    let output = sketch.computed(kernel, &[&a, &b], &[1, 1, 3, 3], FP32);
    assert_eq!(sketch.values(&[&output]), [[4.0, 6.0, 4.0, 6.0, 9.0, 6.0, 4.0, 6.0, 4.0]]);
}

#[test]
fn a_matrix_product_takes_rows_of_both_and_adds_the_bias() {
    let mut sketch = Sketch::new();
    let a = sketch.input(&[1, 2, 3], FP32, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let b = sketch.input(&[2, 3], FP32, &[1.0, 0.0, -1.0, 2.0, 1.0, 0.0]);
    let c = sketch.input(&[2], FP32, &[10.0, 20.0]);
    let plain = sketch.computed(Kernel::MatrixProduct, &[&a, &b], &[1, 2, 2], FP32);
    let shifted = sketch.computed(Kernel::MatrixProduct, &[&a, &b, &c], &[1, 2, 2], FP32);
    let values = sketch.values(&[&plain, &shifted]);
    assert_eq!(values[0], [-2.0, 4.0, -2.0, 13.0]);
    assert_eq!(values[1], [8.0, 24.0, 8.0, 33.0]);
}

#[test]
fn a_batched_product_takes_each_item_and_head_by_itself() {
    let mut sketch = Sketch::new();
    let a = sketch.input(&[1, 2, 1, 2], FP32, &[1.0, 2.0, 3.0, 4.0]);
    let b = sketch.input(&[1, 2, 2, 2], FP32, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let product = |transposed| Kernel::BatchedProduct { transposed };
    let plain = sketch.computed(product(false), &[&a, &b], &[1, 2, 1, 2], FP32);
    let by_rows = sketch.computed(product(true), &[&a, &b], &[1, 2, 1, 2], FP32);
    let turned = sketch.computed(product(true), &[&a, &permuted(&b, &[0, 1, 3, 2])], &[1, 2, 1, 2], FP32);
    let values = sketch.values(&[&plain, &by_rows, &turned]);
    assert_eq!(values[0], [7.0, 10.0, 43.0, 50.0]);
    assert_eq!(values[1], [5.0, 11.0, 39.0, 53.0]);
    assert_eq!(values[2], values[0]);
}

#[test]
fn attention_is_the_softmax_of_scaled_products_times_values() {
    let (queries, keys, scale) = (3, 4, 0.25);
    for causal in [false, true] {
        let mut sketch = Sketch::new();
        let mut tokens = |seed, count, width| {
            let tokens = sketch.input(&[2, count, 2, width], FP32, &numbers(seed, 2 * count * 2 * width));
            permuted(&tokens, &[0, 2, 1, 3])
        };
        let (a, b, c) = (tokens(1, queries, 5), tokens(2, keys, 5), tokens(3, keys, 6));
        let fused = sketch.computed(Kernel::Attention { scale, causal }, &[&a, &b, &c], &[2, 2, queries, 6], FP32);
        let scores = [2, 2, queries, keys];
        let products = sketch.computed(Kernel::BatchedProduct { transposed: true }, &[&a, &b], &scores, FP32);
        sketch.pointwise(P::Affine { factor: scale, summand: 0.0 }, &[&products], &products);
        if causal {
            sketch.pointwise(P::MaskLater, &[&products], &products);
        }
        let weights = sketch.computed(Kernel::Softmax, &[&products], &scores, FP32);
        let product = Kernel::BatchedProduct { transposed: false };
        let explicit = sketch.computed(product, &[&weights, &c], &[2, 2, queries, 6], FP32);
        let first_value: Vec<f64> = numbers(3, 2 * keys * 2 * 6)[..6].to_vec();
        let values = sketch.values(&[&fused, &explicit]);
        assert_near(&values[0], &values[1], 1e-6);
        // A causal first query sees the first key alone.
        assert_eq!(values[0][..6] == first_value, causal);
    }
}
