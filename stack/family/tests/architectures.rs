//! What a family file may say of an architecture: what is left out follows a rule or is asked for, what is published can
//! be copied, and no number is taken that no model has.

use headroom_family::architecture::{ClipTextEncoder, FluxTransformer, Unet2dCondition};
use headroom_family::{Architecture, Family};

const OTHER_SECTIONS: &str = "\
pipeline:
  - { operation: OPERATION, model: m, size: SIZE }
calibration:
  - { model: m, operations: [OPERATION], dtypes: [fp16], sizes: [SIZE, SIZE batch 2, SIZE batch 4] }
devices:
  - { memory: 80GiB }
";

/// A family with one model of this architecture.
fn family(architecture: &str) -> String {
    let (operation, size) = match architecture {
        kind if kind.contains("encoder, ") && !kind.contains("auto") => ("text_encode", "77 tokens"),
        kind if kind.contains("unet") || kind.contains("flux_transformer") => ("denoise", "1024x1024"),
        _ => ("vae_decode", "512x512"),
    };
    let sections = OTHER_SECTIONS.replace("OPERATION", operation).replace("SIZE", size);
    format!(
        "name: one\ndescription: x\nmodels:\n  - key: m\n    architecture: {architecture}\n    dtype: fp16\n{sections}"
    )
}

fn read(architecture: &str) -> Architecture {
    let family = Family::parse(&family(architecture), "one.yaml").unwrap_or_else(|error| panic!("{error}"));
    family.models[0].architecture().unwrap().clone()
}

/// What is told of an architecture, as `line:column: field: message` and the way out.
fn told(architecture: &str) -> Vec<String> {
    let error = Family::parse(&family(architecture), "one.yaml").expect_err(architecture);
    let help = |help: &Option<String>| help.as_ref().map(|help| format!(" | {help}")).unwrap_or_default();
    let told = error.problems().iter().map(|problem| {
        let field = problem.field.trim_start_matches("models[0].");
        format!("{}:{}: {field}: {}{}", problem.line, problem.column, problem.message, help(&problem.help))
    });
    told.collect()
}

fn assert_told(architecture: &str, expected: &[&str]) {
    let told = told(architecture);
    assert_eq!(told.len(), expected.len(), "{architecture}: {told:?}");
    for words in expected {
        assert!(told.iter().any(|line| line.contains(words)), "{architecture}: {told:?} have no {words}");
    }
}

/// `unet/config.json` of Stable Diffusion 2.1, of SDXL, and of Stable Diffusion 1.5, whole.
const SD21: &str = r#"{ kind: unet2d_condition, "_class_name": "UNet2DConditionModel", "_diffusers_version": "0.10.0.dev0",
  "act_fn": "silu", "attention_head_dim": [5, 10, 20, 20], "block_out_channels": [320, 640, 1280, 1280],
  "center_input_sample": false, "cross_attention_dim": 1024, "down_block_types": ["CrossAttnDownBlock2D",
  "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"], "downsample_padding": 1, "dual_cross_attention": false,
  "flip_sin_to_cos": true, "freq_shift": 0, "in_channels": 4, "layers_per_block": 2, "mid_block_scale_factor": 1,
  "norm_eps": 1e-05, "norm_num_groups": 32, "num_class_embeds": null, "only_cross_attention": false, "out_channels": 4,
  "sample_size": 96, "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
  "use_linear_projection": true, "upcast_attention": true }"#;
