//! `AutoencoderKLQwenImage` and `AutoencoderKLWan`: causal 3-D convolutions, run one latent frame at a time.
//!
//! Every convolution over time keeps the last two frames of its input for the next step, so that the whole clip gives
//! the same result as it would at once. Those caches live until the operation ends.

use headroom_base::DType;
use headroom_family::architecture::CausalAutoencoder;

use super::layers::{Convolution, Pieces};
use super::recorder::{Recorder, Tensor};
use super::shape::Element;

/// Frames that a convolution keeps of its input.
const KEPT_FRAMES: u64 = 2;
/// Frames that an encoder takes per step after the first.
const ENCODED_FRAMES: u64 = 4;

/// What one convolution keeps between steps.
#[derive(Clone, Debug, Default)]
enum Kept {
    /// Nothing yet.
    #[default]
    Nothing,
    /// The first frame was passed on as it was: it counts as repeated.
    Repeated,
    /// Its last frames.
    Frames(Tensor),
}

/// The caches of all convolutions, in the order in which a step meets them.
#[derive(Debug, Default)]
struct Caches {
    kept: Vec<Kept>,
    next: usize,
}

impl Caches {
    fn rewind(&mut self) {
        self.next = 0;
    }

    fn current(&mut self) -> &mut Kept {
        if self.next == self.kept.len() {
            self.kept.push(Kept::Nothing);
        }
        &mut self.kept[self.next]
    }

    fn advance(&mut self) {
        self.next += 1;
    }
}

/// A convolution that sees no later frames.
#[derive(Clone, Debug)]
struct CausalConvolution {
    convolution: Convolution,
    /// Zeros before the first frame.
    before: u64,
    /// Zeros at each side of rows and columns.
    around: u64,
}

impl CausalConvolution {
    fn cube(inputs: u64, outputs: u64, side: u64) -> Self {
        Self::new(inputs, outputs, [side; 3], [side / 2 * 2, side / 2], 1)
    }

    fn over_time(inputs: u64, outputs: u64, before: u64, stride: u64) -> Self {
        Self::new(inputs, outputs, [3, 1, 1], [before, 0], stride)
    }

    fn new(inputs: u64, outputs: u64, kernel: [u64; 3], [before, around]: [u64; 2], stride: u64) -> Self {
        let convolution = Convolution {
            inputs,
            outputs,
            kernel: kernel.to_vec(),
            stride: vec![stride, 1, 1],
            padding: vec![0; 3],
            bias: true,
        };
        Self { convolution, before, around }
    }

    fn parameters(&self, pieces: &mut Pieces) {
        self.convolution.parameters(pieces);
    }

    /// Kept frames in front, zeros around (always a copy), then the convolution.
    fn forward(&self, recorder: &Recorder, input: &Tensor, kept: Option<&Tensor>) -> Tensor {
        let mut input = input.clone();
        let mut before = self.before;
        if let Some(kept) = kept.filter(|_| self.before > 0) {
            input = recorder.cat(&[kept, &input], 2);
            before = before.saturating_sub(kept.size(2));
        }
        input = recorder.pad(&input, &[2 * self.around, 2 * self.around, before]);
        self.convolution.forward(recorder, &input)
    }

    /// The same with the frames kept from the step before, keeping the last ones of this step.
    fn step(&self, recorder: &Recorder, name: &str, input: &mut Tensor, caches: &mut Caches) {
        let _place = recorder.enter(name);
        let mut last = recorder.clone_of(&input.narrow(2, KEPT_FRAMES));
        let kept = match caches.current() {
            Kept::Frames(frames) => Some(frames.clone()),
            Kept::Nothing | Kept::Repeated => None,
        };
        if let Some(frames) = kept.as_ref().filter(|_| last.size(2) < KEPT_FRAMES) {
            last = recorder.cat(&[&frames.narrow(2, 1), &last], 2);
        }
        *input = self.forward(recorder, input, kept.as_ref());
        drop(kept);
        *caches.current() = Kept::Frames(last);
        caches.advance();
    }
}

/// Root-mean-square normalisation over channels, computed in fp32, with a scale per channel.
#[derive(Clone, Debug)]
struct ChannelNorm {
    channels: u64,
    dimensions: usize,
}

