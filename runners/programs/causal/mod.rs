//! `AutoencoderKLQwenImage` and `AutoencoderKLWan`: causal 3-D convolutions, run one latent frame at a time.
//!
//! Every convolution over time keeps the last two frames of its input for the next step, so that the whole clip gives
//! the same result as it would at once. Those caches live until the operation ends.

mod blocks;
mod convolution;
mod resample;

use headroom_base::Operation;
use headroom_family::architecture::CausalAutoencoder;

use super::computation::Pointwise;
use super::derive::{Model, Request, Unsupported};
use super::layers::Pieces;
use super::recorder::{Recorder, Tensor};
use blocks::{ChannelNorm, FrameAttention, ResidualBlock};
use convolution::{Caches, CausalConvolution};
use resample::{Resample, Resampling};

/// Frames that an encoder takes per step after the first.
const ENCODED_FRAMES: u64 = 4;

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
        hidden = recorder.map(&hidden, Pointwise::Silu, "silu");
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
pub(in crate::programs) struct VideoAutoencoder {
    encoder: Half,
    decoder: Half,
    quant: CausalConvolution,
    post_quant: CausalConvolution,
    image_channels: u64,
    latent_channels: u64,
    /// Pixels per latent along a side.
    scale: u64,
    /// Frames per latent frame after the first.
    frame_scale: u64,
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
    /// Latent frames to frames, one latent frame per step; the clip grows by joining, in a copy each time.
    fn decode(&self, recorder: &Recorder, latents: &Tensor) -> Tensor {
        let mut caches = Caches::default();
        let latents = recorder.causal("post_quant_conv", &self.post_quant, latents);
        let mut clip: Option<Tensor> = None;
        let mut next = None;
        for frame in 0..latents.size(2) {
            let _place = recorder.enter("decoder");
            let frames = self.decoder.forward(recorder, &latents.narrow(2, frame, 1), &mut caches);
            join(recorder, &mut clip, &mut next, frames);
        }
        let clip = clip.map(|clip| recorder.map(&clip, Pointwise::Clamp { low: -1.0, high: 1.0 }, "clamp"));
        caches.release();
        drop(latents);
        drop(next);
        clip.unwrap_or_else(|| recorder.empty(&[0], recorder.element(), "no frames"))
    }

    /// Frames to the moments of a distribution over latent frames: the first frame alone, then four per step.
    fn encode(&self, recorder: &Recorder, pixels: &Tensor) -> Tensor {
        let mut caches = Caches::default();
        let mut clip: Option<Tensor> = None;
        let mut next = None;
        for step in 0..1 + (pixels.size(2) - 1) / ENCODED_FRAMES {
            let _place = recorder.enter("encoder");
            let first = (step * ENCODED_FRAMES).saturating_sub(ENCODED_FRAMES - 1);
            let frames = pixels.narrow(2, first, if step == 0 { 1 } else { ENCODED_FRAMES });
            let moments = self.encoder.forward(recorder, &frames, &mut caches);
            join(recorder, &mut clip, &mut next, moments);
        }
        let clip = clip.map(|clip| recorder.causal("quant_conv", &self.quant, &clip));
        caches.release();
        drop(next);
        clip.unwrap_or_else(|| recorder.empty(&[0], recorder.element(), "no frames"))
    }
}

impl Model for VideoAutoencoder {
    fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("encoder", |p| self.encoder.parameters(p));
        pieces.within("quant_conv", |p| self.quant.parameters(p));
        pieces.within("post_quant_conv", |p| self.post_quant.parameters(p));
        pieces.within("decoder", |p| self.decoder.parameters(p));
    }

    fn run(&self, recorder: &Recorder, request: Request<'_>) -> Result<Vec<Tensor>, Unsupported> {
        let [width, height, frames] = request.pixels(self.scale)?;
        if !(frames - 1).is_multiple_of(self.frame_scale) {
            return Err(request.no_such_extent(format!("one frame and groups of {} more", self.frame_scale)));
        }
        request.untiled()?;
        request.attends(1, (width / self.scale) * (height / self.scale))?;
        match request.case.operation {
            Operation::VaeDecode => {
                let latent_frames = (frames - 1) / self.frame_scale + 1;
                let sizes =
                    [request.batch(), self.latent_channels, latent_frames, height / self.scale, width / self.scale];
                let latents = recorder.input("latents", &sizes);
                Ok(vec![self.decode(recorder, &latents)])
            }
            Operation::VaeEncode => {
                let sizes = [request.batch(), self.image_channels, frames, height, width];
                let pixels = recorder.input("pixels", &sizes);
                Ok(recorder.distribution(self.encode(recorder, &pixels)))
            }
            _ => Err(request.no_such_operation("vae_decode, vae_encode")),
        }
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
