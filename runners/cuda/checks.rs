//! What checks ask of a GPU: results read back, and whether all of them are numbers.

use headroom_base::DType;
use headroom_device::cache::WeightHolding;
use headroom_device::device::{Device, Holding};

use crate::programs::computation::{Given, View};
use crate::programs::{Computation, Element};
use crate::runner::{Inputs, RunError, Work, release_all};

use super::error::CudaError;
use super::execute::{Addresses, Engine as _, Execution, execute};
use super::plan::call::{Argument, Call, Place};
use super::plan::picks;
use super::runner::{Convolutions, CudaRunner};

/// Contents of a computation's parameters and inputs, in its order; where there are none, the device makes those that
/// [`Given::filling`] says.
#[derive(Clone, Debug, Default)]
pub struct GivenContents {
    /// Of each parameter.
    pub parameters: Vec<Option<Vec<u8>>>,
    /// Of each input.
    pub inputs: Vec<Option<Vec<u8>>>,
}

/// One result, read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Results {
    /// Its element type.
    pub element: Element,
    /// Its sizes.
    pub sizes: Vec<u64>,
    /// Its elements, row by row.
    pub contents: Vec<u8>,
}

impl Results {
    /// Its elements as numbers, row by row.
    pub fn values(&self) -> Vec<f64> {
        let of = |bytes: &[u8]| match self.element {
            Element::Float(DType::Fp16) => f64::from(half::f16::from_le_bytes(word(bytes))),
            Element::Float(DType::Bf16) => f64::from(half::bf16::from_le_bytes(word(bytes))),
            Element::Float(DType::Fp32) => f64::from(f32::from_le_bytes(word(bytes))),
            Element::Fp64 => f64::from_le_bytes(word(bytes)),
            Element::Int64 => i64::from_le_bytes(word(bytes)) as f64,
            Element::Int32 => f64::from(i32::from_le_bytes(word(bytes))),
            Element::Bool => f64::from(bytes[0] != 0),
        };
        self.contents.chunks_exact(self.element.bytes() as usize).map(of).collect()
    }
}

/// The bytes of one element.
fn word<const BYTES: usize>(bytes: &[u8]) -> [u8; BYTES] {
    std::array::from_fn(|at| bytes[at])
}

/// How many elements of an output are compared with each other, from its beginning.
const COMPARED: usize = 1 << 16;

/// What was seen of an operation's outputs, whatever their sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputsSeen {
    /// Elements that are infinite or no number.
    pub not_finite: u64,
    /// For each output whether the elements at its beginning are not all the same.
    pub vary: Vec<bool>,
}

/// What a computation left, and who computed its convolutions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Computed {
    /// Its outputs.
    pub outputs: Vec<Results>,
    /// Its convolutions.
    pub convolutions: Convolutions,
}

impl CudaRunner {
    /// Runs an operation once, counts what of its outputs is infinite or no number, and looks whether their values vary.
    ///
    /// # Errors
    /// As [`Runner::run`](crate::Runner::run).
    pub fn outputs_seen(&self, device: &Device, work: &Work<'_>) -> Result<OutputsSeen, RunError> {
        let mut state = self.bound()?;
        let ready = state.ready(work)?;
        let counter = device.allocate(8)?;
        let outcome = match counter {
            Holding::Allocated(allocation) => {
                let at = allocation.address().0;
                let outputs = &ready.prepared.computation.outputs;
                state.engine.write(at, &0_u64.to_ne_bytes()).map_err(RunError::from).and_then(|()| {
                    state.execute(device, &ready.prepared, work, &mut |_| {}, |engine, address| {
                        let not_finite = count(engine, outputs, at, address)?;
                        let varies = |output| beginning(engine, output, address).map(|results| vary(&results.values()));
                        Ok(OutputsSeen { not_finite, vary: outputs.iter().map(varies).collect::<Result<_, _>>()? })
                    })
                })
            }
            Holding::Remote { .. } => Err(CudaError::NoAddress { name: "a counter".to_owned() }.into()),
        };
        let released = release_all(device, [counter]);
        let seen = outcome?;
        released.map(|()| seen)
    }

    /// Executes a computation with these contents and returns its outputs and who computed its convolutions. Weights and inputs are placed on the device
    /// for it, and everything is freed.
    ///
    /// # Errors
    /// When contents have other sizes than what they are for, the device has no room, or a launch fails.
    pub fn results(
        &self,
        device: &Device,
        computation: Computation,
        contents: &GivenContents,
    ) -> Result<Computed, RunError> {
        let mut state = self.bound()?;
        let ready = state.decided(computation)?;
        let Computation { parameters, inputs, outputs, .. } = &ready.prepared.computation;
        let sizes =
            |given: &[Given]| given.iter().map(|given| given.elements * given.element.bytes()).collect::<Vec<_>>();
        let all: Vec<&Given> = parameters.iter().chain(inputs).collect();
        let placed = Inputs::place(device, [sizes(parameters), sizes(inputs)].concat())?;
        let holdings = placed.holdings().to_vec();
        let of = |contents: &[Option<Vec<u8>>], count: usize| {
            (0..count).map(|i| contents.get(i).cloned().flatten()).collect::<Vec<_>>()
        };
        let given = [of(&contents.parameters, parameters.len()), of(&contents.inputs, inputs.len())].concat();
        let outcome =
            all.iter().zip(&holdings).zip(&given).try_for_each(|((given, holding), contents)| match contents {
                None => state.fill(given, *holding),
                Some(bytes) => state.engine.write(address_for(given, *holding, bytes.len() as u64)?, bytes),
            });
        let (of_parameters, of_inputs) = holdings.split_at(parameters.len());
        let weights: Vec<WeightHolding> = parameters.iter().zip(of_parameters).map(resident).collect();
        let outcome = outcome.map_err(RunError::from).and_then(|()| {
            let super::runner::State { engine, persistent, .. } = &mut *state;
            let (prepared, observe) = (&ready.prepared, &mut |_: &_| {});
            let execution = Execution { device, prepared, inputs: of_inputs, weights: &weights, persistent, observe };
            execute(engine, execution, |engine, address| {
                outputs.iter().map(|view| read_back(engine, view, address)).collect::<Result<Vec<_>, _>>()
            })
        });
        let released = placed.release(device);
        let computed = Computed { outputs: outcome?, convolutions: state.convolutions(&ready.prepared) };
        released.map(|()| computed)
    }
}

