//! From a launch to the function that computes it.

use super::dense::Dense;
use super::error::Problem;
use super::memory::sizes;
use super::{normalise, pointwise, products, select};
use crate::programs::computation::{Kernel, Launch};

/// The word shown to people.
pub(super) fn name(kernel: &Kernel) -> &'static str {
    match kernel {
        Kernel::Pointwise(function) => pointwise::name(function),
        Kernel::Convolution { .. } => "convolution",
        Kernel::MatrixProduct => "matrix product",
        Kernel::BatchedProduct { .. } => "batched product",
        Kernel::Attention { .. } => "attention",
        Kernel::Softmax => "softmax",
        Kernel::GroupNorm { .. } => "group norm",
        Kernel::LayerNorm { .. } => "layer norm",
        Kernel::RmsNorm { .. } => "root-mean-square norm",
        Kernel::Reduce { .. } => "reduction",
        Kernel::Gather => "gather",
        Kernel::PickRow => "pick row",
        Kernel::UpsampleNearest => "nearest upsampling",
    }
}

/// What a launch writes, in order. Its operands have been checked against its signature.
pub(super) fn compute(launch: &Launch, operands: &[Dense]) -> Result<Vec<Dense>, Problem> {
    let a = operands.first();
    let (b, c) = (operands.get(1), operands.get(2));
    let written = sizes(&launch.writes[0]);
    let missing = || Problem::Operands { what: "reads", found: operands.len(), takes: "more" };
    if let Kernel::Pointwise(function) = &launch.kernel {
        let elements: Vec<_> = launch.reads.iter().chain(&launch.writes).map(|view| view.element).collect();
        return Ok(vec![pointwise::compute(function, operands, &written, &elements)]);
    }
    let a = a.ok_or_else(missing)?;
    let b_or_missing = || b.ok_or_else(missing);
    Ok(match &launch.kernel {
        Kernel::Pointwise(_) => unreachable!("computed above"),
        Kernel::Convolution { stride, padding, .. } => {
            vec![products::convolution(a, b_or_missing()?, c, [stride, padding], &written)]
        }
        Kernel::MatrixProduct => vec![products::matrix(a, b_or_missing()?, c)],
        Kernel::BatchedProduct { transposed } => vec![products::batched(a, b_or_missing()?, *transposed)],
        Kernel::Attention { scale, causal } => {
            vec![products::attention(a, b_or_missing()?, c.ok_or_else(missing)?, *scale, *causal)]
        }
        Kernel::Softmax => vec![normalise::softmax(a)],
        Kernel::GroupNorm { groups, epsilon } => {
            normalise::groups(a, b_or_missing()?, c.ok_or_else(missing)?, *groups as usize, *epsilon)
        }
        Kernel::LayerNorm { epsilon } => normalise::layer(a, b, c, *epsilon),
        Kernel::RmsNorm { epsilon } => normalise::root_mean_square(a, b_or_missing()?, *epsilon),
        Kernel::Reduce { reduction, dimension } => vec![select::reduce(a, *reduction, *dimension, &written)],
        Kernel::Gather => vec![select::gather(a, b_or_missing()?)?],
        Kernel::PickRow => vec![select::pick_row(a, b_or_missing()?)?],
        Kernel::UpsampleNearest => vec![select::upsample_nearest(a, &written)],
    })
}