impl ChannelNorm {
    fn parameters(&self, pieces: &mut Pieces) {
        let sizes = [vec![self.channels], vec![1; self.dimensions]].concat();
        pieces.parameter("gamma", &sizes);
    }

    fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let wide = recorder.to(input, Element::Float(DType::Fp32), "norm in fp32");
        let mut sizes = input.sizes().to_vec();
        sizes[1] = 1;
        let norm = recorder.empty(&sizes, wide.element, "norm length");
        let clamped = recorder.map(&norm, "norm clamp");
        drop(norm);
        let divided = recorder.combine(&wide, &clamped, "norm divide");
        drop(wide);
        drop(clamped);
        let normalized = recorder.to(&divided, input.element, "norm in half");
        drop(divided);
        let scaled = recorder.scale(&normalized, "norm scale");
        let weighted = recorder.map(&scaled, "norm weight");
        drop(scaled);
        let shifted = recorder.scale(&weighted, "norm shift");
        drop(weighted);
        drop(normalized);
        shifted
    }
}

/// Two causal convolutions with a shortcut.
#[derive(Clone, Debug)]
struct ResidualBlock {
    norm1: ChannelNorm,
    conv1: CausalConvolution,
    norm2: ChannelNorm,
    conv2: CausalConvolution,
    shortcut: Option<CausalConvolution>,
}

impl ResidualBlock {
    fn new(inputs: u64, outputs: u64) -> Self {
        Self {
            norm1: ChannelNorm { channels: inputs, dimensions: 3 },
            conv1: CausalConvolution::cube(inputs, outputs, 3),
            norm2: ChannelNorm { channels: outputs, dimensions: 3 },
            conv2: CausalConvolution::cube(outputs, outputs, 3),
            shortcut: (inputs != outputs).then(|| CausalConvolution::cube(inputs, outputs, 1)),
        }
    }

    fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("norm1", |p| self.norm1.parameters(p));
        pieces.within("conv1", |p| self.conv1.parameters(p));
        pieces.within("norm2", |p| self.norm2.parameters(p));
        pieces.within("conv2", |p| self.conv2.parameters(p));
        if let Some(shortcut) = &self.shortcut {
            pieces.within("conv_shortcut", |p| shortcut.parameters(p));
        }
    }

    fn forward(&self, recorder: &Recorder, input: &Tensor, caches: &mut Caches) -> Tensor {
        let shortcut = match &self.shortcut {
            Some(layer) => {
                let _place = recorder.enter("conv_shortcut");
                layer.forward(recorder, input, None)
            }
            None => input.clone(),
        };
        let mut hidden = recorder.channel_norm("norm1", &self.norm1, input);
        hidden = recorder.map(&hidden, "silu");
        self.conv1.step(recorder, "conv1", &mut hidden, caches);
        hidden = recorder.channel_norm("norm2", &self.norm2, &hidden);
        hidden = recorder.map(&hidden, "silu");
        self.conv2.step(recorder, "conv2", &mut hidden, caches);
        let output = recorder.combine(&hidden, &shortcut, "add residual");
        drop(hidden);
        drop(shortcut);
        output
    }
}

/// Single-head attention within each frame.
#[derive(Clone, Debug)]
struct FrameAttention {
    norm: ChannelNorm,
    to_qkv: Convolution,
    proj: Convolution,
}

impl FrameAttention {
    fn new(channels: u64) -> Self {
        Self {
            norm: ChannelNorm { channels, dimensions: 2 },
            to_qkv: Convolution::flat(channels, 3 * channels, 1),
            proj: Convolution::flat(channels, channels, 1),
        }
    }

    fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("norm", |p| self.norm.parameters(p));
        pieces.within("to_qkv", |p| self.to_qkv.parameters(p));
        pieces.within("proj", |p| self.proj.parameters(p));
    }

    fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let [batch, channels, time, rows, columns] = five(input);
        let images = [batch * time, channels, rows, columns];
        let mut hidden = recorder.reshape(&input.permute(&[0, 2, 1, 3, 4]), &images);
        hidden = recorder.channel_norm("norm", &self.norm, &hidden);
        let mut joined = recorder.convolution("to_qkv", &self.to_qkv, &hidden);
        joined = recorder.reshape(&joined, &[batch * time, 1, 3 * channels, rows * columns]);
        joined = recorder.contiguous(&joined.permute(&[0, 1, 3, 2]));
        let part = joined.narrow(3, channels);
        hidden = recorder.attention(&part, &part, &part);
        hidden = recorder.reshape(&hidden.select(1).permute(&[0, 2, 1]), &images);
        hidden = recorder.convolution("proj", &self.proj, &hidden);
        let frames = hidden.viewed(&[batch, time, channels, rows, columns]).unwrap_or(hidden.clone());
        let output = recorder.combine(&frames.permute(&[0, 2, 1, 3, 4]), input, "add residual");
        drop(frames);
        drop(hidden);
        drop(part);
        drop(joined);
        output
    }
}

/// How a resampling layer changes sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resampling {
    Down,
    DownInTimeToo,
    Up,
    UpInTimeToo,
}

/// Halves or doubles the size, and where the model says so the number of frames.
#[derive(Clone, Debug)]
struct Resample {
    resampling: Resampling,
    convolution: Convolution,
    time: Option<CausalConvolution>,
}

impl Resample {
    fn new(channels: u64, resampling: Resampling) -> Self {
        let (convolution, time) = match resampling {
            Resampling::Down => (Convolution::flat(channels, channels, 3).strided(2, 0), None),
            Resampling::DownInTimeToo => (
                Convolution::flat(channels, channels, 3).strided(2, 0),
                Some(CausalConvolution::over_time(channels, channels, 0, 2)),
            ),
            Resampling::Up => (Convolution::flat(channels, channels / 2, 3), None),
            Resampling::UpInTimeToo => (
                Convolution::flat(channels, channels / 2, 3),
                Some(CausalConvolution::over_time(channels, 2 * channels, 2, 1)),
            ),
        };
        Self { resampling, convolution, time }
    }

    fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("resample.1", |p| self.convolution.parameters(p));
        if let Some(time) = &self.time {
            pieces.within("time_conv", |p| time.parameters(p));
        }
    }

    fn forward(&self, recorder: &Recorder, input: &Tensor, caches: &mut Caches) -> Tensor {
        let mut hidden = input.clone();
        if let (Some(time), Resampling::UpInTimeToo) = (&self.time, self.resampling) {
            hidden = double_frames(recorder, time, hidden, caches);
        }
        let [batch, channels, time, rows, columns] = five(&hidden);
        let images = [batch * time, channels, rows, columns];
        hidden = recorder.reshape(&hidden.permute(&[0, 2, 1, 3, 4]), &images);
        hidden = match self.resampling {
            Resampling::Up | Resampling::UpInTimeToo => upsample_in_fp32(recorder, &hidden),
            Resampling::Down | Resampling::DownInTimeToo => recorder.pad(&hidden, &[1, 1]),
        };
        hidden = recorder.convolution("resample.1", &self.convolution, &hidden);
        let sizes = [batch, time, hidden.size(1), hidden.size(2), hidden.size(3)];
        hidden = hidden.viewed(&sizes).unwrap_or(hidden.clone()).permute(&[0, 2, 1, 3, 4]);
        if let (Some(time), Resampling::DownInTimeToo) = (&self.time, self.resampling) {
            hidden = halve_frames(recorder, time, hidden, caches);
        }
        hidden
    }
}

