//! What a model's operations price on: estimator, cost unit, line, and the bytes that are known exactly.

use headroom_base::{AnalyticTerm, Bytes, Case, CostUnit, DType, Extent, LineKey, Operation};
use headroom_family::Architecture;
use headroom_family::architecture::{
    AutoencoderKl, AutoencoderTiny, CausalAutoencoder, ClipTextEncoder, FluxTransformer, T5Encoder, Unet2dCondition,
};

use super::derive::weights;

/// The size every allocation is rounded up to.
const BLOCK_BYTES: u64 = 512;

/// The version of every estimator: windows of another version do not count.
const VERSION: u32 = 1;

/// Frames that a causal autoencoder holds at once: those of one latent frame after the first.
const CHUNK_FRAMES: u32 = 4;

/// What prices an operation of an architecture. Architectures whose operations take the same memory share one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Estimator {
    /// Its name, equal for architectures that are alike.
    pub id: String,
    /// Raised whenever its cost unit or analytic terms change.
    pub version: u32,
    /// What the working memory grows with.
    pub unit: CostUnit,
}

/// The estimator of an operation.
///
/// Its id is the architecture's kind. Numbers that working memory depends on are appended where they are not the
/// default ones; those that hardly matter, such as the latents' channels, are not, so that models share a line.
pub fn estimator(architecture: &Architecture, operation: Operation) -> Estimator {
    let named = |kind: &str, differs: bool, numbers: String| {
        if differs { format!("{kind}_{numbers}") } else { kind.to_owned() }
    };
    let (id, unit) = match architecture {
        Architecture::AutoencoderKl(numbers) => {
            let channels = &numbers.block_out_channels;
            (image_id(channels, numbers.layers_per_block, numbers.mid_block_add_attention), CostUnit::PixelBytes)
        }
        Architecture::AutoencoderKlFlux2(numbers) => {
            let decoder = numbers.decoder_block_out_channels.as_ref();
            let decodes = operation == Operation::VaeDecode;
            let channels = decoder.filter(|_| decodes).unwrap_or(&numbers.block_out_channels);
            (image_id(channels, numbers.layers_per_block, numbers.mid_block_add_attention), CostUnit::PixelBytes)
        }
        Architecture::AutoencoderKlQwenImage(numbers) | Architecture::AutoencoderKlWan(numbers) => {
            let usual = CausalAutoencoder { z_dim: numbers.z_dim, ..CausalAutoencoder::default() };
            let described = format!(
                "{}_{}x{}_{}",
                numbers.base_dim,
                joined(&numbers.dim_mult),
                numbers.num_res_blocks,
                numbers.decoder_base_dim.unwrap_or(numbers.base_dim),
            );
            let unit = CostUnit::PixelChunkBytes { frames: CHUNK_FRAMES };
            (named("autoencoder_kl_causal", *numbers != usual, described), unit)
        }
        Architecture::AutoencoderTiny(numbers) => {
            let usual = AutoencoderTiny { latent_channels: numbers.latent_channels, ..AutoencoderTiny::default() };
            let described = format!(
                "{}_{}",
                joined(&numbers.encoder_block_out_channels),
                joined(&numbers.decoder_block_out_channels)
            );
            (named("autoencoder_tiny", *numbers != usual, described), CostUnit::PixelBytes)
        }
        other => transformer_estimator(other),
    };
    Estimator { id, version: VERSION, unit }
}

fn image_id(channels: &[u32], layers: u32, attention: bool) -> String {
    let usual = AutoencoderKl::default();
    if channels == usual.block_out_channels && layers == usual.layers_per_block && attention {
        return "autoencoder_kl".to_owned();
    }
    let attention = if attention { "" } else { "_no_attention" };
    format!("autoencoder_kl_{}x{layers}{attention}", joined(channels))
}

