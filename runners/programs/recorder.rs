//! Tensors that exist only as sizes: each is logged when it is made and when its last holder lets go.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use headroom_base::{Case, DType, MemoryLayout};

use super::computation::{Filling, Given, Kernel, Launch, Pointwise, Source, View};
use super::execution::{Execution, Library};
use super::program::{Label, Piece, Program, Role, Step, TensorId};
use super::shape::{Element, Shape};

#[derive(Debug, Default)]
struct Log {
    steps: RefCell<Vec<Step>>,
    closed: Cell<bool>,
}

/// The memory behind one or more tensors.
#[derive(Debug)]
struct Storage {
    source: Source,
    log: Rc<Log>,
}

impl Drop for Storage {
    fn drop(&mut self) {
        // What is there before the operation, weights and inputs, is not its to free.
        if let (Source::Tensor(tensor), false) = (self.source, self.log.closed.get()) {
            self.log.steps.borrow_mut().push(Step::Free { tensor });
        }
    }
}

/// A tensor as the reference's Python code holds it: clones and views share memory, which is freed with the last.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    storage: Rc<Storage>,
    /// Where its first element lies in the memory, in elements.
    offset: u64,
    pub(super) shape: Shape,
    pub(super) element: Element,
}

impl Tensor {
    /// Size of one dimension.
    pub(super) fn size(&self, dimension: usize) -> u64 {
        self.shape.sizes[dimension]
    }

    /// Sizes of all dimensions.
    pub(super) fn sizes(&self) -> &[u64] {
        &self.shape.sizes
    }

    fn with_shape(&self, shape: Shape) -> Self {
        Self { storage: Rc::clone(&self.storage), offset: self.offset, shape, element: self.element }
    }

    fn moved(self, elements: u64) -> Self {
        Self { offset: self.offset + elements, ..self }
    }

    /// Its elements as a kernel sees them.
    pub(super) fn view(&self) -> View {
        let Shape { sizes, strides } = self.shape.clone();
        View { source: self.storage.source, element: self.element, offset: self.offset, sizes, strides }
    }

    /// The tensor of the program that it lies in, where it lies in one.
    pub(super) fn id(&self) -> Option<TensorId> {
        match self.storage.source {
            Source::Tensor(tensor) => Some(tensor),
            Source::Input(_) | Source::Parameter(_) | Source::Nothing => None,
        }
    }

    /// A view with dimensions in another order.
    pub(super) fn permute(&self, order: &[usize]) -> Self {
        self.with_shape(self.shape.permuted(order))
    }

    /// A view with two dimensions exchanged.
    pub(super) fn transpose(&self, first: usize, second: usize) -> Self {
        let mut order: Vec<usize> = (0..self.shape.sizes.len()).collect();
        order.swap(first, second);
        self.permute(&order)
    }

    /// A view of up to `length` elements of one dimension from `start` on.
    pub(super) fn narrow(&self, dimension: usize, start: u64, length: u64) -> Self {
        let mut shape = self.shape.clone();
        let start = start.min(shape.sizes[dimension]);
        shape.sizes[dimension] = length.min(shape.sizes[dimension] - start);
        let skipped = start * shape.strides[dimension];
        self.with_shape(shape).moved(skipped)
    }

    /// A view of the last `length` elements of one dimension, or of all where it has fewer.
    pub(super) fn last(&self, dimension: usize, length: u64) -> Self {
        self.narrow(dimension, self.size(dimension).saturating_sub(length), length)
    }

    /// A view of one of `parts` equal parts of a dimension.
    pub(super) fn part(&self, dimension: usize, index: u64, parts: u64) -> Self {
        let length = self.size(dimension) / parts.max(1);
        self.narrow(dimension, index * length, length)
    }

    /// A view of one index of a dimension, which goes away.
    pub(super) fn select(&self, dimension: usize, index: u64) -> Self {
        let mut shape = self.shape.clone();
        shape.sizes.remove(dimension);
        let skipped = index * shape.strides.remove(dimension);
        self.with_shape(shape).moved(skipped)
    }

    /// A view of the last dimension as pairs of neighbours: (…, 2n) as (…, n, 2).
    pub(super) fn pairs(&self) -> Self {
        let mut shape = self.shape.clone();
        if let (Some(size), Some(stride)) = (shape.sizes.pop(), shape.strides.pop()) {
            shape.sizes.extend([size / 2, 2]);
            shape.strides.extend([2 * stride, stride]);
        }
        self.with_shape(shape)
    }

    /// A view under these sizes in which dimensions of size 1 are repeated.
    pub(super) fn expand(&self, sizes: &[u64]) -> Self {
        let mut shape = self.shape.clone();
        for (dimension, &size) in sizes.iter().enumerate() {
            if shape.sizes[dimension] != size {
                shape.sizes[dimension] = size;
                shape.strides[dimension] = 0;
            }
        }
        self.with_shape(shape)
    }

