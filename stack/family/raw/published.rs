//! Keys of published `config.json` files that are no numbers of a program: whether they can stand in a family file as
//! they are, so that a configuration can be copied whole.

use crate::node::Value;

/// What becomes of such a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is read and has no effect: it changes no tensor.
    Ignored,
    /// There is a program for these values alone.
    Only(&'static [&'static str]),
    /// There is a program where every item of the list is this word.
    Every(&'static str),
}

use Answer::{Every, Ignored, Only};

const NONE: Answer = Only(&["null"]);
const NOT: Answer = Only(&["false"]);

type Keys = &'static [(&'static str, Answer)];

/// What every configuration file may have.
const ALL: Keys = &[
    ("_diffusers_version", Ignored),
    ("_name_or_path", Ignored),
    ("dtype", Ignored),
    ("quantization_config", NONE),
    ("torch_dtype", Ignored),
    ("transformers_version", Ignored),
];

const KL: Keys = &[
    ("_class_name", Only(&["AutoencoderKL"])),
    ("act_fn", Only(&["silu"])),
    ("down_block_types", Every("DownEncoderBlock2D")),
    ("force_upcast", Ignored),
    ("latents_mean", Ignored),
    ("latents_std", Ignored),
    ("sample_size", Ignored),
    ("scaling_factor", Ignored),
    ("shift_factor", Ignored),
    ("up_block_types", Every("UpDecoderBlock2D")),
];

const FLUX2: Keys = &[
    ("_class_name", Only(&["AutoencoderKLFlux2"])),
    ("act_fn", Only(&["silu"])),
    ("batch_norm_eps", Ignored),
    ("batch_norm_momentum", Ignored),
    ("down_block_types", Every("DownEncoderBlock2D")),
    ("force_upcast", Ignored),
    ("sample_size", Ignored),
    ("up_block_types", Every("UpDecoderBlock2D")),
];

const QWEN_IMAGE: Keys = &[
    ("_class_name", Only(&["AutoencoderKLQwenImage"])),
    ("attn_scales", Only(&["[]"])),
    ("dropout", Ignored),
    ("latents_mean", Ignored),
    ("latents_std", Ignored),
];

const WAN: Keys = &[
    ("_class_name", Only(&["AutoencoderKLWan"])),
    ("attn_scales", Only(&["[]"])),
    ("clip_output", Ignored),
    ("dropout", Ignored),
    ("is_residual", NOT),
    ("latents_mean", Ignored),
    ("latents_std", Ignored),
    ("patch_size", NONE),
    ("scale_factor_spatial", Ignored),
    ("scale_factor_temporal", Ignored),
];

const TINY: Keys = &[
    ("_class_name", Only(&["AutoencoderTiny"])),
    ("act_fn", Only(&["relu"])),
    ("block_out_channels", Ignored),
    ("force_upcast", Ignored),
    ("latent_magnitude", Ignored),
    ("latent_shift", Ignored),
    ("scaling_factor", Ignored),
    ("shift_factor", Ignored),
    ("upsample_fn", Only(&["nearest"])),
    ("upsampling_scaling_factor", Only(&["2"])),
];

const UNET: Keys = &[
    ("_class_name", Only(&["UNet2DConditionModel"])),
    ("act_fn", Only(&["silu"])),
    ("addition_embed_type_num_heads", Ignored),
    ("attention_type", Only(&["default"])),
    ("center_input_sample", NOT),
    ("class_embed_type", NONE),
    ("class_embeddings_concat", NOT),
    ("conv_in_kernel", Only(&["3"])),
    ("conv_out_kernel", Only(&["3"])),
    ("cross_attention_norm", NONE),
    ("downsample_padding", Only(&["1"])),
    ("dropout", Ignored),
    ("dual_cross_attention", NOT),
    ("encoder_hid_dim", NONE),
    ("encoder_hid_dim_type", NONE),
    ("flip_sin_to_cos", Only(&["true"])),
    ("freq_shift", Ignored),
    ("mid_block_only_cross_attention", Only(&["null", "false"])),
    ("mid_block_scale_factor", Ignored),
    ("mid_block_type", Only(&["UNetMidBlock2DCrossAttn"])),
    ("norm_eps", Ignored),
    ("num_attention_heads", NONE),
    ("num_class_embeds", NONE),
    ("only_cross_attention", NOT),
    ("resnet_out_scale_factor", Ignored),
    ("resnet_skip_time_act", NOT),
    ("resnet_time_scale_shift", Only(&["default"])),
    ("reverse_transformer_layers_per_block", NONE),
    ("sample_size", Ignored),
    ("time_cond_proj_dim", NONE),
    ("time_embedding_act_fn", NONE),
    ("time_embedding_dim", NONE),
    ("time_embedding_type", Only(&["positional"])),
    ("timestep_post_act", NONE),
    // Fused attention, which is what runs, does not ask for it.
    ("upcast_attention", Ignored),
];

