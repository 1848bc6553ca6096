//! What the numbers of an architecture must satisfy, and which operations and sizes they allow.

use headroom_base::Operation;

use crate::architecture::{Architecture, AutoencoderTiny, CausalAutoencoder, FluxTransformer, Unet2dCondition};

/// Size numbers that a UNet embeds beside the pooled text: original size, crop and target size.
const SIZE_NUMBERS: u64 = 6;
/// Latents in the patch that FLUX.1 takes as one token.
const PATCH_LATENTS: u32 = 4;
/// Channels of a patch of FLUX.1-Fill's mask, whose 8×8 pixels a latent become channels.
const MASK_CHANNELS: u32 = 256;

impl Architecture {
    /// Whether models of this architecture run an operation.
    pub const fn runs(&self, operation: Operation) -> bool {
        match self {
            Self::AutoencoderKl(_)
            | Self::AutoencoderKlFlux2(_)
            | Self::AutoencoderKlQwenImage(_)
            | Self::AutoencoderKlWan(_)
            | Self::AutoencoderTiny(_) => matches!(operation, Operation::VaeDecode | Operation::VaeEncode),
            Self::Unet2dCondition(_) | Self::FluxTransformer(_) => matches!(operation, Operation::Denoise),
            Self::ClipTextEncoder(_) | Self::T5Encoder(_) => matches!(operation, Operation::TextEncode),
        }
    }

    /// Pixels per latent along one side of a VAE; nothing for other models.
    pub fn vae_factor(&self) -> Option<u32> {
        let halvings = match self {
            Self::AutoencoderKl(vae) => vae.block_out_channels.len().saturating_sub(1),
            Self::AutoencoderKlFlux2(vae) => vae.block_out_channels.len().saturating_sub(1),
            Self::AutoencoderKlQwenImage(vae) | Self::AutoencoderKlWan(vae) => vae.dim_mult.len().saturating_sub(1),
            Self::AutoencoderTiny(vae) => vae.encoder_block_out_channels.len().saturating_sub(1),
            _ => return None,
        };
        1_u32.checked_shl(u32::try_from(halvings).ok()?)
    }

    /// Frames per latent frame after the first, for a VAE; 1 where it takes images alone.
    pub fn frame_factor(&self) -> Option<u32> {
        match self {
            Self::AutoencoderKlQwenImage(vae) | Self::AutoencoderKlWan(vae) => {
                let halvings = vae.temperal_downsample.iter().filter(|halved| **halved).count();
                1_u32.checked_shl(u32::try_from(halvings).ok()?)
            }
            Self::AutoencoderKl(_) | Self::AutoencoderKlFlux2(_) | Self::AutoencoderTiny(_) => Some(1),
            _ => None,
        }
    }

    /// Latents along one side of what a denoiser takes as one token.
    pub const fn latent_patch(&self) -> u32 {
        match self {
            Self::FluxTransformer(_) => 2,
            _ => 1,
        }
    }

    /// What does not go together in its numbers: the field and why.
    pub(crate) fn contradictions(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        match self {
            Self::AutoencoderKl(vae) => {
                grouped("block_out_channels", &vae.block_out_channels, vae.norm_num_groups, &mut found);
            }
            Self::AutoencoderKlFlux2(vae) => {
                grouped("block_out_channels", &vae.block_out_channels, vae.norm_num_groups, &mut found);
                if let Some(decoder) = &vae.decoder_block_out_channels {
                    grouped("decoder_block_out_channels", decoder, vae.norm_num_groups, &mut found);
                    levels("decoder_block_out_channels", decoder, vae.block_out_channels.len(), &mut found);
                }
            }
            Self::AutoencoderKlQwenImage(vae) | Self::AutoencoderKlWan(vae) => causal(vae, &mut found),
            Self::AutoencoderTiny(vae) => tiny(vae, &mut found),
            Self::Unet2dCondition(unet) => unet_numbers(unet, &mut found),
            Self::FluxTransformer(flux) => flux_patches(flux, &mut found),
            Self::ClipTextEncoder(text) if !text.hidden_size.is_multiple_of(text.num_attention_heads.max(1)) => {
                let heads = text.num_attention_heads;
                found.push((
                    "num_attention_heads",
                    format!("{} channels do not divide into {heads} heads", text.hidden_size),
                ));
            }
            _ => {}
        }
        found
    }
}

