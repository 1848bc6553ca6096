//! FLUX.1's transformer and text encoders as a family file writes them: diffusers' and transformers' own names and, where
//! those have a rule, their own defaults.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::architecture::{ClipTextEncoder, FluxTransformer, T5Encoder};
use crate::raw::numbers::{Mistakes, stated};

/// Channels of a head that each axis of positions has in FLUX.1.
const AXES: [u32; 3] = [16, 56, 56];

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawFlux {
    /// Channels of a patch of 2×2 latents, with all that is joined to it: 64 if left out.
    in_channels: Option<u32>,
    /// Channels of the patch it gives; `in_channels` if left out.
    out_channels: Option<u32>,
    /// Joint blocks: 19 if left out.
    num_layers: Option<u32>,
    /// Single blocks: 38 if left out.
    num_single_layers: Option<u32>,
    /// Channels of one attention head: 128 if left out.
    attention_head_dim: Option<u32>,
    /// Attention heads: 24 if left out.
    num_attention_heads: Option<u32>,
    /// Channels of the text's embeddings: 4096 if left out.
    joint_attention_dim: Option<u32>,
    /// Channels of the pooled text embedding: 768 if left out.
    pooled_projection_dim: Option<u32>,
    /// Whether a guidance scale is embedded, as in FLUX.1-dev: `false` if left out.
    guidance_embeds: Option<bool>,
    /// Channels of a head for each axis of positions, 16 for the first and the rest in halves: 16, 56, 56 if left out.
    axes_dims_rope: Option<Vec<u32>>,
    /// Tokens of the text that a denoise step is given: 512, as in diffusers' pipeline, if left out.
    text_tokens: Option<u32>,
}

impl RawFlux {
    pub(crate) fn resolve(&self, mistakes: &mut Mistakes) -> FluxTransformer {
        let head = self.attention_head_dim.unwrap_or(128);
        self.axes(mistakes, head);
        FluxTransformer {
            in_channels: self.in_channels.unwrap_or(64),
            out_channels: self.out_channels,
            num_layers: self.num_layers.unwrap_or(19),
            num_single_layers: self.num_single_layers.unwrap_or(38),
            attention_head_dim: head,
            num_attention_heads: self.num_attention_heads.unwrap_or(24),
            joint_attention_dim: self.joint_attention_dim.unwrap_or(4096),
            pooled_projection_dim: self.pooled_projection_dim.unwrap_or(768),
            guidance_embeds: self.guidance_embeds.unwrap_or(false),
            text_tokens: self.text_tokens.unwrap_or(512),
        }
    }

    fn axes(&self, mistakes: &mut Mistakes, head: u32) {
        let axes = self.axes_dims_rope.as_deref().unwrap_or(&AXES);
        let sum: u64 = axes.iter().copied().map(u64::from).sum();
        let field = if self.axes_dims_rope.is_some() { "axes_dims_rope" } else { "attention_head_dim" };
        if sum != u64::from(head) {
            let message = format!("`axes_dims_rope` {axes:?} are {sum} channels, and a head has {head}");
            mistakes.wrong(field, message);
        } else if !matches!(axes, [16, one, other] if one == other && one.is_multiple_of(2)) {
            let message = format!("`axes_dims_rope` {axes:?} are not supported: 16, and twice half of the rest, are");
            mistakes.wrong(field, message);
        }
    }
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawClip {
    /// Rows of the token table: 49408 if left out.
    vocab_size: Option<u32>,
    /// Channels of a token.
    #[schemars(required)]
    hidden_size: Option<u32>,
    /// Channels inside a feed-forward layer.
    #[schemars(required)]
    intermediate_size: Option<u32>,
    /// Transformer layers.
    #[schemars(required)]
    num_hidden_layers: Option<u32>,
    /// Attention heads.
    #[schemars(required)]
    num_attention_heads: Option<u32>,
    /// The longest text: 77 tokens if left out.
    max_position_embeddings: Option<u32>,
    /// Channels of the pooled projection, and `null` where there is none: a `CLIPTextModel` has none, whatever its
    /// configuration file says.
    #[serde(default, deserialize_with = "stated")]
    projection_dim: Option<Option<u32>>,
    /// The class in transformers, which decides whether there is a projection.
    architectures: Option<Vec<String>>,
    /// Whether the activation is the sigmoid form of CLIP-L, which needs one more tensor than GELU.
    quick_gelu: Option<bool>,
    /// The same in transformers' words: `quick_gelu` or `gelu`.
    hidden_act: Option<String>,
}

impl RawClip {
    pub(crate) fn resolve(&self, mistakes: &mut Mistakes) -> ClipTextEncoder {
        let mut sized =
            |field, value: &Option<u32>, published: &str| -> u32 { mistakes.needed(field, value, published) };
        ClipTextEncoder {
            vocab_size: self.vocab_size.unwrap_or(49_408),
            hidden_size: sized("hidden_size", &self.hidden_size, "CLIP-L has 768, CLIP-H 1024, CLIP-G 1280"),
            intermediate_size: sized(
                "intermediate_size",
                &self.intermediate_size,
                "CLIP-L has 3072, CLIP-H 4096, CLIP-G 5120",
            ),
            num_hidden_layers: sized(
                "num_hidden_layers",
                &self.num_hidden_layers,
                "CLIP-L has 12, Stable Diffusion 2.1 has 23 of CLIP-H, CLIP-G has 32",
            ),
            num_attention_heads: sized(
                "num_attention_heads",
                &self.num_attention_heads,
                "CLIP-L has 12, CLIP-H 16, CLIP-G 20",
            ),
            max_position_embeddings: self.max_position_embeddings.unwrap_or(77),
            projection_dim: self.projection(mistakes),
            quick_gelu: self.activation(mistakes),
        }
    }