/// Twice the frames out of a convolution over time; the first frame of a clip stays one.
fn double_frames(recorder: &Recorder, layer: &CausalConvolution, input: Tensor, caches: &mut Caches) -> Tensor {
    let _place = recorder.enter("time_conv");
    if let Kept::Nothing = caches.current() {
        *caches.current() = Kept::Repeated;
        caches.advance();
        return input;
    }
    let [batch, channels, time, rows, columns] = five(&input);
    let mut last = recorder.clone_of(&input.narrow(2, KEPT_FRAMES));
    let kept = match caches.current() {
        Kept::Frames(frames) => Some(frames.clone()),
        Kept::Nothing | Kept::Repeated => None,
    };
    if last.size(2) < KEPT_FRAMES {
        last = match &kept {
            Some(frames) => recorder.cat(&[&frames.narrow(2, 1), &last], 2),
            None => {
                let zeros = recorder.map(&last, "zeros");
                recorder.cat(&[&zeros, &last], 2)
            }
        };
    }
    let mut hidden = layer.forward(recorder, &input, kept.as_ref());
    drop(input);
    drop(kept);
    *caches.current() = Kept::Frames(last);
    caches.advance();
    hidden = recorder.reshape(&hidden, &[batch, 2, channels, time, rows, columns]);
    let half = hidden.select(1).unsqueeze(3);
    hidden = recorder.cat(&[&half, &half], 3);
    drop(half);
    recorder.reshape(&hidden, &[batch, channels, 2 * time, rows, columns])
}

/// Half the frames by a convolution over time; the first frame of a clip stays one.
fn halve_frames(recorder: &Recorder, layer: &CausalConvolution, input: Tensor, caches: &mut Caches) -> Tensor {
    let _place = recorder.enter("time_conv");
    let kept = match caches.current() {
        Kept::Frames(frames) => Some(frames.clone()),
        Kept::Nothing | Kept::Repeated => None,
    };
    let Some(kept) = kept else {
        *caches.current() = Kept::Frames(recorder.clone_of(&input));
        caches.advance();
        return input;
    };
    let last = recorder.clone_of(&input.narrow(2, 1));
    let joined = recorder.cat(&[&kept.narrow(2, 1), &input], 2);
    let hidden = layer.forward(recorder, &joined, None);
    drop(joined);
    drop(input);
    drop(kept);
    *caches.current() = Kept::Frames(last);
    caches.advance();
    hidden
}

/// The reference upsamples in fp32 and converts back.
fn upsample_in_fp32(recorder: &Recorder, input: &Tensor) -> Tensor {
    let _place = recorder.enter("resample.0");
    let wide = recorder.to(input, Element::Float(DType::Fp32), "upsample in fp32");
    let larger = recorder.upsample_nearest(&wide);
    drop(wide);
    recorder.to(&larger, input.element, "upsample in half")
}

fn five(tensor: &Tensor) -> [u64; 5] {
    std::array::from_fn(|dimension| tensor.size(dimension))
}

impl Recorder {
    fn channel_norm(&self, name: &str, layer: &ChannelNorm, input: &Tensor) -> Tensor {
        let _place = self.enter(name);
        layer.forward(self, input)
    }
}

/// One module of an encoder's or a decoder's path.
#[derive(Clone, Debug)]
enum Module {
    Residual(ResidualBlock),
    Attention(FrameAttention),
    Resample(Resample),
}

/// Modules that run one after the other while their caller holds what the first was given.
#[derive(Clone, Debug)]
struct Stage {
    name: String,
    modules: Vec<(String, Module)>,
}

impl Stage {
    /// Attention is registered before the residual blocks around it.
    fn parameters(&self, pieces: &mut Pieces) {
        let is_attention = |entry: &&(String, Module)| matches!(entry.1, Module::Attention(_));
        let (attention, others): (Vec<_>, Vec<_>) = self.modules.iter().partition(is_attention);
        for (name, module) in attention.into_iter().chain(others) {
            pieces.within(format!("{}{name}", self.name), |p| match module {
                Module::Residual(layer) => layer.parameters(p),
                Module::Attention(layer) => layer.parameters(p),
                Module::Resample(layer) => layer.parameters(p),
            });
        }
    }

    fn forward(&self, recorder: &Recorder, input: &Tensor, caches: &mut Caches) -> Tensor {
        let mut hidden = input.clone();
        for (name, module) in &self.modules {
            let _place = recorder.enter(format!("{}{name}", self.name));
            hidden = match module {
                Module::Residual(layer) => layer.forward(recorder, &hidden, caches),
                Module::Attention(layer) => layer.forward(recorder, &hidden),
                Module::Resample(layer) => layer.forward(recorder, &hidden, caches),
            };
        }
        hidden
    }
}

/// An encoder or a decoder: stages in execution order.
#[derive(Clone, Debug)]
struct Half {
    conv_in: CausalConvolution,
    stages: Vec<Stage>,
    norm_out: ChannelNorm,
    conv_out: CausalConvolution,
}

