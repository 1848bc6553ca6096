//! Launches as calls of kernels and libraries: everything but addresses is decided here, with no GPU.

mod attention;
pub(super) mod call;
pub(super) mod contents;
pub(super) mod convolution;
#[cfg(test)]
mod formulas;
mod norms;
pub(super) mod picks;
mod pointwise;
pub(super) mod product;
#[cfg(test)]
mod tests;
pub(super) mod walk;

use crate::cuda::error::CudaError;
use crate::programs::computation::{Kernel, Launch, Pointwise, View};

use call::Call;
use product::Problem;

/// The calls of a launch, in order; none where it computes nothing.
pub(super) fn calls(launch: &Launch) -> Result<Vec<Call>, CudaError> {
    let reads = &launch.reads[..];
    let out =
        launch.writes.first().ok_or_else(|| CudaError::NoKernel { what: "a launch that writes nothing".into() })?;
    match &launch.kernel {
        Kernel::Pointwise(function) => Ok(pointwise::call(*function, reads, out)?.into_iter().collect()),
        Kernel::Convolution { .. } => convolution::calls(launch),
        Kernel::MatrixProduct => matrix_product(reads, out),
        Kernel::BatchedProduct { transposed } => {
            let [a, b] = reads else { return Err(operands("a batched product", reads)) };
            let problem = Problem::batched(a, b, out, *transposed);
            let problem = problem.ok_or_else(|| shapes("a batched product", reads, out))?;
            product::calls(&problem, [a, b, out], false, false)
        }
        Kernel::Attention { scale, causal } => attention::calls(*scale, *causal, reads, out),
        Kernel::Softmax => norms::softmax(launch),
        Kernel::GroupNorm { groups, epsilon } => norms::group_norm(launch, *groups, *epsilon),
        Kernel::LayerNorm { epsilon } => norms::layer_norm(launch, *epsilon),
        Kernel::RmsNorm { epsilon } => norms::rms_norm(launch, *epsilon),
        Kernel::Reduce { reduction, dimension } => {
            let [x] = reads else { return Err(operands("a reduction", reads)) };
            picks::reduce(*reduction, *dimension, x, out)
        }
        Kernel::Gather => {
            let [table, indices] = reads else { return Err(operands("rows of a table", reads)) };
            picks::gather(table, indices, out)
        }
        Kernel::PickRow => {
            let [table, indices] = reads else { return Err(operands("a row of each item", reads)) };
            picks::pick_row(table, indices, out)
        }
        Kernel::UpsampleNearest => {
            let [x] = reads else { return Err(operands("repeated pixels", reads)) };
            picks::upsample(x, out)
        }
    }
}

/// A bias is put into the output first and the product is added to it, so that the sum is rounded once.
fn matrix_product(reads: &[View], out: &View) -> Result<Vec<Call>, CudaError> {
    let ([a, weights] | [a, weights, _]) = reads else { return Err(operands("a matrix product", reads)) };
    let problem = Problem::of_weights(a, weights, out).ok_or_else(|| shapes("a matrix product", reads, out))?;
    let bias = reads.get(2);
    let mut calls = Vec::new();
    if let Some(bias) = bias {
        calls.extend(pointwise::call(Pointwise::Copy, std::slice::from_ref(bias), out)?);
    }
    calls.extend(product::calls(&problem, [a, weights, out], bias.is_some(), bias.is_some())?);
    Ok(calls)
}

fn operands(what: &str, reads: &[View]) -> CudaError {
    CudaError::NoKernel { what: format!("{what} of {} operands", reads.len()) }
}

fn shapes(what: &str, reads: &[View], out: &View) -> CudaError {
    let sizes: Vec<_> = reads.iter().map(|view| &view.sizes).collect();
    CudaError::NoKernel { what: format!("{what} of {sizes:?} to {:?}", out.sizes) }
}
