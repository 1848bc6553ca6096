//! Executed programs on a simulated device, with an engine that only writes down what it was called for.

use std::collections::HashMap;

use headroom_base::{AllocatorKind, Case, DType, DeviceFigures, GIB, Operation, Reading};
use headroom_device::allocator::NotAllocated;
use headroom_device::allocator::Situation;
use headroom_device::cache::WeightHolding;
use headroom_device::device::{AllocatorMemory, Device, DeviceId, DeviceMemory, DeviceParts, Holding};
use headroom_device::driver::{CardSettings, DriverCall};
use headroom_device::{AllocationError, Allocator, Counters, DriverError, Settings, SimulatedCard};
use headroom_family::Architecture;
use headroom_family::architecture::AutoencoderKl;

use crate::cuda::error::CudaError;
use crate::cuda::execute::{Addresses, Engine, Execution, Persistent, Prepared, execute};
use crate::cuda::plan::call::{Argument, Call};
use crate::cuda::workspaces::{Answer, Sized, with_real_workspaces};
use crate::programs::computation::{Kernel, Source};
use crate::programs::{self, Computation, Role, Step};
use crate::runner::{RunError, release_all};

/// Writes down the addresses it was called with, and fails at one call if it is told to.
#[derive(Default)]
struct Written {
    calls: usize,
    fails_at: Option<usize>,
    addresses: Vec<u64>,
    kept: Vec<&'static str>,
    finished: bool,
    /// Whether something that ran before failed.
    is_lost: bool,
    waits_for_each_call: bool,
}

impl Engine for Written {
    fn call(&mut self, call: &Call, address: &Addresses<'_>) -> Result<(), CudaError> {
        self.calls += 1;
        if self.fails_at == Some(self.calls) {
            return Err(CudaError::NoKernel { what: "what was planted".to_owned() });
        }
        let places = match call {
            Call::Kernel(kernel) => kernel
                .arguments
                .iter()
                .filter_map(|argument| match argument {
                    Argument::At(place) => Some(*place),
                    Argument::Nowhere | Argument::Words(_) => None,
                })
                .collect(),
            Call::Product(product) => product.places.concat(),
            Call::Convolution(convolution) => convolution.places.into_iter().chain(convolution.workspace).collect(),
        };
        for place in places {
            self.addresses.push(address(place)?);
        }
        Ok(())
    }

    fn keep(&mut self, library: &'static str, _address: u64, _bytes: u64) -> Result<(), CudaError> {
        self.kept.push(library);
        Ok(())
    }

    fn waits_for_each_call(&self) -> bool {
        self.waits_for_each_call
    }

    fn finish(&mut self, what: &Computation) -> Result<(), CudaError> {
        self.finished = true;
        if !self.is_lost {
            return Ok(());
        }
        let reason = "an illegal memory access was encountered".to_owned();
        let error = DriverError::Failed { call: DriverCall::Synchronize, code: 700, reason };
        Err(CudaError::Late { case: what.program.case.to_string(), error })
    }
}

/// The memory of a simulated card that has no room for one of the allocations.
struct Failing {
    memory: Box<dyn DeviceMemory>,
    allocations: usize,
    fails_at: usize,
}

impl DeviceMemory for Failing {
    fn figures(&mut self) -> Result<DeviceFigures, DriverError> {
        self.memory.figures()
    }
    fn counters(&mut self) -> Result<Counters, DriverError> {
        self.memory.counters()
    }
    fn allocate(&mut self, requested_bytes: u64) -> Result<Holding, AllocationError> {
        self.allocations += 1;
        if self.allocations == self.fails_at {
            let nothing = Reading::Unknown;
            let situation =
                Situation { free: nothing, total: nothing, allocated_bytes: 0, reserved_bytes: 0, limit_bytes: None };
            return Err(AllocationError::OutOfMemory { requested_bytes, situation });
        }
        self.memory.allocate(requested_bytes)
    }
    fn free(&mut self, holding: Holding) -> Result<(), NotAllocated> {
        self.memory.free(holding)
    }
    fn empty_cache(&mut self) -> Result<(), AllocationError> {
        self.memory.empty_cache()
    }
    fn reset_peaks(&mut self) -> Result<(), DriverError> {
        self.memory.reset_peaks()
    }
    fn process_bytes(&mut self) -> Result<Reading, DriverError> {
        self.memory.process_bytes()
    }
    fn spilled_bytes(&mut self) -> Result<Reading, DriverError> {
        self.memory.spilled_bytes()
    }
}

fn device(fails_at: usize) -> Device {
    let card = SimulatedCard::new(CardSettings::new(8 * GIB));
    let memory = AllocatorMemory::new(Allocator::new(card.driver(), Settings::of_kind(AllocatorKind::Native)));
    let failing = Failing { memory: Box::new(memory), allocations: 0, fails_at };
    let parts = DeviceParts::simulated(&card, Settings::of_kind(AllocatorKind::Native)).named("failing");
    DeviceParts { id: DeviceId::new("failing"), memory: Box::new(failing), ..parts }.build()
}

