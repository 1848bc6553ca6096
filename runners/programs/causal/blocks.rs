//! The blocks of video autoencoders: normalisation over channels, residual blocks, attention within a frame.

use headroom_base::DType;

use super::super::attention::Seen;
use super::super::computation::{Pointwise, Reduction};
use super::super::layers::{Convolution, Pieces};
use super::super::recorder::{Recorder, Tensor};
use super::super::shape::{Element, Shape};
use super::convolution::{Caches, CausalConvolution};

/// The least length that a vector is divided by.
const LEAST_LENGTH: f64 = 1e-12;

/// Root-mean-square normalisation over channels, computed in fp32, with a scale per channel.
#[derive(Clone, Debug)]
pub(super) struct ChannelNorm {
    pub(super) channels: u64,
    pub(super) dimensions: usize,
}

impl ChannelNorm {
    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        let sizes = [vec![self.channels], vec![1; self.dimensions]].concat();
        pieces.parameter("gamma", &sizes);
    }

    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let wide = recorder.to(input, Element::Float(DType::Fp32), "norm in fp32");
        let mut sizes = input.sizes().to_vec();
        sizes[1] = 1;
        let norm = recorder.reduced(&wide, (Reduction::Length, 1), &sizes, wide.element, "norm length");
        let positive = Pointwise::Clamp { low: LEAST_LENGTH, high: f64::INFINITY };
        let clamped = recorder.map(&norm, positive, "norm clamp");
        drop(norm);
        let divided = recorder.combine(&wide, &clamped, Pointwise::Divide, "norm divide");
        drop(wide);
        drop(clamped);
        let normalized = recorder.to(&divided, input.element, "norm in half");
        drop(divided);
        let root = Pointwise::Affine { factor: (self.channels as f64).sqrt(), summand: 0.0 };
        let scaled = recorder.scale(&normalized, root, "norm scale");
        let gamma = recorder.parameter("gamma", Shape::contiguous(&[self.channels]));
        let mut gamma = gamma.unsqueeze(1);
        for dimension in 2..input.sizes().len().saturating_sub(1) {
            gamma = gamma.unsqueeze(dimension);
        }
        let weighted = recorder.elementwise(&[&scaled, &gamma], scaled.element, Pointwise::Multiply, "norm weight");
        drop(scaled);
        let nothing = Pointwise::Affine { factor: 1.0, summand: 0.0 };
        let shifted = recorder.scale(&weighted, nothing, "norm shift");
        drop(weighted);
        drop(normalized);
        shifted
    }
}

/// Two causal convolutions with a shortcut.
#[derive(Clone, Debug)]
pub(super) struct ResidualBlock {
    norm1: ChannelNorm,
    conv1: CausalConvolution,
    norm2: ChannelNorm,
    conv2: CausalConvolution,
    shortcut: Option<CausalConvolution>,
}

impl ResidualBlock {
    pub(super) fn new(inputs: u64, outputs: u64) -> Self {
        Self {
            norm1: ChannelNorm { channels: inputs, dimensions: 3 },
            conv1: CausalConvolution::cube(inputs, outputs, 3),
            norm2: ChannelNorm { channels: outputs, dimensions: 3 },
            conv2: CausalConvolution::cube(outputs, outputs, 3),
            shortcut: (inputs != outputs).then(|| CausalConvolution::cube(inputs, outputs, 1)),
        }
    }

    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("norm1", |p| self.norm1.parameters(p));
        pieces.within("conv1", |p| self.conv1.parameters(p));
        pieces.within("norm2", |p| self.norm2.parameters(p));
        pieces.within("conv2", |p| self.conv2.parameters(p));
        if let Some(shortcut) = &self.shortcut {
            pieces.within("conv_shortcut", |p| shortcut.parameters(p));
        }
    }

    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor, caches: &mut Caches) -> Tensor {
        let shortcut = match &self.shortcut {
            Some(layer) => {
                let _place = recorder.enter("conv_shortcut");
                layer.forward(recorder, input, None)
            }
            None => input.clone(),
        };
        let mut hidden = recorder.channel_norm("norm1", &self.norm1, input);
        hidden = recorder.map(&hidden, Pointwise::Silu, "silu");
        self.conv1.step(recorder, "conv1", &mut hidden, caches);
        hidden = recorder.channel_norm("norm2", &self.norm2, &hidden);
        hidden = recorder.map(&hidden, Pointwise::Silu, "silu");
        self.conv2.step(recorder, "conv2", &mut hidden, caches);
        let output = recorder.combine(&hidden, &shortcut, Pointwise::Add, "add residual");
        drop(hidden);
        drop(shortcut);
        output
    }
}

/// Single-head attention within each frame.
#[derive(Clone, Debug)]
pub(super) struct FrameAttention {
    norm: ChannelNorm,
    to_qkv: Convolution,
    proj: Convolution,
}

impl FrameAttention {
    pub(super) fn new(channels: u64) -> Self {
        Self {
            norm: ChannelNorm { channels, dimensions: 2 },
            to_qkv: Convolution::flat(channels, 3 * channels, 1),
            proj: Convolution::flat(channels, channels, 1),
        }
    }

    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("norm", |p| self.norm.parameters(p));
        pieces.within("to_qkv", |p| self.to_qkv.parameters(p));
        pieces.within("proj", |p| self.proj.parameters(p));
    }

    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let [batch, channels, time, rows, columns] = five(input);
        let images = [batch * time, channels, rows, columns];
        let mut hidden = recorder.reshape(&input.permute(&[0, 2, 1, 3, 4]), &images);
        hidden = recorder.channel_norm("norm", &self.norm, &hidden);
        let mut joined = recorder.convolution("to_qkv", &self.to_qkv, &hidden);
        joined = recorder.reshape(&joined, &[batch * time, 1, 3 * channels, rows * columns]);
        joined = recorder.contiguous(&joined.permute(&[0, 1, 3, 2]));
        let parts = [0, 1, 2].map(|index| joined.part(3, index, 3));
        hidden = recorder.attention(&parts[0], &parts[1], &parts[2], Seen::All);
        hidden = recorder.reshape(&hidden.select(1, 0).permute(&[0, 2, 1]), &images);
        hidden = recorder.convolution("proj", &self.proj, &hidden);
        let frames = hidden.viewed(&[batch, time, channels, rows, columns]).unwrap_or(hidden.clone());
        let output = recorder.combine(&frames.permute(&[0, 2, 1, 3, 4]), input, Pointwise::Add, "add residual");
        drop(frames);
        drop(hidden);
        drop(parts);
        drop(joined);
        output
    }
}

pub(super) fn five(tensor: &Tensor) -> [u64; 5] {
    std::array::from_fn(|dimension| tensor.size(dimension))
}

impl Recorder {
    pub(super) fn channel_norm(&self, name: &str, layer: &ChannelNorm, input: &Tensor) -> Tensor {
        let _place = self.enter(name);
        layer.forward(self, input)
    }
}
