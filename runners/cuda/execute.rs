//! A computation executed step by step: memory as the program says, launches where they stand in it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use headroom_device::cache::WeightHolding;
use headroom_device::device::{Device, DeviceId, Holding};

use crate::programs::computation::{Given, Launch, Source};
use crate::programs::{Computation, Label, Role, Step, TensorId};
use crate::runner::{RunError, release_all};

use super::error::CudaError;
use super::plan::call::{Call, Place};
use super::plan::{self, contents};
use super::workspaces::places;

/// Where a place is.
pub(super) type Addresses<'a> = dyn Fn(Place) -> Result<u64, CudaError> + 'a;

/// What executes calls: a GPU, or in tests something that only writes them down.
pub(super) trait Engine {
    /// Puts a call on the stream. `address` says where a place is.
    fn call(&mut self, call: &Call, address: &Addresses<'_>) -> Result<(), CudaError>;

    /// Takes over memory that a library works in from now on.
    fn keep(&mut self, library: &'static str, address: u64, bytes: u64) -> Result<(), CudaError>;

    /// Whether every call is waited for, so that what it fails with is its own.
    fn waits_for_each_call(&self) -> bool;

    /// Waits for everything that was put on the stream.
    fn finish(&mut self, what: &Computation) -> Result<(), CudaError>;
}

/// A computation with everything decided but addresses.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) computation: Computation,
    /// The calls of each launch.
    pub(super) calls: Vec<Vec<Call>>,
    /// Where in the model each launch happens.
    places: Vec<Label>,
}

impl Prepared {
    /// Decides the calls of every launch.
    ///
    /// # Errors
    /// When there is no kernel for one; it names the place.
    pub(super) fn new(computation: Computation) -> Result<Self, CudaError> {
        let places = places(&computation);
        let calls = computation
            .launches
            .iter()
            .zip(&places)
            .map(|(launch, place)| plan::calls(launch).map_err(|error| at(launch, place, error)));
        let calls = calls.collect::<Result<_, _>>()?;
        Ok(Self { computation, calls, places })
    }
}

fn at(launch: &Launch, place: &Label, error: CudaError) -> CudaError {
    let kernel = format!("{:?}", launch.kernel);
    let kernel = kernel.split([' ', '{']).next().unwrap_or(&kernel).to_owned();
    CudaError::Launch { kernel, place: place.to_string(), error: Box::new(error) }
}

/// Workspaces of libraries that stay for the life of the process.
pub(super) type Persistent = HashMap<(DeviceId, &'static str), Holding>;

/// What a run is given, and what it keeps.
pub(super) struct Execution<'a> {
    pub(super) device: &'a Device,
    pub(super) prepared: &'a Prepared,
    pub(super) inputs: &'a [Holding],
    pub(super) weights: &'a [WeightHolding],
    pub(super) persistent: &'a mut Persistent,
    /// Called after every step of the program, with the step as it was executed.
    pub(super) observe: &'a mut dyn FnMut(&Step),
}

/// Memory of a run, found by place.
struct Memory<'a> {
    live: HashMap<TensorId, Holding>,
    /// Weights that are not resident, for as long as one launch needs them.
    streamed: HashMap<usize, Holding>,
    inputs: &'a [Holding],
    /// The weights of each parameter, where there are any.
    weights: Vec<Option<&'a WeightHolding>>,
    computation: &'a Computation,
}

impl Memory<'_> {
    fn address(&self, place: Place) -> Result<u64, CudaError> {
        let parameter = |index: usize| self.weights.get(index).copied().flatten().and_then(|weight| weight.holding);
        let holding = match place.source {
            Source::Tensor(tensor) => self.live.get(&tensor).copied(),
            Source::Input(index) => self.inputs.get(index).copied(),
            Source::Parameter(index) => parameter(index).or_else(|| self.streamed.get(&index).copied()),
            Source::Nothing => None,
        };
        match holding {
            Some(Holding::Allocated(allocation)) => Ok(allocation.address().0 + place.offset_bytes),
            Some(Holding::Remote { .. }) | None => Err(CudaError::NoAddress { name: self.name_of(place.source) }),
        }
    }

    fn name_of(&self, source: Source) -> String {
        let name = |given: Option<&Given>| given.map_or_else(|| format!("{source:?}"), |given| given.name.clone());
        match source {
            Source::Tensor(TensorId(number)) => format!("tensor {number}"),
            Source::Input(index) => name(self.computation.inputs.get(index)),
            Source::Parameter(index) => name(self.computation.parameters.get(index)),
            Source::Nothing => "a tensor without memory".to_owned(),
        }
    }
}