    fn projection(&self, mistakes: &mut Mistakes) -> Option<u32> {
        match self.architectures.as_deref() {
            None => self.projection_dim.unwrap_or_else(|| {
                let help = "`null` for CLIPTextModel, such as SDXL's first; SDXL's second projects to 1280, SD3's first \
                            to 768";
                mistakes.missing("projection_dim", help.to_owned());
                None
            }),
            Some([class]) if class == "CLIPTextModel" => None,
            Some([class]) if class == "CLIPTextModelWithProjection" => match self.projection_dim {
                Some(Some(width)) => Some(width),
                _ => {
                    let help = "a CLIPTextModelWithProjection has one: SDXL's second projects to 1280, SD3's first to 768";
                    mistakes.missing("projection_dim", help.to_owned());
                    None
                }
            },
            Some(_) => {
                let message = "a text encoder of CLIP is a [CLIPTextModel] or a [CLIPTextModelWithProjection]";
                mistakes.wrong("architectures", message.to_owned());
                None
            }
        }
    }

    fn activation(&self, mistakes: &mut Mistakes) -> bool {
        let by_name = match self.hidden_act.as_deref() {
            None => None,
            Some("quick_gelu") => Some(true),
            Some("gelu") => Some(false),
            Some(other) => {
                let message = format!("`{other}` is not supported: there are programs for `gelu` and `quick_gelu`");
                mistakes.wrong("hidden_act", message);
                return false;
            }
        };
        mistakes.agreed(&[("quick_gelu", &self.quick_gelu), ("hidden_act", &by_name)]).unwrap_or_else(|| {
            mistakes.missing(
                "quick_gelu",
                "`true` for CLIP-L, `false` for CLIP-H and CLIP-G; or copy `hidden_act`".to_owned(),
            );
            false
        })
    }
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawT5 {
    /// Rows of the token table: 32128 if left out.
    vocab_size: Option<u32>,
    /// Channels of a token.
    #[schemars(required)]
    d_model: Option<u32>,
    /// Channels of one attention head: 64 if left out.
    d_kv: Option<u32>,
    /// Channels inside a feed-forward layer.
    #[schemars(required)]
    d_ff: Option<u32>,
    /// Transformer layers.
    #[schemars(required)]
    num_layers: Option<u32>,
    /// Attention heads.
    #[schemars(required)]
    num_heads: Option<u32>,
    /// Buckets of the relative positions: 32 if left out.
    relative_attention_num_buckets: Option<u32>,
}

impl RawT5 {
    pub(crate) fn resolve(&self, mistakes: &mut Mistakes) -> T5Encoder {
        let mut sized =
            |field, value: &Option<u32>, published: &str| -> u32 { mistakes.needed(field, value, published) };
        T5Encoder {
            vocab_size: self.vocab_size.unwrap_or(32_128),
            d_model: sized("d_model", &self.d_model, "T5 1.1 XXL has 4096, XL 2048, base 768"),
            d_kv: self.d_kv.unwrap_or(64),
            d_ff: sized("d_ff", &self.d_ff, "T5 1.1 XXL has 10240, XL 5120, base 2048"),
            num_layers: sized("num_layers", &self.num_layers, "T5 1.1 XXL and XL have 24, base has 12"),
            num_heads: sized("num_heads", &self.num_heads, "T5 1.1 XXL has 64, XL 32, base 12"),
            relative_attention_num_buckets: self.relative_attention_num_buckets.unwrap_or(32),
        }
    }
}