    /// A view with a new dimension of size 1.
    pub(super) fn unsqueeze(&self, dimension: usize) -> Self {
        let mut shape = self.shape.clone();
        let stride = shape.sizes.get(dimension).map_or(1, |size| size * shape.strides[dimension]);
        shape.sizes.insert(dimension, 1);
        shape.strides.insert(dimension, stride);
        self.with_shape(shape)
    }

    /// The same memory under other sizes, where no copy is needed.
    pub(super) fn viewed(&self, sizes: &[u64]) -> Option<Self> {
        self.shape.viewed(sizes).map(|shape| self.with_shape(shape))
    }
}

/// Records an operation while its modules run over shapes.
#[derive(Debug)]
pub(super) struct Recorder {
    log: Rc<Log>,
    next: Cell<u32>,
    place: RefCell<Vec<String>>,
    ready: RefCell<BTreeSet<Library>>,
    inputs: RefCell<Vec<Piece>>,
    /// What is computed, where that is asked for.
    computing: Option<Computing>,
    /// How the operation is executed.
    pub(super) execution: Execution,
    /// The element type it computes in.
    pub(super) dtype: DType,
}

/// What a recording of launches needs and gathers.
#[derive(Debug, Default)]
pub(super) struct Computing {
    /// Where each parameter lies, by name.
    parameters: RefCell<HashMap<String, Tensor>>,
    inputs: RefCell<Vec<Given>>,
    launches: RefCell<Vec<Launch>>,
    /// The first parameter that was asked for and is none of the model's.
    unknown: RefCell<Option<String>>,
}

/// What came of a recording of launches.
#[derive(Debug, Default)]
pub(super) struct Computed {
    pub(super) inputs: Vec<Given>,
    pub(super) launches: Vec<Launch>,
    /// A parameter that was asked for and is none of the model's.
    pub(super) unknown: Option<String>,
}

/// Names the module whose operators follow, until it is dropped.
#[derive(Debug)]
pub(super) struct Place<'a>(&'a Recorder);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.place.borrow_mut().pop();
    }
}

impl Recorder {
    pub(super) fn new(execution: &Execution, dtype: DType) -> Self {
        Self {
            log: Rc::default(),
            next: Cell::new(0),
            place: RefCell::default(),
            ready: RefCell::default(),
            inputs: RefCell::default(),
            computing: None,
            execution: execution.clone(),
            dtype,
        }
    }

    /// A recorder that records what is computed as well.
    pub(super) fn computing(execution: &Execution, dtype: DType) -> Self {
        Self { computing: Some(Computing::default()), ..Self::new(execution, dtype) }
    }

    /// Says where the parameter of a name lies, for a recording of launches.
    pub(super) fn know_parameter(&self, name: &str, source: Source, copy: Option<&Tensor>, element: Element) {
        let Some(computing) = &self.computing else { return };
        let tensor = copy.cloned().unwrap_or_else(|| self.given(source, Shape::contiguous(&[]), element));
        computing.parameters.borrow_mut().insert(name.to_owned(), tensor);
    }

    /// Lets go of copies of parameters that it was told of.
    pub(super) fn forget_parameters(&self) {
        if let Some(computing) = &self.computing {
            computing.parameters.borrow_mut().clear();
        }
    }

    /// Records a launch, where launches are recorded.
    pub(super) fn launch(&self, kernel: Kernel, reads: &[&Tensor], writes: &[&Tensor]) {
        let Some(computing) = &self.computing else { return };
        let views = |tensors: &[&Tensor]| tensors.iter().map(|tensor| tensor.view()).collect();
        let after = self.log.steps.borrow().len();
        let launch = Launch { after, kernel, reads: views(reads), writes: views(writes) };
        computing.launches.borrow_mut().push(launch);
    }

    /// Records an elementwise launch.
    pub(super) fn pointwise(&self, function: Pointwise, reads: &[&Tensor], output: &Tensor) {
        self.launch(Kernel::Pointwise(function), reads, &[output]);
    }

    /// The element type it computes in.
    pub(super) fn element(&self) -> Element {
        Element::Float(self.dtype)
    }