const SDXL: &str = r#"{ kind: unet2d_condition, "_class_name": "UNet2DConditionModel", "_diffusers_version": "0.19.0.dev0",
  "act_fn": "silu", "addition_embed_type": "text_time", "addition_embed_type_num_heads": 64, "addition_time_embed_dim": 256,
  "attention_head_dim": [5, 10, 20], "block_out_channels": [320, 640, 1280], "center_input_sample": false,
  "class_embed_type": null, "class_embeddings_concat": false, "conv_in_kernel": 3, "conv_out_kernel": 3,
  "cross_attention_dim": 2048, "cross_attention_norm": null, "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D",
  "CrossAttnDownBlock2D"], "downsample_padding": 1, "dual_cross_attention": false, "encoder_hid_dim": null,
  "encoder_hid_dim_type": null, "flip_sin_to_cos": true, "freq_shift": 0, "in_channels": 4, "layers_per_block": 2,
  "mid_block_only_cross_attention": null, "mid_block_scale_factor": 1, "mid_block_type": "UNetMidBlock2DCrossAttn",
  "norm_eps": 1e-05, "norm_num_groups": 32, "num_attention_heads": null, "num_class_embeds": null,
  "only_cross_attention": false, "out_channels": 4, "projection_class_embeddings_input_dim": 2816,
  "resnet_out_scale_factor": 1.0, "resnet_skip_time_act": false, "resnet_time_scale_shift": "default", "sample_size": 128,
  "time_cond_proj_dim": null, "time_embedding_act_fn": null, "time_embedding_dim": null,
  "time_embedding_type": "positional", "timestep_post_act": null, "transformer_layers_per_block": [1, 2, 10],
  "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"], "upcast_attention": null,
  "use_linear_projection": true }"#;
const SD15: &str = r#"{ kind: unet2d_condition, "_class_name": "UNet2DConditionModel", "_diffusers_version": "0.6.0",
  "act_fn": "silu", "attention_head_dim": 8, "block_out_channels": [320, 640, 1280, 1280], "center_input_sample": false,
  "cross_attention_dim": 768, "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D",
  "DownBlock2D"], "downsample_padding": 1, "flip_sin_to_cos": true, "freq_shift": 0, "in_channels": 4,
  "layers_per_block": 2, "mid_block_scale_factor": 1, "norm_eps": 1e-05, "norm_num_groups": 32, "out_channels": 4,
  "sample_size": 64, "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"] }"#;
const FILL: &str = r#"{ kind: flux_transformer, "_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.32.0.dev0",
  "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "guidance_embeds": true, "in_channels": 384,
  "joint_attention_dim": 4096, "num_attention_heads": 24, "num_layers": 19, "num_single_layers": 38, "out_channels": 64,
  "patch_size": 1, "pooled_projection_dim": 768 }"#;
const CLIP_L: &str = r#"{ kind: clip_text_encoder, "_name_or_path": "openai/clip-vit-large-patch14", "architectures": [
  "CLIPTextModel"], "attention_dropout": 0.0, "bos_token_id": 0, "dropout": 0.0, "eos_token_id": 2,
  "hidden_act": "quick_gelu", "hidden_size": 768, "initializer_factor": 1.0, "initializer_range": 0.02,
  "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 77, "model_type": "clip_text_model",
  "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "projection_dim": 768, "torch_dtype": "float16",
  "transformers_version": "4.32.0.dev0", "vocab_size": 49408 }"#;
const T5: &str = r#"{ kind: t5_encoder, "_name_or_path": "google/t5-v1_1-xxl", "architectures": ["T5EncoderModel"],
  "classifier_dropout": 0.0, "d_ff": 10240, "d_kv": 64, "d_model": 4096, "decoder_start_token_id": 0,
  "dense_act_fn": "gelu_new", "dropout_rate": 0.1, "eos_token_id": 1, "feed_forward_proj": "gated-gelu",
  "initializer_factor": 1.0, "is_encoder_decoder": true, "is_gated_act": true, "layer_norm_epsilon": 1e-06,
  "model_type": "t5", "num_decoder_layers": 24, "num_heads": 64, "num_layers": 24, "output_past": true, "pad_token_id": 0,
  "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.43.3", "use_cache": true, "vocab_size": 32128 }"#;
