//! What programs exist for: sizes, element types, lengths and options; and what is refused, with words that help.

use headroom_base::{AllocatorKind, Case, CostUnit, DType, Operation, Tiling};
use headroom_family::Architecture;
use headroom_family::architecture::{
    AutoencoderKl, AutoencoderKlFlux2, AutoencoderTiny, CausalAutoencoder, ClipTextEncoder, FluxTransformer, T5Encoder,
    Unet2dCondition,
};
use headroom_runners::programs::evidence::{read_windows, recorded_case};
use headroom_runners::programs::{
    Execution, Program, Role, Run, Step, analytic_terms, cost_units, estimator, line, predict, program, weights,
};
use proptest::prelude::*;

use crate::recorded;

pub(super) fn architectures() -> Vec<(Architecture, Vec<Operation>)> {
    let coders = vec![Operation::VaeDecode, Operation::VaeEncode];
    vec![
        (Architecture::AutoencoderKl(AutoencoderKl::default()), coders.clone()),
        (Architecture::AutoencoderKlFlux2(AutoencoderKlFlux2::default()), coders.clone()),
        (Architecture::AutoencoderKlQwenImage(CausalAutoencoder::default()), coders.clone()),
        (Architecture::AutoencoderKlWan(CausalAutoencoder::default()), coders.clone()),
        (Architecture::AutoencoderTiny(AutoencoderTiny::default()), coders),
        (Architecture::Unet2dCondition(Unet2dCondition::default()), vec![Operation::Denoise]),
        (Architecture::FluxTransformer(FluxTransformer::default()), vec![Operation::Denoise]),
        (Architecture::ClipTextEncoder(ClipTextEncoder::default()), vec![Operation::TextEncode]),
        (Architecture::T5Encoder(T5Encoder::default()), vec![Operation::TextEncode]),
    ]
}

fn derive(architecture: &Architecture, case: &Case) -> Program {
    program(architecture, case, &Execution::default()).unwrap_or_else(|error| panic!("{case}: {error}"))
}

/// Every tensor is freed at most once and only while it lives; what stays is the output and what libraries keep.
pub(super) fn assert_well_formed(program: &Program) {
    let mut live = std::collections::HashSet::new();
    for step in &program.steps {
        match step {
            Step::Allocate { tensor, bytes, .. } => {
                assert!(*bytes > 0 && live.insert(*tensor), "{}: {tensor:?} twice", program.case);
            }
            Step::Free { tensor } => assert!(live.remove(tensor), "{}: {tensor:?} is not live", program.case),
        }
    }
    let kept = program.allocations().filter(|tensor| live.contains(&tensor.tensor));
    let outputs = kept.filter(|tensor| tensor.role != Role::Persistent).count();
    assert!((1..=4).contains(&outputs), "{}: {outputs} tensors stay", program.case);
    assert!(program.allocations().all(|tensor| tensor.role != Role::Workspace || !live.contains(&tensor.tensor)));
}

#[test]
fn every_architecture_has_programs_for_every_size_and_element_type_asked_for() {
    let sizes = [(1216, 832), (1344, 768), (2048, 2048), (1080, 1920), (1000, 1000), (256, 256)];
    for (architecture, operations) in architectures() {
        for operation in operations {
            for dtype in DType::ALL {
                if operation == Operation::TextEncode {
                    assert_well_formed(&derive(&architecture, &Case::text(dtype, 77).with_batch(2)));
                    continue;
                }
                for (width, height) in sizes {
                    let program = derive(&architecture, &Case::image(operation, dtype, width, height));
                    assert_well_formed(&program);
                    assert!(program.peak(Run::Later).is_some_and(|(_, bytes)| bytes > 0));
                }
            }
        }
    }
}

