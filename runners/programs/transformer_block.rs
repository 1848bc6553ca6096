//! Layers of token models that several architectures share: normalisation over channels, and UNets' transformer blocks.

use super::attention::Seen;
use super::computation::{Kernel, Pointwise};
use super::layers::{Convolution, GroupNorm, Linear, Pieces};
use super::recorder::{Recorder, Tensor};
use super::residual::EPSILON;
use super::shape::{Element, Shape};

/// What layer normalisations of denoising UNets and CLIP add to a variance.
pub(super) const LAYER_EPSILON: f64 = 1e-5;

/// Normalisation over the last dimension.
#[derive(Clone, Debug)]
pub(super) struct LayerNorm {
    pub(super) channels: u64,
    /// Whether it has a scale and a shift.
    pub(super) affine: bool,
    /// What is added to the variance.
    pub(super) epsilon: f64,
}

impl LayerNorm {
    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        if self.affine {
            pieces.parameter("weight", &[self.channels]);
            pieces.parameter("bias", &[self.channels]);
        }
    }

    /// The output, and two statistics in fp32 for every token.
    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let dense = recorder.contiguous(input);
        let tokens = input.shape.elements() / self.channels.max(1);
        let output = recorder.empty(input.sizes(), input.element, "layer_norm");
        let mean = recorder.empty(&[tokens], Element::FP32, "layer_norm mean");
        let deviation = recorder.empty(&[tokens], Element::FP32, "layer_norm deviation");
        let parameters: Vec<Tensor> = ["weight", "bias"]
            .into_iter()
            .filter(|_| self.affine)
            .map(|name| recorder.parameter(name, Shape::contiguous(&[self.channels])))
            .collect();
        let reads: Vec<&Tensor> = std::iter::once(&dense).chain(&parameters).collect();
        recorder.launch(Kernel::LayerNorm { epsilon: self.epsilon }, &reads, &[&output, &mean, &deviation]);
        drop(mean);
        drop(deviation);
        drop(dense);
        output
    }
}

impl Recorder {
    /// A layer normalisation of the current module.
    pub(super) fn layer_norm(&self, name: &str, layer: &LayerNorm, input: &Tensor) -> Tensor {
        let _place = self.enter(name);
        layer.forward(self, input)
    }
}

/// Attention of tokens to themselves or to a text.
#[derive(Clone, Debug)]
struct TokenAttention {
    heads: u64,
    query: Linear,
    context: Linear,
    output: Linear,
}

impl TokenAttention {
    fn new(channels: u64, context_channels: u64, heads: u64) -> Self {
        Self {
            heads,
            query: Linear::without_bias(channels, channels),
            context: Linear::without_bias(context_channels, channels),
            output: Linear::new(channels, channels),
        }
    }

    fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("to_q", |p| self.query.parameters(p));
        pieces.within("to_k", |p| self.context.parameters(p));
        pieces.within("to_v", |p| self.context.parameters(p));
        pieces.within("to_out.0", |p| self.output.parameters(p));
    }

    fn forward(&self, recorder: &Recorder, tokens: &Tensor, context: &Tensor) -> Tensor {
        let (batch, count, channels) = (tokens.size(0), tokens.size(1), self.output.inputs);
        let query = recorder.linear("to_q", &self.query, tokens);
        let key = recorder.linear("to_k", &self.context, context);
        let value = recorder.linear("to_v", &self.context, context);
        let mut hidden = recorder.attention(
            &recorder.heads(&query, self.heads),
            &recorder.heads(&key, self.heads),
            &recorder.heads(&value, self.heads),
            Seen::All,
        );
        hidden = recorder.reshape(&hidden.transpose(1, 2), &[batch, count, channels]);
        hidden = recorder.linear("to_out.0", &self.output, &hidden);
        hidden = recorder.scale(&hidden, Pointwise::Over(1.0), "scale output");
        drop(query);
        drop(key);
        drop(value);
        hidden
    }
}