/// A parameter that lies on the device with contents.
fn resident((given, holding): (&Given, &Holding)) -> WeightHolding {
    let bytes = given.elements * given.element.bytes();
    WeightHolding { name: given.name.clone(), bytes, holding: Some(*holding), has_contents: true }
}

fn address_for(given: &Given, holding: Holding, bytes: u64) -> Result<u64, CudaError> {
    let needed_bytes = given.elements * given.element.bytes();
    if bytes != needed_bytes {
        return Err(CudaError::WrongSize { name: given.name.clone(), bytes, needed_bytes });
    }
    match holding {
        Holding::Allocated(allocation) => Ok(allocation.address().0),
        Holding::Remote { .. } => Err(CudaError::NoAddress { name: given.name.clone() }),
    }
}

fn count(
    engine: &mut super::engine::GpuEngine,
    outputs: &[View],
    counter: u64,
    address: &Addresses<'_>,
) -> Result<u64, CudaError> {
    // The counter is no memory of the computation, so its address is handed over as a number.
    for output in outputs {
        if let Some(call) = picks::not_finite(output, Argument::count(counter))? {
            engine.call(&Call::Kernel(call), address)?;
        }
    }
    let mut bytes = [0; 8];
    engine.read(counter, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Whether values are not all the same. What is no number is not the same as anything.
fn vary(values: &[f64]) -> bool {
    values.windows(2).any(|pair| pair[0] != pair[1])
}

/// Reads the first rows of a view, as many as hold [`COMPARED`] elements, or all there are.
fn beginning(engine: &super::engine::GpuEngine, view: &View, address: &Addresses<'_>) -> Result<Results, CudaError> {
    read_back(engine, &first_of(view, COMPARED as u64), address)
}

/// The part of a view that holds its first elements: at most this many, but one of each outer dimension.
fn first_of(view: &View, most: u64) -> View {
    let mut first = view.clone();
    let mut room = most.max(1);
    for size in first.sizes.iter_mut().rev() {
        *size = (*size).min(room);
        room = (room / (*size).max(1)).max(1);
    }
    first
}

/// Reads the memory that a view covers, and picks its elements row by row.
fn read_back(engine: &super::engine::GpuEngine, view: &View, address: &Addresses<'_>) -> Result<Results, CudaError> {
    let (element, sizes) = (view.element, view.sizes.clone());
    let bytes = element.bytes() as usize;
    if view.elements() == 0 {
        return Ok(Results { element, sizes, contents: Vec::new() });
    }
    let last: u64 = view.sizes.iter().zip(&view.strides).map(|(size, stride)| (size - 1) * stride).sum();
    let mut covered = vec![0; (last + 1) as usize * bytes];
    engine.read(address(Place::of(view))?, &mut covered)?;
    let mut offsets = vec![0];
    for (&size, &stride) in view.sizes.iter().zip(&view.strides) {
        offsets = offsets.iter().flat_map(|start| (0..size).map(move |at| start + at * stride)).collect();
    }
    let contents = offsets.iter().flat_map(|&at| covered[at as usize * bytes..][..bytes].iter().copied()).collect();
    Ok(Results { element, sizes, contents })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::computation::Source;

    #[test]
    fn values_vary_unless_all_are_the_same() {
        for (values, varies) in [
            (&[0.0, 0.0, 0.0][..], false),
            (&[0.5, 0.5], false),
            (&[1.0], false),
            (&[], false),
            (&[0.0, -0.0], false),
            (&[0.0, 0.0, 1e-9], true),
            (&[f64::NAN, f64::NAN], true),
        ] {
            assert_eq!(vary(values), varies, "{values:?}");
        }
    }

    #[test]
    fn the_beginning_of_a_view_is_whole_rows_and_no_more_elements_than_asked_for() {
        let element = Element::Float(DType::Fp16);
        for (sizes, expected) in [
            (vec![1, 3, 1024, 1024], vec![1, 1, 64, 1024]),
            (vec![2, 4, 8, 8], vec![2, 4, 8, 8]),
            (vec![1 << 20], vec![1 << 16]),
            (vec![7, 1 << 20], vec![1, 1 << 16]),
            (vec![0, 5], vec![0, 5]),
            (vec![], vec![]),
        ] {
            let strides = vec![1; sizes.len()];
            let view = View { source: Source::Nothing, element, offset: 0, sizes, strides };
            assert_eq!(first_of(&view, 1 << 16).sizes, expected);
        }
    }
}