#[test]
fn clips_of_every_length_have_programs_and_longer_ones_never_need_less() {
    let wan = Architecture::AutoencoderKlWan(CausalAutoencoder::default());
    for operation in [Operation::VaeDecode, Operation::VaeEncode] {
        let mut before = 0;
        for frames in (1..=81).step_by(4) {
            let case = Case::image(operation, DType::Bf16, 832, 480).with_frames(frames);
            let program = derive(&wan, &case);
            assert_well_formed(&program);
            let (_, peak) = program.peak(Run::Later).unwrap();
            assert!(peak >= before, "{case} needs less than the shorter clip");
            before = peak;
        }
    }
}

#[test]
fn tiling_bounds_a_decode_by_its_tile_and_keeps_every_tile_until_blending() {
    let sdxl = Architecture::AutoencoderKl(AutoencoderKl::default());
    let tiling = Tiling { tile_pixels: 512, overlap_percent: 25 };
    let peak = |case: Case| derive(&sdxl, &case).peak(Run::Later).unwrap().1;
    let decode = |side| Case::image(Operation::VaeDecode, DType::Fp16, side, side);
    let tile = peak(decode(512));
    let (small, large) = (peak(decode(1024).with_tiling(tiling)), peak(decode(4096).with_tiling(tiling)));
    assert!(tile < small && small < large && large < peak(decode(4096)) / 8);
    // What is kept beside the tile at work grows with the image: three channels of two bytes and the overlap.
    assert!(large - tile > 4096 * 4096 * 3 * 2);
    assert_eq!(peak(decode(512).with_tiling(tiling)), tile, "an image of one tile is not tiled");
}

