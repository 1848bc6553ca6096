//! A UNet as a family file writes it: which levels attend to the text may be said by their number of layers or by
//! diffusers' names of their blocks.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::architecture::Unet2dCondition;
use crate::raw::numbers::{Mistakes, PerLevel};

/// diffusers' names of a level with attention to the text and of one without, on the way down and up.
const DOWN: [&str; 2] = ["CrossAttnDownBlock2D", "DownBlock2D"];
const UP: [&str; 2] = ["CrossAttnUpBlock2D", "UpBlock2D"];

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawUnet {
    /// Channels of the latents it takes: 4 if left out.
    in_channels: Option<u32>,
    /// Channels of the latents it gives: 4 if left out.
    out_channels: Option<u32>,
    /// Channels of each level, largest resolution first.
    #[schemars(required)]
    block_out_channels: Option<Vec<u32>>,
    /// Residual blocks of a down level; an up level has one more: 2 if left out.
    layers_per_block: Option<u32>,
    /// Transformer layers after each residual block of a level; 0 for a level without attention. One number for all
    /// levels with attention, 1 if left out, where `down_block_types` says which those are; needed where it does not.
    transformer_layers_per_block: Option<PerLevel>,
    /// diffusers' names of the levels on the way down: `CrossAttnDownBlock2D`, and `DownBlock2D` without attention.
    down_block_types: Option<Vec<String>>,
    /// The same on the way up, smallest resolution first; they can but mirror those on the way down.
    up_block_types: Option<Vec<String>>,
    /// Transformer layers in the middle; those of the last level that has any if left out.
    mid_block_transformer_layers: Option<u32>,
    /// Attention heads, of all levels or of each.
    attention_heads: Option<PerLevel>,
    /// The same: diffusers calls the number of heads so.
    attention_head_dim: Option<PerLevel>,
    /// Channels of the text's embeddings.
    #[schemars(required)]
    cross_attention_dim: Option<u32>,
    /// Whether tokens are projected by matrix products (SDXL) or 1×1 convolutions: `false` if left out.
    use_linear_projection: Option<bool>,
    /// What joins the time step's embedding: `text_time`, pooled text and sizes, as in SDXL. Nothing if left out and
    /// `projection_class_embeddings_input_dim` too.
    addition_embed_type: Option<String>,
    /// Width of the pooled text and size embedding that joins the time step's; there is none if left out.
    projection_class_embeddings_input_dim: Option<u32>,
    /// Channels of one embedded size number; needed with `projection_class_embeddings_input_dim`.
    addition_time_embed_dim: Option<u32>,
    /// Groups of a group normalisation: 32 if left out.
    norm_num_groups: Option<u32>,
    /// Tokens of the text that a denoise step is given: CLIP's 77 if left out.
    text_tokens: Option<u32>,
}

impl RawUnet {
    pub(crate) fn resolve(&self, mistakes: &mut Mistakes) -> Unet2dCondition {
        let published = "SDXL has [320, 640, 1280], Stable Diffusion 1.5 and 2.1 have [320, 640, 1280, 1280]";
        let block_out_channels = mistakes.needed("block_out_channels", &self.block_out_channels, published);
        let levels = block_out_channels.len();
        let published = "Stable Diffusion 1.5 has 768, 2.1 has 1024, SDXL 2048";
        let layers = self.layers(mistakes, levels);
        let (projection, numbers) = self.added(mistakes);
        Unet2dCondition {
            in_channels: self.in_channels.unwrap_or(4),
            out_channels: self.out_channels.unwrap_or(4),
            layers_per_block: self.layers_per_block.unwrap_or(2),
            mid_block_transformer_layers: self.middle(mistakes, &layers),
            transformer_layers_per_block: layers,
            attention_heads: self.heads(mistakes, levels),
            cross_attention_dim: mistakes.needed("cross_attention_dim", &self.cross_attention_dim, published),
            use_linear_projection: self.use_linear_projection.unwrap_or(false),
            projection_class_embeddings_input_dim: projection,
            addition_time_embed_dim: numbers,
            norm_num_groups: self.norm_num_groups.unwrap_or(32),
            text_tokens: self.text_tokens.unwrap_or(77),
            block_out_channels,
        }
    }