const KL: &str = r#"{ kind: autoencoder_kl, "_class_name": "AutoencoderKL", "_diffusers_version": "0.20.0.dev0",
  "act_fn": "silu", "block_out_channels": [128, 256, 512, 512], "down_block_types": ["DownEncoderBlock2D",
  "DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"], "force_upcast": true, "in_channels": 3,
  "latent_channels": 4, "layers_per_block": 2, "norm_num_groups": 32, "out_channels": 3, "sample_size": 1024,
  "scaling_factor": 0.13025, "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D",
  "UpDecoderBlock2D"] }"#;
const TAESD: &str = r#"{ kind: autoencoder_tiny, "_class_name": "AutoencoderTiny", "_diffusers_version": "0.20.0.dev0",
  "act_fn": "relu", "decoder_block_out_channels": [64, 64, 64, 64], "encoder_block_out_channels": [64, 64, 64, 64],
  "force_upcast": false, "in_channels": 3, "latent_channels": 4, "latent_magnitude": 3, "latent_shift": 0.5,
  "num_decoder_blocks": [3, 3, 3, 1], "num_encoder_blocks": [1, 3, 3, 3], "out_channels": 3, "scaling_factor": 1.0,
  "upsampling_scaling_factor": 2 }"#;
const WAN: &str = r#"{ kind: autoencoder_kl_wan, "_class_name": "AutoencoderKLWan", "_diffusers_version": "0.33.0.dev0",
  "attn_scales": [], "base_dim": 96, "dim_mult": [1, 2, 4, 4], "dropout": 0.0, "latents_mean": [-0.7571, -0.7089],
  "latents_std": [2.8184, 1.4541], "num_res_blocks": 2, "temperal_downsample": [false, true, true], "z_dim": 16 }"#;
const FLUX2: &str = r#"{ kind: autoencoder_kl_flux2, "_class_name": "AutoencoderKLFlux2", "_diffusers_version": "0.36.0.dev0",
  "act_fn": "silu", "batch_norm_eps": 0.0001, "batch_norm_momentum": 0.1, "block_out_channels": [128, 256, 512, 512],
  "force_upcast": true, "in_channels": 3, "latent_channels": 32, "layers_per_block": 2, "mid_block_add_attention": true,
  "norm_num_groups": 32, "out_channels": 3, "patch_size": [2, 2], "sample_size": 1024, "use_post_quant_conv": true,
  "use_quant_conv": true }"#;

#[test]
fn a_published_configuration_can_be_copied_whole() {
    let sdxl = Unet2dCondition::default();
    let four = Unet2dCondition {
        block_out_channels: vec![320, 640, 1280, 1280],
        transformer_layers_per_block: vec![1, 1, 1, 0],
        mid_block_transformer_layers: 1,
        attention_heads: vec![5, 10, 20, 20],
        cross_attention_dim: 1024,
        projection_class_embeddings_input_dim: None,
        addition_time_embed_dim: 0,
        ..sdxl.clone()
    };
    let sd15 = Unet2dCondition {
        attention_heads: vec![8; 4],
        cross_attention_dim: 768,
        use_linear_projection: false,
        ..four.clone()
    };
    let fill = FluxTransformer { in_channels: 384, out_channels: Some(64), ..FluxTransformer::default() };
    let clip = ClipTextEncoder {
        hidden_size: 768,
        intermediate_size: 3072,
        num_hidden_layers: 12,
        num_attention_heads: 12,
        projection_dim: None,
        quick_gelu: true,
        ..ClipTextEncoder::default()
    };
    let causal = headroom_family::architecture::CausalAutoencoder::default();
    let cases = [
        (SD21, Architecture::Unet2dCondition(four)),
        (SDXL, Architecture::Unet2dCondition(sdxl)),
        (SD15, Architecture::Unet2dCondition(sd15)),
        (FILL, Architecture::FluxTransformer(fill)),
        (CLIP_L, Architecture::ClipTextEncoder(clip)),
        (T5, Architecture::T5Encoder(Default::default())),
        (KL, Architecture::AutoencoderKl(Default::default())),
        (TAESD, Architecture::AutoencoderTiny(Default::default())),
        (WAN, Architecture::AutoencoderKlWan(causal)),
        (FLUX2, Architecture::AutoencoderKlFlux2(Default::default())),
    ];
    for (text, expected) in cases {
        assert_eq!(read(&text.replace('\n', " ")), expected);
    }
}

