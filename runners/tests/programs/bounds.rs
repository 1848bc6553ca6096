//! Whatever numbers a family file has: it is refused with a place, or its weights and its programs follow in bounded memory.

use headroom_base::{AttentionKernel, Case, DType, Extent, Operation};
use headroom_family::architecture::{AutoencoderKl, T5Encoder};
use headroom_family::{Architecture, Family};
use headroom_runners::programs::{Execution, program, weights};
use proptest::prelude::*;
use proptest::sample::select;

/// Fields of each kind: those with one number, those with a list, and flags.
const KINDS: [(&str, &[&str], &[&str]); 8] = [
    (
        "autoencoder_kl",
        &["in_channels", "latent_channels", "layers_per_block", "norm_num_groups"],
        &["block_out_channels"],
    ),
    (
        "autoencoder_kl_flux2",
        &["latent_channels", "layers_per_block", "norm_num_groups", "patch_size"],
        &["block_out_channels", "decoder_block_out_channels"],
    ),
    ("autoencoder_kl_wan", &["base_dim", "decoder_base_dim", "z_dim", "num_res_blocks"], &["dim_mult"]),
    (
        "autoencoder_tiny",
        &["latent_channels"],
        &["encoder_block_out_channels", "decoder_block_out_channels", "num_encoder_blocks", "num_decoder_blocks"],
    ),
    (
        "unet2d_condition",
        &[
            "in_channels",
            "out_channels",
            "layers_per_block",
            "mid_block_transformer_layers",
            "cross_attention_dim",
            "norm_num_groups",
            "text_tokens",
        ],
        &["block_out_channels", "transformer_layers_per_block", "attention_heads"],
    ),
    (
        "flux_transformer",
        &[
            "in_channels",
            "out_channels",
            "num_layers",
            "num_single_layers",
            "num_attention_heads",
            "joint_attention_dim",
        ],
        &[],
    ),
    (
        "clip_text_encoder",
        &[
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "projection_dim",
            "vocab_size",
        ],
        &[],
    ),
    ("t5_encoder", &["d_model", "d_kv", "d_ff", "num_layers", "num_heads", "relative_attention_num_buckets"], &[]),
];

/// Numbers at the edges of what a file may say, and some between that go together.
const NUMBERS: [u32; 18] =
    [0, 1, 2, 3, 4, 7, 8, 32, 64, 256, 1024, 1025, 4096, 65_536, 65_537, 262_144, 1 << 20, u32::MAX];
/// Few that are plausible in most fields: a file of them is often taken.
const USUAL: [u32; 5] = [8, 8, 8, 8, 64];

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![1 => select(NUMBERS.to_vec()), 15 => select(USUAL.to_vec())]
}

/// An architecture as a file writes it, with lists of one length.
fn architecture() -> impl Strategy<Value = String> {
    let lists = prop::collection::vec(prop::collection::vec(number(), 4), 4);
    (select(KINDS.to_vec()), prop::collection::vec(number(), 9), lists, 1..5_usize).prop_map(
        |((kind, fields, list_fields), numbers, lists, levels)| {
            let mut text = format!("kind: {kind}");
            for (field, number) in fields.iter().zip(numbers) {
                text.push_str(&format!(", {field}: {number}"));
            }
            for (field, list) in list_fields.iter().zip(lists) {
                text.push_str(&format!(", {field}: {:?}", &list[..levels]));
            }
            match kind {
                "autoencoder_kl_wan" => text.push_str(&format!(", temperal_downsample: {:?}", vec![true; levels - 1])),
                "clip_text_encoder" => text.push_str(", quick_gelu: true"),
                _ => {}
            }
            format!("{{ {text} }}")
        },
    )
}

fn family(architecture: &str) -> String {
    format!(
        "name: one\ndescription: x\nmodels:\n  - key: m\n    architecture: {architecture}\n    dtype: fp32\n\
         pipeline: []\ncalibration: []\ndevices: []\n"
    )
}