    fn heads(&self, mistakes: &mut Mistakes, levels: usize) -> Vec<u32> {
        let each = |given: &Option<PerLevel>| given.as_ref().map(|heads| heads.each(levels));
        let names = [
            ("attention_heads", &each(&self.attention_heads)),
            ("attention_head_dim", &each(&self.attention_head_dim)),
        ];
        mistakes.agreed(&names).unwrap_or_else(|| {
            let published = "SDXL has [5, 10, 20], Stable Diffusion 2.1 [5, 10, 20, 20], 1.5 has 8 on every level";
            mistakes.missing("attention_heads", published.to_owned());
            Vec::new()
        })
    }

    /// Layers of each level: none where its block is one without attention.
    fn layers(&self, mistakes: &mut Mistakes, levels: usize) -> Vec<u32> {
        let layers = match (&self.transformer_layers_per_block, &self.down_block_types) {
            (Some(PerLevel::Each(layers)), None) => layers.clone(),
            (None | Some(PerLevel::Same(_)), None) => {
                let help = "list them, 0 for a level without attention: SDXL has [0, 2, 10], Stable Diffusion 1.5 and 2.1 \
                            have [1, 1, 1, 0]; or copy `down_block_types`";
                mistakes.missing("transformer_layers_per_block", help.to_owned());
                return Vec::new();
            }
            (layers, Some(blocks)) => {
                let layers = layers.as_ref().map_or(vec![1; levels], |layers| layers.each(levels));
                if blocks.len() != layers.len() || blocks.iter().any(|block| !DOWN.contains(&block.as_str())) {
                    let help =
                        format!("its levels can be {}, one for each of `block_out_channels`", DOWN.join(" and "));
                    mistakes.wrong("down_block_types", help);
                    return Vec::new();
                }
                let attends = blocks.iter().map(|block| block == DOWN[0]);
                attends.zip(layers).map(|(attends, layers)| if attends { layers } else { 0 }).collect()
            }
        };
        if let Some(blocks) = &self.up_block_types {
            let mirrored = layers.iter().rev().map(|layers| if *layers == 0 { UP[1] } else { UP[0] });
            let expected: Vec<&str> = mirrored.collect();
            if *blocks != expected {
                let message = format!("the way up can but mirror the way down, and would be [{}]", expected.join(", "));
                mistakes.wrong("up_block_types", message);
            }
        }
        layers
    }

    /// diffusers gives the middle what it gives the last level, whether that attends or not.
    fn middle(&self, mistakes: &mut Mistakes, layers: &[u32]) -> u32 {
        let of_the_last_level = match &self.transformer_layers_per_block {
            Some(PerLevel::Same(layers)) => Some(*layers),
            Some(PerLevel::Each(layers)) => layers.last().copied(),
            None => None,
        };
        let last = || layers.iter().rev().copied().find(|layers| *layers > 0);
        let found = self.mid_block_transformer_layers.or(of_the_last_level.filter(|layers| *layers > 0)).or_else(last);
        found.unwrap_or_else(|| {
            if !layers.is_empty() {
                let help =
                    "no level has attention, whose layers the middle would have; SDXL has 10, 1.5 and 2.1 have 1";
                mistakes.missing("mid_block_transformer_layers", help.to_owned());
            }
            0
        })
    }

    /// The width of what joins the time step's embedding, and the channels of one number in it.
    fn added(&self, mistakes: &mut Mistakes) -> (Option<u32>, u32) {
        match self.addition_embed_type.as_deref() {
            None => {}
            Some("text_time") if self.projection_class_embeddings_input_dim.is_some() => {}
            Some("text_time") => {
                mistakes.missing("projection_class_embeddings_input_dim", "SDXL has 2816, its refiner 2560".to_owned());
            }
            Some(other) => {
                let message = format!("`{other}` is not supported: there is a program for `text_time`, or without it");
                mistakes.wrong("addition_embed_type", message);
            }
        }
        let Some(width) = self.projection_class_embeddings_input_dim else { return (None, 0) };
        (Some(width), mistakes.needed("addition_time_embed_dim", &self.addition_time_embed_dim, "SDXL has 256"))
    }
}
