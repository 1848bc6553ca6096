//! What an architecture's operations price on: the estimator, its cost unit, and the terms that are known exactly.

use headroom_base::{AnalyticTerm, Case, CostUnit, DType, Extent, LineKey, Operation};
use headroom_family::Architecture;
use headroom_family::architecture::{AutoencoderKl, AutoencoderKlFlux2, CausalAutoencoder, Unet2dCondition};

use crate::programs;

/// The unit every allocation is rounded up to.
const BLOCK_BYTES: u64 = 512;

/// Frames that a causal autoencoder holds at once: those of one latent frame after the first.
const CHUNK_FRAMES: u32 = 4;

/// What prices an operation. Raising the version makes earlier measurements of its lines stop counting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Estimator {
    /// Its name. Architectures whose operations need the same share it.
    pub id: String,
    /// Its version.
    pub version: u32,
    /// What the operation's working memory grows with.
    pub unit: CostUnit,
}

/// The estimator of an architecture's operation.
///
/// The layers that make the peak decide who shares a line: latent channels and the 1×1 convolutions around a
/// latent do not matter, widths and depths do and stand in the name where they are not the usual ones.
pub fn estimator(architecture: &Architecture, operation: Operation) -> Estimator {
    let (id, unit) = match architecture {
        Architecture::AutoencoderKl(vae) => {
            (image_id(&vae.block_out_channels, vae.layers_per_block), CostUnit::PixelBytes)
        }
        Architecture::AutoencoderKlFlux2(vae) => (flux2_id(vae, operation), CostUnit::PixelBytes),
        Architecture::AutoencoderKlQwenImage(vae) => (causal_id("autoencoder_kl_qwen_image", vae), CHUNKED),
        Architecture::AutoencoderKlWan(vae) => (causal_id("autoencoder_kl_wan", vae), CHUNKED),
        Architecture::AutoencoderTiny(_) => ("autoencoder_tiny".to_owned(), CostUnit::PixelBytes),
        Architecture::Unet2dCondition(unet) => (unet_id(unet), CostUnit::Tokens { side: 8, fixed: 0 }),
        Architecture::FluxTransformer(flux) => {
            let width = flux.num_attention_heads * flux.attention_head_dim;
            let id = format!("flux_transformer-{width}x{}+{}", flux.num_layers, flux.num_single_layers);
            (id, CostUnit::Tokens { side: 16, fixed: flux.text_tokens })
        }
        Architecture::ClipTextEncoder(text) => {
            (format!("clip_text_encoder-{}x{}", text.hidden_size, text.num_hidden_layers), TOKENS)
        }
        Architecture::T5Encoder(text) => (format!("t5_encoder-{}x{}", text.d_model, text.num_layers), TOKENS),
        other => (other.kind().to_owned(), CostUnit::PixelFrameBytes),
    };
    Estimator { id, version: 1, unit }
}

const CHUNKED: CostUnit = CostUnit::PixelChunkBytes { frames: CHUNK_FRAMES };
const TOKENS: CostUnit = CostUnit::Tokens { side: 1, fixed: 0 };

fn joined(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join("-")
}

fn image_id(channels: &[u32], layers_per_block: u32) -> String {
    let usual = AutoencoderKl::default();
    if channels == usual.block_out_channels && layers_per_block == usual.layers_per_block {
        return "autoencoder_kl".to_owned();
    }
    format!("autoencoder_kl-{}x{layers_per_block}", joined(channels))
}

fn flux2_id(vae: &AutoencoderKlFlux2, operation: Operation) -> String {
    let decoder = vae.decoder_block_out_channels.as_ref().filter(|_| operation == Operation::VaeDecode);
    image_id(decoder.unwrap_or(&vae.block_out_channels), vae.layers_per_block)
}

fn causal_id(kind: &str, vae: &CausalAutoencoder) -> String {
    let usual = CausalAutoencoder::default();
    let same = vae.base_dim == usual.base_dim
        && vae.decoder_base_dim == usual.decoder_base_dim
        && vae.dim_mult == usual.dim_mult
        && vae.num_res_blocks == usual.num_res_blocks
        && vae.temperal_downsample == usual.temperal_downsample;
    if same {
        return kind.to_owned();
    }
    let decoder = vae.decoder_base_dim.unwrap_or(vae.base_dim);
    format!("{kind}-{}-{decoder}x{}x{}", vae.base_dim, joined(&vae.dim_mult), vae.num_res_blocks)
}

