//! The architectures a program can be derived from, each as the numbers that its reference configuration file holds.

use serde::Serialize;

/// A model whose operations are known layer by layer.
///
/// The default of each kind is one published model, which its line is named after. A family file knows nothing of it:
/// what may be left out there, and what it is then, is said where files are read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Architecture {
    /// diffusers' `AutoencoderKL`: Stable Diffusion, SDXL, SD3, FLUX.1, CogView4, Z-Image.
    AutoencoderKl(AutoencoderKl),
    /// diffusers' `AutoencoderKLFlux2`: FLUX.2.
    AutoencoderKlFlux2(AutoencoderKlFlux2),
    /// diffusers' `AutoencoderKLQwenImage`: causal 3-D convolutions, one frame per step.
    AutoencoderKlQwenImage(CausalAutoencoder),
    /// diffusers' `AutoencoderKLWan` of Wan 2.1: causal 3-D convolutions, one latent frame per step.
    AutoencoderKlWan(CausalAutoencoder),
    /// diffusers' `AutoencoderTiny`: TAESD.
    AutoencoderTiny(AutoencoderTiny),
    /// diffusers' `UNet2DConditionModel`: Stable Diffusion 1.5, SDXL.
    Unet2dCondition(Unet2dCondition),
    /// diffusers' `FluxTransformer2DModel`: FLUX.1.
    FluxTransformer(FluxTransformer),
    /// transformers' `CLIPTextModel` and, with a projection, `CLIPTextModelWithProjection`.
    ClipTextEncoder(ClipTextEncoder),
    /// transformers' `T5EncoderModel` with gated feed-forward layers (T5 1.1).
    T5Encoder(T5Encoder),
}

impl Architecture {
    /// The words that a family file may use under `kind`.
    pub const KINDS: [&str; 9] = [
        "autoencoder_kl",
        "autoencoder_kl_flux2",
        "autoencoder_kl_qwen_image",
        "autoencoder_kl_wan",
        "autoencoder_tiny",
        "unet2d_condition",
        "flux_transformer",
        "clip_text_encoder",
        "t5_encoder",
    ];

    /// The word a family file uses under `kind`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::AutoencoderKl(_) => "autoencoder_kl",
            Self::AutoencoderKlFlux2(_) => "autoencoder_kl_flux2",
            Self::AutoencoderKlQwenImage(_) => "autoencoder_kl_qwen_image",
            Self::AutoencoderKlWan(_) => "autoencoder_kl_wan",
            Self::AutoencoderTiny(_) => "autoencoder_tiny",
            Self::Unet2dCondition(_) => "unet2d_condition",
            Self::FluxTransformer(_) => "flux_transformer",
            Self::ClipTextEncoder(_) => "clip_text_encoder",
            Self::T5Encoder(_) => "t5_encoder",
        }
    }
}

/// An image autoencoder of residual blocks with one attention block in the middle. The default is SDXL's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AutoencoderKl {
    /// Channels of the image.
    pub image_channels: u32,
    /// Channels of a latent.
    pub latent_channels: u32,
    /// Channels of each level, largest resolution first.
    pub block_out_channels: Vec<u32>,
    /// Residual blocks of an encoder level; a decoder level has one more.
    pub layers_per_block: u32,
    /// Groups of a group normalisation.
    pub norm_num_groups: u32,
    /// Whether a 1×1 convolution follows the encoder.
    pub use_quant_conv: bool,
    /// Whether a 1×1 convolution precedes the decoder.
    pub use_post_quant_conv: bool,
    /// Whether the middle has an attention block.
    pub mid_block_add_attention: bool,
}

impl Default for AutoencoderKl {
    fn default() -> Self {
        Self {
            image_channels: 3,
            latent_channels: 4,
            block_out_channels: vec![128, 256, 512, 512],
            layers_per_block: 2,
            norm_num_groups: 32,
            use_quant_conv: true,
            use_post_quant_conv: true,
            mid_block_add_attention: true,
        }
    }
}

