//! What can be said of plans with no GPU.

use headroom_base::{AttentionKernel, Case, DType, MemoryLayout, Operation};
use headroom_family::Architecture;
use headroom_family::architecture::{
    AutoencoderKl, AutoencoderKlFlux2, AutoencoderTiny, CausalAutoencoder, ClipTextEncoder, FluxTransformer, T5Encoder,
    Unet2dCondition,
};
use proptest::prelude::*;

use super::call::{Argument, Call, KernelCall};
use super::product::{Batch, Gemm, Mapped, Matrix, Problem};
use super::{calls, contents, convolution};
use crate::programs::computation::Source;
use crate::programs::{Execution, computation};

fn cases() -> Vec<(Architecture, Case)> {
    let coders = [
        Architecture::AutoencoderKl(AutoencoderKl::default()),
        Architecture::AutoencoderKlFlux2(AutoencoderKlFlux2::default()),
        Architecture::AutoencoderKlQwenImage(CausalAutoencoder::default()),
        Architecture::AutoencoderKlWan(CausalAutoencoder::default()),
        Architecture::AutoencoderTiny(AutoencoderTiny::default()),
    ];
    let image = |operation| Case::image(operation, DType::Fp16, 256, 192);
    let coded = coders.into_iter().flat_map(|coder| {
        [Operation::VaeDecode, Operation::VaeEncode].map(|operation| (coder.clone(), image(operation)))
    });
    let denoised = [
        Architecture::Unet2dCondition(Unet2dCondition::default()),
        Architecture::FluxTransformer(FluxTransformer::default()),
    ];
    let texts =
        [Architecture::ClipTextEncoder(ClipTextEncoder::default()), Architecture::T5Encoder(T5Encoder::default())];
    coded
        .chain(denoised.map(|model| (model, image(Operation::Denoise))))
        .chain(texts.map(|model| (model, Case::text(DType::Fp16, 77))))
        .collect()
}

/// Every way in which operations are executed.
fn executions() -> Vec<Execution> {
    let mut all = Vec::new();
    for attention in AttentionKernel::ALL {
        for memory_layout in MemoryLayout::ALL {
            all.push(Execution { attention, memory_layout, ..Execution::default() });
        }
    }
    all.push(Execution { stored: Some(DType::Fp32), ..Execution::default() });
    all
}

/// The words that a parameter of this C type takes.
fn words_of(kind: &str) -> usize {
    match kind {
        "const Walk" => 2 + 6 + 5 * 6,
        "const Convolution" => 6 * 5 + 2 * 3,
        "const Attention" | "const AttentionSingle" => 6 + 1 + 4 * 3,
        _ => 1,
    }
}

/// Whether a kernel is given what its text declares: as many arguments, each of its type's size.
fn assert_given_what_it_declares(call: &KernelCall) {
    let KernelCall { instance, blocks, threads, shared_bytes, arguments } = call;
    let opened = format!("{}(", instance.name);
    let start = instance.text.find(&opened).expect("a kernel declares itself by its name") + opened.len();
    let end = start + instance.text[start..].find(')').expect("a list of parameters ends");
    let declared: Vec<&str> = instance.text[start..end].split(", ").collect();
    assert_eq!(declared.len(), arguments.len(), "{}", instance.name);
    for (parameter, argument) in declared.iter().zip(arguments) {
        let (kind, _) = parameter.rsplit_once(' ').expect("a type and a name");
        match argument {
            Argument::At(_) | Argument::Nowhere => assert!(kind.ends_with('*'), "{}: {parameter}", instance.name),
            Argument::Words(words) => assert_eq!(words.len(), words_of(kind), "{}: {parameter}", instance.name),
        }
    }
    assert!(blocks.iter().all(|&count| count > 0) && blocks[1] <= 65_535 && blocks[2] <= 65_535);
    assert!(threads % 32 == 0 && *threads <= 1024 && *shared_bytes <= 99 * 1024, "{}", instance.name);
    assert!(instance.text.contains(&format!("__launch_bounds__({threads})")));
}

