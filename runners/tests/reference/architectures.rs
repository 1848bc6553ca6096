//! Small models of every architecture through the reference: no program looks at memory that is not there, reads what
//! nobody wrote, or leaves a parameter out.

use std::collections::BTreeSet;

use headroom_base::{AttentionKernel, Case, DType, MemoryLayout};
use headroom_family::Architecture;
use headroom_runners::programs::computation::{Given, Source};
use headroom_runners::programs::{Computation, Element, Execution, Piece, program, weights};
use headroom_runners::reference::{Contents, Outputs, Tolerance, compare, execute, filled, rounded};

use super::models::{Executed, derived, ends, executed, models};

/// What no operation of a model reads, and rightly: statistics that FLUX.2 applies outside the autoencoder.
fn rightly_unread(name: &str) -> bool {
    name.starts_with("bn.")
}

#[test]
fn every_output_is_of_finite_values() {
    for run in executed() {
        for (number, output) in run.outputs().outputs.iter().enumerate() {
            let finite = output.values.iter().all(|value| value.is_finite());
            assert!(finite && !output.values.is_empty(), "{run}: output {number}");
        }
    }
}

#[test]
fn every_input_and_every_parameter_is_read() {
    for model in models() {
        let mut unread: BTreeSet<_> =
            weights(&model.architecture, DType::Fp32).into_iter().map(|piece| piece.name).collect();
        for run in executed().iter().filter(|run| run.model.name == model.name) {
            let left = &run.outputs().unread;
            let inputs: Vec<_> = run.computation.inputs.iter().filter(|given| left.contains(&given.name)).collect();
            assert!(inputs.is_empty(), "{run} does not read {inputs:?}");
            unread.retain(|name| left.contains(name));
        }
        let (rightly, wrongly): (Vec<String>, Vec<String>) = unread.into_iter().partition(|name| rightly_unread(name));
        assert!(wrongly.is_empty(), "{} does not read {wrongly:?}", model.name);
        let patches = matches!(model.architecture, Architecture::AutoencoderKlFlux2(_));
        assert_eq!(rightly.len(), if patches { 3 } else { 0 }, "{}: {rightly:?}", model.name);
    }
}

#[test]
fn a_computation_is_of_its_program_and_of_the_weights_of_its_model() {
    let pieces = |list: &[Given]| list.iter().map(Piece::from).collect::<Vec<_>>();
    for run in executed() {
        let (architecture, computation) = (&run.model.architecture, &run.computation);
        let alone = program(architecture, &run.case, &Execution::default()).unwrap();
        assert_eq!(computation.program, alone, "{run}");
        assert_eq!(pieces(&computation.inputs), alone.inputs, "{run}");
        assert_eq!(pieces(&computation.parameters), weights(architecture, run.case.dtype), "{run}");
    }
}

/// Contents of everything that a computation is given, in the element type of another one.
fn rounded_contents(computation: &Computation, dtype: DType) -> Contents {
    let floating = |given: &&Given| matches!(given.element, Element::Float(_));
    let given = computation.inputs.iter().chain(&computation.parameters);
    given.filter(floating).fold(Contents::default(), |contents, given| {
        let values = filled(given).into_iter().map(|value| rounded(value, Element::Float(dtype))).collect();
        contents.with(&given.name, values)
    })
}

/// Asserts that outputs agree, one by one, within a tolerance.
fn assert_alike(one: &Outputs, other: &Outputs, tolerance: Tolerance, what: &str) {
    assert_eq!(one.outputs.len(), other.outputs.len());
    for (number, (one, other)) in one.outputs.iter().zip(&other.outputs).enumerate() {
        assert_eq!(one.sizes, other.sizes, "{what}, output {number}");
        if let Err(error) = compare(one, &other.values, tolerance) {
            panic!("{what}, output {number}: {error}");
        }
    }
}

/// What single precision adds up to in these small models: the same values in another order.
const SINGLE: Tolerance = Tolerance { rms: 1e-5, largest: 1e-4 };

