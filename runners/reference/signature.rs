//! What operands each kernel takes: how many, and of which sizes.

use super::error::Problem;
use super::pointwise;
use crate::programs::Element;
use crate::programs::computation::{Kernel, Launch, Pointwise, View};

/// Refuses a launch whose operands do not fit its kernel.
pub(super) fn check(launch: &Launch) -> Result<(), Problem> {
    let (reads, writes) = (launch.reads.as_slice(), launch.writes.as_slice());
    counts(launch)?;
    let output = &writes[0];
    match &launch.kernel {
        Kernel::Pointwise(function) => elementwise(function, reads, output),
        Kernel::Convolution { stride, padding, .. } => convolution(reads, output, stride, padding),
        Kernel::MatrixProduct => matrix(reads, output),
        Kernel::BatchedProduct { transposed } => batched(reads, output, *transposed),
        Kernel::Attention { .. } => attention(reads, output),
        Kernel::Softmax => {
            fit(reads[0].sizes == output.sizes, "the output has the sizes of the operand", &[&reads[0], output])
        }
        Kernel::GroupNorm { groups, .. } => group_norm(reads, writes, *groups),
        Kernel::LayerNorm { .. } | Kernel::RmsNorm { .. } => row_norm(reads, writes),
        Kernel::Reduce { dimension, .. } => reduction(&reads[0], output, *dimension),
        Kernel::Gather => {
            let [table, indices] = [&reads[0], &reads[1]];
            let expected = [&indices.sizes[..], table.sizes.get(1..).unwrap_or_default()].concat();
            fit(
                table.sizes.len() == 2 && output.sizes == expected,
                "rows of a table by index",
                &[table, indices, output],
            )?;
            integers(indices)
        }
        Kernel::PickRow => {
            let [a, indices] = [&reads[0], &reads[1]];
            let fits = a.sizes.len() == 3 && indices.sizes == a.sizes[..1] && output.sizes == [a.sizes[0], a.sizes[2]];
            fit(fits, "one row of each item, by its index", &[a, indices, output])?;
            integers(indices)
        }
        Kernel::UpsampleNearest => {
            let a = &reads[0];
            let fits = a.sizes.len() == 4 && output.sizes.len() == 4 && a.sizes[..2] == output.sizes[..2];
            fit(fits, "both are (batch, channels, rows, columns)", &[a, output])
        }
    }
}

/// The numbers of operands that a kernel reads and writes.
fn counts(launch: &Launch) -> Result<(), Problem> {
    let (reads, words, writes) = match &launch.kernel {
        Kernel::Pointwise(function) => match pointwise::operands(function) {
            0 => (0..=0, "none", 1),
            1 => (1..=1, "one", 1),
            2 => (2..=2, "two", 1),
            _ => (3..=3, "three", 1),
        },
        Kernel::Convolution { .. } | Kernel::MatrixProduct => (2..=3, "two, or three with a bias", 1),
        Kernel::BatchedProduct { .. } | Kernel::Gather | Kernel::PickRow => (2..=2, "two", 1),
        Kernel::Attention { .. } => (3..=3, "three", 1),
        Kernel::Softmax | Kernel::Reduce { .. } | Kernel::UpsampleNearest => (1..=1, "one", 1),
        Kernel::GroupNorm { .. } => (3..=3, "three", 5),
        Kernel::LayerNorm { .. } => (1..=3, "one, two with a scale, three with a shift", 3),
        Kernel::RmsNorm { .. } => (2..=2, "two", 2),
    };
    if !reads.contains(&launch.reads.len()) {
        return Err(Problem::Operands { what: "reads", found: launch.reads.len(), takes: words });
    }
    if launch.writes.len() != writes {
        let takes = ["none", "one", "two", "three", "four", "five"][writes];
        return Err(Problem::Operands { what: "writes", found: launch.writes.len(), takes });
    }
    Ok(())
}

fn fit(holds: bool, what: &'static str, views: &[&View]) -> Result<(), Problem> {
    if holds {
        return Ok(());
    }
    Err(Problem::Shape { what, found: views.iter().map(|view| view.sizes.clone()).collect() })
}

fn all<'a>(reads: &'a [View], output: &'a View) -> Vec<&'a View> {
    reads.iter().chain([output]).collect()
}

fn integers(indices: &View) -> Result<(), Problem> {
    fit(matches!(indices.element, Element::Int32 | Element::Int64), "indices are integers", &[indices])
}

fn elementwise(function: &Pointwise, reads: &[View], output: &View) -> Result<(), Problem> {
    let broadcasts = |view: &View| {
        let aligned = view.sizes.iter().rev().zip(output.sizes.iter().rev());
        view.sizes.len() <= output.sizes.len() && aligned.clone().all(|(own, out)| own == out || *own == 1)
    };
    fit(reads.iter().all(broadcasts), "operands are broadcast to the output's sizes", &all(reads, output))?;
    match function {
        Pointwise::Index { dimension, .. } => {
            fit(*dimension < output.sizes.len(), "the index is that of a dimension of the output", &[output])
        }
        Pointwise::MaskLater => fit(output.sizes.len() >= 2, "the output has rows and columns", &[output]),
        _ => Ok(()),
    }
}

