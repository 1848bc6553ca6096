//! Scaled dot-product attention, by kernel, chosen as PyTorch chooses.

use headroom_base::AttentionKernel;

use super::computation::{Kernel, Pointwise, Reduction};
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

/// Which keys a query sees, and how much of them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen<'a> {
    /// All, alike.
    All,
    /// Those that are not later than it.
    Earlier,
    /// All, with a bias added to the unscaled scores, laid out as no fused kernel takes it: scores are materialised.
    Biased(&'a Tensor),
}

impl Seen<'_> {
    /// What scores are multiplied by.
    fn scale(self, query: &Tensor) -> f64 {
        match self {
            Self::All | Self::Earlier => usual_scale(query),
            Self::Biased(_) => 1.0,
        }
    }
}

/// One over the root of the width of a head.
fn usual_scale(query: &Tensor) -> f64 {
    1.0 / (query.size(3) as f64).sqrt()
}

impl Recorder {
    /// Attention of `(batch, heads, tokens, channels)` tensors; the result has that shape.
    pub(super) fn attention(&self, query: &Tensor, key: &Tensor, value: &Tensor, seen: Seen<'_>) -> Tensor {
        if let Seen::Biased(_) = seen {
            return self.math_attention(query, key, value, seen);
        }
        let kernel = Kernel::Attention { scale: usual_scale(query), causal: matches!(seen, Seen::Earlier) };
        let compute = |output: &Tensor| self.launch(kernel.clone(), &[query, key, value], &[&output.transpose(1, 2)]);
        match self.execution.attention {
            AttentionKernel::Math => self.math_attention(query, key, value, seen),
            AttentionKernel::Fused if !query.element.is_half() || query.size(3) > FLASH_HEAD => {
                self.memory_efficient_attention(query, value, compute)
            }
            AttentionKernel::Fused
                if self.execution.workspaces.prefers_cudnn_attention() && query.size(3) <= CUDNN_HEAD =>
            {
                self.cudnn_attention(query, value, compute)
            }
            AttentionKernel::Fused => self.flash_attention(query, value, compute),
        }
    }

    /// Tokens are outermost in its output. Heads too wide for registers accumulate in fp32 beside it.
    fn memory_efficient_attention(&self, query: &Tensor, value: &Tensor, compute: impl Fn(&Tensor)) -> Tensor {
        let (batch, heads, tokens, width) = (query.size(0), query.size(1), query.size(2), value.size(3));
        let output = self.empty(&[batch, tokens, heads, width], query.element, "attention");
        let wide = width > REGISTER_HEAD && query.element != Element::FP32;
        let accumulator =
            wide.then(|| self.empty(&[batch, tokens, heads, width], Element::FP32, "attention accumulator"));
        compute(&output);
        drop(accumulator);
        output.transpose(1, 2)
    }

    /// Seed and offset of a dropout that is not used, the output in the order of the query, and a small workspace.
    fn cudnn_attention(&self, query: &Tensor, value: &Tensor, compute: impl Fn(&Tensor)) -> Tensor {
        let (batch, heads, tokens, width) = (query.size(0), query.size(1), query.size(2), value.size(3));
        let seed = self.empty(&[1], Element::Int64, "attention seed");
        let offset = self.empty(&[1], Element::Int64, "attention offset");
        let output = self.empty(&[batch, tokens, heads, width], query.element, "attention");
        let workspace = self.workspace(CUDNN_WORKSPACE_BYTES, "attention workspace");
        compute(&output);
        drop(workspace);
        drop(seed);
        drop(offset);
        output.transpose(1, 2)
    }

    /// The output, and the logarithms of the score sums in fp32.
    fn flash_attention(&self, query: &Tensor, value: &Tensor, compute: impl Fn(&Tensor)) -> Tensor {
        let (batch, heads, tokens, width) = (query.size(0), query.size(1), query.size(2), value.size(3));
        let output = self.empty(&[batch, tokens, heads, width], query.element, "attention");
        let sums = self.empty(&[batch, heads, tokens], Element::FP32, "attention log sums");
        compute(&output);
        drop(sums);
        output.transpose(1, 2)
    }

    /// The score matrix is materialised; half precision is computed in fp32.
    fn math_attention(&self, query: &Tensor, key: &Tensor, value: &Tensor, seen: Seen<'_>) -> Tensor {
        self.prepare(Library::Cublas);
        let (batch, heads, tokens, width) = (query.size(0), query.size(1), query.size(2), value.size(3));
        let matrix = [batch, heads, tokens, key.size(2)];
        let wide = |tensor: &Tensor| self.to(tensor, Element::FP32, "attention in fp32");
        let (wide_query, wide_key, wide_value) = (wide(query), wide(key), wide(value));
        // Each factor takes the root of the scale, so that neither leaves the range of its element type.
        let root = Pointwise::Affine { factor: seen.scale(query).sqrt(), summand: 0.0 };
        let scaled_query = self.scale(&wide_query, root, "attention scaled query");
        let scaled_key = self.scale(&wide_key, root, "attention scaled key");
        let scores = self.empty(&matrix, Element::FP32, "attention scores");
        self.launch(Kernel::BatchedProduct { transposed: true }, &[&scaled_query, &scaled_key], &[&scores]);
        drop(scaled_key);
        match seen {
            Seen::All => {}
            Seen::Earlier => self.pointwise(Pointwise::MaskLater, &[&scores], &scores),
            Seen::Biased(bias) => self.pointwise(Pointwise::Add, &[&scores, bias], &scores),
        }
        let weights = self.empty(&matrix, Element::FP32, "attention softmax");
        self.launch(Kernel::Softmax, &[&scores], &[&weights]);
        let nothing = Pointwise::Equals(f64::NEG_INFINITY);
        let masked = self.computed(&matrix, Element::Bool, nothing, &[&scores], "attention masked scores");
        let all = (Reduction::All, 3);
        let rows = self.reduced(&masked, all, &matrix[..3], Element::Bool, "attention masked rows");
        drop(self.empty(&[1], Element::Int32, "attention any masked row"));
        drop(rows);
        drop(masked);
        drop(scores);
        let returned = self.to(&weights, query.element, "attention softmax in half");
        let product = self.empty(&[batch, heads, tokens, width], Element::FP32, "attention");
        self.launch(Kernel::BatchedProduct { transposed: false }, &[&weights, &wide_value], &[&product]);
        let output = self.to(&product, query.element, "attention in half");
        drop(product);
        drop((weights, scaled_query, wide_value, wide_key, wide_query, returned));
        output
    }
}
