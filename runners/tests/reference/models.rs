//! Small models of every architecture, and what is run of them.

use std::sync::LazyLock;

use headroom_base::{Case, DType, Operation, Tiling};
use headroom_family::Architecture;
use headroom_family::architecture::{
    AutoencoderKl, AutoencoderKlFlux2, AutoencoderTiny, CausalAutoencoder, ClipTextEncoder, FluxTransformer, T5Encoder,
    Unet2dCondition,
};
use headroom_runners::programs::{Computation, Execution, computation};
use headroom_runners::reference::{Contents, Outputs, ReferenceError, execute};

/// A small model.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) name: &'static str,
    pub(super) architecture: Architecture,
    /// What is run, in fp32.
    pub(super) cases: Vec<Case>,
}

const fn pixels(operation: Operation, width: u32, height: u32) -> Case {
    Case::image(operation, DType::Fp32, width, height)
}

const fn text(tokens: u32) -> Case {
    Case::text(DType::Fp32, tokens)
}

const CODERS: [Operation; 2] = [Operation::VaeDecode, Operation::VaeEncode];

fn coded(sizes: &[Case]) -> Vec<Case> {
    CODERS.iter().flat_map(|&operation| sizes.iter().map(move |size| Case { operation, ..*size })).collect()
}

fn image_autoencoders() -> Vec<Model> {
    let kl = AutoencoderKl {
        latent_channels: 4,
        block_out_channels: vec![8, 16, 16, 24],
        layers_per_block: 1,
        norm_num_groups: 4,
        ..AutoencoderKl::default()
    };
    let plain = AutoencoderKl {
        latent_channels: 6,
        layers_per_block: 2,
        use_quant_conv: false,
        use_post_quant_conv: false,
        mid_block_add_attention: false,
        ..kl.clone()
    };
    let flux2 = AutoencoderKlFlux2 {
        latent_channels: 8,
        block_out_channels: vec![8, 16, 16, 24],
        decoder_block_out_channels: Some(vec![12, 16, 20, 24]),
        layers_per_block: 1,
        norm_num_groups: 4,
        ..AutoencoderKlFlux2::default()
    };
    let tiny = AutoencoderTiny {
        encoder_block_out_channels: vec![8; 4],
        decoder_block_out_channels: vec![8; 4],
        num_encoder_blocks: vec![1, 2, 1, 1],
        num_decoder_blocks: vec![1, 1, 2, 1],
        ..AutoencoderTiny::default()
    };
    let one = pixels(Operation::VaeDecode, 48, 32);
    let two = pixels(Operation::VaeDecode, 32, 24).with_batch(2);
    let tiled = pixels(Operation::VaeDecode, 56, 40).with_tiling(Tiling { tile_pixels: 32, overlap_percent: 25 });
    let model = |name, architecture, sizes: &[Case]| Model { name, architecture, cases: coded(sizes) };
    vec![
        model("autoencoder_kl", Architecture::AutoencoderKl(kl), &[one, two, tiled]),
        model("autoencoder_kl without attention and quantisation", Architecture::AutoencoderKl(plain), &[one]),
        model("autoencoder_kl_flux2", Architecture::AutoencoderKlFlux2(flux2), &[one, tiled]),
        model("autoencoder_tiny", Architecture::AutoencoderTiny(tiny), &[one, two]),
    ]
}

fn video_autoencoders() -> Vec<Model> {
    let numbers = CausalAutoencoder {
        base_dim: 6,
        z_dim: 4,
        dim_mult: vec![1, 2, 2, 2],
        num_res_blocks: 1,
        ..CausalAutoencoder::default()
    };
    let one = pixels(Operation::VaeDecode, 32, 24);
    let sizes = [one, one.with_batch(2), one.with_frames(5), one.with_frames(9)];
    let model = |name, architecture| Model { name, architecture, cases: coded(&sizes) };
    vec![
        model("autoencoder_kl_qwen_image", Architecture::AutoencoderKlQwenImage(numbers.clone())),
        model("autoencoder_kl_wan", Architecture::AutoencoderKlWan(numbers)),
    ]
}