/// Models that work on tokens: their id holds the widths, which decide memory, and not the depth, which does not.
fn transformer_estimator(architecture: &Architecture) -> (String, CostUnit) {
    let named = |widths: String, usual: String| {
        let kind = architecture.kind();
        if widths == usual { kind.to_owned() } else { format!("{kind}_{widths}") }
    };
    match architecture {
        Architecture::Unet2dCondition(numbers) => {
            let id = named(unet_widths(numbers), unet_widths(&Unet2dCondition::default()));
            (id, CostUnit::Tokens { side: 8, fixed: 0 })
        }
        Architecture::FluxTransformer(numbers) => {
            let wide =
                |numbers: &FluxTransformer| (numbers.num_attention_heads * numbers.attention_head_dim).to_string();
            let id = named(wide(numbers), wide(&FluxTransformer::default()));
            (id, CostUnit::Tokens { side: 16, fixed: numbers.text_tokens })
        }
        Architecture::ClipTextEncoder(numbers) => {
            let widths = |numbers: &ClipTextEncoder| {
                let ClipTextEncoder { hidden_size, intermediate_size, num_attention_heads: heads, .. } = numbers;
                let activation = if numbers.quick_gelu { "_quick_gelu" } else { "" };
                format!("{hidden_size}_{intermediate_size}_{heads}{activation}")
            };
            (named(widths(numbers), widths(&ClipTextEncoder::default())), CostUnit::Tokens { side: 1, fixed: 0 })
        }
        Architecture::T5Encoder(numbers) => {
            let widths = |numbers: &T5Encoder| {
                let T5Encoder { d_model, d_kv, num_heads, d_ff, .. } = numbers;
                format!("{d_model}_{num_heads}x{d_kv}_{d_ff}")
            };
            (named(widths(numbers), widths(&T5Encoder::default())), CostUnit::Tokens { side: 1, fixed: 0 })
        }
        other => (other.kind().to_owned(), CostUnit::PixelBytes),
    }
}

/// Of each level its channels, and its heads where it attends; how many residual blocks; how the text joins.
fn unet_widths(numbers: &Unet2dCondition) -> String {
    let Unet2dCondition { layers_per_block, cross_attention_dim, text_tokens, .. } = numbers;
    let attention = numbers.transformer_layers_per_block.iter().zip(&numbers.attention_heads);
    let heads: Vec<u32> = attention.map(|(layers, heads)| if *layers > 0 { *heads } else { 0 }).collect();
    let projection = if numbers.use_linear_projection { "linear" } else { "convolution" };
    let (channels, heads) = (joined(&numbers.block_out_channels), joined(&heads));
    format!("{channels}x{layers_per_block}_heads_{heads}_{projection}_text_{text_tokens}x{cross_attention_dim}")
}

fn joined(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join("_")
}

/// The line on which a case is priced: everything of it that is not in its cost units.
pub fn line(architecture: &Architecture, case: &Case) -> LineKey {
    let Estimator { id, version, .. } = estimator(architecture, case.operation);
    LineKey {
        estimator: id,
        estimator_version: version,
        operation: case.operation,
        dtype: case.dtype,
        tiling: case.tiling,
        tokens: match (architecture, case.extent) {
            // Its attention writes the scores down to add a bias to them: one for each pair of tokens.
            (Architecture::T5Encoder(_), Extent::Text { tokens }) => Some(tokens),
            _ => None,
        },
    }
}

/// The number of cost units of a case.
pub fn cost_units(architecture: &Architecture, case: &Case) -> u64 {
    estimator(architecture, case.operation).unit.units(case)
}

/// The bytes of a case's demand that are known exactly, `stored` being the element type of the weights.
///
/// - Where the operation runs in another element type than the weights are stored in, it holds a converted copy of all
///   weights beside them for its duration.
/// - A decoded clip lies whole on the device when the last frame is done.
pub fn analytic_terms(architecture: &Architecture, case: &Case, stored: DType) -> Vec<AnalyticTerm> {
    let mut terms = Vec::new();
    if stored != case.dtype {
        let bytes = converted(architecture, case.dtype).map(|bytes| bytes.next_multiple_of(BLOCK_BYTES)).sum();
        terms.push(AnalyticTerm { name: format!("{} copy of the weights", case.dtype), bytes });
    }
    if let (
        Architecture::AutoencoderKlQwenImage(numbers) | Architecture::AutoencoderKlWan(numbers),
        Operation::VaeDecode,
        Extent::Pixels { width, height, frames },
    ) = (architecture, case.operation, case.extent)
        && frames > 1
    {
        let pixels = u64::from(width) * u64::from(height) * u64::from(frames) * u64::from(case.batch);
        let bytes = pixels * u64::from(numbers.image_channels) * case.dtype.element_bytes();
        terms.push(AnalyticTerm { name: format!("the clip of {frames} frames, {}", Bytes(bytes)), bytes });
    }
    terms
}

/// Sizes of the copies that a conversion of the weights to `dtype` makes: one for each parameter.
pub(super) fn converted(architecture: &Architecture, dtype: DType) -> impl Iterator<Item = u64> {
    weights(architecture, dtype).into_iter().filter(|piece| piece.floating).map(|piece| piece.bytes)
}
