//! Normalisations: softmax, and those by mean and deviation.

use super::dense::Dense;
use super::products::rows;

/// Softmax of one row.
pub(super) fn softmax_of(scores: Vec<f64>) -> Vec<f64> {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.into_iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// Softmax along the last dimension.
pub(super) fn softmax(a: &Dense) -> Dense {
    let values = rows(&a.values, a.last()).flat_map(|row| softmax_of(row.to_vec())).collect();
    Dense { sizes: a.sizes.clone(), values }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The mean, and 1 ÷ the deviation from it.
fn moments(values: &[f64], epsilon: f64) -> (f64, f64) {
    let centre = mean(values);
    let variance = values.iter().map(|value| (value - centre).powi(2)).sum::<f64>() / values.len() as f64;
    (centre, 1.0 / (variance + epsilon).sqrt())
}

/// Normalisation over groups of channels: output, mean, inverse deviation, and each channel's factor and summand.
pub(super) fn groups(a: &Dense, b: &Dense, c: &Dense, groups: usize, epsilon: f64) -> Vec<Dense> {
    let (items, channels) = (a.sizes[0], a.sizes[1]);
    let space: usize = a.sizes[2..].iter().product();
    let (mut means, mut inverses) = (Vec::new(), Vec::new());
    for group in rows(&a.values, channels / groups * space) {
        let (centre, inverse) = moments(group, epsilon);
        means.push(centre);
        inverses.push(inverse);
    }
    let (mut factors, mut summands, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for (plane, own) in rows(&a.values, space).enumerate() {
        let (item, channel) = (plane / channels, plane % channels);
        let group = item * groups + channel / (channels / groups);
        let factor = inverses[group] * b.values[channel];
        let summand = c.values[channel] - means[group] * factor;
        values.extend(own.iter().map(|value| value * factor + summand));
        factors.push(factor);
        summands.push(summand);
    }
    let by_group = vec![items, groups];
    let by_channel = vec![items, channels];
    vec![
        Dense { sizes: a.sizes.clone(), values },
        Dense { sizes: by_group.clone(), values: means },
        Dense { sizes: by_group, values: inverses },
        Dense { sizes: by_channel.clone(), values: factors },
        Dense { sizes: by_channel, values: summands },
    ]
}

/// Normalisation along the last dimension: output, and every row's mean and inverse deviation.
pub(super) fn layer(a: &Dense, b: Option<&Dense>, c: Option<&Dense>, epsilon: f64) -> Vec<Dense> {
    let (mut values, mut means, mut inverses) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows(&a.values, a.last()) {
        let (centre, inverse) = moments(row, epsilon);
        values.extend(row.iter().enumerate().map(|(channel, value)| {
            let scale = b.map_or(1.0, |scale| scale.values[channel]);
            let shift = c.map_or(0.0, |shift| shift.values[channel]);
            (value - centre) * inverse * scale + shift
        }));
        means.push(centre);
        inverses.push(inverse);
    }
    let by_row = vec![means.len()];
    vec![
        Dense { sizes: a.sizes.clone(), values },
        Dense { sizes: by_row.clone(), values: means },
        Dense { sizes: by_row, values: inverses },
    ]
}

/// Root-mean-square normalisation along the last dimension: output, and every row's inverse deviation.
pub(super) fn root_mean_square(a: &Dense, b: &Dense, epsilon: f64) -> Vec<Dense> {
    let (mut values, mut inverses) = (Vec::new(), Vec::new());
    for row in rows(&a.values, a.last()) {
        let square = row.iter().map(|value| value * value).sum::<f64>() / row.len() as f64;
        let inverse = 1.0 / (square + epsilon).sqrt();
        values.extend(row.iter().zip(&b.values).map(|(value, scale)| value * inverse * scale));
        inverses.push(inverse);
    }
    let by_row = vec![inverses.len()];
    vec![Dense { sizes: a.sizes.clone(), values }, Dense { sizes: by_row, values: inverses }]
}