fn decode() -> Computation {
    let small = AutoencoderKl { block_out_channels: vec![32, 64], layers_per_block: 1, ..AutoencoderKl::default() };
    let case = Case::image(Operation::VaeDecode, DType::Fp16, 256, 192);
    programs::computation(&Architecture::AutoencoderKl(small), &case, &programs::Execution::default()).unwrap()
}

/// A library that asks for other workspaces than the table: none for few channels, odd ones for the others.
fn other_workspaces(computation: Computation) -> Sized {
    with_real_workspaces(computation, |shape| Ok((if shape.input[1] < 8 { 0 } else { 123_456 }, "ODD".to_owned())))
        .unwrap()
}

fn weights(device: &Device, computation: &Computation, resident: impl Fn(usize) -> bool) -> Vec<WeightHolding> {
    let weight = |(index, given): (usize, &programs::computation::Given)| {
        let bytes = given.elements * given.element.bytes();
        let holding = resident(index).then(|| device.allocate(bytes).unwrap());
        WeightHolding { name: given.name.clone(), bytes, holding, has_contents: false }
    };
    computation.parameters.iter().enumerate().map(weight).collect()
}

/// Places inputs and weights, executes, and gives back what was placed; what was executed, and what then is still held.
fn executed(
    device: &Device,
    engine: &mut Written,
    prepared: &Prepared,
    some: bool,
) -> (Result<(), RunError>, Vec<Step>, u64) {
    let computation = &prepared.computation;
    let given = weights(device, computation, |index| !some || index % 3 != 0);
    let bytes = computation.inputs.iter().map(|given| given.elements * given.element.bytes());
    let inputs: Vec<Holding> = bytes.map(|bytes| device.allocate(bytes).unwrap()).collect();
    let (mut persistent, mut steps) = (Persistent::new(), Vec::new());
    let execution = Execution {
        device,
        prepared,
        inputs: &inputs,
        weights: &given,
        persistent: &mut persistent,
        observe: &mut |step| steps.push(step.clone()),
    };
    let outcome = execute(engine, execution, |_, _| Ok(()));
    let held = given.into_iter().filter_map(|weight| weight.holding).chain(inputs).chain(persistent.into_values());
    release_all(device, held).unwrap();
    (outcome, steps, device.counters().unwrap().allocated.current)
}

#[test]
fn workspaces_are_the_librarys_and_the_table_is_told_where_it_was_wrong() {
    let table = decode();
    let sized = other_workspaces(table.clone());
    let program = &sized.computation.program;
    let workspaces = program.allocations().filter(|live| live.label.operator == "convolution workspace");
    let made: Vec<u64> = workspaces.map(|live| live.bytes).collect();
    let convolutions = table.launches.iter().filter(|launch| matches!(launch.kernel, Kernel::Convolution { .. }));
    let wanted = convolutions.clone().filter(|launch| launch.reads[0].sizes[1] >= 8).count();
    assert_eq!(made, vec![123_456; wanted]);
    assert!(wanted < convolutions.count(), "one has none");
    assert!(sized.differences.iter().all(|difference| difference.real_bytes != difference.table_bytes));
    assert!(sized.differences.iter().any(|difference| difference.table_bytes == 0));
    assert!(sized.differences.iter().all(|difference| difference.place.contains("conv")));
    for launch in &sized.computation.launches {
        let Kernel::Convolution { workspace, .. } = &launch.kernel else { continue };
        let live = program.live_at(launch.after.saturating_sub(1));
        assert_eq!(workspace.is_some(), launch.reads[0].sizes[1] >= 8);
        assert!(workspace.is_none_or(|tensor| live.iter().any(|live| live.tensor == tensor)));
    }
}

#[test]
fn a_library_that_agrees_with_the_table_changes_nothing() {
    let table = decode();
    let model = programs::WorkspaceModel::Hopper;
    let agree = |shape: &crate::cuda::plan::convolution::ConvolutionShape| -> Result<Answer, CudaError> {
        Ok((model.convolution(&shape.table_call()).total(), "AGREES".to_owned()))
    };
    let sized = with_real_workspaces(table.clone(), agree).unwrap();
    assert_eq!(sized.differences, []);
    assert_eq!(sized.computation, table);
}

#[test]
fn every_counter_after_every_step_is_that_of_the_same_steps_simulated() {
    let prepared = Prepared::new(other_workspaces(decode()).computation).unwrap();
    let real = device(usize::MAX);
    let (mut persistent, mut seen) = (Persistent::new(), Vec::new());
    let mut observe = |_: &Step| seen.push(real.counters().unwrap());
    let given = weights(&real, &prepared.computation, |_| true);
    let inputs: Vec<Holding> =
        prepared.computation.inputs.iter().map(|given| real.allocate(given.elements * 2).unwrap()).collect();
    let execution = Execution {
        device: &real,
        prepared: &prepared,
        inputs: &inputs,
        weights: &given,
        persistent: &mut persistent,
        observe: &mut observe,
    };
    execute(&mut Written::default(), execution, |_, _| Ok(())).unwrap();
    let simulated = device(usize::MAX);
    weights(&simulated, &prepared.computation, |_| true);
    for given in &prepared.computation.inputs {
        simulated.allocate(given.elements * 2).unwrap();
    }
    let mut live = HashMap::new();
    for (step, counters) in prepared.computation.program.steps.iter().zip(seen) {
        match step {
            Step::Allocate { tensor, bytes, .. } => {
                live.insert(*tensor, simulated.allocate(*bytes).unwrap());
            }
            Step::Free { tensor } => release_all(&simulated, live.remove(tensor)).unwrap(),
        }
        assert_eq!(simulated.counters().unwrap(), counters, "{step:?}");
    }
}