const FLUX: Keys = &[("_class_name", Only(&["FluxTransformer2DModel"])), ("patch_size", Only(&["1"]))];

const CLIP: Keys = &[
    ("attention_dropout", Ignored),
    ("bos_token_id", Ignored),
    ("dropout", Ignored),
    ("eos_token_id", Ignored),
    ("initializer_factor", Ignored),
    ("initializer_range", Ignored),
    ("layer_norm_eps", Ignored),
    ("model_type", Only(&["clip_text_model"])),
    ("pad_token_id", Ignored),
];

const T5: Keys = &[
    ("architectures", Only(&["[T5EncoderModel]", "[T5ForConditionalGeneration]"])),
    ("classifier_dropout", Ignored),
    ("decoder_start_token_id", Ignored),
    ("dense_act_fn", Only(&["gelu_new"])),
    ("dropout_rate", Ignored),
    ("eos_token_id", Ignored),
    ("feed_forward_proj", Only(&["gated-gelu"])),
    ("initializer_factor", Ignored),
    ("is_decoder", NOT),
    ("is_encoder_decoder", Ignored),
    ("is_gated_act", Only(&["true"])),
    ("layer_norm_epsilon", Ignored),
    ("model_type", Only(&["t5"])),
    ("n_positions", Ignored),
    ("num_decoder_layers", Ignored),
    ("output_past", Ignored),
    ("pad_token_id", Ignored),
    ("relative_attention_max_distance", Ignored),
    ("task_specific_params", Ignored),
    ("tie_word_embeddings", Ignored),
    ("use_cache", Ignored),
];

/// The keys that configurations of a kind may have beside its numbers.
pub(crate) fn keys(kind: &str) -> impl Iterator<Item = (&'static str, Answer)> {
    let own = match kind {
        "autoencoder_kl" => KL,
        "autoencoder_kl_flux2" => FLUX2,
        "autoencoder_kl_qwen_image" => QWEN_IMAGE,
        "autoencoder_kl_wan" => WAN,
        "autoencoder_tiny" => TINY,
        "unet2d_condition" => UNET,
        "flux_transformer" => FLUX,
        "clip_text_encoder" => CLIP,
        "t5_encoder" => T5,
        _ => &[],
    };
    let of_all = if own.is_empty() { &[] } else { ALL };
    own.iter().chain(of_all).copied()
}

impl Answer {
    /// What is wrong with a key's value, if anything.
    pub(crate) fn refusal(self, key: &str, value: &Value) -> Option<String> {
        match self {
            Ignored => None,
            Only(values) => {
                let found = written(value);
                let supported = values.join("` or `");
                (!values.contains(&found.as_str()))
                    .then(|| format!("`{key}: {found}` is not supported: there is a program for `{supported}` alone"))
            }
            Every(word) => {
                let is_word = |item: &Value| *item == Value::Text(word.to_owned());
                let every = matches!(value, Value::List(items) if items.iter().all(|item| is_word(&item.value)));
                (!every).then(|| format!("not supported: there is a program where every level is a `{word}`"))
            }
        }
    }

    /// The values that are taken, for the schema; nothing where all are.
    pub(crate) fn schema(self) -> serde_json::Value {
        let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| serde_json::Value::from(text));
        match self {
            Ignored => serde_json::json!({ "description": "Of the published configuration: no effect on memory." }),
            Only(texts) if texts.iter().any(|text| text.starts_with('[')) => {
                let words = texts.iter().map(|text| text.trim_matches(['[', ']'])).filter(|word| !word.is_empty());
                let words: Vec<&str> = words.collect();
                let most = usize::from(!words.is_empty());
                serde_json::json!({ "type": "array", "items": { "enum": words }, "maxItems": most })
            }
            Only(texts) => serde_json::json!({ "enum": texts.iter().copied().map(value).collect::<Vec<_>>() }),
            Every(word) => serde_json::json!({ "type": "array", "items": { "const": word } }),
        }
    }
}

/// A value in one way, however a file writes it.
fn written(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Unsigned(value) => value.to_string(),
        Value::Signed(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Text(_) | Value::Map(_) => value.plain(),
        Value::List(items) => {
            let items: Vec<String> = items.iter().map(|item| written(&item.value)).collect();
            format!("[{}]", items.join(", "))
        }
    }
}