/// Executes a computation once and then, while its outputs still live, `then` with the engine and the addresses.
/// Whatever happens, what it allocated is freed, except libraries' workspaces.
///
/// # Errors
/// When the device has no room, or a launch fails.
pub(super) fn execute<E: Engine, T>(
    engine: &mut E,
    mut execution: Execution<'_>,
    then: impl FnOnce(&mut E, &Addresses<'_>) -> Result<T, CudaError>,
) -> Result<T, RunError> {
    let device = execution.device;
    let mut memory = Memory {
        live: HashMap::new(),
        streamed: HashMap::new(),
        inputs: execution.inputs,
        weights: weights_of(&execution.prepared.computation, execution.weights)?,
        computation: &execution.prepared.computation,
    };
    let outcome = steps(engine, &mut execution, &mut memory);
    let outcome = match outcome {
        Ok(()) => engine
            .finish(&execution.prepared.computation)
            .and_then(|()| then(engine, &|place| memory.address(place)))
            .map_err(RunError::from),
        // The driver may answer any call with the error of a launch before it.
        Err(error) if !engine.waits_for_each_call() => match engine.finish(&execution.prepared.computation) {
            Err(late @ CudaError::Late { .. }) => Err(late.into()),
            Ok(()) | Err(_) => Err(error),
        },
        Err(error) => Err(error),
    };
    let held = memory.live.into_values().chain(memory.streamed.into_values());
    let released = release_all(device, held);
    let value = outcome?;
    released.map(|()| value)
}

/// The weights of each parameter, by name; their sizes must be what the computation needs.
fn weights_of<'a>(
    computation: &Computation,
    weights: &'a [WeightHolding],
) -> Result<Vec<Option<&'a WeightHolding>>, CudaError> {
    let by_name: HashMap<&str, &WeightHolding> = weights.iter().map(|weight| (weight.name.as_str(), weight)).collect();
    computation
        .parameters
        .iter()
        .map(|given| {
            let weight = by_name.get(given.name.as_str()).copied();
            let needed_bytes = given.elements * given.element.bytes();
            match weight {
                Some(weight) if weight.bytes != needed_bytes => {
                    Err(CudaError::WrongSize { name: given.name.clone(), bytes: weight.bytes, needed_bytes })
                }
                weight => Ok(weight),
            }
        })
        .collect()
}

fn steps<E: Engine>(engine: &mut E, execution: &mut Execution<'_>, memory: &mut Memory<'_>) -> Result<(), RunError> {
    let prepared = execution.prepared;
    let Computation { program, launches, .. } = &prepared.computation;
    let mut waiting = 0;
    for done in 0..=program.steps.len() {
        while let Some(launch) = launches.get(waiting).filter(|launch| launch.after <= done) {
            let place = &prepared.places[waiting];
            stream_in(engine, execution, memory, launch, place)?;
            for call in &prepared.calls[waiting] {
                engine.call(call, &|place| memory.address(place)).map_err(|error| at(launch, place, error))?;
            }
            stream_out(execution, memory)?;
            waiting += 1;
        }
        if let Some(step) = program.steps.get(done) {
            one_step(engine, execution, memory, step)?;
            (execution.observe)(step);
        }
    }
    Ok(())
}

fn one_step<E: Engine>(
    engine: &mut E,
    execution: &mut Execution<'_>,
    memory: &mut Memory<'_>,
    step: &Step,
) -> Result<(), RunError> {
    let device = execution.device;
    match step {
        Step::Allocate { bytes, label, role: Role::Persistent, .. } => {
            let holding = match execution.persistent.entry((device.id().clone(), label.operator)) {
                Entry::Occupied(kept) => *kept.get(),
                Entry::Vacant(place) => *place.insert(device.allocate(*bytes)?),
            };
            if let Holding::Allocated(allocation) = holding {
                engine.keep(label.operator, allocation.address().0, *bytes)?;
            }
        }
        Step::Allocate { tensor, bytes, .. } => {
            memory.live.insert(*tensor, device.allocate(*bytes)?);
        }
        Step::Free { tensor } => {
            // A tensor that is not live here is a library's workspace, which stays.
            if let Some(holding) = memory.live.remove(tensor) {
                release_all(device, [holding])?;
            }
        }
    }
    Ok(())
}

/// Makes weights that are not resident for one launch: only those without contents of their own can be made.
fn stream_in<E: Engine>(
    engine: &mut E,
    execution: &mut Execution<'_>,
    memory: &mut Memory<'_>,
    launch: &Launch,
    label: &Label,
) -> Result<(), RunError> {
    for view in &launch.reads {
        let Source::Parameter(index) = view.source else { continue };
        let weight = memory.weights.get(index).copied().flatten();
        let resident = weight.is_some_and(|weight| weight.holding.is_some());
        let Some(given) = memory.computation.parameters.get(index) else { continue };
        if resident || memory.streamed.contains_key(&index) || given.elements == 0 {
            continue;
        }
        let bytes = given.elements * given.element.bytes();
        if weight.is_some_and(|weight| weight.has_contents) {
            return Err(CudaError::NotResident { name: given.name.clone(), bytes }.into());
        }
        memory.streamed.insert(index, execution.device.allocate(bytes)?);
        (execution.observe)(&Step::Allocate {
            tensor: streamed_tensor(index),
            bytes,
            label: label.clone(),
            role: Role::Weights,
        });
        if let Some(filling) = contents::filling(given, view.source) {
            let call = Call::Kernel(filling);
            engine.call(&call, &|place| memory.address(place)).map_err(|error| at(launch, label, error))?;
        }
    }
    Ok(())
}

fn stream_out(execution: &mut Execution<'_>, memory: &mut Memory<'_>) -> Result<(), RunError> {
    let mut done: Vec<_> = memory.streamed.drain().collect();
    done.sort_unstable_by_key(|(index, _)| *index);
    for (index, holding) in done {
        release_all(execution.device, [holding])?;
        (execution.observe)(&Step::Free { tensor: streamed_tensor(index) });
    }
    Ok(())
}

/// The number under which a streamed parameter is seen among a program's tensors, which count from 0.
fn streamed_tensor(index: usize) -> TensorId {
    TensorId(u32::MAX - u32::try_from(index).unwrap_or(u32::MAX / 2))
}