#[test]
fn an_engine_is_given_addresses_of_live_memory_and_libraries_their_workspaces() {
    let prepared = Prepared::new(other_workspaces(decode()).computation).unwrap();
    let mut engine = Written::default();
    let (outcome, steps, held) = executed(&device(usize::MAX), &mut engine, &prepared, false);
    outcome.unwrap();
    assert!(engine.finished && held == 0);
    assert_eq!(steps, prepared.computation.program.steps);
    assert_eq!(engine.calls, prepared.calls.iter().map(Vec::len).sum::<usize>());
    assert!(engine.addresses.len() > engine.calls && engine.addresses.iter().all(|&address| address != 0));
    assert!(
        engine.kept.contains(&programs::Library::Cublas.name())
            || engine.kept.contains(&programs::Library::CublasLt.name())
    );
}

#[test]
fn weights_that_are_not_resident_come_and_go_around_the_launch_that_reads_them() {
    let prepared = Prepared::new(other_workspaces(decode()).computation).unwrap();
    let mut engine = Written::default();
    let (outcome, steps, held) = executed(&device(usize::MAX), &mut engine, &prepared, true);
    outcome.unwrap();
    assert_eq!(held, 0);
    let streamed = prepared
        .computation
        .launches
        .iter()
        .flat_map(|launch| &launch.reads)
        .filter(|view| matches!(view.source, Source::Parameter(index) if index % 3 == 0));
    let come = streamed.count();
    assert!(come > 0);
    assert_eq!(steps.len(), prepared.computation.program.steps.len() + 2 * come);
    let made = steps.iter().filter(|step| matches!(step, Step::Allocate { role: Role::Weights, .. })).count();
    assert_eq!(made, come);
}

#[test]
fn weights_with_contents_that_are_not_resident_are_an_error_that_names_them() {
    let prepared = Prepared::new(decode()).unwrap();
    let device = device(usize::MAX);
    let mut given = weights(&device, &prepared.computation, |_| false);
    given.iter_mut().for_each(|weight| weight.has_contents = true);
    let mut persistent = Persistent::new();
    let inputs: Vec<Holding> = vec![device.allocate(1 << 20).unwrap()];
    let execution = Execution {
        device: &device,
        prepared: &prepared,
        inputs: &inputs,
        weights: &given,
        persistent: &mut persistent,
        observe: &mut |_| {},
    };
    let error = execute(&mut Written::default(), execution, |_, _| Ok(())).unwrap_err().to_string();
    assert!(error.contains(".weight") && error.contains("not on the device"), "{error}");
}

#[test]
fn whichever_allocation_fails_nothing_is_left() {
    let prepared = Prepared::new(other_workspaces(decode()).computation).unwrap();
    let before = prepared.computation.parameters.len() + prepared.computation.inputs.len();
    let mut failed = 0;
    for at in before + 1.. {
        let (outcome, _, held) = executed(&device(at), &mut Written::default(), &prepared, false);
        assert_eq!(held, 0, "allocation {at}");
        match outcome {
            Ok(()) => break,
            Err(error) => assert!(error.is_out_of_memory(), "allocation {at}: {error}"),
        }
        failed += 1;
    }
    assert_eq!(failed, prepared.computation.program.allocations().count());
}

#[test]
fn whichever_launch_fails_nothing_is_left_and_the_error_names_kernel_and_place() {
    let prepared = Prepared::new(other_workspaces(decode()).computation).unwrap();
    let calls = prepared.calls.iter().map(Vec::len).sum::<usize>();
    for at in 1..=calls {
        let mut engine = Written { fails_at: Some(at), ..Written::default() };
        let (outcome, _, held) = executed(&device(usize::MAX), &mut engine, &prepared, false);
        assert_eq!(held, 0, "call {at}");
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(" at ") && error.contains("what was planted"), "{error}");
    }
}

#[test]
fn a_launch_that_is_answered_with_the_failure_of_an_earlier_one_is_not_blamed_unless_each_was_waited_for() {
    let prepared = Prepared::new(other_workspaces(decode()).computation).unwrap();
    for waits_for_each_call in [false, true] {
        let mut engine = Written { fails_at: Some(7), is_lost: true, waits_for_each_call, ..Written::default() };
        let (outcome, _, held) = executed(&device(usize::MAX), &mut engine, &prepared, false);
        let error = outcome.unwrap_err().to_string();
        assert_eq!(held, 0);
        assert_eq!(error.contains("what was planted"), waits_for_each_call, "{error}");
        assert_eq!(
            error.contains("failed on the device") && error.contains("code 700"),
            !waits_for_each_call,
            "{error}"
        );
    }
}
