//! Autoencoders as a family file writes them: diffusers' own names and, where it has a rule, its own defaults.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::architecture::{AutoencoderKl, AutoencoderKlFlux2, AutoencoderTiny, CausalAutoencoder};
use crate::raw::numbers::{Mistakes, PerLevel};

/// Channels of an image in every published model but a few.
const IMAGE: u32 = 3;
/// Levels of the published autoencoders of images.
const PUBLISHED_LEVELS: &str = "Stable Diffusion, SDXL, SD3 and FLUX.1 have [128, 256, 512, 512]";
const PUBLISHED_LAYERS: &str = "Stable Diffusion, SDXL, SD3 and FLUX.1 have 2, CogView4 has 3";

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawAutoencoderKl {
    /// Channels of the image: 3 if left out.
    image_channels: Option<u32>,
    /// diffusers' name for `image_channels`.
    in_channels: Option<u32>,
    /// The same number: the image that is given has as many channels as the one that is taken.
    out_channels: Option<u32>,
    /// Channels of a latent: 4 if left out.
    latent_channels: Option<u32>,
    /// Channels of each level, largest resolution first.
    #[schemars(required)]
    block_out_channels: Option<Vec<u32>>,
    /// Residual blocks of an encoder level; a decoder level has one more.
    #[schemars(required)]
    layers_per_block: Option<u32>,
    /// Groups of a group normalisation: 32 if left out.
    norm_num_groups: Option<u32>,
    /// Whether a 1×1 convolution follows the encoder: `true` if left out.
    use_quant_conv: Option<bool>,
    /// Whether a 1×1 convolution precedes the decoder: `true` if left out.
    use_post_quant_conv: Option<bool>,
    /// Whether the middle has an attention block: `true` if left out.
    mid_block_add_attention: Option<bool>,
}

impl RawAutoencoderKl {
    pub(crate) fn resolve(&self, mistakes: &mut Mistakes) -> AutoencoderKl {
        AutoencoderKl {
            image_channels: image(mistakes, [&self.image_channels, &self.in_channels, &self.out_channels]),
            latent_channels: self.latent_channels.unwrap_or(4),
            block_out_channels: mistakes.needed("block_out_channels", &self.block_out_channels, PUBLISHED_LEVELS),
            layers_per_block: mistakes.needed("layers_per_block", &self.layers_per_block, PUBLISHED_LAYERS),
            norm_num_groups: self.norm_num_groups.unwrap_or(32),
            use_quant_conv: self.use_quant_conv.unwrap_or(true),
            use_post_quant_conv: self.use_post_quant_conv.unwrap_or(true),
            mid_block_add_attention: self.mid_block_add_attention.unwrap_or(true),
        }
    }
}