/// The architecture of a file in which nothing else is wrong than that it has no pipeline; or what is told of it.
fn read(architecture: &str) -> Result<Architecture, Vec<String>> {
    let error = Family::parse(&family(architecture), "one.yaml").expect_err("it has no pipeline");
    let of_model: Vec<_> = error.problems().iter().filter(|problem| problem.field.starts_with("models")).collect();
    if !of_model.is_empty() {
        return Err(of_model.iter().map(|problem| format!("{}:{}", problem.line, problem.column)).collect());
    }
    let operation = ["vae_decode", "denoise", "text_encode"];
    let size = ["8192x8192x1", "8192x8192", "1 tokens"];
    let whole = operation.iter().zip(size).find_map(|(operation, size)| {
        let text = family(architecture)
            .replace("pipeline: []", &format!("pipeline: [{{ operation: {operation}, model: m, size: {size} }}]"))
            .replace(
                "calibration: []",
                &format!(
                    "calibration: [{{ model: m, operations: [{operation}], dtypes: [fp32], sizes: [{size}, \
                     {size} batch 2, {size} batch 3] }}]"
                ),
            )
            .replace("devices: []", "devices: [{ memory: 8GiB }]");
        Family::parse(&text, "one.yaml").ok()
    });
    let whole = whole.unwrap_or_else(|| panic!("{architecture} is in order and cannot stand in a family"));
    Ok(whole.models[0].architecture().unwrap().clone())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_numbers_are_refused_with_a_place_or_have_weights_in_bounded_memory(text in architecture()) {
        match read(&text) {
            Err(places) => prop_assert!(places.iter().all(|place| place.starts_with("5:")), "{text}: {places:?}"),
            Ok(architecture) => {
                let pieces = weights(&architecture, DType::Fp32);
                prop_assert!(pieces.len() < 200_000, "{text}: {} pieces", pieces.len());
                let parameters = pieces.iter().map(|piece| u128::from(piece.bytes)).sum::<u128>() / 4;
                let most = architecture.most_parameters();
                prop_assert!(parameters <= most, "{text}: {parameters} parameters, said to be at most {most}");
                if pieces.len() < 2_000 {
                    runs(&architecture);
                }
            }
        }
    }
}

/// Every operation at a small and at the largest size has a program or a refusal.
fn runs(architecture: &Architecture) {
    let pixels = |side| Extent::Pixels { width: side, height: side, frames: 1 };
    for operation in Operation::ALL.into_iter().filter(|operation| architecture.runs(*operation)) {
        let extents = match operation {
            Operation::TextEncode => [Extent::Text { tokens: 1 }, Extent::Text { tokens: 1 << 16 }],
            _ => [pixels(128), pixels(1 << 16)],
        };
        for (extent, batch) in extents.into_iter().zip([2, 16]) {
            for attention in AttentionKernel::ALL {
                let execution = Execution { attention, ..Execution::default() };
                let case = Case { operation, dtype: DType::Fp32, extent, batch, tiling: None };
                if let Ok(program) = program(architecture, &case, &execution) {
                    assert!(program.peak(headroom_runners::programs::Run::Later).is_some());
                }
            }
        }
    }
}

/// Parameters of a model, counted as its weights are.
fn parameters(architecture: &Architecture) -> u64 {
    weights(architecture, DType::Fp32).iter().map(|piece| piece.bytes).sum::<u64>() / 4
}

#[test]
fn models_that_are_not_shipped_have_the_parameters_that_were_published() {
    let sd21 = "{ kind: unet2d_condition, attention_head_dim: [5, 10, 20, 20], block_out_channels: [320, 640, 1280, 1280], \
                transformer_layers_per_block: [1, 1, 1, 0], cross_attention_dim: 1024, use_linear_projection: true }";
    assert_eq!(parameters(&read(sd21).unwrap()), 865_910_724);
    let fill = "{ kind: flux_transformer, guidance_embeds: true, in_channels: 384";
    let [fill, same] = [", out_channels: 64 }", " }"].map(|end| parameters(&read(&format!("{fill}{end}")).unwrap()));
    // 320 outputs of 3,072 channels, and their biases.
    assert_eq!(same - fill, 320 * 3072 + 320);
}

#[test]
fn more_scores_of_attention_than_bytes_can_be_counted_are_refused() {
    let t5 = Architecture::T5Encoder(T5Encoder { num_heads: 1024, ..T5Encoder::default() });
    let flat = Architecture::AutoencoderKl(AutoencoderKl { block_out_channels: vec![32], ..AutoencoderKl::default() });
    let cases = [
        (t5, Case::text(DType::Fp32, 1 << 16).with_batch(1 << 20)),
        (flat, Case::image(Operation::VaeDecode, DType::Fp32, 1 << 16, 1 << 16)),
    ];
    for (architecture, case) in cases {
        let execution = Execution { attention: AttentionKernel::Math, ..Execution::default() };
        let error = program(&architecture, &case, &execution).unwrap_err().to_string();
        assert!(error.contains("scores of attention at once"), "{error}");
    }
}