impl Recorder {
    /// `(batch, tokens, channels)` as `(batch, heads, tokens, channels of a head)`.
    pub(super) fn heads(&self, tensor: &Tensor, heads: u64) -> Tensor {
        let width = tensor.size(2) / heads.max(1);
        self.reshape(tensor, &[tensor.size(0), tensor.size(1), heads, width]).transpose(1, 2)
    }
}

/// A transformer block of UNets: self-attention, attention to the text, a gated feed-forward layer.
#[derive(Clone, Debug)]
struct TransformerBlock {
    norm: LayerNorm,
    attention: TokenAttention,
    cross_attention: TokenAttention,
    gate: Linear,
    output: Linear,
}

impl TransformerBlock {
    fn new(channels: u64, text_channels: u64, heads: u64) -> Self {
        Self {
            norm: LayerNorm { channels, affine: true, epsilon: LAYER_EPSILON },
            attention: TokenAttention::new(channels, channels, heads),
            cross_attention: TokenAttention::new(channels, text_channels, heads),
            gate: Linear::new(channels, 8 * channels),
            output: Linear::new(4 * channels, channels),
        }
    }

    fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("norm1", |p| self.norm.parameters(p));
        pieces.within("attn1", |p| self.attention.parameters(p));
        pieces.within("norm2", |p| self.norm.parameters(p));
        pieces.within("attn2", |p| self.cross_attention.parameters(p));
        pieces.within("norm3", |p| self.norm.parameters(p));
        pieces.within("ff.net.0.proj", |p| self.gate.parameters(p));
        pieces.within("ff.net.2", |p| self.output.parameters(p));
    }

    fn forward(&self, recorder: &Recorder, input: &Tensor, text: &Tensor) -> Tensor {
        let mut normed = recorder.layer_norm("norm1", &self.norm, input);
        let mut attended = {
            let _place = recorder.enter("attn1");
            self.attention.forward(recorder, &normed, &normed)
        };
        let mut hidden = recorder.combine(&attended, input, Pointwise::Add, "add attention");
        normed = recorder.layer_norm("norm2", &self.norm, &hidden);
        attended = {
            let _place = recorder.enter("attn2");
            self.cross_attention.forward(recorder, &normed, text)
        };
        hidden = recorder.combine(&attended, &hidden, Pointwise::Add, "add attention to the text");
        normed = recorder.layer_norm("norm3", &self.norm, &hidden);
        let fed = self.feed_forward(recorder, &normed);
        hidden = recorder.combine(&fed, &hidden, Pointwise::Add, "add feed-forward");
        drop(normed);
        drop(attended);
        drop(fed);
        hidden
    }

    /// A projection to twice the inner width, one half gating the other.
    fn feed_forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let mut hidden = {
            let _place = recorder.enter("ff.net.0");
            let both = recorder.linear("proj", &self.gate, input);
            let [half, gate] = [0, 1].map(|index| both.part(2, index, 2));
            let gate = recorder.map(&gate, Pointwise::Gelu { tanh: false }, "gelu");
            let gated = recorder.combine(&half, &gate, Pointwise::Multiply, "gate");
            drop(gate);
            gated
        };
        hidden = recorder.linear("ff.net.2", &self.output, &hidden);
        hidden
    }
}

/// `Transformer2DModel`: a feature map as tokens through transformer blocks, with a residual around them.
#[derive(Clone, Debug)]
pub(super) struct ImageTransformer {
    norm: GroupNorm,
    /// A matrix product or a 1×1 convolution, each way.
    projection: Projection,
    blocks: Vec<TransformerBlock>,
}

#[derive(Clone, Debug)]
enum Projection {
    Linear(Linear),
    Convolution(Convolution),
}

/// Numbers of an image transformer.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransformerNumbers {
    pub(super) channels: u64,
    pub(super) text_channels: u64,
    pub(super) heads: u64,
    pub(super) layers: u64,
    pub(super) groups: u64,
    pub(super) linear: bool,
}