/// The FLUX.2 autoencoder: an image autoencoder whose latents are normalised in patches outside the measured operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AutoencoderKlFlux2 {
    /// Channels of the image.
    pub image_channels: u32,
    /// Channels of a latent.
    pub latent_channels: u32,
    /// Channels of each level, largest resolution first.
    pub block_out_channels: Vec<u32>,
    /// Channels of each decoder level, where they differ.
    pub decoder_block_out_channels: Option<Vec<u32>>,
    /// Residual blocks of an encoder level; a decoder level has one more.
    pub layers_per_block: u32,
    /// Groups of a group normalisation.
    pub norm_num_groups: u32,
    /// Whether a 1×1 convolution follows the encoder.
    pub use_quant_conv: bool,
    /// Whether a 1×1 convolution precedes the decoder.
    pub use_post_quant_conv: bool,
    /// Whether the middle has an attention block.
    pub mid_block_add_attention: bool,
    /// Side of a latent patch whose running statistics the model holds.
    pub patch_size: u32,
}

impl Default for AutoencoderKlFlux2 {
    fn default() -> Self {
        Self {
            image_channels: 3,
            latent_channels: 32,
            block_out_channels: vec![128, 256, 512, 512],
            decoder_block_out_channels: None,
            layers_per_block: 2,
            norm_num_groups: 32,
            use_quant_conv: true,
            use_post_quant_conv: true,
            mid_block_add_attention: true,
            patch_size: 2,
        }
    }
}

/// A video autoencoder of causal 3-D convolutions that keeps the last frames of every layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct CausalAutoencoder {
    /// Channels of the image.
    pub image_channels: u32,
    /// Channels at full resolution.
    pub base_dim: u32,
    /// Channels at full resolution in the decoder, where they differ.
    pub decoder_base_dim: Option<u32>,
    /// Channels of a latent.
    pub z_dim: u32,
    /// Multiples of `base_dim` of each level, largest resolution first.
    pub dim_mult: Vec<u32>,
    /// Residual blocks of an encoder level; a decoder level has one more.
    pub num_res_blocks: u32,
    /// Whether time is halved too after each level but the last (spelled as in the reference).
    pub temperal_downsample: Vec<bool>,
}

impl Default for CausalAutoencoder {
    fn default() -> Self {
        Self {
            image_channels: 3,
            base_dim: 96,
            decoder_base_dim: None,
            z_dim: 16,
            dim_mult: vec![1, 2, 4, 4],
            num_res_blocks: 2,
            temperal_downsample: vec![false, true, true],
        }
    }
}

/// A distilled image autoencoder of plain convolutions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AutoencoderTiny {
    /// Channels of the image.
    pub image_channels: u32,
    /// Channels of a latent.
    pub latent_channels: u32,
    /// Channels of each encoder stage, largest resolution first.
    pub encoder_block_out_channels: Vec<u32>,
    /// Channels of each decoder stage, smallest resolution first.
    pub decoder_block_out_channels: Vec<u32>,
    /// Blocks of each encoder stage.
    pub num_encoder_blocks: Vec<u32>,
    /// Blocks of each decoder stage.
    pub num_decoder_blocks: Vec<u32>,
}

impl Default for AutoencoderTiny {
    fn default() -> Self {
        Self {
            image_channels: 3,
            latent_channels: 4,
            encoder_block_out_channels: vec![64; 4],
            decoder_block_out_channels: vec![64; 4],
            num_encoder_blocks: vec![1, 3, 3, 3],
            num_decoder_blocks: vec![3, 3, 3, 1],
        }
    }
}

/// A denoising UNet with cross-attention to a text. The default is SDXL's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Unet2dCondition {
    /// Channels of the latents it takes.
    pub in_channels: u32,
    /// Channels of the latents it gives.
    pub out_channels: u32,
    /// Channels of each level, largest resolution first.
    pub block_out_channels: Vec<u32>,
    /// Residual blocks of a down level; an up level has one more.
    pub layers_per_block: u32,
    /// Transformer layers after each residual block of a level; 0 for a level without attention.
    pub transformer_layers_per_block: Vec<u32>,
    /// Transformer layers in the middle.
    pub mid_block_transformer_layers: u32,
    /// Attention heads of each level.
    pub attention_heads: Vec<u32>,
    /// Channels of the text's embeddings.
    pub cross_attention_dim: u32,
    /// Whether tokens are projected by matrix products (SDXL) or 1×1 convolutions (Stable Diffusion 1.5).
    pub use_linear_projection: bool,
    /// Width of the pooled text and size embedding that joins the time step's; absent in Stable Diffusion 1.5.
    pub projection_class_embeddings_input_dim: Option<u32>,
    /// Channels of one embedded size number.
    pub addition_time_embed_dim: u32,
    /// Groups of a group normalisation.
    pub norm_num_groups: u32,
    /// Tokens of the text that a denoise step is given.
    pub text_tokens: u32,
}

