//! Small relatives of models: the same layers in the same order, few channels, so that a plain reference can execute
//! them in a second.

use headroom_base::{Case, Extent, Operation, Tiling};
use headroom_family::Architecture;
use headroom_family::architecture::{
    AutoencoderKl, AutoencoderKlFlux2, AutoencoderTiny, CausalAutoencoder, ClipTextEncoder, FluxTransformer, T5Encoder,
    Unet2dCondition,
};

/// Channels of the narrow levels of an image autoencoder, and of its widest, which attention works on: wider than fused
/// kernels take in one piece.
const NARROW: [u32; 3] = [16, 32, 64];
const WIDEST: u32 = 256;
/// Groups of normalisations.
const GROUPS: u32 = 8;
/// Channels of a small head, of a text's embedding, and of one embedded number.
const HEAD: u32 = 32;
const TEXT: u32 = 64;
const NUMBER: u32 = 32;
/// Numbers of an image's size that a UNet embeds.
const SIZE_NUMBERS: u32 = 6;
/// Rows of a token table.
const VOCABULARY: u32 = 512;

/// The model with few channels and layers.
pub fn small(architecture: &Architecture) -> Architecture {
    match architecture {
        Architecture::AutoencoderKl(numbers) => Architecture::AutoencoderKl(AutoencoderKl {
            block_out_channels: narrow(&numbers.block_out_channels),
            layers_per_block: 1,
            norm_num_groups: GROUPS,
            ..numbers.clone()
        }),
        Architecture::AutoencoderKlFlux2(numbers) => Architecture::AutoencoderKlFlux2(AutoencoderKlFlux2 {
            block_out_channels: narrow(&numbers.block_out_channels),
            decoder_block_out_channels: numbers.decoder_block_out_channels.as_deref().map(narrow),
            layers_per_block: 1,
            norm_num_groups: GROUPS,
            ..numbers.clone()
        }),
        Architecture::AutoencoderKlQwenImage(numbers) => Architecture::AutoencoderKlQwenImage(causal(numbers)),
        Architecture::AutoencoderKlWan(numbers) => Architecture::AutoencoderKlWan(causal(numbers)),
        Architecture::AutoencoderTiny(numbers) => Architecture::AutoencoderTiny(AutoencoderTiny {
            encoder_block_out_channels: vec![NARROW[0]; numbers.encoder_block_out_channels.len()],
            decoder_block_out_channels: vec![NARROW[0]; numbers.decoder_block_out_channels.len()],
            ..numbers.clone()
        }),
        Architecture::Unet2dCondition(numbers) => Architecture::Unet2dCondition(unet(numbers)),
        Architecture::FluxTransformer(numbers) => Architecture::FluxTransformer(FluxTransformer {
            in_channels: 16,
            out_channels: numbers.out_channels.map(|_| 8),
            num_layers: 1,
            num_single_layers: 1,
            num_attention_heads: 2,
            joint_attention_dim: TEXT,
            pooled_projection_dim: HEAD,
            text_tokens: 20,
            ..numbers.clone()
        }),
        Architecture::ClipTextEncoder(numbers) => Architecture::ClipTextEncoder(ClipTextEncoder {
            vocab_size: VOCABULARY,
            hidden_size: 2 * TEXT,
            intermediate_size: 4 * TEXT,
            num_hidden_layers: 2,
            num_attention_heads: 2,
            projection_dim: numbers.projection_dim.map(|_| TEXT),
            ..numbers.clone()
        }),
        Architecture::T5Encoder(numbers) => Architecture::T5Encoder(T5Encoder {
            vocab_size: VOCABULARY,
            d_model: TEXT,
            d_ff: 2 * TEXT,
            num_layers: 2,
            num_heads: 2,
            ..numbers.clone()
        }),
    }
}

/// A case like this one of a size that suits a small model: odd numbers of tiles and tokens, so that ends are met.
pub fn small_case(architecture: &Architecture, case: &Case) -> Case {
    let pixels = |width, height, frames| Extent::Pixels { width, height, frames };
    let extent = match (architecture, case.extent) {
        (_, Extent::Text { tokens }) => Extent::Text { tokens: tokens.min(70) },
        (
            Architecture::AutoencoderKlQwenImage(_) | Architecture::AutoencoderKlWan(_),
            Extent::Pixels { frames, .. },
        ) => pixels(48, 40, frames.min(5)),
        (Architecture::FluxTransformer(_), Extent::Pixels { frames, .. }) => pixels(96, 80, frames),
        (Architecture::Unet2dCondition(_), Extent::Pixels { frames, .. }) => pixels(96, 80, frames),
        (_, Extent::Pixels { frames, .. }) => pixels(80, 72, frames),
    };
    let tiling = case.tiling.map(|tiling| Tiling { tile_pixels: 64, ..tiling });
    Case { extent, tiling, ..*case }
}

/// What a model can do: what its kind of architecture runs.
pub fn operations(architecture: &Architecture) -> Vec<Operation> {
    Operation::ALL.into_iter().filter(|operation| architecture.runs(*operation)).collect()
}

fn narrow(channels: &[u32]) -> Vec<u32> {
    let last = channels.len().saturating_sub(1);
    (0..channels.len()).map(|level| if level == last { WIDEST } else { NARROW[level.min(NARROW.len() - 1)] }).collect()
}

fn causal(numbers: &CausalAutoencoder) -> CausalAutoencoder {
    CausalAutoencoder {
        base_dim: NARROW[0],
        decoder_base_dim: numbers.decoder_base_dim.map(|_| NARROW[0]),
        num_res_blocks: 1,
        ..numbers.clone()
    }
}

fn unet(numbers: &Unet2dCondition) -> Unet2dCondition {
    let levels = numbers.block_out_channels.len();
    let channels: Vec<u32> = (0..levels).map(|level| HEAD << level.min(2)).collect();
    Unet2dCondition {
        attention_heads: channels.iter().map(|count| count / HEAD).collect(),
        block_out_channels: channels,
        layers_per_block: 1,
        transformer_layers_per_block: numbers.transformer_layers_per_block.iter().map(|&count| count.min(1)).collect(),
        mid_block_transformer_layers: 1,
        cross_attention_dim: TEXT,
        projection_class_embeddings_input_dim: numbers
            .projection_class_embeddings_input_dim
            .map(|_| SIZE_NUMBERS * NUMBER + TEXT),
        addition_time_embed_dim: NUMBER,
        norm_num_groups: GROUPS,
        ..numbers.clone()
    }
}