impl Half {
    /// Parameters in the order of registration, which is that of execution.
    fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("conv_in", |p| self.conv_in.parameters(p));
        for stage in &self.stages {
            stage.parameters(pieces);
        }
        pieces.within("norm_out", |p| self.norm_out.parameters(p));
        pieces.within("conv_out", |p| self.conv_out.parameters(p));
    }

    /// One step: as many frames as `input` has.
    fn forward(&self, recorder: &Recorder, input: &Tensor, caches: &mut Caches) -> Tensor {
        caches.rewind();
        let mut hidden = input.clone();
        self.conv_in.step(recorder, "conv_in", &mut hidden, caches);
        for stage in &self.stages {
            hidden = stage.forward(recorder, &hidden, caches);
        }
        hidden = recorder.channel_norm("norm_out", &self.norm_out, &hidden);
        hidden = recorder.map(&hidden, "silu");
        self.conv_out.step(recorder, "conv_out", &mut hidden, caches);
        hidden
    }
}

fn middle(channels: u64) -> Stage {
    let resnet = || Module::Residual(ResidualBlock::new(channels, channels));
    Stage {
        name: "mid_block.".to_owned(),
        modules: vec![
            ("resnets.0".to_owned(), resnet()),
            ("attentions.0".to_owned(), Module::Attention(FrameAttention::new(channels))),
            ("resnets.1".to_owned(), resnet()),
        ],
    }
}

/// A video autoencoder.
#[derive(Clone, Debug)]
pub(super) struct VideoAutoencoder {
    encoder: Half,
    decoder: Half,
    quant: CausalConvolution,
    post_quant: CausalConvolution,
    pub(super) image_channels: u64,
    pub(super) latent_channels: u64,
    /// Pixels per latent along a side.
    pub(super) scale: u64,
    /// Frames per latent frame after the first.
    pub(super) frame_scale: u64,
}

impl From<&CausalAutoencoder> for VideoAutoencoder {
    fn from(numbers: &CausalAutoencoder) -> Self {
        let latent = u64::from(numbers.z_dim);
        let halvings = numbers.temperal_downsample.iter().filter(|halves| **halves).count();
        Self {
            encoder: encoder(numbers),
            decoder: decoder(numbers),
            quant: CausalConvolution::cube(2 * latent, 2 * latent, 1),
            post_quant: CausalConvolution::cube(latent, latent, 1),
            image_channels: u64::from(numbers.image_channels),
            latent_channels: latent,
            scale: 1 << (numbers.dim_mult.len().max(1) - 1),
            frame_scale: 1 << halvings,
        }
    }
}

impl VideoAutoencoder {
    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("encoder", |p| self.encoder.parameters(p));
        pieces.within("quant_conv", |p| self.quant.parameters(p));
        pieces.within("post_quant_conv", |p| self.post_quant.parameters(p));
        pieces.within("decoder", |p| self.decoder.parameters(p));
    }

    /// Latent frames to frames, one latent frame per step; the clip grows by joining, in a copy each time.
    pub(super) fn decode(&self, recorder: &Recorder, latents: &Tensor) -> Tensor {
        let mut caches = Caches::default();
        let latents = recorder.causal("post_quant_conv", &self.post_quant, latents);
        let mut clip: Option<Tensor> = None;
        let mut next = None;
        for _ in 0..latents.size(2) {
            let _place = recorder.enter("decoder");
            let frames = self.decoder.forward(recorder, &latents.narrow(2, 1), &mut caches);
            join(recorder, &mut clip, &mut next, frames);
        }
        let clip = clip.map(|clip| recorder.map(&clip, "clamp"));
        drop(caches);
        drop(latents);
        drop(next);
        clip.unwrap_or_else(|| recorder.empty(&[0], recorder.element(), "no frames"))
    }

    /// Frames to the moments of a distribution over latent frames: the first frame alone, then four per step.
    pub(super) fn encode(&self, recorder: &Recorder, pixels: &Tensor) -> Tensor {
        let mut caches = Caches::default();
        let mut clip: Option<Tensor> = None;
        let mut next = None;
        for step in 0..1 + (pixels.size(2) - 1) / ENCODED_FRAMES {
            let _place = recorder.enter("encoder");
            let frames = pixels.narrow(2, if step == 0 { 1 } else { ENCODED_FRAMES });
            let moments = self.encoder.forward(recorder, &frames, &mut caches);
            join(recorder, &mut clip, &mut next, moments);
        }
        let clip = clip.map(|clip| recorder.causal("quant_conv", &self.quant, &clip));
        drop(caches);
        drop(next);
        clip.unwrap_or_else(|| recorder.empty(&[0], recorder.element(), "no frames"))
    }
}

