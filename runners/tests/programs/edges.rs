//! The edges of what can be asked: each has a program or an error that says what is supported, and none ends in a panic.

use headroom_base::{Case, DType, Extent, Operation, Tiling};
use headroom_family::Architecture;
use headroom_family::architecture::{AutoencoderKl, ClipTextEncoder, FluxTransformer, T5Encoder, Unet2dCondition};
use headroom_runners::programs::show::text;
use headroom_runners::programs::{Execution, Run, program};
use proptest::prelude::*;

use super::cases::{architectures, assert_well_formed};

fn sdxl() -> Architecture {
    Architecture::AutoencoderKl(AutoencoderKl::default())
}

fn tiled(operation: Operation, side: u32, tile_pixels: u32, overlap_percent: u32) -> Case {
    Case::image(operation, DType::Fp16, side, side).with_tiling(Tiling { tile_pixels, overlap_percent })
}

fn refusal(architecture: &Architecture, case: &Case) -> String {
    match program(architecture, case, &Execution::default()) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{case} has a program"),
    }
}

#[test]
fn tiles_that_the_model_cannot_run_are_refused_with_the_way_out() {
    // Steps of 384 pixels leave one pixel of 1537: the encoder would halve it to nothing.
    let words = refusal(&sdxl(), &tiled(Operation::VaeEncode, 1537, 512, 25));
    assert!(
        words.contains("at least 8 pixels") && words.contains("leave 1 of 1537") && words.contains("pad"),
        "{words}"
    );
    let neighbours = [1536, 1544, 1600].map(|side| tiled(Operation::VaeEncode, side, 512, 25));
    for case in neighbours {
        assert_well_formed(&program(&sdxl(), &case, &Execution::default()).unwrap());
    }
    for operation in [Operation::VaeDecode, Operation::VaeEncode] {
        assert!(refusal(&sdxl(), &tiled(operation, 64, 4, 25)).contains("tiles of at least 8 pixels"));
        for overlap in [100, 101, u32::MAX] {
            assert!(refusal(&sdxl(), &tiled(operation, 1024, 512, overlap)).contains("less than 100 %"));
        }
    }
}

#[test]
fn what_no_card_could_hold_is_refused_before_any_sum_of_bytes_overflows() {
    let t5 = Architecture::T5Encoder(T5Encoder::default());
    let clip = Architecture::ClipTextEncoder(ClipTextEncoder::default());
    let flux = Architecture::FluxTransformer(FluxTransformer::default());
    let unet = Architecture::Unet2dCondition(Unet2dCondition::default());
    let image = |operation, side| Case::image(operation, DType::Fp32, side, side);
    let most = u32::MAX;
    let refused = [
        (&sdxl(), image(Operation::VaeDecode, most), "at most 65536 pixels"),
        (&sdxl(), image(Operation::VaeDecode, 64).with_batch(most), "at once"),
        (&unet, image(Operation::Denoise, most), "at most 65536 pixels"),
        (&flux, image(Operation::Denoise, 1024).with_batch(most), "at once"),
        (&t5, Case::text(DType::Fp32, most), "at most 65536 tokens"),
        (&t5, Case::text(DType::Fp32, 512).with_batch(most), "at once"),
        (&clip, Case::text(DType::Fp32, most), "at most 65536 tokens"),
    ];
    for (architecture, case, words) in refused {
        let error = refusal(architecture, &case);
        assert!(error.contains(words), "{error}");
    }
    for (architecture, operations) in architectures() {
        for operation in operations {
            let case =
                Case { extent: Extent::Pixels { width: 64, height: 64, frames: most - 2 }, ..image(operation, 64) };
            refusal(&architecture, &case);
        }
    }
}

#[test]
fn the_largest_that_is_taken_is_shown_without_overflowing() {
    let t5 = Architecture::T5Encoder(T5Encoder::default());
    let execution = Execution { attention: headroom_base::AttentionKernel::Math, ..Execution::default() };
    let cases = [
        (t5, Case::text(DType::Fp32, 1 << 16).with_batch(1 << 20)),
        (sdxl(), Case::image(Operation::VaeDecode, DType::Fp32, 1 << 16, 1 << 16).with_batch(16)),
    ];
    for (architecture, case) in cases {
        let program = program(&architecture, &case, &execution).unwrap();
        assert!(text(&program, Run::Later).contains("◀ peak"), "{case}");
    }
}

#[test]
fn a_unet_runs_on_as_little_as_one_latent() {
    let four_levels = Unet2dCondition {
        block_out_channels: vec![320, 640, 1280, 1280],
        transformer_layers_per_block: vec![1, 1, 1, 0],
        attention_heads: vec![8; 4],
        cross_attention_dim: 768,
        mid_block_transformer_layers: 1,
        use_linear_projection: false,
        projection_class_embeddings_input_dim: None,
        ..Unet2dCondition::default()
    };
    for unet in [four_levels, Unet2dCondition::default()] {
        let architecture = Architecture::Unet2dCondition(unet);
        for side in [8, 24, 64, 100] {
            let case = Case::image(Operation::Denoise, DType::Fp16, side, side);
            assert_well_formed(&program(&architecture, &case, &Execution::default()).unwrap());
        }
        assert!(refusal(&architecture, &Case::image(Operation::Denoise, DType::Fp16, 7, 8)).contains("8 pixels"));
    }
}

proptest! {
    #[test]
    fn any_tile_of_any_image_has_a_program_or_a_refusal(
        side in [1_u32..700, 1_u32..700],
        tile_pixels in 0_u32..600,
        overlap_percent in 0_u32..120,
        encodes in any::<bool>(),
    ) {
        let operation = if encodes { Operation::VaeEncode } else { Operation::VaeDecode };
        let tiling = Tiling { tile_pixels, overlap_percent };
        // Fewer than a few hundred tiles, so that a run takes moments.
        let step = u64::from(tile_pixels) * u64::from(100_u32.saturating_sub(overlap_percent)) / 100;
        prop_assume!(step == 0 || side.iter().map(|size| u64::from(*size).div_ceil(step)).product::<u64>() < 200);
        prop_assume!(step >= 8 || tile_pixels < 8 || overlap_percent >= 100);
        let case = Case::image(operation, DType::Bf16, side[0], side[1]).with_tiling(tiling);
        if let Ok(program) = program(&sdxl(), &case, &Execution::default()) {
            assert_well_formed(&program);
        }
    }

    #[test]
    fn any_small_case_has_a_program_or_a_refusal(
        which in 0_usize..9,
        size in [0_u32..200, 0_u32..200],
        frames in 0_u32..10,
        batch in 0_u32..4,
        tokens in 0_u32..100,
        dtype in prop::sample::select(DType::ALL.to_vec()),
        layout in prop::sample::select(headroom_base::MemoryLayout::ALL.to_vec()),
    ) {
        let (architecture, operations) = architectures().swap_remove(which);
        let execution = Execution { memory_layout: layout, ..Execution::default() };
        for operation in Operation::ALL {
            for extent in [Extent::Pixels { width: size[0], height: size[1], frames }, Extent::Text { tokens }] {
                let case = Case { operation, dtype, extent, batch, tiling: None };
                match program(&architecture, &case, &execution) {
                    Ok(program) => {
                        assert!(operations.contains(&operation), "{case} has a program");
                        assert_well_formed(&program);
                    }
                    Err(error) => prop_assert!(!error.to_string().is_empty()),
                }
            }
        }
    }
}
