//! `UNet2DConditionModel`: a denoising UNet with cross-attention, of which SDXL's and Stable Diffusion 1.5's are.

use headroom_base::{DType, Operation};
use headroom_family::architecture::Unet2dCondition;

use super::computation::{Filling, Pointwise};
use super::derive::{Model, Request, Unsupported};
use super::layers::{Convolution, GroupNorm, Linear, Pieces};
use super::recorder::{Recorder, Tensor};
use super::residual::{DENOISER_EPSILON, Downsample, ResnetBlock, Upsample};
use super::shape::Element;
use super::transformer_block::{ImageTransformer, TransformerNumbers, sinusoids};

/// Pixels along the side of a latent.
const LATENT_PIXELS: u64 = 8;
/// Channels of the embedded time step, as a multiple of the first level's.
const TIME_MULTIPLE: u64 = 4;
/// Size numbers that are embedded with the pooled text: original size, crop and target size.
const SIZE_NUMBERS: u64 = 6;

/// Two matrix products with an activation between them.
#[derive(Clone, Debug)]
pub(super) struct Embedding {
    first: Linear,
    second: Linear,
}

impl Embedding {
    pub(super) fn new(inputs: u64, channels: u64) -> Self {
        Self { first: Linear::new(inputs, channels), second: Linear::new(channels, channels) }
    }

    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("linear_1", |p| self.first.parameters(p));
        pieces.within("linear_2", |p| self.second.parameters(p));
    }

    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let mut hidden = recorder.linear("linear_1", &self.first, input);
        hidden = recorder.map(&hidden, Pointwise::Silu, "silu");
        recorder.linear("linear_2", &self.second, &hidden)
    }
}

/// One resolution, on the way down or up.
#[derive(Clone, Debug)]
struct Level {
    resnets: Vec<ResnetBlock>,
    attentions: Vec<ImageTransformer>,
    downsample: Option<Downsample>,
    upsample: Option<Upsample>,
}

impl Level {
    /// Attention is registered before the residual blocks.
    fn parameters(&self, pieces: &mut Pieces) {
        for (index, layer) in self.attentions.iter().enumerate() {
            pieces.within(format!("attentions.{index}"), |p| layer.parameters(p));
        }
        for (index, layer) in self.resnets.iter().enumerate() {
            pieces.within(format!("resnets.{index}"), |p| layer.parameters(p));
        }
        if let Some(layer) = &self.downsample {
            pieces.within("downsamplers.0", |p| layer.parameters(p));
        }
        if let Some(layer) = &self.upsample {
            pieces.within("upsamplers.0", |p| layer.parameters(p));
        }
    }

    fn pair(&self, recorder: &Recorder, index: usize, input: Tensor, held: &Conditions) -> Tensor {
        let hidden = {
            let _place = recorder.enter(format!("resnets.{index}"));
            self.resnets[index].forward(recorder, &input, Some(&held.time))
        };
        drop(input);
        match self.attentions.get(index) {
            Some(layer) => {
                let _place = recorder.enter(format!("attentions.{index}"));
                layer.forward(recorder, &hidden, &held.text)
            }
            None => hidden,
        }
    }

    /// The output, and what the way up will need.
    fn down(&self, recorder: &Recorder, input: &Tensor, held: &Conditions) -> (Tensor, Vec<Tensor>) {
        let mut hidden = input.clone();
        let mut kept = Vec::new();
        for index in 0..self.resnets.len() {
            hidden = self.pair(recorder, index, hidden, held);
            kept.push(hidden.clone());
        }
        if let Some(layer) = &self.downsample {
            let _place = recorder.enter("downsamplers.0");
            hidden = layer.forward(recorder, &hidden);
            kept.push(hidden.clone());
        }
        (hidden, kept)
    }

    /// `kept` are joined to the input of each residual block, last first; `size` is what upsampling leads to.
    fn up(&self, recorder: &Recorder, input: &Tensor, kept: &[Tensor], held: &Conditions, size: [u64; 2]) -> Tensor {
        let mut hidden = input.clone();
        for (index, kept) in (0..self.resnets.len()).zip(kept.iter().rev()) {
            hidden = recorder.cat(&[&hidden, kept], 1);
            hidden = self.pair(recorder, index, hidden, held);
        }
        if let Some(layer) = &self.upsample {
            let _place = recorder.enter("upsamplers.0");
            hidden = layer.forward_to(recorder, &hidden, size);
        }
        hidden
    }
}

