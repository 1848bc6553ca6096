//! `FluxTransformer2DModel`: FLUX.1's denoiser, joint blocks over image and text, then single ones over both at once.

mod blocks;
mod rotary;

use headroom_base::Operation;
use headroom_family::architecture::FluxTransformer;

use super::computation::{Filling, Pointwise};
use super::derive::{Model, Request, Unsupported};
use super::layers::{Linear, Pieces};
use super::recorder::{Recorder, Tensor};
use super::transformer_block::sinusoids;
use super::unet::Embedding;
use blocks::{JointBlock, Modulated, SingleBlock, Widths};
use rotary::Table;

/// Pixels along the side of a token: latents are an eighth of the image, a patch is two latents wide.
const TOKEN_PIXELS: u64 = 16;
/// Channels of the sinusoidal embedding of time step and guidance.
const TIME_CHANNELS: u64 = 256;
/// What times from 0 to 1 are multiplied by before they are embedded.
const STEPS: f64 = 1000.0;
/// Inputs where nobody gives others: positions up to those of a large image, and guidance up to this.
const LARGEST_POSITION: f32 = 128.0;
const MOST_GUIDANCE: f32 = 7.0;

/// FLUX.1's transformer.
#[derive(Clone, Debug)]
pub(super) struct Flux {
    numbers: FluxTransformer,
    widths: Widths,
    time: Embedding,
    text_pool: Embedding,
    context: Linear,
    image: Linear,
    norm_out: Modulated,
    project_out: Linear,
}

impl From<&FluxTransformer> for Flux {
    fn from(numbers: &FluxTransformer) -> Self {
        let (heads, head) = (u64::from(numbers.num_attention_heads), u64::from(numbers.attention_head_dim));
        let widths = Widths { channels: heads * head, heads, head };
        let patch = u64::from(numbers.in_channels);
        let given = numbers.out_channels.map_or(patch, u64::from);
        Self {
            widths,
            time: Embedding::new(TIME_CHANNELS, widths.channels),
            text_pool: Embedding::new(u64::from(numbers.pooled_projection_dim), widths.channels),
            context: Linear::new(u64::from(numbers.joint_attention_dim), widths.channels),
            image: Linear::new(patch, widths.channels),
            norm_out: Modulated::new(widths, 2, [1, 0]),
            project_out: Linear::new(widths.channels, given),
            numbers: numbers.clone(),
        }
    }
}

/// What the transformer is given.
#[derive(Debug)]
struct Given {
    image: Tensor,
    text: Tensor,
    pooled: Tensor,
    image_ids: Tensor,
    text_ids: Tensor,
    time: Tensor,
    guidance: Option<Tensor>,
}

impl Flux {
    /// The condition of time step, guidance and pooled text.
    fn condition(&self, recorder: &Recorder, given: [&Tensor; 2], guidance: Option<&Tensor>) -> Tensor {
        let [pooled, time] = given;
        let _place = recorder.enter("time_text_embed");
        let element = recorder.element();
        let embed = |name: &str, times: &Tensor| {
            let sinusoid = {
                let _place = recorder.enter("time_proj");
                sinusoids(recorder, times, TIME_CHANNELS)
            };
            let narrow = recorder.to(&sinusoid, element, "sinusoid in half");
            let _place = recorder.enter(name);
            let embedded = self.time.forward(recorder, &narrow);
            drop(narrow);
            (sinusoid, embedded)
        };
        let (time_sinusoid, time) = embed("timestep_embedder", time);
        let (guidance_sinusoid, guidance, both) = if let Some(guidance) = guidance {
            let (sinusoid, guidance) = embed("guidance_embedder", guidance);
            let both = recorder.combine(&time, &guidance, Pointwise::Add, "add guidance");
            (Some(sinusoid), Some(guidance), both)
        } else {
            (None, None, time.clone())
        };
        let text = {
            let _place = recorder.enter("text_embedder");
            self.text_pool.forward(recorder, pooled)
        };
        let condition = recorder.combine(&both, &text, Pointwise::Add, "add text");
        drop(time_sinusoid);
        drop(time);
        drop(guidance_sinusoid);
        drop(guidance);
        drop(both);
        drop(text);
        condition
    }