fn convolution(reads: &[View], output: &View, stride: &[u64], padding: &[u64]) -> Result<(), Problem> {
    let views = all(reads, output);
    let [a, b] = [&reads[0], &reads[1]];
    let rank = a.sizes.len();
    let ranks = rank >= 3 && [b.sizes.len(), output.sizes.len(), stride.len() + 2, padding.len() + 2] == [rank; 4];
    fit(ranks, "operands, strides and paddings are of the same spatial dimensions", &views)?;
    let length = |d: usize| {
        let padded = a.sizes[d + 2] + 2 * padding[d];
        padded.checked_sub(b.sizes[d + 2]).zip((stride[d] > 0).then_some(stride[d])).map(|(room, step)| room / step + 1)
    };
    let spatial = (0..rank - 2).all(|d| length(d) == Some(output.sizes[d + 2]));
    let channels = a.sizes[1] == b.sizes[1] && output.sizes[..2] == [a.sizes[0], b.sizes[0]];
    fit(spatial && channels, "the output is that of the convolution", &views)?;
    fit(reads.get(2).is_none_or(|bias| bias.sizes == [b.sizes[0]]), "a bias for each output channel", &views)?;
    let dense = [a, b, output];
    let in_one_layout = dense.iter().all(|view| row_major(view)) || dense.iter().all(|view| channels_innermost(view));
    fit(in_one_layout, "input, weights and output are dense in one layout", &views)
}

/// Whether the elements follow one another with these dimensions innermost first.
fn dense_in(view: &View, order: impl IntoIterator<Item = usize>) -> bool {
    let mut next = 1;
    order.into_iter().all(|dimension| {
        let fits = view.sizes[dimension] == 1 || view.strides[dimension] == next;
        next *= view.sizes[dimension];
        fits
    })
}

fn row_major(view: &View) -> bool {
    dense_in(view, (0..view.sizes.len()).rev())
}

fn channels_innermost(view: &View) -> bool {
    dense_in(view, [1].into_iter().chain((2..view.sizes.len()).rev()).chain([0]))
}

fn matrix(reads: &[View], output: &View) -> Result<(), Problem> {
    let [a, b] = [&reads[0], &reads[1]];
    let fits = !a.sizes.is_empty() && b.sizes.len() == 2 && a.sizes.last() == b.sizes.last() && {
        let expected = [&a.sizes[..a.sizes.len() - 1], &b.sizes[..1]].concat();
        output.sizes == expected && reads.get(2).is_none_or(|bias| bias.sizes == b.sizes[..1])
    };
    fit(fits, "(…, k) times (n, k), plus (n), is (…, n)", &all(reads, output))
}

fn batched(reads: &[View], output: &View, transposed: bool) -> Result<(), Problem> {
    let [a, b] = [&reads[0], &reads[1]];
    let fits = [a, b, output].iter().all(|view| view.sizes.len() == 4) && {
        let (k, n) = if transposed { (b.sizes[3], b.sizes[2]) } else { (b.sizes[2], b.sizes[3]) };
        a.sizes[..2] == b.sizes[..2] && a.sizes[3] == k && output.sizes == [a.sizes[0], a.sizes[1], a.sizes[2], n]
    };
    fit(fits, "(batch, heads, m, k) times (k, n), or (n, k) transposed, is (batch, heads, m, n)", &all(reads, output))
}

fn attention(reads: &[View], output: &View) -> Result<(), Problem> {
    let [a, b, c] = [&reads[0], &reads[1], &reads[2]];
    let fits = [a, b, c, output].iter().all(|view| view.sizes.len() == 4)
        && [b, c].iter().all(|view| view.sizes[..2] == a.sizes[..2])
        && a.sizes[3] == b.sizes[3]
        && b.sizes[2] == c.sizes[2]
        && output.sizes == [a.sizes[0], a.sizes[1], a.sizes[2], c.sizes[3]];
    let views = all(reads, output);
    fit(fits, "queries, keys, values and output are (batch, heads, tokens, channels)", &views)?;
    let innermost = views.iter().all(|view| view.sizes[3] == 1 || view.strides[3] == 1);
    fit(innermost, "the channels of a head are innermost", &views)
}

fn group_norm(reads: &[View], writes: &[View], groups: u64) -> Result<(), Problem> {
    let a = &reads[0];
    let views: Vec<_> = reads.iter().chain(writes).collect();
    let fits = a.sizes.len() >= 2 && groups > 0 && a.sizes[1].is_multiple_of(groups) && {
        let (by_group, by_channel) = ([a.sizes[0], groups], [a.sizes[0], a.sizes[1]]);
        reads[1..].iter().all(|view| view.sizes == a.sizes[1..2])
            && writes[0].sizes == a.sizes
            && writes[1..3].iter().all(|view| view.sizes == by_group)
            && writes[3..].iter().all(|view| view.sizes == by_channel)
    };
    fit(fits, "statistics are (batch, groups), factors and summands (batch, channels)", &views)?;
    fit(writes[3..].iter().all(|view| view.element == Element::FP32), "factors and summands are in fp32", &views)
}

fn row_norm(reads: &[View], writes: &[View]) -> Result<(), Problem> {
    let a = &reads[0];
    let views: Vec<_> = reads.iter().chain(writes).collect();
    let Some(channels) = a.sizes.last() else { return fit(false, "there is a last dimension", &views) };
    let count = a.elements() / (*channels).max(1);
    let fits = reads[1..].iter().all(|view| view.sizes == [*channels])
        && writes[0].sizes == a.sizes
        && writes[1..].iter().all(|view| view.elements() == count);
    fit(fits, "scale and shift are (channels), statistics one for each row", &views)?;
    fit(writes[1..].iter().all(|view| view.element == Element::FP32), "statistics are in fp32", &views)
}

fn reduction(a: &View, output: &View, dimension: usize) -> Result<(), Problem> {
    let fits = dimension < a.sizes.len() && {
        let (mut kept, mut gone) = (a.sizes.clone(), a.sizes.clone());
        kept[dimension] = 1;
        gone.remove(dimension);
        output.sizes == kept || output.sizes == gone
    };
    fit(fits, "the reduced dimension has size 1 in the output, or goes away", &[a, output])
}