/// Steps that a denoiser is trained on, and a size that images of its training do not exceed.
const STEPS: u64 = 1000;
const LARGEST_SIZE: f32 = 2048.0;

/// The inputs that are embedded: the time step, and where the model has them pooled text and sizes.
#[derive(Debug)]
struct Given {
    step: Tensor,
    added: Option<(Tensor, Tensor)>,
}

/// What every block is given: the embedded time step and the text.
#[derive(Debug)]
struct Conditions {
    time: Tensor,
    text: Tensor,
}

/// A denoising UNet.
#[derive(Clone, Debug)]
pub(super) struct Unet {
    numbers: Unet2dCondition,
    conv_in: Convolution,
    time_embedding: Embedding,
    add_embedding: Option<Embedding>,
    down: Vec<Level>,
    middle: (ImageTransformer, [ResnetBlock; 2]),
    up: Vec<Level>,
    norm_out: GroupNorm,
    conv_out: Convolution,
}

impl From<&Unet2dCondition> for Unet {
    fn from(numbers: &Unet2dCondition) -> Self {
        let channels: Vec<u64> = numbers.block_out_channels.iter().map(|&c| u64::from(c)).collect();
        let (first, last) = (channels.first().copied().unwrap_or(1), channels.last().copied().unwrap_or(1));
        let time = TIME_MULTIPLE * first;
        let groups = u64::from(numbers.norm_num_groups);
        let resnet = ResnetBlock::new([last, last], groups, Some(time));
        let deepest = channels.len().saturating_sub(1);
        Self {
            conv_in: Convolution::flat(u64::from(numbers.in_channels), first, 3),
            time_embedding: Embedding::new(first, time),
            add_embedding: numbers
                .projection_class_embeddings_input_dim
                .map(|width| Embedding::new(u64::from(width), time)),
            down: down_levels(numbers, &channels),
            middle: (
                transformer(numbers, deepest, last, u64::from(numbers.mid_block_transformer_layers)),
                [resnet.clone(), resnet],
            ),
            up: up_levels(numbers, &channels),
            norm_out: GroupNorm { groups, channels: first, epsilon: DENOISER_EPSILON },
            conv_out: Convolution::flat(first, u64::from(numbers.out_channels), 3),
            numbers: numbers.clone(),
        }
    }
}

fn transformer(numbers: &Unet2dCondition, level: usize, channels: u64, layers: u64) -> ImageTransformer {
    ImageTransformer::new(TransformerNumbers {
        channels,
        text_channels: u64::from(numbers.cross_attention_dim),
        heads: u64::from(numbers.attention_heads.get(level).copied().unwrap_or(1)),
        layers,
        groups: u64::from(numbers.norm_num_groups),
        linear: numbers.use_linear_projection,
    })
}

/// One attention for each of `count` residual blocks of a level, or none.
fn attentions(numbers: &Unet2dCondition, level: usize, channels: u64, count: u32) -> Vec<ImageTransformer> {
    match numbers.transformer_layers_per_block.get(level).copied().unwrap_or(0) {
        0 => Vec::new(),
        layers => (0..count).map(|_| transformer(numbers, level, channels, u64::from(layers))).collect(),
    }
}

fn down_levels(numbers: &Unet2dCondition, channels: &[u64]) -> Vec<Level> {
    let groups = u64::from(numbers.norm_num_groups);
    let time = TIME_MULTIPLE * channels.first().copied().unwrap_or(1);
    let mut inputs = channels.first().copied().unwrap_or(1);
    let mut levels = Vec::new();
    for (level, &outputs) in channels.iter().enumerate() {
        let mut resnets = Vec::new();
        for _ in 0..numbers.layers_per_block {
            resnets.push(ResnetBlock::new([inputs, outputs], groups, Some(time)));
            inputs = outputs;
        }
        levels.push(Level {
            resnets,
            attentions: attentions(numbers, level, outputs, numbers.layers_per_block),
            downsample: (level + 1 < channels.len()).then(|| Downsample::new(outputs, false)),
            upsample: None,
        });
    }
    levels
}

