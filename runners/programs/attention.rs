//! Scaled dot-product attention, by kernel, chosen as PyTorch chooses.

use headroom_base::AttentionKernel;

use super::execution::Library;
use super::recorder::{Recorder, Tensor};
use super::shape::Element;

/// The widest head that flash attention takes.
const FLASH_HEAD: u64 = 256;
/// The widest head that cuDNN's attention takes.
const CUDNN_HEAD: u64 = 128;
/// What cuDNN's attention asks for beside its output.
const CUDNN_WORKSPACE_BYTES: u64 = 256;
/// The widest head whose output the memory-efficient kernel keeps in registers; wider ones accumulate in fp32.
const REGISTER_HEAD: u64 = 128;

impl Recorder {
    /// Attention of `(batch, heads, tokens, channels)` tensors; the result has that shape.
    pub(super) fn attention(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Tensor {
        match self.execution.attention {
            AttentionKernel::Math => self.math_attention(query, key, value),
            AttentionKernel::Fused if !query.element.is_half() || query.size(3) > FLASH_HEAD => {
                self.memory_efficient_attention(query, value)
            }
            AttentionKernel::Fused
                if self.execution.workspaces.prefers_cudnn_attention() && query.size(3) <= CUDNN_HEAD =>
            {
                self.cudnn_attention(query, value)
            }
            AttentionKernel::Fused => self.flash_attention(query, value),
        }
    }

    /// Tokens are outermost in its output. Heads too wide for registers accumulate in fp32 beside it.
    fn memory_efficient_attention(&self, query: &Tensor, value: &Tensor) -> Tensor {
        let (batch, heads, tokens, width) = (query.size(0), query.size(1), query.size(2), value.size(3));
        let output = self.empty(&[batch, tokens, heads, width], query.element, "attention");
        if width > REGISTER_HEAD && query.element != Element::FP32 {
            drop(self.empty(&[batch, tokens, heads, width], Element::FP32, "attention accumulator"));
        }
        output.transpose(1, 2)
    }

    /// Seed and offset of a dropout that is not used, the output in the order of the query, and a small workspace.
    fn cudnn_attention(&self, query: &Tensor, value: &Tensor) -> Tensor {
        let (batch, heads, tokens, width) = (query.size(0), query.size(1), query.size(2), value.size(3));
        let seed = self.empty(&[1], Element::Int64, "attention seed");
        let offset = self.empty(&[1], Element::Int64, "attention offset");
        let output = self.empty(&[batch, tokens, heads, width], query.element, "attention");
        drop(self.workspace(CUDNN_WORKSPACE_BYTES, "attention workspace"));
        drop(seed);
        drop(offset);
        output.transpose(1, 2)
    }

    /// The output, and the logarithms of the score sums in fp32.
    fn flash_attention(&self, query: &Tensor, value: &Tensor) -> Tensor {
        let (batch, heads, tokens, width) = (query.size(0), query.size(1), query.size(2), value.size(3));
        let output = self.empty(&[batch, tokens, heads, width], query.element, "attention");
        drop(self.empty(&[batch, heads, tokens], Element::FP32, "attention log sums"));
        output.transpose(1, 2)
    }

    /// The score matrix is materialised; half precision is computed in fp32.
    pub(super) fn math_attention(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Tensor {
        self.prepare(Library::Cublas);
        let (batch, heads, tokens, width) = (query.size(0), query.size(1), query.size(2), value.size(3));
        let matrix = [batch, heads, tokens, key.size(2)];
        let wide = |tensor: &Tensor| self.to(tensor, Element::FP32, "attention in fp32");
        let (wide_query, wide_key, wide_value) = (wide(query), wide(key), wide(value));
        let scaled_query = self.scale(&wide_query, "attention scaled query");
        let scaled_key = self.scale(&wide_key, "attention scaled key");
        let scores = self.empty(&matrix, Element::FP32, "attention scores");
        drop(scaled_key);
        let weights = self.empty(&matrix, Element::FP32, "attention softmax");
        let masked = self.empty(&matrix, Element::Bool, "attention masked scores");
        let rows = self.empty(&matrix[..3], Element::Bool, "attention masked rows");
        drop(self.empty(&[1], Element::Int32, "attention any masked row"));
        drop(rows);
        drop(masked);
        drop(scores);
        let returned = self.to(&weights, query.element, "attention softmax in half");
        let product = self.empty(&[batch, heads, tokens, width], Element::FP32, "attention");
        let output = self.to(&product, query.element, "attention in half");
        drop(product);
        drop((weights, scaled_query, wide_value, wide_key, wide_query, returned));
        output
    }
}