impl Default for Unet2dCondition {
    fn default() -> Self {
        Self {
            in_channels: 4,
            out_channels: 4,
            block_out_channels: vec![320, 640, 1280],
            layers_per_block: 2,
            transformer_layers_per_block: vec![0, 2, 10],
            mid_block_transformer_layers: 10,
            attention_heads: vec![5, 10, 20],
            cross_attention_dim: 2048,
            use_linear_projection: true,
            projection_class_embeddings_input_dim: Some(2816),
            addition_time_embed_dim: 256,
            norm_num_groups: 32,
            text_tokens: 77,
        }
    }
}

/// A transformer of joint and single blocks over image and text tokens. The default is FLUX.1-dev's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct FluxTransformer {
    /// Channels of a patch of latents, with all that is joined to it.
    pub in_channels: u32,
    /// Channels of the patch it gives, where they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_channels: Option<u32>,
    /// Joint blocks.
    pub num_layers: u32,
    /// Single blocks.
    pub num_single_layers: u32,
    /// Channels of one attention head.
    pub attention_head_dim: u32,
    /// Attention heads.
    pub num_attention_heads: u32,
    /// Channels of the text's embeddings.
    pub joint_attention_dim: u32,
    /// Channels of the pooled text embedding.
    pub pooled_projection_dim: u32,
    /// Whether a guidance scale is embedded (FLUX.1-dev).
    pub guidance_embeds: bool,
    /// Tokens of the text that a denoise step is given.
    pub text_tokens: u32,
}

impl Default for FluxTransformer {
    fn default() -> Self {
        Self {
            in_channels: 64,
            out_channels: None,
            num_layers: 19,
            num_single_layers: 38,
            attention_head_dim: 128,
            num_attention_heads: 24,
            joint_attention_dim: 4096,
            pooled_projection_dim: 768,
            guidance_embeds: true,
            text_tokens: 512,
        }
    }
}

/// CLIP's text encoder. The default is SDXL's second one, CLIP-G.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ClipTextEncoder {
    /// Rows of the token table.
    pub vocab_size: u32,
    /// Channels of a token.
    pub hidden_size: u32,
    /// Channels inside a feed-forward layer.
    pub intermediate_size: u32,
    /// Transformer layers.
    pub num_hidden_layers: u32,
    /// Attention heads.
    pub num_attention_heads: u32,
    /// The longest text.
    pub max_position_embeddings: u32,
    /// Channels of the pooled projection, where there is one.
    pub projection_dim: Option<u32>,
    /// Whether the activation is the sigmoid form of CLIP-L, which needs one more tensor than GELU.
    pub quick_gelu: bool,
}

impl Default for ClipTextEncoder {
    fn default() -> Self {
        Self {
            vocab_size: 49_408,
            hidden_size: 1280,
            intermediate_size: 5120,
            num_hidden_layers: 32,
            num_attention_heads: 20,
            max_position_embeddings: 77,
            projection_dim: Some(1280),
            quick_gelu: false,
        }
    }
}

/// T5's encoder. The default is T5 1.1 XXL.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct T5Encoder {
    /// Rows of the token table.
    pub vocab_size: u32,
    /// Channels of a token.
    pub d_model: u32,
    /// Channels of one attention head.
    pub d_kv: u32,
    /// Channels inside a feed-forward layer.
    pub d_ff: u32,
    /// Transformer layers.
    pub num_layers: u32,
    /// Attention heads.
    pub num_heads: u32,
    /// Buckets of the relative positions.
    pub relative_attention_num_buckets: u32,
}

impl Default for T5Encoder {
    fn default() -> Self {
        Self {
            vocab_size: 32_128,
            d_model: 4096,
            d_kv: 64,
            d_ff: 10_240,
            num_layers: 24,
            num_heads: 64,
            relative_attention_num_buckets: 32,
        }
    }
}