fn up_levels(numbers: &Unet2dCondition, channels: &[u64]) -> Vec<Level> {
    let groups = u64::from(numbers.norm_num_groups);
    let time = TIME_MULTIPLE * channels.first().copied().unwrap_or(1);
    let mut before = channels.last().copied().unwrap_or(1);
    let mut levels = Vec::new();
    for (level, &outputs) in channels.iter().enumerate().rev() {
        let below = channels[level.saturating_sub(1)];
        let mut resnets = Vec::new();
        for block in 0..=numbers.layers_per_block {
            let kept = if block == numbers.layers_per_block { below } else { outputs };
            let hidden = if block == 0 { before } else { outputs };
            resnets.push(ResnetBlock::new([hidden + kept, outputs], groups, Some(time)));
        }
        levels.push(Level {
            resnets,
            attentions: attentions(numbers, level, outputs, numbers.layers_per_block + 1),
            downsample: None,
            upsample: (level > 0).then(|| Upsample::new(outputs)),
        });
        before = outputs;
    }
    levels
}

impl Model for Unet {
    fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("conv_in", |p| self.conv_in.parameters(p));
        pieces.within("time_embedding", |p| self.time_embedding.parameters(p));
        if let Some(layer) = &self.add_embedding {
            pieces.within("add_embedding", |p| layer.parameters(p));
        }
        for (name, levels) in [("down_blocks", &self.down), ("up_blocks", &self.up)] {
            for (index, level) in levels.iter().enumerate() {
                pieces.within(format!("{name}.{index}"), |p| level.parameters(p));
            }
        }
        pieces.within("mid_block.attentions.0", |p| self.middle.0.parameters(p));
        for (index, resnet) in self.middle.1.iter().enumerate() {
            pieces.within(format!("mid_block.resnets.{index}"), |p| resnet.parameters(p));
        }
        pieces.within("conv_norm_out", |p| self.norm_out.parameters(p));
        pieces.within("conv_out", |p| self.conv_out.parameters(p));
    }

    fn run(&self, recorder: &Recorder, request: Request<'_>) -> Result<Vec<Tensor>, Unsupported> {
        if request.case.operation != Operation::Denoise {
            return Err(request.no_such_operation("denoise"));
        }
        request.untiled()?;
        let [width, height] = request.image(LATENT_PIXELS)?;
        let batch = request.batch();
        let channels = u64::from(self.numbers.in_channels);
        let sizes = [batch, channels, height / LATENT_PIXELS, width / LATENT_PIXELS];
        let levels = self.numbers.attention_heads.iter().zip(&self.numbers.transformer_layers_per_block).enumerate();
        for (level, (heads, _)) in levels.filter(|(_, (_, layers))| **layers > 0) {
            request.attends(u64::from(*heads), (sizes[2] >> level) * (sizes[3] >> level))?;
        }
        let sample = recorder.input("sample", &sizes);
        let text_sizes = [batch, u64::from(self.numbers.text_tokens), u64::from(self.numbers.cross_attention_dim)];
        let text = recorder.input("encoder_hidden_states", &text_sizes);
        let added = self.numbers.projection_class_embeddings_input_dim.map(|width| {
            let sizes = SIZE_NUMBERS * u64::from(self.numbers.addition_time_embed_dim);
            let pooled = u64::from(width).saturating_sub(sizes);
            let given = Filling::Around { centre: LARGEST_SIZE / 2.0, amplitude: LARGEST_SIZE / 2.0 };
            let pooled = recorder.input("text_embeds", &[batch, pooled]);
            (pooled, recorder.input_of("time_ids", &[batch, SIZE_NUMBERS], recorder.element(), given))
        });
        let step = recorder.input_of("timestep", &[1], Element::Int64, Filling::Below(STEPS));
        Ok(vec![self.denoise(recorder, &sample, text, &Given { step, added })])
    }
}