fn denoisers() -> Vec<Model> {
    let xl = Unet2dCondition {
        block_out_channels: vec![8, 16, 32],
        layers_per_block: 1,
        transformer_layers_per_block: vec![0, 1, 2],
        mid_block_transformer_layers: 2,
        attention_heads: vec![1, 2, 4],
        cross_attention_dim: 20,
        projection_class_embeddings_input_dim: Some(64),
        addition_time_embed_dim: 8,
        norm_num_groups: 4,
        text_tokens: 7,
        ..Unet2dCondition::default()
    };
    let one_five = Unet2dCondition {
        layers_per_block: 2,
        transformer_layers_per_block: vec![1, 1, 0],
        mid_block_transformer_layers: 1,
        attention_heads: vec![2, 2, 2],
        use_linear_projection: false,
        projection_class_embeddings_input_dim: None,
        ..xl.clone()
    };
    let flux = FluxTransformer {
        in_channels: 16,
        out_channels: None,
        num_layers: 2,
        num_single_layers: 2,
        attention_head_dim: 32,
        num_attention_heads: 2,
        joint_attention_dim: 24,
        pooled_projection_dim: 20,
        guidance_embeds: true,
        text_tokens: 6,
    };
    let unguided = FluxTransformer { guidance_embeds: false, ..flux.clone() };
    let one = pixels(Operation::Denoise, 96, 64);
    let cases = vec![one, one.with_batch(2)];
    let model = |name, architecture| Model { name, architecture, cases: cases.clone() };
    vec![
        model("unet2d_condition with added embedding", Architecture::Unet2dCondition(xl)),
        model("unet2d_condition", Architecture::Unet2dCondition(one_five)),
        model("flux_transformer with guidance", Architecture::FluxTransformer(flux)),
        model("flux_transformer", Architecture::FluxTransformer(unguided)),
    ]
}

fn text_encoders() -> Vec<Model> {
    let clip = ClipTextEncoder {
        // Few tokens, so that some texts have an end, and one of them two.
        vocab_size: 12,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        max_position_embeddings: 20,
        projection_dim: Some(24),
        quick_gelu: false,
    };
    let plain = ClipTextEncoder { projection_dim: None, quick_gelu: true, ..clip.clone() };
    let t5 = T5Encoder {
        vocab_size: 64,
        d_model: 32,
        d_kv: 6,
        d_ff: 48,
        num_layers: 2,
        num_heads: 4,
        relative_attention_num_buckets: 8,
    };
    let cases = vec![text(20), text(9).with_batch(2)];
    let model = |name, architecture| Model { name, architecture, cases: cases.clone() };
    vec![
        model("clip_text_encoder with projection", Architecture::ClipTextEncoder(clip)),
        model("clip_text_encoder", Architecture::ClipTextEncoder(plain)),
        Model { cases: vec![text(40), text(9).with_batch(2)], ..model("t5_encoder", Architecture::T5Encoder(t5)) },
    ]
}

/// All of them.
pub(super) fn models() -> &'static [Model] {
    static MODELS: LazyLock<Vec<Model>> = LazyLock::new(|| {
        [image_autoencoders(), video_autoencoders(), denoisers(), text_encoders()].into_iter().flatten().collect()
    });
    &MODELS
}

/// A case of a model, executed as PyTorch does by default.
pub(super) struct Executed {
    pub(super) model: &'static Model,
    pub(super) case: Case,
    pub(super) computation: Computation,
    outputs: Result<Outputs, ReferenceError>,
}

impl Executed {
    /// What came of it.
    pub(super) fn outputs(&self) -> &Outputs {
        self.outputs.as_ref().unwrap_or_else(|error| panic!("{self}: {error}"))
    }
}

impl std::fmt::Display for Executed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.model.name, self.case)
    }
}

/// What a case of a model computes in this way.
pub(super) fn derived(model: &Model, case: &Case, execution: &Execution) -> Computation {
    computation(&model.architecture, case, execution).unwrap_or_else(|error| panic!("{} {case}: {error}", model.name))
}

/// Every case of every model, in order, executed once for all tests.
pub(super) fn executed() -> &'static [Executed] {
    static EXECUTED: LazyLock<Vec<Executed>> = LazyLock::new(|| {
        let run = |model: &'static Model, case: Case| {
            let computation = derived(model, &case, &Execution::default());
            let outputs = execute(&computation, &Contents::default());
            Executed { model, case, computation, outputs }
        };
        models().iter().flat_map(|model| model.cases.iter().map(move |case| run(model, *case))).collect()
    });
    &EXECUTED
}

/// The first and the last case of every model.
pub(super) fn ends() -> impl Iterator<Item = &'static Executed> {
    executed().iter().filter(|run| [run.model.cases.first(), run.model.cases.last()].contains(&Some(&run.case)))
}
