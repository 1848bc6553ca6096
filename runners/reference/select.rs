//! What picks values out of others: reductions, rows by index, and repeated pixels.

use super::dense::Dense;
use super::error::Problem;
use crate::programs::computation::Reduction;

/// A reduction along one dimension; `written` are the output's sizes, with or without it.
pub(super) fn reduce(a: &Dense, reduction: Reduction, dimension: usize, written: &[usize]) -> Dense {
    let length = a.sizes[dimension];
    let inner: usize = a.sizes[dimension + 1..].iter().product();
    let outer: usize = a.sizes[..dimension].iter().product();
    let mut values = Vec::new();
    for before in 0..outer {
        for after in 0..inner {
            let line: Vec<f64> = (0..length).map(|at| a.values[(before * length + at) * inner + after]).collect();
            values.push(reduced(&line, reduction));
        }
    }
    Dense { sizes: written.to_vec(), values }
}

fn reduced(line: &[f64], reduction: Reduction) -> f64 {
    let truth = |holds: bool| f64::from(u8::from(holds));
    match reduction {
        Reduction::Mean => line.iter().sum::<f64>() / line.len() as f64,
        Reduction::Length => line.iter().map(|value| value * value).sum::<f64>().sqrt(),
        Reduction::Any => truth(line.iter().any(|value| *value != 0.0)),
        Reduction::All => truth(line.iter().all(|value| *value != 0.0)),
        Reduction::FirstLargest => {
            let largest = line.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            line.iter().position(|value| *value == largest).unwrap_or(0) as f64
        }
    }
}

/// A row's place, where the index points to one.
fn row_of(index: f64, rows: usize) -> Result<usize, Problem> {
    if index >= 0.0 && index < rows as f64 { Ok(index as usize) } else { Err(Problem::Index { index, rows }) }
}

/// Rows of a table by index.
pub(super) fn gather(a: &Dense, b: &Dense) -> Result<Dense, Problem> {
    let (rows, channels) = (a.sizes[0], a.sizes[1]);
    let mut values = Vec::new();
    for index in &b.values {
        let row = row_of(*index, rows)?;
        values.extend_from_slice(&a.values[row * channels..][..channels]);
    }
    Ok(Dense { sizes: [&b.sizes[..], &[channels]].concat(), values })
}

/// One row of each item.
pub(super) fn pick_row(a: &Dense, b: &Dense) -> Result<Dense, Problem> {
    let [items, rows, channels] = [a.sizes[0], a.sizes[1], a.sizes[2]];
    let mut values = Vec::new();
    for (item, index) in b.values.iter().enumerate() {
        let row = item * rows + row_of(*index, rows)?;
        values.extend_from_slice(&a.values[row * channels..][..channels]);
    }
    Ok(Dense { sizes: vec![items, channels], values })
}

/// Pixels repeated to the output's rows and columns.
pub(super) fn upsample_nearest(a: &Dense, written: &[usize]) -> Dense {
    Dense::from_fn(written, |index| {
        let from = |dimension: usize| index[dimension] * a.sizes[dimension] / written[dimension];
        a.at(&[index[0], index[1], from(2), from(3)])
    })
}