#[test]
fn what_is_not_supported_says_what_is() {
    let [sdxl, wan, clip] = [
        Architecture::AutoencoderKl(AutoencoderKl::default()),
        Architecture::AutoencoderKlWan(CausalAutoencoder::default()),
        Architecture::ClipTextEncoder(ClipTextEncoder::default()),
    ];
    let tiling = Tiling { tile_pixels: 256, overlap_percent: 25 };
    let image = |operation| Case::image(operation, DType::Fp16, 512, 512);
    let refused = [
        (&sdxl, image(Operation::Denoise), "vae_decode, vae_encode"),
        (&sdxl, image(Operation::VaeDecode).with_frames(5), "one frame"),
        (&sdxl, Case::text(DType::Fp16, 77), "pixels"),
        (&wan, image(Operation::VaeDecode).with_frames(6), "groups of 4"),
        (&wan, image(Operation::VaeDecode).with_tiling(tiling), "autoencoder_kl"),
        (&clip, Case::text(DType::Fp16, 78), "at most 77 tokens"),
        (&sdxl, image(Operation::VaeDecode).with_batch(0), "at least one"),
    ];
    for (architecture, case, words) in refused {
        let error = program(architecture, &case, &Execution::default()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn weights_are_those_of_the_recorded_models() {
    let text = std::fs::read_to_string(recorded::path("h200/windows-held-out.jsonl")).unwrap();
    let mut checked = 0;
    for (index, content) in text.lines().enumerate() {
        let (recorded, _) = recorded_case(content, index + 1).unwrap();
        let value: serde_json::Value = serde_json::from_str(content).unwrap();
        let architecture = recorded::architecture(&recorded).unwrap();
        let pieces = weights(&architecture, recorded.case.dtype);
        // The recording counts parameters alone; statistics and positions are buffers.
        let parameters = pieces.iter().filter(|piece| piece.floating && !piece.name.starts_with("bn."));
        let bytes: u64 = parameters.map(|piece| piece.bytes).sum();
        assert_eq!(Some(bytes), value["weights_bytes"].as_u64(), "{} {}", recorded.family, recorded.case);
        checked += 1;
    }
    assert!(checked > 1000, "{checked} windows");
    assert_eq!(read_windows(&text).unwrap().len(), checked);
}

#[test]
fn weights_stored_in_another_type_are_held_twice_and_that_is_known_exactly() {
    let sdxl = Architecture::AutoencoderKl(AutoencoderKl::default());
    let case = Case::image(Operation::VaeDecode, DType::Fp32, 512, 512);
    let plain = Execution::default();
    let stored = Execution { stored: Some(DType::Fp16), ..Execution::default() };
    let peak = |execution| program(&sdxl, &case, &execution).unwrap().peak(Run::Later).unwrap().1;
    let terms = analytic_terms(&sdxl, &case, DType::Fp16);
    let copy: u64 = weights(&sdxl, DType::Fp32).iter().map(|piece| piece.bytes.next_multiple_of(512)).sum();
    assert_eq!(terms.iter().map(|term| term.bytes).sum::<u64>(), copy);
    assert_eq!(peak(stored) - peak(plain), copy);
    assert!(analytic_terms(&sdxl, &case, DType::Fp32).is_empty());
    let program = program(&sdxl, &case, &Execution { stored: Some(DType::Fp16), ..Execution::default() }).unwrap();
    assert_well_formed(&program);
}

#[test]
fn alike_models_share_a_line_and_others_do_not() {
    let case = Case::image(Operation::VaeDecode, DType::Bf16, 1024, 1024);
    let sdxl = Architecture::AutoencoderKl(AutoencoderKl::default());
    let flux = Architecture::AutoencoderKl(AutoencoderKl {
        latent_channels: 16,
        use_quant_conv: false,
        use_post_quant_conv: false,
        ..AutoencoderKl::default()
    });
    let cogview = Architecture::AutoencoderKl(AutoencoderKl {
        block_out_channels: vec![128, 512, 1024, 1024],
        layers_per_block: 3,
        mid_block_add_attention: false,
        ..AutoencoderKl::default()
    });
    let flux2 = Architecture::AutoencoderKlFlux2(AutoencoderKlFlux2::default());
    assert_eq!(line(&sdxl, &case), line(&flux, &case));
    assert_eq!(line(&sdxl, &case), line(&flux2, &case));
    assert_eq!(line(&sdxl, &case).estimator, "autoencoder_kl");
    assert_ne!(line(&sdxl, &case), line(&cogview, &case));
    assert_ne!(line(&sdxl, &case), line(&sdxl, &Case { dtype: DType::Fp32, ..case }));
    let clip = |frames| Case::image(Operation::VaeDecode, DType::Bf16, 832, 480).with_frames(frames);
    let wan = Architecture::AutoencoderKlWan(CausalAutoencoder::default());
    assert_eq!(estimator(&wan, Operation::VaeDecode).unit, CostUnit::PixelChunkBytes { frames: 4 });
    assert_eq!(cost_units(&wan, &clip(17)), 4 * cost_units(&wan, &clip(1)));
    assert_eq!(analytic_terms(&wan, &clip(17), DType::Bf16)[0].bytes, 832 * 480 * 17 * 3 * 2);
}

#[test]
fn a_first_run_needs_what_libraries_keep_on_top() {
    let sdxl = Architecture::AutoencoderKl(AutoencoderKl::default());
    let case = Case::image(Operation::VaeDecode, DType::Fp16, 512, 512);
    let kept = derive(&sdxl, &case).persistent_bytes();
    assert_eq!(kept, 33 << 20);
    for kind in AllocatorKind::ALL {
        let prediction = predict(&sdxl, &case, &Execution::default(), kind).unwrap();
        let more = prediction.first.allocated_peak_bytes - prediction.later.allocated_peak_bytes;
        assert!(more.abs_diff(kept) <= 1 << 20, "{kind}: {more} more on the first run");
        assert_eq!(prediction.later.allocated_baseline_bytes - prediction.first.allocated_baseline_bytes, kept);
    }
}

proptest! {
    #[test]
    fn larger_images_never_need_less(width in 4_u32..24, height in 4_u32..24, more in 1_u32..8) {
        let sdxl = Architecture::AutoencoderKl(AutoencoderKl::default());
        let decode = |width: u32, height: u32| {
            let case = Case::image(Operation::VaeDecode, DType::Fp16, 64 * width, 64 * height);
            derive(&sdxl, &case).peak(Run::Later).unwrap().1
        };
        prop_assert!(decode(width + more, height) > decode(width, height));
        prop_assert!(decode(width, height + more) > decode(width, height));
    }
}