/// The reference keeps the last step's frames in a variable of their own until the next step's replace them.
fn join(recorder: &Recorder, clip: &mut Option<Tensor>, next: &mut Option<Tensor>, frames: Tensor) {
    match clip.take() {
        None => *clip = Some(frames),
        Some(before) => {
            *next = Some(frames.clone());
            *clip = Some(recorder.cat(&[&before, &frames], 2));
        }
    }
}

impl Recorder {
    fn causal(&self, name: &str, layer: &CausalConvolution, input: &Tensor) -> Tensor {
        let _place = self.enter(name);
        layer.forward(self, input, None)
    }
}

fn encoder(numbers: &CausalAutoencoder) -> Half {
    let base = u64::from(numbers.base_dim);
    let channels: Vec<u64> = numbers.dim_mult.iter().map(|&multiple| base * u64::from(multiple)).collect();
    let mut stages = Vec::new();
    let mut inputs = base;
    for (index, &outputs) in channels.iter().enumerate() {
        let mut add = |module| {
            let name = format!("down_blocks.{}", stages.len());
            stages.push(Stage { name, modules: vec![(String::new(), module)] });
        };
        for _ in 0..numbers.num_res_blocks {
            add(Module::Residual(ResidualBlock::new(inputs, outputs)));
            inputs = outputs;
        }
        if index + 1 < channels.len() {
            let in_time = numbers.temperal_downsample.get(index).copied().unwrap_or(false);
            let resampling = if in_time { Resampling::DownInTimeToo } else { Resampling::Down };
            add(Module::Resample(Resample::new(outputs, resampling)));
        }
    }
    stages.push(middle(inputs));
    Half {
        conv_in: CausalConvolution::cube(u64::from(numbers.image_channels), base, 3),
        stages,
        norm_out: ChannelNorm { channels: inputs, dimensions: 3 },
        conv_out: CausalConvolution::cube(inputs, 2 * u64::from(numbers.z_dim), 3),
    }
}

fn decoder(numbers: &CausalAutoencoder) -> Half {
    let base = u64::from(numbers.decoder_base_dim.unwrap_or(numbers.base_dim));
    let channels: Vec<u64> = numbers.dim_mult.iter().rev().map(|&multiple| base * u64::from(multiple)).collect();
    let first = channels.first().copied().unwrap_or(base);
    let mut stages = vec![middle(first)];
    let mut inputs = first;
    for (index, &outputs) in channels.iter().enumerate() {
        let mut modules = Vec::new();
        for block in 0..=numbers.num_res_blocks {
            modules.push((format!("resnets.{block}"), Module::Residual(ResidualBlock::new(inputs, outputs))));
            inputs = outputs;
        }
        if index + 1 < channels.len() {
            let in_time = numbers.temperal_downsample.iter().rev().nth(index).copied().unwrap_or(false);
            let resampling = if in_time { Resampling::UpInTimeToo } else { Resampling::Up };
            modules.push(("upsamplers.0".to_owned(), Module::Resample(Resample::new(outputs, resampling))));
            inputs = outputs / 2;
        }
        stages.push(Stage { name: format!("up_blocks.{index}."), modules });
    }
    let last = channels.last().copied().unwrap_or(base);
    Half {
        conv_in: CausalConvolution::cube(u64::from(numbers.z_dim), first, 3),
        stages,
        norm_out: ChannelNorm { channels: last, dimensions: 3 },
        conv_out: CausalConvolution::cube(last, u64::from(numbers.image_channels), 3),
    }
}