    fn denoise(&self, recorder: &Recorder, given: &Given) -> Tensor {
        let mut image = recorder.linear("x_embedder", &self.image, &given.image);
        let thousand = Pointwise::Affine { factor: STEPS, summand: 0.0 };
        let time = recorder.scale(&given.time, thousand, "scale time step");
        let guidance = given.guidance.as_ref().map(|input| recorder.scale(input, thousand, "scale guidance"));
        let condition = self.condition(recorder, [&given.pooled, &time], guidance.as_ref());
        let mut text = recorder.linear("context_embedder", &self.context, &given.text);
        let ids = recorder.cat(&[&given.text_ids, &given.image_ids], 0);
        let table = Table::new(recorder, &ids, self.widths.head);
        let joint = JointBlock::new(self.widths);
        for index in 0..self.numbers.num_layers {
            let _place = recorder.enter(format!("transformer_blocks.{index}"));
            let (new_image, new_text) = joint.forward(recorder, [&image, &text], &condition, &table);
            text = new_text;
            image = new_image;
        }
        let single = SingleBlock::new(self.widths);
        for index in 0..self.numbers.num_single_layers {
            let _place = recorder.enter(format!("single_transformer_blocks.{index}"));
            let (new_image, new_text) = single.forward(recorder, [&image, &text], &condition, &table);
            text = new_text;
            image = new_image;
        }
        let (normed, vectors) = self.norm_out.forward(recorder, "norm_out", &image, &condition);
        drop(vectors);
        drop(image);
        let output = recorder.linear("proj_out", &self.project_out, &normed);
        drop(normed);
        drop(text);
        drop(time);
        drop(guidance);
        drop(condition);
        drop(ids);
        table.release();
        output
    }
}

impl Model for Flux {
    fn parameters(&self, pieces: &mut Pieces) {
        pieces.within("time_text_embed", |p| {
            p.within("timestep_embedder", |p| self.time.parameters(p));
            if self.numbers.guidance_embeds {
                p.within("guidance_embedder", |p| self.time.parameters(p));
            }
            p.within("text_embedder", |p| self.text_pool.parameters(p));
        });
        pieces.within("context_embedder", |p| self.context.parameters(p));
        pieces.within("x_embedder", |p| self.image.parameters(p));
        let joint = JointBlock::new(self.widths);
        for index in 0..self.numbers.num_layers {
            pieces.within(format!("transformer_blocks.{index}"), |p| joint.parameters(p));
        }
        let single = SingleBlock::new(self.widths);
        for index in 0..self.numbers.num_single_layers {
            pieces.within(format!("single_transformer_blocks.{index}"), |p| single.parameters(p));
        }
        pieces.within("norm_out.linear", |p| self.norm_out.linear.parameters(p));
        pieces.within("proj_out", |p| self.project_out.parameters(p));
    }

    fn run(&self, recorder: &Recorder, request: Request<'_>) -> Result<Vec<Tensor>, Unsupported> {
        if request.case.operation != Operation::Denoise {
            return Err(request.no_such_operation("denoise"));
        }
        request.untiled()?;
        let [width, height] = request.image(TOKEN_PIXELS)?;
        let (batch, element) = (request.batch(), recorder.element());
        let tokens = (width / TOKEN_PIXELS) * (height / TOKEN_PIXELS);
        let text = u64::from(self.numbers.text_tokens);
        request.attends(self.widths.heads, tokens + text)?;
        let input = |name: &str, sizes: &[u64]| recorder.input(name, sizes);
        let between =
            |low: f32, high: f32| Filling::Around { centre: (low + high) / 2.0, amplitude: (high - low) / 2.0 };
        let ids =
            |name: &str, count: u64| recorder.input_of(name, &[count, 3], element, between(0.0, LARGEST_POSITION));
        let number = |name: &str, high: f32| recorder.input_of(name, &[batch], element, between(0.0, high));
        let given = Given {
            image: input("hidden_states", &[batch, tokens, u64::from(self.numbers.in_channels)]),
            text: input("encoder_hidden_states", &[batch, text, u64::from(self.numbers.joint_attention_dim)]),
            pooled: input("pooled_projections", &[batch, u64::from(self.numbers.pooled_projection_dim)]),
            image_ids: ids("img_ids", tokens),
            text_ids: ids("txt_ids", text),
            time: number("timestep", 1.0),
            guidance: self.numbers.guidance_embeds.then(|| number("guidance", MOST_GUIDANCE)),
        };
        Ok(vec![self.denoise(recorder, &given)])
    }
}
