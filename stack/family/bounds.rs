//! How large a number of a model may be, alone and together with the others: far from any real model, and so small that
//! no sum or product of them leaves 64 bits. They are held before anything is built from the numbers.

use crate::architecture::{Architecture, AutoencoderKl, CausalAutoencoder, Unet2dCondition};

/// The longest side of an image in pixels, or text in tokens.
pub const MOST_SIDE: u64 = 1 << 16;
/// The longest clip.
pub const MOST_FRAMES: u64 = 1 << 14;
/// The most pixels or tokens at once, 16 images of the largest size.
pub const MOST_ITEMS: u128 = 1 << 36;
/// Layers of a model, those inside each block of a UNet counted apart. SDXL's UNet has 70 of its smallest kind.
pub(crate) const MOST_LAYERS: u128 = 1 << 12;
/// Parameters of a model, by what its widest layers would have if all were as wide. FLUX.2-dev has 32 billion.
pub(crate) const MOST_PARAMETERS: u128 = 1 << 42;

/// The least and the largest value of a field, by what it counts.
pub(crate) fn range(field: &str) -> (u64, u64) {
    match field {
        "image_channels" | "in_channels" | "out_channels" | "input_channels" | "latent_channels" | "z_dim" => {
            (1, 1 << 12)
        }
        "transformer_layers_per_block" | "mid_block_transformer_layers" => (0, 1 << 10),
        "num_layers" | "num_single_layers" | "num_hidden_layers" => (1, 1 << 10),
        "layers_per_block" | "num_res_blocks" | "num_encoder_blocks" | "num_decoder_blocks" | "dim_mult" => (1, 1 << 6),
        "attention_heads" | "attention_head_dim" | "num_attention_heads" | "num_heads" | "d_kv" | "axes_dims_rope" => {
            (1, 1 << 10)
        }
        "patch_size" => (1, 1 << 4),
        // Half of them are for later positions, and half of those for near ones.
        "relative_attention_num_buckets" => (4, 1 << 12),
        "addition_time_embed_dim" => (2, 1 << 12),
        "d_ff" | "intermediate_size" => (1, 1 << 18),
        "vocab_size" => (1, 1 << 22),
        _ => (1, MOST_SIDE),
    }
}

impl Architecture {
    /// Why its numbers together are more than any model's. `None` for a real one.
    pub(crate) fn too_large(&self) -> Option<String> {
        let layers = self.layers();
        if layers > MOST_LAYERS {
            return Some(format!("{layers} layers together are more than the {MOST_LAYERS} that a model may have"));
        }
        let parameters = self.most_parameters();
        (parameters > MOST_PARAMETERS).then(|| {
            format!(
                "with up to {parameters} parameters it is larger than any model: at most {MOST_PARAMETERS}, all layers \
                 taken to be as wide as the widest"
            )
        })
    }

    /// Layers that repeat.
    fn layers(&self) -> u128 {
        match self {
            Self::AutoencoderKl(vae) => levels_of(vae.block_out_channels.len(), vae.layers_per_block),
            Self::AutoencoderKlFlux2(vae) => levels_of(vae.block_out_channels.len(), vae.layers_per_block),
            Self::AutoencoderKlQwenImage(vae) | Self::AutoencoderKlWan(vae) => {
                levels_of(vae.dim_mult.len(), vae.num_res_blocks)
            }
            Self::AutoencoderTiny(vae) => sum(&vae.num_encoder_blocks) + sum(&vae.num_decoder_blocks),
            Self::Unet2dCondition(unet) => unet_layers(unet),
            Self::FluxTransformer(flux) => u128::from(flux.num_layers) + u128::from(flux.num_single_layers),
            Self::ClipTextEncoder(text) => u128::from(text.num_hidden_layers),
            Self::T5Encoder(text) => u128::from(text.num_layers),
        }
    }

