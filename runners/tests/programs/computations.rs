//! What programs compute: the same program with launches as without, and nothing computed that nobody gave.

use std::collections::{BTreeMap, HashSet};

use headroom_base::{AttentionKernel, Case, DType, MemoryLayout};
use headroom_family::{Architecture, Family};
use headroom_runners::programs::computation::{Kernel, Launch, Source, View};
use headroom_runners::programs::{Computation, Execution, Role, Step, TensorId, computation, program};

/// Every case of every family's pipeline and calibration, the smallest of each model and operation.
fn cases() -> Vec<(String, Architecture, Case)> {
    let mut smallest: BTreeMap<(String, String), (u64, Architecture, Case)> = BTreeMap::new();
    for family in Family::embedded().expect("the shipped families") {
        let steps = family.pipeline.iter().map(|step| (&step.model, step.case));
        let lines =
            family.calibration.lines.iter().flat_map(|line| line.cases.iter().map(move |case| (&line.model, *case)));
        for (key, case) in steps.chain(lines) {
            let Some(architecture) = family.model(key).and_then(|model| model.architecture()) else { continue };
            let units = headroom_runners::programs::cost_units(architecture, &case);
            let name = (format!("{}/{key}", family.name), format!("{} {}", case.operation, case.dtype));
            let entry = smallest.entry(name).or_insert_with(|| (units, architecture.clone(), case));
            if units < entry.0 {
                *entry = (units, architecture.clone(), case);
            }
        }
    }
    let cases: Vec<_> = smallest.into_iter().map(|((name, _), (_, model, case))| (name, model, case)).collect();
    assert!(cases.len() > 20, "{} cases", cases.len());
    cases
}

fn executions() -> Vec<Execution> {
    let usual = Execution::default();
    vec![
        Execution { memory_layout: MemoryLayout::ChannelsLast, ..usual.clone() },
        Execution { attention: AttentionKernel::Math, ..usual.clone() },
        Execution { stored: Some(DType::Fp32), ..usual.clone() },
        usual,
    ]
}

#[test]
fn launches_change_nothing_of_a_program() {
    for (name, model, case) in cases() {
        for execution in executions() {
            let plain = program(&model, &case, &execution).expect("a program");
            let computed = computation(&model, &case, &execution).expect("a computation");
            assert_eq!(plain, computed.program, "{name} {case}");
            assert_eq!(computed.inputs.len(), plain.inputs.len(), "{name} {case}");
            assert!(!computed.launches.is_empty(), "{name} {case}");
        }
    }
}

/// The last element that a view reaches, from the beginning of its memory.
fn end(view: &View) -> u64 {
    let steps = view.sizes.iter().zip(&view.strides).map(|(size, stride)| (size - 1) * stride);
    view.offset + steps.sum::<u64>()
}

/// Tensors that a library fills for itself: nobody reads or writes them by name.
const A_LIBRARYS_OWN: [&str; 8] = [
    "attention accumulator",
    "attention seed",
    "attention offset",
    "attention log sums",
    "attention masked rows",
    "attention any masked row",
    "items",
    "base",
];

fn check(name: &str, computation: &Computation) {
    let mut bytes: Vec<u64> = Vec::new();
    let mut written: HashSet<TensorId> = HashSet::new();
    let mut live: HashSet<TensorId> = HashSet::new();
    let mut labels = BTreeMap::new();
    let mut launches = computation.launches.iter().peekable();
    let mut read_parameters = HashSet::new();
    let mut read_inputs = HashSet::new();
    for done in 0..=computation.program.steps.len() {
        while let Some(Launch { kernel, reads, writes, .. }) = launches.next_if(|launch| launch.after == done) {
            for view in reads {
                let what = || format!("{name}: {kernel:?} reads {view:?}");
                let size = match view.source {
                    Source::Tensor(tensor) => {
                        assert!(live.contains(&tensor) && written.contains(&tensor), "{}", what());
                        bytes[tensor.0 as usize]
                    }
                    Source::Input(index) => {
                        read_inputs.insert(index);
                        computation.program.inputs[index].bytes
                    }
                    Source::Parameter(index) => {
                        read_parameters.insert(index);
                        let given = &computation.parameters[index];
                        assert_eq!(given.element, view.element, "{}", what());
                        given.elements * given.element.bytes()
                    }
                    Source::Nothing => panic!("{}: nothing", what()),
                };
                assert!((end(view) + 1) * view.element.bytes() <= size, "{}", what());
            }
            for view in writes {
                let Source::Tensor(tensor) = view.source else { panic!("{name}: {kernel:?} writes {view:?}") };
                assert!(live.contains(&tensor), "{name}: {kernel:?} writes {view:?}");
                assert!((end(view) + 1) * view.element.bytes() <= bytes[tensor.0 as usize], "{name}: {kernel:?}");
                written.insert(tensor);
            }
            if let Kernel::Convolution { workspace: Some(workspace), .. } = kernel {
                assert!(live.contains(workspace), "{name}: a convolution without its workspace");
            }
        }
        match computation.program.steps.get(done) {
            Some(Step::Allocate { tensor, bytes: size, label, role }) => {
                assert_eq!(tensor.0 as usize, bytes.len(), "tensors are numbered in order");
                bytes.push(*size);
                live.insert(*tensor);
                if matches!(role, Role::Output | Role::Copy | Role::Weights) {
                    labels.insert(*tensor, label.operator);
                }
            }
            Some(Step::Free { tensor }) => {
                live.remove(tensor);
            }
            None => {}
        }
    }
    assert!(launches.next().is_none(), "{name}: a launch after the end");
    let unwritten =
        labels.iter().filter(|(tensor, operator)| !written.contains(tensor) && !A_LIBRARYS_OWN.contains(operator));
    let unwritten: Vec<_> = unwritten.map(|(_, operator)| operator).collect();
    assert!(unwritten.is_empty(), "{name}: nobody writes {unwritten:?}");
    assert_eq!(read_inputs.len(), computation.inputs.len(), "{name}: every input is read");
    assert!(!read_parameters.is_empty(), "{name}: no parameter is read");
}

#[test]
fn launches_read_only_what_was_written_and_lies_within_its_tensor() {
    for (name, model, case) in cases() {
        for execution in executions() {
            let computation = computation(&model, &case, &execution).expect("a computation");
            check(&format!("{name} {case}"), &computation);
        }
    }
}