fn image(mistakes: &mut Mistakes, [image, taken, given]: [&Option<u32>; 3]) -> u32 {
    let names = [("image_channels", image), ("in_channels", taken), ("out_channels", given)];
    mistakes.agreed(&names).unwrap_or(IMAGE)
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawAutoencoderKlFlux2 {
    /// Channels of the image: 3 if left out.
    image_channels: Option<u32>,
    /// diffusers' name for `image_channels`.
    in_channels: Option<u32>,
    /// The same number: the image that is given has as many channels as the one that is taken.
    out_channels: Option<u32>,
    /// Channels of a latent: 32 if left out.
    latent_channels: Option<u32>,
    /// Channels of each level, largest resolution first: 128, 256, 512, 512 if left out.
    block_out_channels: Option<Vec<u32>>,
    /// Channels of each decoder level, where they differ.
    decoder_block_out_channels: Option<Vec<u32>>,
    /// Residual blocks of an encoder level; a decoder level has one more: 2 if left out.
    layers_per_block: Option<u32>,
    /// Groups of a group normalisation: 32 if left out.
    norm_num_groups: Option<u32>,
    /// Whether a 1×1 convolution follows the encoder: `true` if left out.
    use_quant_conv: Option<bool>,
    /// Whether a 1×1 convolution precedes the decoder: `true` if left out.
    use_post_quant_conv: Option<bool>,
    /// Whether the middle has an attention block: `true` if left out.
    mid_block_add_attention: Option<bool>,
    /// Side of a latent patch whose running statistics the model holds, or both sides: 2 if left out.
    patch_size: Option<PerLevel>,
}

impl RawAutoencoderKlFlux2 {
    pub(crate) fn resolve(&self, mistakes: &mut Mistakes) -> AutoencoderKlFlux2 {
        AutoencoderKlFlux2 {
            image_channels: image(mistakes, [&self.image_channels, &self.in_channels, &self.out_channels]),
            latent_channels: self.latent_channels.unwrap_or(32),
            block_out_channels: self.block_out_channels.clone().unwrap_or_else(|| vec![128, 256, 512, 512]),
            decoder_block_out_channels: self.decoder_block_out_channels.clone(),
            layers_per_block: self.layers_per_block.unwrap_or(2),
            norm_num_groups: self.norm_num_groups.unwrap_or(32),
            use_quant_conv: self.use_quant_conv.unwrap_or(true),
            use_post_quant_conv: self.use_post_quant_conv.unwrap_or(true),
            mid_block_add_attention: self.mid_block_add_attention.unwrap_or(true),
            patch_size: self.patch(mistakes),
        }
    }

    fn patch(&self, mistakes: &mut Mistakes) -> u32 {
        match self.patch_size.as_ref().map(|sides| sides.each(2)).as_deref() {
            None => 2,
            Some([one, other]) if one == other => *one,
            Some(_) => {
                mistakes.wrong("patch_size", "a patch is square: one number, or the same two".to_owned());
                0
            }
        }
    }
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawCausalAutoencoder {
    /// Channels of the image: 3 if left out.
    image_channels: Option<u32>,
    /// diffusers' name for `image_channels` in Wan's.
    in_channels: Option<u32>,
    /// The same number: the image that is given has as many channels as the one that is taken.
    out_channels: Option<u32>,
    /// diffusers' name for `image_channels` in Qwen-Image's.
    input_channels: Option<u32>,
    /// Channels at full resolution: 96 if left out.
    base_dim: Option<u32>,
    /// Channels at full resolution in the decoder, where they differ.
    decoder_base_dim: Option<u32>,
    /// Channels of a latent: 16 if left out.
    z_dim: Option<u32>,
    /// Multiples of `base_dim` of each level, largest resolution first: 1, 2, 4, 4 if left out.
    dim_mult: Option<Vec<u32>>,
    /// Residual blocks of an encoder level; a decoder level has one more: 2 if left out.
    num_res_blocks: Option<u32>,
    /// Whether time is halved too after each level but the last (spelled as in the reference): not after the first of
    /// four levels, and after the others, if left out.
    temperal_downsample: Option<Vec<bool>>,
}

impl RawCausalAutoencoder {
    pub(crate) fn resolve(&self, mistakes: &mut Mistakes) -> CausalAutoencoder {
        let channels = [
            ("image_channels", &self.image_channels),
            ("in_channels", &self.in_channels),
            ("out_channels", &self.out_channels),
            ("input_channels", &self.input_channels),
        ];
        CausalAutoencoder {
            image_channels: mistakes.agreed(&channels).unwrap_or(IMAGE),
            base_dim: self.base_dim.unwrap_or(96),
            decoder_base_dim: self.decoder_base_dim,
            z_dim: self.z_dim.unwrap_or(16),
            dim_mult: self.dim_mult.clone().unwrap_or_else(|| vec![1, 2, 4, 4]),
            num_res_blocks: self.num_res_blocks.unwrap_or(2),
            temperal_downsample: self.temperal_downsample.clone().unwrap_or_else(|| vec![false, true, true]),
        }
    }
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawAutoencoderTiny {
    /// Channels of the image: 3 if left out.
    image_channels: Option<u32>,
    /// diffusers' name for `image_channels`.
    in_channels: Option<u32>,
    /// The same number: the image that is given has as many channels as the one that is taken.
    out_channels: Option<u32>,
    /// Channels of a latent: 4 if left out.
    latent_channels: Option<u32>,
    /// Channels of each encoder stage, all the same: four of 64 if left out.
    encoder_block_out_channels: Option<Vec<u32>>,
    /// Channels of each decoder stage, all the same: four of 64 if left out.
    decoder_block_out_channels: Option<Vec<u32>>,
    /// Blocks of each encoder stage, largest resolution first: 1, 3, 3, 3 if left out.
    num_encoder_blocks: Option<Vec<u32>>,
    /// Blocks of each decoder stage, smallest resolution first: 3, 3, 3, 1 if left out.
    num_decoder_blocks: Option<Vec<u32>>,
}

impl RawAutoencoderTiny {
    pub(crate) fn resolve(&self, mistakes: &mut Mistakes) -> AutoencoderTiny {
        let channels = |given: &Option<Vec<u32>>| given.clone().unwrap_or_else(|| vec![64; 4]);
        AutoencoderTiny {
            image_channels: image(mistakes, [&self.image_channels, &self.in_channels, &self.out_channels]),
            latent_channels: self.latent_channels.unwrap_or(4),
            encoder_block_out_channels: channels(&self.encoder_block_out_channels),
            decoder_block_out_channels: channels(&self.decoder_block_out_channels),
            num_encoder_blocks: self.num_encoder_blocks.clone().unwrap_or_else(|| vec![1, 3, 3, 3]),
            num_decoder_blocks: self.num_decoder_blocks.clone().unwrap_or_else(|| vec![3, 3, 3, 1]),
        }
    }
}
