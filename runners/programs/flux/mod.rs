//! `FluxTransformer2DModel`: FLUX.1's denoiser, joint blocks over image and text, then single ones over both at once.

mod blocks;
mod rotary;

use headroom_base::Operation;
use headroom_family::architecture::FluxTransformer;

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
        Self {
            widths,
            time: Embedding::new(TIME_CHANNELS, widths.channels),
            text_pool: Embedding::new(u64::from(numbers.pooled_projection_dim), widths.channels),
            context: Linear::new(u64::from(numbers.joint_attention_dim), widths.channels),
            image: Linear::new(patch, widths.channels),
            norm_out: Modulated::new(widths, 2),
            project_out: Linear::new(widths.channels, patch),
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
}

impl Flux {
    /// The condition of time step, guidance and pooled text.
    fn condition(&self, recorder: &Recorder, pooled: &Tensor) -> Tensor {
        let _place = recorder.enter("time_text_embed");
        let element = recorder.element();
        let batch = pooled.size(0);
        let embed = |name: &str| {
            let sinusoid = {
                let _place = recorder.enter("time_proj");
                sinusoids(recorder, batch, TIME_CHANNELS, element)
            };
            let narrow = recorder.to(&sinusoid, element, "sinusoid in half");
            let _place = recorder.enter(name);
            let embedded = self.time.forward(recorder, &narrow);
            drop(narrow);
            (sinusoid, embedded)
        };
        let (time_sinusoid, time) = embed("timestep_embedder");
        let (guidance_sinusoid, guidance, both) = if self.numbers.guidance_embeds {
            let (sinusoid, guidance) = embed("guidance_embedder");
            let both = recorder.combine(&time, &guidance, "add guidance");
            (Some(sinusoid), Some(guidance), both)
        } else {
            (None, None, time.clone())
        };
        let text = {
            let _place = recorder.enter("text_embedder");
            self.text_pool.forward(recorder, pooled)
        };
        let condition = recorder.combine(&both, &text, "add text");
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
        let batch = image.size(0);
        let time = recorder.empty(&[batch], recorder.element(), "scale time step");
        let guidance =
            self.numbers.guidance_embeds.then(|| recorder.empty(&[batch], recorder.element(), "scale guidance"));
        let condition = self.condition(recorder, &given.pooled);
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
        let input = |name: &str, sizes: &[u64]| recorder.input(name, sizes, element);
        let given = Given {
            image: input("hidden_states", &[batch, tokens, u64::from(self.numbers.in_channels)]),
            text: input("encoder_hidden_states", &[batch, text, u64::from(self.numbers.joint_attention_dim)]),
            pooled: input("pooled_projections", &[batch, u64::from(self.numbers.pooled_projection_dim)]),
            image_ids: input("img_ids", &[tokens, 3]),
            text_ids: input("txt_ids", &[text, 3]),
        };
        drop(recorder.input("timestep", &[batch], element));
        if self.numbers.guidance_embeds {
            drop(recorder.input("guidance", &[batch], element));
        }
        Ok(vec![self.denoise(recorder, &given)])
    }
}