#[test]
fn every_launch_of_every_architecture_has_a_kernel_that_is_given_what_it_declares() {
    for (architecture, case) in cases() {
        for dtype in DType::ALL {
            for execution in executions() {
                let case = Case { dtype, ..case };
                if execution.stored == Some(dtype) {
                    continue;
                }
                let computation = computation(&architecture, &case, &execution).unwrap();
                assert!(!computation.launches.is_empty());
                let fillings = computation.parameters.iter().chain(&computation.inputs);
                for filling in fillings.filter_map(|given| contents::filling(given, Source::Nothing)) {
                    assert_given_what_it_declares(&filling);
                }
                for launch in &computation.launches {
                    let planned = calls(launch).unwrap_or_else(|error| panic!("{case} {launch:?}: {error}"));
                    for call in planned {
                        match call {
                            Call::Kernel(kernel) => assert_given_what_it_declares(&kernel),
                            Call::Convolution(call) => {
                                assert_given_what_it_declares(&convolution::own_kernel(&call));
                            }
                            Call::Product(_) => {}
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn products_and_attention_of_the_models_take_the_libraries_and_tensor_cores() {
    for (architecture, case) in cases() {
        let computation = computation(&architecture, &case, &Execution::default()).unwrap();
        for launch in &computation.launches {
            for call in calls(launch).unwrap() {
                let Call::Kernel(kernel) = call else { continue };
                let name = &kernel.instance.name;
                assert!(!name.starts_with("product_"), "{case}: {launch:?} falls back to {name}");
                assert!(!name.starts_with("attention_single"), "{case}: {name} in half precision");
            }
        }
    }
}

/// What cuBLAS computes for these arguments, on whole numbers.
fn by_library(gemm: &Gemm, first: &[i64], second: &[i64], offsets: [u64; 3], out: &mut [i64]) {
    let [m, n, k] = gemm.sizes.map(|size| size as usize);
    let [lead_first, lead_second, lead_out] = gemm.leading.map(|leading| leading as usize);
    assert!(lead_out >= m.max(1), "columns of the output overlap");
    assert!(lead_first >= if gemm.transposed[0] { k } else { m }.max(1));
    assert!(lead_second >= if gemm.transposed[1] { n } else { k }.max(1));
    for batch in 0..gemm.count as usize {
        let start: [usize; 3] = std::array::from_fn(|i| offsets[i] as usize + batch * gemm.strides[i] as usize);
        for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
            let term = |term: usize| {
                let left = if gemm.transposed[0] { row * lead_first + term } else { term * lead_first + row };
                let right = if gemm.transposed[1] { term * lead_second + column } else { column * lead_second + term };
                first[start[0] + left] * second[start[1] + right]
            };
            out[start[2] + column * lead_out + row] = (0..k).map(term).sum();
        }
    }
}

fn mapped(problem: &Problem, left: &[i64], right: &[i64], size: usize) -> Option<Vec<i64>> {
    let Mapped { gemm, offsets } = problem.mapped()?;
    let mut out = vec![-1; size];
    for [at_left, at_right, at_out] in offsets {
        if gemm.swapped {
            by_library(&gemm, right, left, [at_right, at_left, at_out], &mut out);
        } else {
            by_library(&gemm, left, right, [at_left, at_right, at_out], &mut out);
        }
    }
    Some(out)
}

fn naive(problem: &Problem, left: &[i64], right: &[i64], size: usize) -> Vec<i64> {
    let [m, n, k] = problem.sizes;
    let mut starts = vec![[0_u64; 3]];
    for Batch { size, strides } in &problem.batches {
        let step = |start: [u64; 3], at: u64| std::array::from_fn(|i| start[i] + at * strides[i]);
        starts = starts.iter().flat_map(|&start| (0..*size).map(move |at| step(start, at))).collect();
    }
    let mut out = vec![-1; size];
    for [at_left, at_right, at_out] in starts {
        for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
            let term = |term| {
                let a = at_left + row * problem.left.row + term * problem.left.column;
                let b = at_right + term * problem.right.row + column * problem.right.column;
                left[a as usize] * right[b as usize]
            };
            out[(at_out + row * problem.out.row + column * problem.out.column) as usize] = (0..k).map(term).sum();
        }
    }
    out
}

/// A matrix of these sizes with rows or columns dense, and a gap between lines.
fn matrix(rows: u64, columns: u64, by_rows: bool, gap: u64) -> (Matrix, u64) {
    if by_rows {
        (Matrix { row: columns + gap, column: 1 }, rows * (columns + gap))
    } else {
        (Matrix { row: 1, column: rows + gap }, columns * (rows + gap))
    }
}

proptest! {
    /// Strides in cuBLAS's words compute the product that plain loops compute, whatever lies side by side.
    #[test]
    fn strides_in_the_librarys_words_compute_what_plain_loops_do(
        sizes in prop::array::uniform3(1_u64..5),
        by_rows in prop::array::uniform3(any::<bool>()),
        gaps in prop::array::uniform3(0_u64..3),
        batches in prop::collection::vec(1_u64..4, 0..3),
        shared in any::<bool>(),
    ) {
        let [m, n, k] = sizes;
        let (left, left_size) = matrix(m, k, by_rows[0], gaps[0]);
        let (right, right_size) = matrix(k, n, by_rows[1], gaps[1]);
        let (out, out_size) = matrix(m, n, by_rows[2], gaps[2]);
        let (mut each, mut total) = ([left_size, right_size, out_size], Vec::new());
        for &size in &batches {
            let strides = [each[0], if shared { 0 } else { each[1] }, each[2]];
            total.push(Batch { size, strides });
            each = std::array::from_fn(|i| each[i] * size);
        }
        let problem = Problem { sizes, left, right, out, batches: total };
        let values = |size: u64, factor: i64| (0..size as i64).map(|i| (i * factor) % 11 - 5).collect::<Vec<_>>();
        let (left, right) = (values(each[0], 7), values(each[1], 3));
        let by_library = mapped(&problem, &left, &right, each[2] as usize);
        prop_assert_eq!(by_library, Some(naive(&problem, &left, &right, each[2] as usize)));
    }

    /// Strides that cuBLAS has no words for are never turned into wrong ones.
    #[test]
    fn strides_that_the_library_has_no_words_for_are_left_to_a_kernel(
        sizes in prop::array::uniform3(1_u64..4),
        strides in prop::array::uniform3((0_u64..5, 0_u64..5)),
    ) {
        let [left, right, out] = strides.map(|(row, column)| Matrix { row, column });
        // An output whose elements share a place is none.
        prop_assume!(out.row * (sizes[0] - 1) < out.column || out.column * (sizes[1] - 1) < out.row);
        let problem = Problem { sizes, left, right, out, batches: Vec::new() };
        let values: Vec<i64> = (0..64).map(|i| (i * 7) % 11 - 5).collect();
        if let Some(found) = mapped(&problem, &values, &values, 64) {
            prop_assert_eq!(found, naive(&problem, &values, &values, 64));
        }
    }
}
