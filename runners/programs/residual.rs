//! Residual blocks of image models: `ResnetBlock2D`, up- and downsampling, and the single-head attention between them.

use super::attention::Seen;
use super::computation::Pointwise;
use super::layers::{Convolution, GroupNorm, Linear, Pieces};
use super::recorder::{Recorder, Tensor};

/// What normalisations add to a variance, in denoisers and everywhere else.
pub(super) const DENOISER_EPSILON: f64 = 1e-5;
pub(super) const EPSILON: f64 = 1e-6;

/// Two convolutions with a shortcut, and a time embedding where the model has one.
#[derive(Clone, Debug)]
pub(super) struct ResnetBlock {
    norm1: GroupNorm,
    conv1: Convolution,
    time: Option<Linear>,
    norm2: GroupNorm,
    conv2: Convolution,
    shortcut: Option<Convolution>,
}

impl ResnetBlock {
    /// From and to these channels; those with a time embedding are denoisers'.
    pub(super) fn new([inputs, outputs]: [u64; 2], groups: u64, time_channels: Option<u64>) -> Self {
        let epsilon = if time_channels.is_some() { DENOISER_EPSILON } else { EPSILON };
        Self {
            norm1: GroupNorm { groups, channels: inputs, epsilon },
            conv1: Convolution::flat(inputs, outputs, 3),
            time: time_channels.map(|channels| Linear::new(channels, outputs)),
            norm2: GroupNorm { groups, channels: outputs, epsilon },
            conv2: Convolution::flat(outputs, outputs, 3),
            shortcut: (inputs != outputs).then(|| Convolution::flat(inputs, outputs, 1)),
        }
    }

    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("norm1", |p| self.norm1.parameters(p));
        pieces.within("conv1", |p| self.conv1.parameters(p));
        if let Some(time) = &self.time {
            pieces.within("time_emb_proj", |p| time.parameters(p));
        }
        pieces.within("norm2", |p| self.norm2.parameters(p));
        pieces.within("conv2", |p| self.conv2.parameters(p));
        if let Some(shortcut) = &self.shortcut {
            pieces.within("conv_shortcut", |p| shortcut.parameters(p));
        }
    }

    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor, time: Option<&Tensor>) -> Tensor {
        let mut hidden = recorder.group_norm("norm1", &self.norm1, input);
        hidden = recorder.map(&hidden, Pointwise::Silu, "silu");
        hidden = recorder.convolution("conv1", &self.conv1, &hidden);
        let mut embedding = None;
        if let (Some(layer), Some(time)) = (&self.time, time) {
            let activated = recorder.map(time, Pointwise::Silu, "silu");
            let projected = recorder.linear("time_emb_proj", layer, &activated);
            drop(activated);
            let projected = projected.unsqueeze(2).unsqueeze(3);
            hidden = recorder.combine(&hidden, &projected, Pointwise::Add, "add time embedding");
            embedding = Some(projected);
        }
        hidden = recorder.group_norm("norm2", &self.norm2, &hidden);
        hidden = recorder.map(&hidden, Pointwise::Silu, "silu");
        hidden = recorder.convolution("conv2", &self.conv2, &hidden);
        let residual = match &self.shortcut {
            Some(shortcut) => recorder.convolution("conv_shortcut", shortcut, input),
            None => input.clone(),
        };
        let sum = recorder.combine(&residual, &hidden, Pointwise::Add, "add residual");
        let output = recorder.scale(&sum, Pointwise::Over(1.0), "scale output");
        drop(sum);
        drop(residual);
        drop(embedding);
        drop(hidden);
        output
    }
}

/// Twice the size, then a convolution.
#[derive(Clone, Debug)]
pub(super) struct Upsample(pub(super) Convolution);

impl Upsample {
    pub(super) fn new(channels: u64) -> Self {
        Self(Convolution::flat(channels, channels, 3))
    }

    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("conv", |p| self.0.parameters(p));
    }

    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        self.forward_to(recorder, input, [2 * input.size(2), 2 * input.size(3)])
    }

    /// To these rows and columns, where a level had an odd number of them.
    pub(super) fn forward_to(&self, recorder: &Recorder, input: &Tensor, size: [u64; 2]) -> Tensor {
        let larger = recorder.upsample_nearest(input, size);
        recorder.convolution("conv", &self.0, &larger)
    }
}

/// A convolution that halves the size.
#[derive(Clone, Debug)]
pub(super) struct Downsample {
    convolution: Convolution,
    /// Whether the input is padded on two sides first, in a copy (autoencoders), or by the convolution (UNets).
    pads: bool,
}

impl Downsample {
    pub(super) fn new(channels: u64, pads: bool) -> Self {
        Self { convolution: Convolution::flat(channels, channels, 3).strided(2, u64::from(!pads)), pads }
    }

    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("conv", |p| self.convolution.parameters(p));
    }

    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let input = if self.pads { recorder.pad(input, &[[0, 1], [0, 1]]) } else { input.clone() };
        recorder.convolution("conv", &self.convolution, &input)
    }
}

/// Single-head attention over the pixels of a feature map.
#[derive(Clone, Debug)]
pub(super) struct PixelAttention {
    norm: GroupNorm,
    projection: Linear,
}

impl PixelAttention {
    pub(super) fn new(channels: u64, groups: u64) -> Self {
        Self { norm: GroupNorm { groups, channels, epsilon: EPSILON }, projection: Linear::new(channels, channels) }
    }

    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("group_norm", |p| self.norm.parameters(p));
        for name in ["to_q", "to_k", "to_v", "to_out.0"] {
            pieces.within(name, |p| self.projection.parameters(p));
        }
    }

    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let (batch, channels, rows, columns) = (input.size(0), input.size(1), input.size(2), input.size(3));
        let pixels = rows * columns;
        let Some(tokens) = input.viewed(&[batch, channels, pixels]) else {
            return input.clone();
        };
        let normed = recorder.group_norm("group_norm", &self.norm, &tokens).transpose(1, 2);
        let heads = |tensor: Tensor| tensor.unsqueeze(1);
        let query = heads(recorder.linear("to_q", &self.projection, &normed));
        let key = heads(recorder.linear("to_k", &self.projection, &normed));
        let value = heads(recorder.linear("to_v", &self.projection, &normed));
        let mut hidden = recorder.attention(&query, &key, &value, Seen::All);
        hidden = recorder.reshape(&hidden.transpose(1, 2), &[batch, pixels, channels]);
        hidden = recorder.linear("to_out.0", &self.projection, &hidden);
        hidden = recorder.reshape(&hidden.transpose(1, 2), &[batch, channels, rows, columns]);
        hidden = recorder.combine(&hidden, input, Pointwise::Add, "add residual");
        hidden = recorder.scale(&hidden, Pointwise::Over(1.0), "scale output");
        drop(normed);
        drop(query);
        drop(key);
        drop(value);
        hidden
    }
}

impl Recorder {
    /// A convolution of the current module.
    pub(super) fn convolution(&self, name: &str, layer: &Convolution, input: &Tensor) -> Tensor {
        let _place = self.enter(name);
        layer.forward(self, input)
    }

    /// A group normalisation of the current module.
    pub(super) fn group_norm(&self, name: &str, layer: &GroupNorm, input: &Tensor) -> Tensor {
        let _place = self.enter(name);
        layer.forward(self, input)
    }

    /// A matrix product of the current module.
    pub(super) fn linear(&self, name: &str, layer: &Linear, input: &Tensor) -> Tensor {
        let _place = self.enter(name);
        layer.forward(self, input)
    }
}
