//! Steps and launches in order: memory comes and goes, and each launch reads, computes and writes.

use std::collections::{HashMap, HashSet};

use super::contents::Contents;
use super::dense::Dense;
use super::error::{Problem, ReferenceError};
use super::kernels::{compute, name};
use super::memory::{Memory, places, sizes};
use super::signature;
use crate::programs::computation::{Computation, Kernel, Launch, Source, View};
use crate::programs::{Element, Label, Step, TensorId};

/// One result.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Its element type.
    pub element: Element,
    /// Its sizes.
    pub sizes: Vec<u64>,
    /// Its values, row-major.
    pub values: Vec<f64>,
}

/// What a computation left.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs {
    /// Its results, in the order in which the computation names them.
    pub outputs: Vec<Output>,
    /// Names of the inputs and parameters that no launch read.
    pub unread: Vec<String>,
}

/// Executes a computation with these contents.
///
/// # Errors
/// When the computation is wrong (it looks at memory that is not there, reads what nobody wrote, or a kernel's operands
/// do not fit), or the contents do not fit it.
pub fn execute(computation: &Computation, contents: &Contents) -> Result<Outputs, ReferenceError> {
    contents.check(computation)?;
    let mut machine = Machine::new(computation, contents)?;
    let mut launches = computation.launches.iter().enumerate().peekable();
    let steps = &computation.program.steps;
    for done in 0..=steps.len() {
        while let Some((number, launch)) = launches.next_if(|(_, launch)| launch.after == done) {
            machine.launch(launch).map_err(|problem| machine.at(number, launch, problem))?;
        }
        if let Some(step) = steps.get(done) {
            machine.step(done, step)?;
        }
    }
    if let Some((number, launch)) = launches.next() {
        return Err(ReferenceError::Order { number, after: launch.after, steps: steps.len() });
    }
    machine.finish(computation)
}

/// A tensor that lives: its element type is that of the first view of it.
struct Tensor {
    bytes: u64,
    memory: Option<Memory>,
}

struct Machine<'a> {
    inputs: Vec<Memory>,
    parameters: Vec<Memory>,
    tensors: HashMap<TensorId, Tensor>,
    labels: HashMap<TensorId, &'a Label>,
    read: HashSet<Source>,
}

impl<'a> Machine<'a> {
    fn new(computation: &Computation, contents: &Contents) -> Result<Self, ReferenceError> {
        Ok(Self {
            inputs: computation.inputs.iter().map(|given| contents.of(given)).collect::<Result<_, _>>()?,
            parameters: computation.parameters.iter().map(|given| contents.of(given)).collect::<Result<_, _>>()?,
            tensors: HashMap::new(),
            labels: HashMap::new(),
            read: HashSet::new(),
        })
    }

    fn step(&mut self, number: usize, step: &'a Step) -> Result<(), ReferenceError> {
        let (tensor, fits) = match step {
            Step::Allocate { tensor, bytes, label, .. } => {
                self.labels.insert(*tensor, label);
                (*tensor, self.tensors.insert(*tensor, Tensor { bytes: *bytes, memory: None }).is_none())
            }
            Step::Free { tensor } => (*tensor, self.tensors.remove(tensor).is_some()),
        };
        if fits { Ok(()) } else { Err(ReferenceError::Step { number, tensor }) }
    }

    fn at(&self, number: usize, launch: &Launch, problem: Problem) -> ReferenceError {
        let written = launch.writes.first().and_then(|view| match view.source {
            Source::Tensor(tensor) => self.labels.get(&tensor),
            _ => None,
        });
        let place = written.map_or_else(|| "nowhere".to_owned(), ToString::to_string);
        ReferenceError::Launch { number, kernel: name(&launch.kernel), place, problem }
    }

