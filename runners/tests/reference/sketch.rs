//! Small computations made by hand.

use std::sync::Arc;

use headroom_base::{Case, DType, Operation};
use headroom_runners::programs::computation::{Computation, Filling, Given, Kernel, Launch, Pointwise, Source, View};
use headroom_runners::programs::{Element, Label, Piece, Program, Role, Step, TensorId};
use headroom_runners::reference::{Contents, Outputs, ReferenceError, execute};

pub(super) const FP32: Element = Element::Float(DType::Fp32);
pub(super) const FP16: Element = Element::Float(DType::Fp16);
pub(super) const BF16: Element = Element::Float(DType::Bf16);

/// A computation in the making, with what its inputs hold.
pub(super) struct Sketch {
    pub(super) computation: Computation,
    contents: Contents,
    tensors: u32,
}

impl Sketch {
    pub(super) fn new() -> Self {
        let case = Case::image(Operation::VaeDecode, DType::Fp32, 64, 64);
        let program = Program { case, inputs: Vec::new(), steps: Vec::new() };
        let computation = Computation {
            program,
            launches: Vec::new(),
            inputs: Vec::new(),
            parameters: Vec::new(),
            outputs: Vec::new(),
        };
        Self { computation, contents: Contents::default(), tensors: 0 }
    }

    /// An input of its own name, row-major, that holds these values.
    pub(super) fn input(&mut self, sizes: &[u64], element: Element, values: &[f64]) -> View {
        let number = self.computation.inputs.len();
        let name = format!("input {number}");
        let filling = Filling::Around { centre: 0.0, amplitude: 1.0 };
        let elements = sizes.iter().product();
        self.computation.program.inputs.push(Piece {
            name: name.clone(),
            bytes: elements * element.bytes(),
            floating: true,
        });
        self.computation.inputs.push(Given { name: name.clone(), elements, element, filling });
        self.contents = std::mem::take(&mut self.contents).with(name, values.to_vec());
        row_major(Source::Input(number), element, sizes)
    }

    /// A new tensor, row-major.
    pub(super) fn tensor(&mut self, sizes: &[u64], element: Element) -> View {
        let tensor = TensorId(self.tensors);
        self.tensors += 1;
        let view = row_major(Source::Tensor(tensor), element, sizes);
        let label = Label { place: Arc::from("block"), operator: "result" };
        let bytes = view.elements() * element.bytes();
        self.computation.program.steps.push(Step::Allocate { tensor, bytes, label, role: Role::Output });
        view
    }

    /// Frees the tensor that a view looks at.
    pub(super) fn free(&mut self, view: &View) {
        let Source::Tensor(tensor) = view.source else { panic!("{view:?} is no tensor") };
        self.computation.program.steps.push(Step::Free { tensor });
    }

    pub(super) fn launch(&mut self, kernel: Kernel, reads: &[&View], writes: &[&View]) {
        let views = |views: &[&View]| views.iter().map(|view| (*view).clone()).collect();
        let after = self.computation.program.steps.len();
        self.computation.launches.push(Launch { after, kernel, reads: views(reads), writes: views(writes) });
    }

    pub(super) fn pointwise(&mut self, function: Pointwise, reads: &[&View], output: &View) {
        self.launch(Kernel::Pointwise(function), reads, &[output]);
    }

    /// A new tensor with what a kernel of one output computes.
    pub(super) fn computed(&mut self, kernel: Kernel, reads: &[&View], sizes: &[u64], element: Element) -> View {
        let output = self.tensor(sizes, element);
        self.launch(kernel, reads, &[&output]);
        output
    }

    pub(super) fn output(&mut self, view: &View) {
        self.computation.outputs.push(view.clone());
    }

    pub(super) fn run(&self) -> Result<Outputs, ReferenceError> {
        execute(&self.computation, &self.contents)
    }

    /// The values of these views at the end.
    pub(super) fn values(mut self, views: &[&View]) -> Vec<Vec<f64>> {
        for view in views {
            self.output(view);
        }
        self.run().expect("a right computation").outputs.into_iter().map(|output| output.values).collect()
    }

    /// What the reference says against it.
    pub(super) fn refusal(&self) -> String {
        self.run().expect_err("the computation is wrong").to_string()
    }
}

/// A row-major view from the beginning of some memory.
pub(super) fn row_major(source: Source, element: Element, sizes: &[u64]) -> View {
    let strides = (0..sizes.len()).map(|dimension| sizes[dimension + 1..].iter().product()).collect();
    View { source, element, offset: 0, sizes: sizes.to_vec(), strides }
}

/// A view with dimensions in another order.
pub(super) fn permuted(view: &View, order: &[usize]) -> View {
    View {
        sizes: order.iter().map(|&dimension| view.sizes[dimension]).collect(),
        strides: order.iter().map(|&dimension| view.strides[dimension]).collect(),
        ..view.clone()
    }
}

/// A view of some indices of one dimension.
pub(super) fn narrowed(view: &View, dimension: usize, start: u64, length: u64) -> View {
    let mut part = view.clone();
    part.offset += start * part.strides[dimension];
    part.sizes[dimension] = length;
    part
}

/// Numbers without a pattern, between -1 and 1, that fp32 and fp64 hold alike.
pub(super) fn numbers(seed: u64, count: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 44) as f64 / f64::from(1 << 19) - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Asserts that two lists of values agree up to an error of this size.
pub(super) fn assert_near(found: &[f64], expected: &[f64], error: f64) {
    assert_eq!(found.len(), expected.len());
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= error, "element {at}: {found} is not {expected}");
    }
}
