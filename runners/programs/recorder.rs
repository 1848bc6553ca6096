//! Tensors that exist only as sizes: each is logged when it is made and when its last holder lets go.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use headroom_base::{Case, DType, MemoryLayout};

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
    /// `None` for what is there before the operation: weights and inputs.
    tensor: Option<TensorId>,
    log: Rc<Log>,
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let (Some(tensor), false) = (self.tensor, self.log.closed.get()) {
            self.log.steps.borrow_mut().push(Step::Free { tensor });
        }
    }
}

/// A tensor as the reference's Python code holds it: clones and views share memory, which is freed with the last.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    storage: Rc<Storage>,
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
        Self { storage: Rc::clone(&self.storage), shape, element: self.element }
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

    /// A view of `length` elements of one dimension. (Where it starts does not matter to memory.)
    pub(super) fn narrow(&self, dimension: usize, length: u64) -> Self {
        let mut shape = self.shape.clone();
        shape.sizes[dimension] = length.min(shape.sizes[dimension]);
        self.with_shape(shape)
    }

    /// A view of one index of a dimension, which goes away.
    pub(super) fn select(&self, dimension: usize) -> Self {
        let mut shape = self.shape.clone();
        shape.sizes.remove(dimension);
        shape.strides.remove(dimension);
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
    /// How the operation is executed.
    pub(super) execution: Execution,
    /// The element type it computes in.
    pub(super) dtype: DType,
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
            execution: execution.clone(),
            dtype,
        }
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

    fn tensor(&self, id: Option<TensorId>, shape: Shape, element: Element) -> Tensor {
        Tensor { storage: Rc::new(Storage { tensor: id, log: Rc::clone(&self.log) }), shape, element }
    }

    /// A tensor that the operation is given: its memory is there before it starts.
    pub(super) fn input(&self, name: &str, sizes: &[u64], element: Element) -> Tensor {
        let shape = Shape::of(sizes, self.execution.memory_layout);
        let bytes = shape.elements() * element.bytes();
        let floating = matches!(element, Element::Float(_));
        self.inputs.borrow_mut().push(Piece { name: name.to_owned(), bytes, floating });
        self.tensor(None, shape, element)
    }

    /// A tensor of the caller's that needs no memory of its own.
    pub(super) fn weight_free(&self, sizes: &[u64]) -> Tensor {
        self.tensor(None, Shape::contiguous(sizes), Element::FP32)
    }

    /// A weight, whose memory is no part of the operation.
    pub(super) fn weight(&self, shape: Shape) -> Tensor {
        self.tensor(None, shape, self.element())
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
    pub(super) fn finish(self, case: Case) -> Program {
        self.log.closed.set(true);
        Program { case, inputs: self.inputs.take(), steps: self.log.steps.take() }
    }
}