/// Executes a case in another way than by default, with contents that are made for it.
fn in_another_way(run: &Executed, way: &Execution, contents: impl FnOnce(&Computation) -> Contents) -> Outputs {
    let computation = derived(run.model, &run.case, way);
    execute(&computation, &contents(&computation)).unwrap_or_else(|error| panic!("{run}, {way:?}: {error}"))
}

#[test]
fn attention_written_out_gives_what_the_fused_kernel_gives() {
    let explicit = Execution { attention: AttentionKernel::Math, ..Execution::default() };
    for run in ends() {
        let found = in_another_way(run, &explicit, |_| Contents::default());
        assert_alike(run.outputs(), &found, SINGLE, &run.to_string());
    }
}

/// FLUX.1 multiplies time step and guidance by 1000 in its element type and takes the sine of it: only of products that
/// need no more than eight bits is that the same in every type.
fn times_that_stay_exact(computation: &Computation, contents: Contents) -> Contents {
    let is_flux = computation.inputs.iter().any(|given| given.name == "pooled_projections");
    let times = computation.inputs.iter().filter(|_| is_flux).filter_map(|given| match given.name.as_str() {
        "timestep" => Some((&given.name, vec![0.5; given.elements as usize])),
        "guidance" => Some((&given.name, vec![4.0; given.elements as usize])),
        _ => None,
    });
    times.fold(contents, |contents, (name, values)| contents.with(name, values))
}

#[test]
fn half_precision_gives_what_single_precision_gives_within_its_tolerance() {
    for run in models().iter().filter_map(|model| executed().iter().rfind(|run| run.model.name == model.name)) {
        for dtype in [DType::Fp16, DType::Bf16] {
            let exact = |contents| times_that_stay_exact(&run.computation, contents);
            let expected = execute(&run.computation, &exact(rounded_contents(&run.computation, dtype))).unwrap();
            let narrow = derived(run.model, &Case { dtype, ..run.case }, &Execution::default());
            let found = execute(&narrow, &exact(Contents::default())).unwrap_or_else(|error| panic!("{run}: {error}"));
            assert_alike(&expected, &found, Tolerance::of_computation(&narrow), &format!("{run} in {dtype}"));
        }
    }
}

#[test]
fn weights_stored_in_another_type_are_computed_with_as_they_are_stored() {
    let stored = Execution { stored: Some(DType::Bf16), ..Execution::default() };
    for run in executed().iter().filter(|run| run.case == run.model.cases[0]) {
        let weights = rounded_contents(&run.computation, DType::Bf16);
        let given = run.computation.inputs.iter();
        let contents = given.fold(weights, |contents, given| contents.with(&given.name, filled(given)));
        let expected = execute(&run.computation, &contents).unwrap();
        let found = in_another_way(run, &stored, |_| Contents::default());
        assert_alike(&expected, &found, Tolerance::EXACT, &run.to_string());
    }
}

/// What inputs and weights hold where channels lie innermost: the same values at the same places of the tensors.
fn turned(computation: &Computation) -> Contents {
    let mut contents = Contents::default();
    for view in computation.launches.iter().flat_map(|launch| &launch.reads) {
        let given = match view.source {
            Source::Input(place) => &computation.inputs[place],
            Source::Parameter(place) => &computation.parameters[place],
            _ => continue,
        };
        // Views of parts leave out rows, columns and frames, and no items or channels.
        let space = given.elements / (view.sizes.iter().take(2).product::<u64>()).max(1);
        if view.sizes.len() >= 4 && view.sizes[1] > 1 && space > 1 && view.strides[1] == 1 {
            let values = filled(given);
            let channels = view.sizes[1];
            let from = |at: u64| {
                let (channel, pixel) = (at % channels, at / channels);
                values[((pixel / space * channels + channel) * space + pixel % space) as usize]
            };
            contents = contents.with(&given.name, (0..given.elements).map(from).collect());
        }
    }
    contents
}

#[test]
fn channels_innermost_change_memory_and_not_the_result() {
    let innermost = Execution { memory_layout: MemoryLayout::ChannelsLast, ..Execution::default() };
    for run in ends().filter(|run| run.case.tiling.is_none()) {
        let found = in_another_way(run, &innermost, turned);
        assert_alike(run.outputs(), &found, SINGLE, &run.to_string());
    }
}