#[test]
fn a_value_of_a_published_key_without_a_program_is_refused_with_the_way_out() {
    let cases = [
        (KL, "\"act_fn\": \"silu\"", "act_fn: gelu", "act_fn: `act_fn: gelu` is not supported"),
        (SDXL, "\"encoder_hid_dim_type\": null", "encoder_hid_dim_type: text_proj", "encoder_hid_dim_type: text_proj`"),
        (
            SDXL,
            "\"mid_block_type\": \"UNetMidBlock2DCrossAttn\"",
            "mid_block_type: null",
            "`UNetMidBlock2DCrossAttn` alone",
        ),
        (T5, "\"feed_forward_proj\": \"gated-gelu\"", "feed_forward_proj: relu", "for `gated-gelu` alone"),
        (T5, "\"model_type\": \"t5\"", "model_type: umt5", "model_type: `model_type: umt5`"),
        (WAN, "\"z_dim\": 16", "z_dim: 48, is_residual: true", "is_residual: `is_residual: true`"),
    ];
    for (text, from, to, words) in cases {
        let changed = text.replace('\n', " ").replace(from, to);
        assert_told(&changed, &[words]);
        assert!(told(&changed)[0].contains("weights: { pieces: 40, bytes: 12GiB }"), "{:?}", told(&changed));
    }
    let up =
        SD21.replace('\n', " ").replace("[\"UpBlock2D\", \"CrossAttnUpBlock2D\"", "[CrossAttnUpBlock2D, UpBlock2D");
    assert_told(&up, &["up_block_types: the way up can but mirror"]);
}

#[test]
fn numbers_without_a_rule_are_asked_for_all_at_once_with_what_is_published() {
    assert_told(
        "{ kind: unet2d_condition, projection_class_embeddings_input_dim: 2816 }",
        &[
            "5:5: architecture: `block_out_channels` is missing | SDXL has [320, 640, 1280]",
            "`transformer_layers_per_block` is missing",
            "`attention_heads` is missing | SDXL has [5, 10, 20]",
            "`cross_attention_dim` is missing | Stable Diffusion 1.5 has 768",
            "`addition_time_embed_dim` is missing | SDXL has 256",
        ],
    );
    assert_told("{ kind: autoencoder_kl }", &["`block_out_channels` is missing", "`layers_per_block` is missing"]);
    assert_told("{ kind: t5_encoder, d_kv: 64 }", &["`d_model`", "`d_ff`", "`num_layers`", "`num_heads`"]);
    assert_told(
        "{ kind: clip_text_encoder, vocab_size: 49408 }",
        &[
            "`hidden_size`",
            "`intermediate_size`",
            "`num_hidden_layers`",
            "`num_attention_heads`",
            "`projection_dim` is missing | `null` for CLIPTextModel",
            "`quick_gelu` is missing",
        ],
    );
}

#[test]
fn what_is_left_out_is_what_the_reference_makes_of_it() {
    let text = "{ kind: unet2d_condition, block_out_channels: [320, 640, 1280, 1280], attention_heads: [5, 10, 20, 20], \
                transformer_layers_per_block: [1, 2, 3, 0], cross_attention_dim: 1024 }";
    let Architecture::Unet2dCondition(unet) = read(text) else { panic!() };
    assert_eq!((unet.mid_block_transformer_layers, unet.projection_class_embeddings_input_dim), (3, None));
    assert!(!unet.use_linear_projection);
    let Architecture::FluxTransformer(flux) = read("{ kind: flux_transformer }") else { panic!() };
    assert!(!flux.guidance_embeds && flux.out_channels.is_none());
}

