//! Sums of products: convolution, matrix products and attention.

use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::dense::{Dense, for_each_index};
use super::normalise::softmax_of;

/// A convolution over any number of spatial dimensions; `written` are the output's sizes.
pub(super) fn convolution(a: &Dense, b: &Dense, c: Option<&Dense>, steps: [&[u64]; 2], written: &[usize]) -> Dense {
    let (channels, outputs) = (a.sizes[1], b.sizes[0]);
    let (pixels, spots): (usize, usize) = (a.sizes[2..].iter().product(), written[2..].iter().product());
    let mut taps = Vec::new();
    for_each_index(&b.sizes[2..], |tap| taps.push(pairs_under(tap, &a.sizes[2..], &written[2..], steps)));
    // Planes are computed side by side, each by itself: the result does not depend on how many at once.
    let plane = |number: usize| {
        let (item, output) = (number / outputs, number % outputs);
        let mut sums = vec![c.map_or(0.0, |bias| bias.values[output]); spots];
        for channel in 0..channels {
            let from = &a.values[(item * channels + channel) * pixels..][..pixels];
            for (number, pairs) in taps.iter().enumerate() {
                let weight = b.values[(output * channels + channel) * taps.len() + number];
                for &(spot, pixel) in pairs {
                    sums[spot] += from[pixel] * weight;
                }
            }
        }
        sums
    };
    let values = (0..a.sizes[0] * outputs).into_par_iter().flat_map_iter(plane).collect();
    Dense { sizes: written.to_vec(), values }
}

/// Which pixel lies under a tap of the kernel, for each place of the output where it is not in the padding.
fn pairs_under(
    tap: &[usize],
    space: &[usize],
    written: &[usize],
    [stride, padding]: [&[u64]; 2],
) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let mut spot = 0;
    for_each_index(written, |at| {
        let pixel = (0..space.len()).try_fold(0, |pixel, dimension| {
            let padded = at[dimension] * stride[dimension] as usize + tap[dimension];
            let place = padded.checked_sub(padding[dimension] as usize)?;
            (place < space[dimension]).then_some(pixel * space[dimension] + place)
        });
        pairs.extend(pixel.map(|pixel| (spot, pixel)));
        spot += 1;
    });
    pairs
}

/// The sum of products of two rows.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Rows of a times rows of b, plus a bias.
pub(super) fn matrix(a: &Dense, b: &Dense, c: Option<&Dense>) -> Dense {
    let k = a.last();
    let mut sizes = a.sizes.clone();
    if let Some(last) = sizes.last_mut() {
        *last = b.sizes[0];
    }
    let mut values = Vec::new();
    for row in rows(&a.values, k) {
        for (n, weights) in rows(&b.values, k).enumerate() {
            values.push(dot(row, weights) + c.map_or(0.0, |bias| bias.values[n]));
        }
    }
    Dense { sizes, values }
}

/// Pieces of `length` values; none where there are no values.
pub(super) fn rows(values: &[f64], length: usize) -> std::slice::ChunksExact<'_, f64> {
    values.chunks_exact(length.max(1))
}

/// One product for each item and head.
pub(super) fn batched(a: &Dense, b: &Dense, transposed: bool) -> Dense {
    let n = if transposed { b.sizes[2] } else { b.sizes[3] };
    Dense::from_fn(&[a.sizes[0], a.sizes[1], a.sizes[2], n], |index| {
        let (item, head, row, column) = (index[0], index[1], index[2], index[3]);
        let term = |k| {
            let other = if transposed { [item, head, column, k] } else { [item, head, k, column] };
            a.at(&[item, head, row, k]) * b.at(&other)
        };
        (0..a.sizes[3]).map(term).sum()
    })
}

/// Softmax of the scaled products of queries a and keys b, times values c.
pub(super) fn attention(a: &Dense, b: &Dense, c: &Dense, scale: f64, causal: bool) -> Dense {
    let (queries, keys, channels) = (a.sizes[2], b.sizes[2], c.sizes[3]);
    let mut values = Vec::new();
    for (pair, tokens) in rows(&a.values, queries * a.sizes[3]).enumerate() {
        let own_keys = &b.values[pair * keys * b.sizes[3]..][..keys * b.sizes[3]];
        let own_values = &c.values[pair * keys * channels..][..keys * channels];
        for (query, token) in rows(tokens, a.sizes[3]).enumerate() {
            let seen = if causal { keys.min(query + 1) } else { keys };
            let scores = rows(own_keys, b.sizes[3]).take(seen).map(|key| scale * dot(token, key)).collect();
            let weights = softmax_of(scores);
            for channel in 0..channels {
                let terms = weights.iter().zip(rows(own_values, channels));
                values.push(terms.map(|(weight, value)| weight * value[channel]).sum());
            }
        }
    }
    Dense { sizes: [&a.sizes[..3], &[channels]].concat(), values }
}