impl Unet {
    /// The embedded time step, and what it was made of, which lives as long as the step.
    fn embed(&self, recorder: &Recorder, batch: u64, given: &Given) -> (Tensor, Vec<Tensor>) {
        let first = self.time_embedding.first.inputs;
        let sinusoid = {
            let _place = recorder.enter("time_proj");
            sinusoids(recorder, &given.step.expand(&[batch]), first)
        };
        let step = recorder.to(&sinusoid, recorder.element(), "time in half");
        drop(sinusoid);
        let time = {
            let _place = recorder.enter("time_embedding");
            self.time_embedding.forward(recorder, &step)
        };
        let (Some(layer), Some((text, sizes))) = (&self.add_embedding, &given.added) else {
            return (time, vec![step]);
        };
        let added = self.embed_sizes(recorder, layer, text, sizes);
        let both = recorder.combine(&time, &added, Pointwise::Add, "add embeddings");
        drop(time);
        (both, vec![step, added])
    }

    fn embed_sizes(&self, recorder: &Recorder, layer: &Embedding, text: &Tensor, sizes: &Tensor) -> Tensor {
        let batch = text.size(0);
        let channels = u64::from(self.numbers.addition_time_embed_dim);
        let sizes = {
            let _place = recorder.enter("add_time_proj");
            sinusoids(recorder, &recorder.reshape(sizes, &[batch * SIZE_NUMBERS]), channels)
        };
        let wide = recorder.empty(&[batch, layer.first.inputs], Element::Float(DType::Fp32), "join text and sizes");
        recorder.join_into(&wide, &[text, &recorder.reshape(&sizes, &[batch, SIZE_NUMBERS * channels])], 1);
        let joined = recorder.to(&wide, recorder.element(), "text and sizes in half");
        drop(wide);
        let added = {
            let _place = recorder.enter("add_embedding");
            layer.forward(recorder, &joined)
        };
        drop(sizes);
        drop(joined);
        added
    }

    fn denoise(&self, recorder: &Recorder, sample: &Tensor, text: Tensor, given: &Given) -> Tensor {
        let (time, embeddings) = self.embed(recorder, sample.size(0), given);
        let held = Conditions { time, text };
        let mut hidden = recorder.convolution("conv_in", &self.conv_in, sample);
        let mut kept = vec![hidden.clone()];
        for (index, level) in self.down.iter().enumerate() {
            let _place = recorder.enter(format!("down_blocks.{index}"));
            let (output, more) = level.down(recorder, &hidden, &held);
            hidden = output;
            kept.extend(more);
        }
        hidden = self.through_middle(recorder, &hidden, &held);
        let mut joined: Vec<Tensor> = Vec::new();
        for (index, level) in self.up.iter().enumerate() {
            let _place = recorder.enter(format!("up_blocks.{index}"));
            let previous = std::mem::replace(&mut joined, kept.split_off(kept.len() - level.resnets.len()));
            release(previous);
            let size = kept.last().map_or([0, 0], |next| [next.size(2), next.size(3)]);
            hidden = level.up(recorder, &hidden, &joined, &held, size);
        }
        hidden = recorder.group_norm("conv_norm_out", &self.norm_out, &hidden);
        hidden = recorder.map(&hidden, Pointwise::Silu, "silu");
        hidden = recorder.convolution("conv_out", &self.conv_out, &hidden);
        let mut embeddings = embeddings.into_iter();
        drop(embeddings.next());
        drop(held);
        drop(embeddings);
        release(joined);
        hidden
    }

    fn through_middle(&self, recorder: &Recorder, input: &Tensor, held: &Conditions) -> Tensor {
        let _place = recorder.enter("mid_block");
        let resnet = |index: usize, input: &Tensor| {
            let _place = recorder.enter(format!("resnets.{index}"));
            self.middle.1[index].forward(recorder, input, Some(&held.time))
        };
        let mut hidden = resnet(0, input);
        hidden = {
            let _place = recorder.enter("attentions.0");
            self.middle.0.forward(recorder, &hidden, &held.text)
        };
        resnet(1, &hidden)
    }
}

/// Lets go of tensors last first, as a Python tuple does.
fn release(mut tensors: Vec<Tensor>) {
    while let Some(tensor) = tensors.pop() {
        drop(tensor);
    }
}
