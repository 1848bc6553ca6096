//! Workspaces follow channels and sizes: the formula against its own terms, and the programs against the formula.

use std::collections::BTreeMap;

use headroom_base::{Case, DType, MemoryLayout, Operation};
use headroom_family::Architecture;
use headroom_family::architecture::AutoencoderKl;
use headroom_runners::programs::{ConvolutionCall, ConvolutionTerms, Execution, Role, WorkspaceModel, program};
use proptest::prelude::*;

/// The most that partial sums take: a tile of 128 × 256 numbers in fp32 for each multiprocessor, and their additions.
const MOST_PARTIAL_BYTES: u64 = 132 * 128 * 256 * 4 + 28 + 132 * 8 * 4;
/// What the kernels ask for themselves at most, whatever the size.
const MOST_FIXED_BYTES: u64 = 512;

/// A call whose sizes are kept, with channels in multiples of eight: no padding hides what grows.
fn call(dtype: DType, channels: [u64; 2], size: &[u64], batch: u64) -> ConvolutionCall {
    ConvolutionCall {
        dtype,
        layout: MemoryLayout::Contiguous,
        batch,
        input_channels: 8 * channels[0],
        output_channels: 8 * channels[1],
        input: size.to_vec(),
        output: size.to_vec(),
        kernel: vec![3; size.len()],
    }
}

fn terms(call: &ConvolutionCall) -> ConvolutionTerms {
    WorkspaceModel::Hopper.convolution(call)
}

fn sizes() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![prop::collection::vec(3_u64..300, 2), prop::collection::vec(3_u64..60, 3)]
}

proptest! {
    #[test]
    fn each_copy_grows_with_its_own_factors_and_with_no_other(
        dtype in prop::sample::select(DType::ALL.to_vec()),
        channels in [1_u64..80, 1_u64..80],
        size in sizes(),
        batch in 1_u64..4,
        by in 2_u64..5,
    ) {
        let copies = |terms: ConvolutionTerms| [terms.input, terms.output, terms.weights];
        let plain = copies(terms(&call(dtype, channels, &size, batch)));
        let [input, output, weights] = plain;
        let elements = size.iter().product::<u64>() * batch * dtype.element_bytes();
        prop_assert_eq!([input, output], channels.map(|count| 8 * count * elements));
        prop_assert_eq!(weights, 64 * channels[0] * channels[1] * 3_u64.pow(size.len() as u32) * dtype.element_bytes());
        let wider = |channels| copies(terms(&call(dtype, channels, &size, batch)));
        prop_assert_eq!(wider([by * channels[0], channels[1]]), [by * input, output, by * weights]);
        prop_assert_eq!(wider([channels[0], by * channels[1]]), [input, by * output, by * weights]);
        for dimension in 0..size.len() {
            let mut longer = size.clone();
            longer[dimension] *= by;
            let grown = copies(terms(&call(dtype, channels, &longer, batch)));
            prop_assert_eq!(grown, [by * input, by * output, weights]);
        }
        prop_assert_eq!(copies(terms(&call(dtype, channels, &size, by * batch))), [by * input, by * output, weights]);
    }

    #[test]
    fn a_workspace_is_the_sum_of_its_terms_and_what_is_no_copy_stays_small(
        dtype in prop::sample::select(DType::ALL.to_vec()),
        channels in [1_u64..80, 1_u64..80],
        size in sizes(),
        batch in 1_u64..4,
    ) {
        let terms = terms(&call(dtype, channels, &size, batch));
        let ConvolutionTerms { input, output, weights, partial, fixed } = terms;
        prop_assert_eq!(terms.total(), input + output + weights + partial + fixed);
        prop_assert!(partial <= MOST_PARTIAL_BYTES, "{partial} of partial sums");
        prop_assert!(fixed <= MOST_FIXED_BYTES, "{fixed} fixed");
    }
}

/// Workspaces of the 3×3 convolutions inside a decoder of these channels, by place.
fn workspaces(channels: u32, width: u32) -> BTreeMap<String, u64> {
    let architecture = Architecture::AutoencoderKl(AutoencoderKl {
        block_out_channels: vec![channels, 2 * channels, 4 * channels, 4 * channels],
        ..AutoencoderKl::default()
    });
    let case = Case::image(Operation::VaeDecode, DType::Fp16, width, 2048);
    let program = program(&architecture, &case, &Execution::default()).unwrap();
    let convolutions = program.allocations().filter(|tensor| tensor.role == Role::Workspace);
    convolutions
        .filter(|tensor| ["resnets", "upsamplers"].iter().any(|part| tensor.label.place.contains(part)))
        .filter(|tensor| !tensor.label.place.contains("shortcut"))
        .map(|tensor| (tensor.label.place.to_string(), tensor.bytes))
        .collect()
}

#[test]
fn a_programs_workspaces_grow_with_the_image_and_with_the_channels_as_copies_do() {
    let at = |channels| [1024, 2048, 3072].map(|width| workspaces(channels, width));
    let (narrow, wide) = (at(128), at(256));
    assert!(narrow[0].len() > 20, "{} convolutions", narrow[0].len());
    for place in narrow[0].keys() {
        let [small, middle, large] = [0, 1, 2].map(|width: usize| narrow[width][place]);
        let (grown, wide_grown) = (middle - small, wide[1][place] - wide[0][place]);
        assert!(grown > 0 && large - middle == grown, "{place} does not grow evenly with the image");
        assert_eq!(wide_grown, 2 * grown, "{place}: what grows with the image does not grow with the channels");
        // What the image does not change: weights, with the square of the channels, and the kernels' own.
        let (kept, wide_kept) = (small - grown, wide[0][place] - wide_grown);
        let own = (4 * kept - wide_kept) / 3;
        assert_eq!(4 * (kept - own), wide_kept - own, "{place}: weights do not grow with the square of the channels");
        assert!(own <= MOST_FIXED_BYTES, "{place}: {own} neither of the image nor of weights");
    }
}