    /// Enters a module.
    pub(super) fn enter(&self, module: impl Into<String>) -> Place<'_> {
        self.place.borrow_mut().push(module.into());
        Place(self)
    }

    fn log_allocation(&self, bytes: u64, operator: &'static str, role: Role) -> Option<TensorId> {
        if bytes == 0 {
            return None;
        }
        let tensor = TensorId(self.next.replace(self.next.get() + 1));
        let place: Arc<str> = self.place.borrow().join(".").into();
        let label = Label { place, operator };
        self.log.steps.borrow_mut().push(Step::Allocate { tensor, bytes, label, role });
        Some(tensor)
    }

    fn given(&self, source: Source, shape: Shape, element: Element) -> Tensor {
        Tensor { storage: Rc::new(Storage { source, log: Rc::clone(&self.log) }), offset: 0, shape, element }
    }

    fn tensor(&self, id: Option<TensorId>, shape: Shape, element: Element) -> Tensor {
        self.given(id.map_or(Source::Nothing, Source::Tensor), shape, element)
    }

    /// A floating tensor that the operation is given: its memory is there before it starts.
    pub(super) fn input(&self, name: &str, sizes: &[u64]) -> Tensor {
        self.input_of(name, sizes, self.element(), Filling::Around { centre: 0.0, amplitude: 1.0 })
    }

    /// A tensor that the operation is given, of this element type and with these values where nobody gives it others.
    pub(super) fn input_of(&self, name: &str, sizes: &[u64], element: Element, filling: Filling) -> Tensor {
        let shape = Shape::of(sizes, self.execution.memory_layout);
        let bytes = shape.elements() * element.bytes();
        let floating = matches!(element, Element::Float(_));
        let index = self.inputs.borrow().len();
        self.inputs.borrow_mut().push(Piece { name: name.to_owned(), bytes, floating });
        if let Some(computing) = &self.computing {
            let given = Given { name: name.to_owned(), elements: shape.elements(), element, filling };
            computing.inputs.borrow_mut().push(given);
        }
        self.given(Source::Input(index), shape, element)
    }

    /// A parameter of the current module, whose memory is no part of the operation.
    pub(super) fn parameter(&self, name: &str, shape: Shape) -> Tensor {
        self.parameter_of(name, shape, self.element())
    }

    /// A parameter or buffer of the current module that has an element type of its own.
    pub(super) fn parameter_of(&self, name: &str, shape: Shape, element: Element) -> Tensor {
        let Some(computing) = &self.computing else { return self.given(Source::Nothing, shape, element) };
        let place = self.place.borrow().join(".");
        let full = if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
        match computing.parameters.borrow().get(&full) {
            Some(known) => known.with_shape(shape),
            None => {
                computing.unknown.borrow_mut().get_or_insert(full);
                self.given(Source::Nothing, shape, element)
            }
        }
    }

    /// A new tensor of this shape.
    pub(super) fn allocate(&self, shape: Shape, element: Element, operator: &'static str, role: Role) -> Tensor {
        let id = self.log_allocation(shape.elements() * element.bytes(), operator, role);
        self.tensor(id, shape, element)
    }

    /// A new row-major tensor.
    pub(super) fn empty(&self, sizes: &[u64], element: Element, operator: &'static str) -> Tensor {
        self.allocate(Shape::contiguous(sizes), element, operator, Role::Output)
    }

    /// A new tensor in this layout.
    pub(super) fn empty_in(
        &self,
        sizes: &[u64],
        layout: MemoryLayout,
        element: Element,
        operator: &'static str,
        role: Role,
    ) -> Tensor {
        self.allocate(Shape::of(sizes, layout), element, operator, role)
    }

    /// A converted copy of a weight.
    pub(super) fn converted_weight(&self, bytes: u64) -> Tensor {
        let id = self.log_allocation(bytes, "converted weights", Role::Weights);
        self.tensor(id, Shape::contiguous(&[bytes]), Element::Bool)
    }

    /// A copy of a parameter in the element type that the operation computes in.
    pub(super) fn converted(&self, source: Source, given: &Given, dtype: DType) -> Tensor {
        let copy = Tensor {
            shape: Shape::contiguous(&[given.elements]),
            element: Element::Float(dtype),
            ..self.converted_weight(given.elements * dtype.element_bytes())
        };
        let stored = self.given(source, copy.shape.clone(), given.element);
        self.pointwise(Pointwise::Copy, &[&stored], &copy);
        copy
    }

    /// Scratch memory that lives until the returned value is dropped.
    pub(super) fn workspace(&self, bytes: u64, operator: &'static str) -> Tensor {
        let id = self.log_allocation(bytes, operator, Role::Workspace);
        self.tensor(id, Shape::contiguous(&[bytes]), Element::Bool)
    }

    /// Sets a library up at its first use: its own workspace stays for the life of the process.
    pub(super) fn prepare(&self, library: Library) {
        if self.ready.borrow_mut().insert(library) {
            let bytes = self.execution.workspaces.persistent_bytes(library);
            self.log_allocation(bytes, library.name(), Role::Persistent);
        }
    }

    /// Ends the recording; what still lives is the operation's output.
    pub(super) fn finish(self, case: Case) -> (Program, Option<Computed>) {
        self.log.closed.set(true);
        let computed = self.computing.map(|computing| Computed {
            inputs: computing.inputs.into_inner(),
            launches: computing.launches.into_inner(),
            unknown: computing.unknown.into_inner(),
        });
        (Program { case, inputs: self.inputs.into_inner(), steps: self.log.steps.take() }, computed)
    }
}