impl ImageTransformer {
    pub(super) fn new(numbers: TransformerNumbers) -> Self {
        let TransformerNumbers { channels, text_channels, heads, layers, groups, linear } = numbers;
        let projection = if linear {
            Projection::Linear(Linear::new(channels, channels))
        } else {
            Projection::Convolution(Convolution::flat(channels, channels, 1))
        };
        let blocks = (0..layers).map(|_| TransformerBlock::new(channels, text_channels, heads)).collect();
        Self { norm: GroupNorm { groups, channels, epsilon: EPSILON }, projection, blocks }
    }

    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        let projection = |p: &mut Pieces| match &self.projection {
            Projection::Linear(layer) => layer.parameters(p),
            Projection::Convolution(layer) => layer.parameters(p),
        };
        pieces.within("norm", |p| self.norm.parameters(p));
        pieces.within("proj_in", projection);
        for (index, block) in self.blocks.iter().enumerate() {
            pieces.within(format!("transformer_blocks.{index}"), |p| block.parameters(p));
        }
        pieces.within("proj_out", projection);
    }

    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor, text: &Tensor) -> Tensor {
        let (batch, channels, rows, columns) = (input.size(0), input.size(1), input.size(2), input.size(3));
        let tokens = [batch, rows * columns, channels];
        let normed = recorder.group_norm("norm", &self.norm, input);
        let mut hidden = match &self.projection {
            Projection::Linear(layer) => {
                let flat = recorder.reshape(&normed.permute(&[0, 2, 3, 1]), &tokens);
                drop(normed);
                recorder.linear("proj_in", layer, &flat)
            }
            Projection::Convolution(layer) => {
                let projected = recorder.convolution("proj_in", layer, &normed);
                drop(normed);
                recorder.reshape(&projected.permute(&[0, 2, 3, 1]), &tokens)
            }
        };
        for (index, block) in self.blocks.iter().enumerate() {
            let _place = recorder.enter(format!("transformer_blocks.{index}"));
            hidden = block.forward(recorder, &hidden, text);
        }
        let image = |tensor: &Tensor| {
            let image = recorder.reshape(tensor, &[batch, rows, columns, channels]).permute(&[0, 3, 1, 2]);
            recorder.contiguous(&image)
        };
        let result = match &self.projection {
            Projection::Linear(layer) => image(&recorder.linear("proj_out", layer, &hidden)),
            Projection::Convolution(layer) => {
                let map = image(&hidden);
                recorder.convolution("proj_out", layer, &map)
            }
        };
        let output = recorder.combine(&result, input, Pointwise::Add, "add residual");
        drop(result);
        drop(hidden);
        output
    }
}

/// The longest wavelength of a sinusoidal embedding, over 2π.
const LONGEST: f64 = 10_000.0;

/// The sinusoidal embedding of steps or sizes `times`, `channels` for each, in fp32.
pub(super) fn sinusoids(recorder: &Recorder, times: &Tensor, channels: u64) -> Tensor {
    let (half, fp32) = (channels / 2, Element::FP32);
    let times_by = |factor| Pointwise::Affine { factor, summand: 0.0 };
    let exponents = recorder.range(half, 1.0, fp32, "exponents");
    let scaled = recorder.map(&exponents, times_by(-LONGEST.ln()), "scale exponents");
    drop(exponents);
    let exponents = recorder.map(&scaled, Pointwise::Over(half as f64), "divide exponents");
    drop(scaled);
    let frequencies = recorder.map(&exponents, Pointwise::Exp, "frequencies");
    let times = recorder.to(times, fp32, "times in fp32");
    let product = recorder.outer(&times, &frequencies, fp32, "angles");
    drop(times);
    drop(frequencies);
    let angles = recorder.map(&product, times_by(1.0), "scale angles");
    drop(product);
    let sines = recorder.map(&angles, Pointwise::Sine, "sines");
    let cosines = recorder.map(&angles, Pointwise::Cosine, "cosines");
    let joined = recorder.cat(&[&sines, &cosines], 1);
    drop(cosines);
    drop(sines);
    drop(angles);
    let flipped = recorder.cat(&[&joined.part(1, 1, 2), &joined.part(1, 0, 2)], 1);
    drop(joined);
    drop(exponents);
    flipped
}