#[test]
fn numbers_that_no_model_can_have_together_are_refused() {
    let unet = |changes: &str| {
        let numbers = "block_out_channels: [320, 640], transformer_layers_per_block: [1, 1], cross_attention_dim: 768";
        format!("{{ kind: unet2d_condition, {numbers}, {changes} }}")
    };
    assert_told(
        &unet("attention_heads: [7, 10]"),
        &["5:141: architecture.attention_heads: 320 channels do not divide into 7"],
    );
    assert_told(&unet("attention_heads: [640, 10]"), &["320 channels do not divide into 640 heads"]);
    let added = "attention_heads: 5, addition_time_embed_dim: 256, projection_class_embeddings_input_dim";
    assert_told(&unet(&format!("{added}: 1536")), &["leave nothing for the text: 6 sizes take 1536"]);
    assert!(matches!(read(&unet(&format!("{added}: 1537"))), Architecture::Unet2dCondition(_)));
    assert_told("{ kind: flux_transformer, attention_head_dim: 127 }", &["are 128 channels, and a head has 127"]);
    assert_told("{ kind: flux_transformer, axes_dims_rope: [32, 48, 48] }", &["are not supported: 16, and twice"]);
    assert_told("{ kind: flux_transformer, in_channels: 63 }", &["in_channels: 63 channels are no patches"]);
    let stages = "its stages have all the same channels";
    assert_told("{ kind: autoencoder_tiny, decoder_block_out_channels: [64, 32, 16, 8] }", &[stages]);
    assert_told(
        "{ kind: autoencoder_tiny, in_channels: 3, out_channels: 4 }",
        &["out_channels: another number than `in_"],
    );
}

#[test]
fn a_kind_that_stands_twice_is_a_mistake() {
    assert_told("{ kind: autoencoder_tiny, kind: autoencoder_kl }", &["5:45: architecture: `kind` stands twice"]);
}

#[test]
fn what_rests_on_a_misspelt_field_is_not_told_with_it() {
    let text = "{ kind: unet2d_condition, block_out_channels: [320, 640], transformer_layers_per_block: [1, 1], \
                cross_attention_dim: 768, atention_heads: [7, 10] }";
    assert_told(text, &["unknown field `atention_heads` | did you mean `attention_heads`?"]);
}

#[test]
fn a_number_with_a_point_is_shown_with_it() {
    assert_told(&T5.replace('\n', " ").replace("\"d_ff\": 10240", "d_ff: 23.0"), &["found the number `23.0`"]);
}

/// A family of a VAE and a denoiser.
fn pair(vae: &str, denoiser: &str) -> Result<Family, String> {
    let both = format!("{denoiser}\n    dtype: fp16\n  - key: vae\n    architecture: {vae}");
    Family::parse(&family(&both), "one.yaml").map_err(|error| error.to_string())
}

#[test]
fn a_denoiser_takes_the_latents_of_its_vae_as_some_pipeline_does() {
    let vae = |channels: u32| format!("{{ kind: autoencoder_tiny, latent_channels: {channels} }}");
    let unet = |channels: u32| {
        let numbers = "block_out_channels: [320, 640], transformer_layers_per_block: [1, 1], cross_attention_dim: 768";
        format!("{{ kind: unet2d_condition, {numbers}, attention_heads: 5, in_channels: {channels} }}")
    };
    let flux = |channels: u32| format!("{{ kind: flux_transformer, in_channels: {channels} }}");
    // Alone, edits of images, inpainting, depth, enlargement.
    for channels in [4, 8, 12, 9, 5, 7] {
        assert!(pair(&vae(4), &unet(channels)).is_ok(), "{channels}");
    }
    for channels in [64, 128, 384] {
        assert!(pair(&vae(16), &flux(channels)).is_ok(), "{channels}");
    }
    for (latents, denoiser) in [(16, unet(4)), (4, unet(6)), (4, flux(64))] {
        let told = pair(&vae(latents), &denoiser).unwrap_err();
        assert!(told.contains("models[0].architecture") && told.contains("no pipeline makes them"), "{told}");
        assert!(told.contains(&format!("the {latents} channels of `vae`")), "{told}");
    }
}