fn unet_id(unet: &Unet2dCondition) -> String {
    let layers = joined(&unet.transformer_layers_per_block);
    format!("unet2d_condition-{}-t{layers}", joined(&unet.block_out_channels))
}

/// What a case prices on.
pub fn line(architecture: &Architecture, case: &Case) -> LineKey {
    let Estimator { id, version, .. } = estimator(architecture, case.operation);
    LineKey {
        estimator: id,
        estimator_version: version,
        operation: case.operation,
        dtype: case.dtype,
        tiling: case.tiling,
    }
}

/// The cost units of a case.
pub fn cost_units(architecture: &Architecture, case: &Case) -> u64 {
    estimator(architecture, case.operation).unit.units(case)
}

/// The bytes of a case that are known exactly, `stored` being the element type the weights are kept in.
///
/// A model that is stored in one element type and runs in another holds a converted copy of all its weights for
/// the operation's duration. A video decoder holds the clip it has decoded so far.
pub fn analytic_terms(architecture: &Architecture, case: &Case, stored: DType) -> Vec<AnalyticTerm> {
    let mut terms = Vec::new();
    if stored != case.dtype {
        let pieces = programs::weights(architecture, case.dtype);
        let bytes = pieces.iter().map(|piece| piece.bytes.next_multiple_of(BLOCK_BYTES)).sum();
        terms.push(AnalyticTerm { name: format!("{} copy of the weights", case.dtype), bytes });
    }
    terms.extend(output_clip(architecture, case));
    terms
}

fn output_clip(architecture: &Architecture, case: &Case) -> Option<AnalyticTerm> {
    let (Architecture::AutoencoderKlWan(vae) | Architecture::AutoencoderKlQwenImage(vae)) = architecture else {
        return None;
    };
    let Extent::Pixels { width, height, frames } = case.extent else { return None };
    if case.operation != Operation::VaeDecode || frames <= CHUNK_FRAMES {
        return None;
    }
    let pixels = u64::from(width) * u64::from(height) * u64::from(frames - CHUNK_FRAMES) * u64::from(case.batch);
    let bytes = pixels * u64::from(vae.image_channels) * case.dtype.element_bytes();
    Some(AnalyticTerm { name: "decoded clip".to_owned(), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_autoencoders_of_the_same_widths_share_a_line_and_others_do_not() {
        let usual = AutoencoderKl::default();
        let of = |vae: AutoencoderKl| estimator(&Architecture::AutoencoderKl(vae), Operation::VaeDecode).id;
        let flux = AutoencoderKl { latent_channels: 16, use_quant_conv: false, ..usual.clone() };
        assert_eq!(of(flux), of(usual.clone()));
        let wide = AutoencoderKl { block_out_channels: vec![128, 512, 1024, 1024], ..usual.clone() };
        assert_ne!(of(wide), of(usual.clone()));
        let deep = AutoencoderKl { layers_per_block: 3, ..usual.clone() };
        assert_ne!(of(deep), of(usual));
    }

    #[test]
    fn weights_that_run_in_another_type_are_an_exact_term_and_others_are_none() {
        let vae = Architecture::AutoencoderKl(AutoencoderKl::default());
        let case = Case::image(Operation::VaeDecode, DType::Fp32, 512, 512);
        assert!(analytic_terms(&vae, &case, DType::Fp32).is_empty());
        let terms = analytic_terms(&vae, &case, DType::Fp16);
        let parameters: u64 = programs::weights(&vae, DType::Fp32).iter().map(|piece| piece.bytes).sum();
        assert_eq!(terms.len(), 1);
        assert!(terms[0].bytes >= parameters && terms[0].bytes < parameters + parameters / 100, "{terms:?}");
    }

    #[test]
    fn a_decoded_clip_grows_by_whole_frames() {
        let vae = Architecture::AutoencoderKlWan(CausalAutoencoder::default());
        let case = |frames| Case::image(Operation::VaeDecode, DType::Fp16, 64, 64).with_frames(frames);
        let bytes =
            |frames| analytic_terms(&vae, &case(frames), DType::Fp16).iter().map(|term| term.bytes).sum::<u64>();
        assert_eq!(bytes(1), 0);
        assert_eq!(bytes(9) - bytes(5), 64 * 64 * 4 * 3 * 2);
    }
}