type Found = Vec<(&'static str, String)>;

/// Fewer levels than one are no model; more than ten make a factor no image has.
fn some_levels<T>(field: &'static str, list: &[T], found: &mut Found) {
    if list.is_empty() || list.len() > 10 {
        found.push((field, format!("{} levels: a model has 1 to 10", list.len())));
    }
}

fn grouped(field: &'static str, channels: &[u32], groups: u32, found: &mut Found) {
    some_levels(field, channels, found);
    if let Some(odd) = channels.iter().find(|channels| !channels.is_multiple_of(groups.max(1))) {
        found.push((field, format!("{odd} channels do not divide into {groups} groups (`norm_num_groups`)")));
    }
}

fn levels<T>(field: &'static str, list: &[T], expected: usize, found: &mut Found) {
    if list.len() != expected {
        found.push((field, format!("{} entries where {expected} are needed, one per level", list.len())));
    }
}

fn causal(vae: &CausalAutoencoder, found: &mut Found) {
    some_levels("dim_mult", &vae.dim_mult, found);
    levels("temperal_downsample", &vae.temperal_downsample, vae.dim_mult.len().saturating_sub(1), found);
}

fn tiny(vae: &AutoencoderTiny, found: &mut Found) {
    let stages = vae.encoder_block_out_channels.len();
    some_levels("encoder_block_out_channels", &vae.encoder_block_out_channels, found);
    levels("decoder_block_out_channels", &vae.decoder_block_out_channels, stages, found);
    levels("num_encoder_blocks", &vae.num_encoder_blocks, stages, found);
    levels("num_decoder_blocks", &vae.num_decoder_blocks, stages, found);
    // diffusers builds such a model, and its first image fails: each stage begins with a convolution of its own channels.
    for (field, channels) in [
        ("encoder_block_out_channels", &vae.encoder_block_out_channels),
        ("decoder_block_out_channels", &vae.decoder_block_out_channels),
    ] {
        if channels.windows(2).any(|pair| pair[0] != pair[1]) {
            found.push((field, "its stages have all the same channels".to_owned()));
        }
    }
}

fn unet_numbers(unet: &Unet2dCondition, found: &mut Found) {
    let channels = &unet.block_out_channels;
    grouped("block_out_channels", channels, unet.norm_num_groups, found);
    if let Some(odd) = channels.first().filter(|first| !first.is_multiple_of(2)) {
        found.push((
            "block_out_channels",
            format!("{odd} channels of the first level: a time step has sines and cosines"),
        ));
    }
    levels("transformer_layers_per_block", &unet.transformer_layers_per_block, channels.len(), found);
    levels("attention_heads", &unet.attention_heads, channels.len(), found);
    // The middle attends with the last level's heads.
    let attends = |level: usize| {
        level + 1 == channels.len() || unet.transformer_layers_per_block.get(level).is_some_and(|layers| *layers > 0)
    };
    for (level, (channels, heads)) in channels.iter().zip(&unet.attention_heads).enumerate() {
        if attends(level) && !channels.is_multiple_of((*heads).max(1)) {
            found.push(("attention_heads", format!("{channels} channels do not divide into {heads} heads")));
        }
    }
    let Some(width) = unet.projection_class_embeddings_input_dim else { return };
    let number = u64::from(unet.addition_time_embed_dim);
    if !number.is_multiple_of(2) {
        found.push(("addition_time_embed_dim", format!("{number} channels: a number has as many sines as cosines")));
    }
    if u64::from(width) <= SIZE_NUMBERS * number {
        let message =
            format!("{width} leave nothing for the text: {SIZE_NUMBERS} sizes take {}", SIZE_NUMBERS * number);
        found.push(("projection_class_embeddings_input_dim", message));
    }
}

fn flux_patches(flux: &FluxTransformer, found: &mut Found) {
    for (field, channels) in [("in_channels", Some(flux.in_channels)), ("out_channels", flux.out_channels)] {
        if let Some(channels) = channels.filter(|channels| !channels.is_multiple_of(PATCH_LATENTS)) {
            found.push((field, format!("{channels} channels are no patches of {PATCH_LATENTS} latents each")));
        }
    }
}

impl Architecture {
    /// Channels of the latents that a VAE gives; nothing for other models.
    pub(crate) const fn latent_channels(&self) -> Option<u32> {
        match self {
            Self::AutoencoderKl(vae) => Some(vae.latent_channels),
            Self::AutoencoderKlFlux2(vae) => Some(vae.latent_channels),
            Self::AutoencoderKlQwenImage(vae) | Self::AutoencoderKlWan(vae) => Some(vae.z_dim),
            Self::AutoencoderTiny(vae) => Some(vae.latent_channels),
            _ => None,
        }
    }

    /// Channels of what a denoiser takes; nothing for other models.
    pub(crate) const fn taken_channels(&self) -> Option<u32> {
        match self {
            Self::Unet2dCondition(unet) => Some(unet.in_channels),
            Self::FluxTransformer(flux) => Some(flux.in_channels),
            _ => None,
        }
    }

    /// Whether a pipeline is known in which a denoiser takes latents of so many channels, of this many channels in all:
    /// alone, with up to three more of other images, or with a mask, a depth or a small image beside them.
    pub(crate) fn takes_latents(&self, latents: u32) -> bool {
        match self {
            Self::Unet2dCondition(unet) => {
                let taken = unet.in_channels;
                let images = taken.is_multiple_of(latents) && taken / latents <= 4;
                images || [2 * latents + 1, latents + 1, latents + 3].contains(&taken)
            }
            Self::FluxTransformer(flux) => {
                let (taken, patch) = (flux.in_channels, PATCH_LATENTS * latents);
                taken.is_multiple_of(patch) && taken / patch <= 2 || taken == 2 * patch + MASK_CHANNELS
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::architecture::{AutoencoderKl, FluxTransformer};

    #[test]
    fn factors_follow_from_the_levels() {
        let kl = Architecture::AutoencoderKl(AutoencoderKl::default());
        let wan = Architecture::AutoencoderKlWan(CausalAutoencoder::default());
        let flux = Architecture::FluxTransformer(FluxTransformer::default());
        let factors = [&kl, &wan, &flux].map(|known| (known.vae_factor(), known.frame_factor()));
        assert_eq!(factors, [(Some(8), Some(1)), (Some(8), Some(4)), (None, None)]);
        assert!([kl, wan, flux].iter().all(|known| known.contradictions().is_empty()));
    }

    #[test]
    fn numbers_that_do_not_go_together_are_named() {
        let vae = AutoencoderKl { block_out_channels: vec![100, 256], ..AutoencoderKl::default() };
        let wan = CausalAutoencoder { temperal_downsample: vec![true], ..CausalAutoencoder::default() };
        let none = AutoencoderKl { block_out_channels: vec![], ..AutoencoderKl::default() };
        let cases = [
            (Architecture::AutoencoderKl(vae), "block_out_channels"),
            (Architecture::AutoencoderKl(none), "block_out_channels"),
            (Architecture::AutoencoderKlWan(wan), "temperal_downsample"),
        ];
        for (architecture, field) in cases {
            let fields: Vec<_> = architecture.contradictions().into_iter().map(|(field, _)| field).collect();
            assert_eq!(fields, [field]);
        }
    }
}