    /// At least as many parameters as it has: every layer as wide as the widest, rounded up.
    pub fn most_parameters(&self) -> u128 {
        // What stands once beside the layers: convolutions in and out, embeddings, a middle, a sampling layer a level.
        let layers = self.layers() + 32;
        match self {
            Self::AutoencoderKl(vae) => layers * image_layer(vae, &[]),
            Self::AutoencoderKlFlux2(vae) => {
                let shared = AutoencoderKl {
                    image_channels: vae.image_channels,
                    latent_channels: vae.latent_channels.max(vae.latent_channels * vae.patch_size * vae.patch_size),
                    block_out_channels: vae.block_out_channels.clone(),
                    ..AutoencoderKl::default()
                };
                layers * image_layer(&shared, vae.decoder_block_out_channels.as_deref().unwrap_or(&[]))
            }
            Self::AutoencoderKlQwenImage(vae) | Self::AutoencoderKlWan(vae) => layers * causal_layer(vae),
            Self::AutoencoderTiny(vae) => {
                let widths = [&vae.encoder_block_out_channels[..], &vae.decoder_block_out_channels].concat();
                layers * 32 * square(widest(&widths).max(wide(vae.image_channels)).max(wide(vae.latent_channels)))
            }
            Self::Unet2dCondition(unet) => {
                let width = widest(&unet.block_out_channels).max(wide(unet.in_channels)).max(wide(unet.out_channels));
                let joined = wide(unet.projection_class_embeddings_input_dim.unwrap_or(0));
                layers * 48 * width * (width + wide(unet.cross_attention_dim)) + 8 * width * (joined + width)
            }
            Self::FluxTransformer(flux) => {
                let width = wide(flux.num_attention_heads) * wide(flux.attention_head_dim);
                let patch = wide(flux.in_channels.max(flux.out_channels.unwrap_or(0)));
                let text = wide(flux.joint_attention_dim) + wide(flux.pooled_projection_dim);
                layers * 48 * square(width) + 4 * width * (patch + text + 256)
            }
            Self::ClipTextEncoder(text) => {
                let (width, inner) = (wide(text.hidden_size), wide(text.intermediate_size));
                let tables = wide(text.vocab_size) + wide(text.max_position_embeddings);
                layers * 8 * width * (width + inner) + width * (tables + wide(text.projection_dim.unwrap_or(0)))
            }
            Self::T5Encoder(text) => {
                let (width, attention) = (wide(text.d_model), wide(text.num_heads) * wide(text.d_kv));
                let buckets = wide(text.relative_attention_num_buckets) * wide(text.num_heads);
                layers * 8 * width * (attention + wide(text.d_ff)) + width * wide(text.vocab_size) + buckets
            }
        }
    }
}

fn wide(number: u32) -> u128 {
    u128::from(number)
}

fn sum(numbers: &[u32]) -> u128 {
    numbers.iter().copied().map(wide).sum()
}

fn widest(numbers: &[u32]) -> u128 {
    numbers.iter().copied().max().map_or(1, wide)
}

const fn square(number: u128) -> u128 {
    number * number
}

/// Residual blocks of an encoder and a decoder, which has one more a level.
fn levels_of(levels: usize, blocks: u32) -> u128 {
    levels as u128 * (2 * wide(blocks) + 1)
}

fn unet_layers(unet: &Unet2dCondition) -> u128 {
    let blocks = 2 * wide(unet.layers_per_block) + 1;
    let transformers = unet.transformer_layers_per_block.iter().map(|layers| blocks * wide(*layers));
    let middle = wide(unet.mid_block_transformer_layers);
    levels_of(unet.block_out_channels.len(), unet.layers_per_block) + transformers.sum::<u128>() + middle
}

/// Two 3×3 convolutions and a shortcut, or attention.
fn image_layer(vae: &AutoencoderKl, decoder: &[u32]) -> u128 {
    let latents = 2 * wide(vae.latent_channels);
    let width = widest(&vae.block_out_channels).max(widest(decoder)).max(wide(vae.image_channels)).max(latents);
    32 * square(width)
}

/// Two 3×3×3 convolutions and a shortcut, or attention.
fn causal_layer(vae: &CausalAutoencoder) -> u128 {
    let width = wide(vae.base_dim.max(vae.decoder_base_dim.unwrap_or(0))) * widest(&vae.dim_mult);
    96 * square(width.max(wide(vae.image_channels)).max(2 * wide(vae.z_dim)))
}
