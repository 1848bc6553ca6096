//! Attention as a call: no scores in memory, on tensor cores in half precision.

use headroom_base::DType;

use crate::cuda::error::CudaError;
use crate::programs::Element;
use crate::programs::computation::View;

use super::call::{Argument, Call, Instance, KernelCall, Part, Place};

/// Queries of a block, and keys of a tile.
const TILE: u64 = 64;
/// Output columns of a block, and columns of keys in shared memory at once.
const CHUNK: u64 = 128;
/// Halves by which rows in shared memory are apart beyond their width, so that neighbouring rows lie in other banks.
const GAP: u64 = 8;
/// The widest head: its queries must fit into shared memory.
const WIDEST: u64 = 512;

fn refused(what: String) -> CudaError {
    CudaError::NoKernel { what }
}

/// The call that computes attention over (batch, heads, tokens, channels of a head).
pub(super) fn calls(scale: f64, causal: bool, reads: &[View], out: &View) -> Result<Vec<Call>, CudaError> {
    let [q, k, v] = reads else { return Err(refused(format!("attention of {} operands", reads.len()))) };
    let views = [q, k, v, out];
    if views.iter().any(|view| view.sizes.len() != 4 || view.element != q.element) {
        return Err(refused("attention over other than four dimensions of one element type".to_owned()));
    }
    let [batch, heads, queries, width] = [0, 1, 2, 3].map(|dimension| q.sizes[dimension]);
    let (keys, value_width) = (k.sizes[2], v.sizes[3]);
    let fits = k.sizes == [batch, heads, keys, width]
        && v.sizes == [batch, heads, keys, value_width]
        && out.sizes == [batch, heads, queries, value_width];
    if !fits {
        return Err(refused(format!("attention of {:?}, {:?}, {:?} to {:?}", q.sizes, k.sizes, v.sizes, out.sizes)));
    }
    if views.iter().any(|view| view.sizes[3] > 1 && view.strides[3] != 1) {
        return Err(refused("attention whose channels are not innermost".to_owned()));
    }
    if out.elements() == 0 {
        return Ok(Vec::new());
    }
    let mut words = vec![heads, queries, keys, width, value_width, u64::from(causal), scale.to_bits()];
    for view in views {
        words.extend(&view.strides[..3]);
    }
    let blocks = batch * heads * queries.div_ceil(TILE);
    let blocks = u32::try_from(blocks).ok().filter(|&blocks| blocks < 1 << 31);
    let blocks = blocks.ok_or_else(|| refused("attention of more than 2³¹ tiles".to_owned()))?;
    let places = views.map(|view| Argument::At(Place::of(view)));
    let arguments = std::iter::once(Argument::Words(words)).chain(places).collect();
    kernel(q.element, width, value_width, blocks, arguments).map(|call| vec![Call::Kernel(call)])
}

fn kernel(
    element: Element,
    width: u64,
    value_width: u64,
    blocks: u32,
    arguments: Vec<Argument>,
) -> Result<KernelCall, CudaError> {
    let chunk = value_width.next_multiple_of(16).min(CHUNK);
    let chunks = value_width.div_ceil(chunk) as u32;
    let pointers = [("const void*", "q"), ("const void*", "k"), ("const void*", "v"), ("void*", "out")];
    match element {
        Element::Float(DType::Fp32) => {
            let parameters = [&[("const AttentionSingle", "shape")], &pointers[..]].concat();
            let types = [&*chunk.to_string()];
            Ok(KernelCall {
                instance: Instance::of_template(Part::AttentionSingle, "attention_single", &types, 256, &parameters),
                blocks: [blocks, chunks, 1],
                threads: 256,
                shared_bytes: 0,
                arguments,
            })
        }
        Element::Float(DType::Fp16 | DType::Bf16) if width <= WIDEST => {
            let padded = width.next_multiple_of(16).max(16);
            let halves = TILE * (padded + GAP) + TILE * (padded.min(CHUNK) + GAP) + TILE * (chunk + GAP);
            let parameters = [&[("const Attention", "shape")], &pointers[..]].concat();
            let types = [super::call::name_of(element), &padded.to_string(), &chunk.to_string()];
            Ok(KernelCall {
                instance: Instance::of_template(Part::Attention, "attention", &types, 128, &parameters),
                blocks: [blocks, chunks, 1],
                threads: 128,
                shared_bytes: (2 * halves) as u32,
                arguments,
            })
        }
        _ => Err(refused(format!("attention of {element:?} over heads of {width}"))),
    }
}