    /// The memory that a view looks at.
    fn memory(&mut self, view: &View) -> Result<&mut Memory, Problem> {
        let given = |list: &'_ [Memory]| Problem::NoSuchGiven { of: view.source, count: list.len() };
        match view.source {
            Source::Tensor(id) => {
                let tensor = self.tensors.get_mut(&id).ok_or(Problem::NotLive(id))?;
                let fresh = || Memory::fresh(view.element, tensor.bytes / view.element.bytes());
                Ok(tensor.memory.get_or_insert_with(fresh))
            }
            Source::Input(place) => {
                let missing = given(&self.inputs);
                self.inputs.get_mut(place).ok_or(missing)
            }
            Source::Parameter(place) => {
                let missing = given(&self.parameters);
                self.parameters.get_mut(place).ok_or(missing)
            }
            Source::Nothing => Err(Problem::NoMemory { elements: view.elements() }),
        }
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), Problem> {
        signature::check(launch)?;
        if let Kernel::Convolution { workspace: Some(tensor), .. } = &launch.kernel
            && !self.tensors.contains_key(tensor)
        {
            return Err(Problem::NotLive(*tensor));
        }
        let mut operands = Vec::with_capacity(launch.reads.len());
        for view in &launch.reads {
            self.read.insert(view.source);
            operands.push(self.load(view)?);
        }
        self.check_writes(launch)?;
        let results = compute(launch, &operands)?;
        for (view, result) in launch.writes.iter().zip(results) {
            if view.elements() > 0 {
                self.memory(view)?.store(view, &result.values)?;
            }
        }
        Ok(())
    }

    fn load(&mut self, view: &View) -> Result<Dense, Problem> {
        if view.elements() == 0 {
            return Ok(Dense::from_fn(&sizes(view), |_| 0.0));
        }
        self.memory(view)?.load(view)
    }

    /// That writes go to tensors, each element once, and to none that is read for another one.
    fn check_writes(&self, launch: &Launch) -> Result<(), Problem> {
        let mut written: HashMap<TensorId, Vec<bool>> = HashMap::new();
        for view in launch.writes.iter().filter(|view| view.elements() > 0) {
            let Source::Tensor(id) = view.source else { return Err(Problem::WritesGiven(view.source)) };
            let tensor = self.tensors.get(&id).ok_or(Problem::NotLive(id))?;
            let elements = tensor.bytes / view.element.bytes();
            let marks = written.entry(id).or_insert_with(|| vec![false; elements as usize]);
            for element in places(view, elements)? {
                if std::mem::replace(&mut marks[element], true) {
                    return Err(Problem::WritesTwice { of: view.source, element });
                }
            }
        }
        for view in &launch.reads {
            let Source::Tensor(id) = view.source else { continue };
            let Some(marks) = written.get(&id) else { continue };
            if matches!(launch.kernel, Kernel::Pointwise(_)) && launch.writes.iter().any(|write| same(write, view)) {
                continue;
            }
            let places = places(view, marks.len() as u64)?;
            if let Some(element) = places.into_iter().find(|element| marks[*element]) {
                return Err(Problem::Overlap { of: view.source, element });
            }
        }
        Ok(())
    }

    fn finish(mut self, computation: &Computation) -> Result<Outputs, ReferenceError> {
        let mut outputs = Vec::with_capacity(computation.outputs.len());
        for (number, view) in computation.outputs.iter().enumerate() {
            let dense = self.load(view).map_err(|problem| ReferenceError::Output { number, problem })?;
            outputs.push(Output { element: view.element, sizes: view.sizes.clone(), values: dense.values });
        }
        let inputs = (0..).map(Source::Input).zip(&computation.inputs);
        let parameters = (0..).map(Source::Parameter).zip(&computation.parameters);
        let unread = inputs.chain(parameters).filter(|(source, _)| !self.read.contains(source));
        Ok(Outputs { outputs, unread: unread.map(|(_, given)| given.name.clone()).collect() })
    }
}

/// Whether two views see the same elements at the same indices, dimensions of size 1 aside.
fn same(one: &View, other: &View) -> bool {
    let essence = |view: &View| {
        let dimensions = view.sizes.iter().copied().zip(view.strides.iter().copied());
        (view.source, view.offset, view.element, dimensions.filter(|(size, _)| *size != 1).collect::<Vec<_>>())
    };
    essence(one) == essence(other)
}
