//! Layers that several architectures are made of: what they hold and what they allocate.

use headroom_base::{DType, MemoryLayout};

use super::computation::{Filling, Given, Kernel};
use super::execution::Library;
use super::program::{Piece, Role};
use super::recorder::{Recorder, Tensor};
use super::shape::{Element, Shape};
use super::workspaces::ConvolutionCall;

/// Collects the parameters and buffers of modules in the order in which the reference moves them to a device.
#[derive(Debug)]
pub(super) struct Pieces {
    dtype: DType,
    path: Vec<String>,
    list: Vec<Given>,
}

/// The greatest distance of a bias, or of a scale from 1, where nobody gave them values.
const SMALL: f32 = 0.1;

impl Pieces {
    pub(super) fn new(dtype: DType) -> Self {
        Self { dtype, path: Vec::new(), list: Vec::new() }
    }

    /// What `fill` adds lies in this module.
    pub(super) fn within(&mut self, module: impl Into<String>, fill: impl FnOnce(&mut Self)) {
        self.path.push(module.into());
        fill(self);
        self.path.pop();
    }

    /// A parameter of these sizes, in the model's element type.
    ///
    /// Where nobody gives it values, weights are so large that a layer keeps the size of what it is given: uniform with
    /// a variance of one over the terms of a sum.
    pub(super) fn parameter(&mut self, name: &str, sizes: &[u64]) {
        let terms: u64 = sizes.iter().skip(1).product();
        let filling = match name.rsplit('.').next() {
            Some("bias") => Filling::Around { centre: 0.0, amplitude: SMALL },
            _ if terms <= 1 => Filling::Around { centre: 1.0, amplitude: SMALL },
            _ => Filling::Around { centre: 0.0, amplitude: (3.0 / terms as f32).sqrt() },
        };
        self.add(name, sizes, Element::Float(self.dtype), filling);
    }

    /// A buffer, whose element type is its own.
    pub(super) fn buffer(&mut self, name: &str, sizes: &[u64], element: Element) {
        self.add(name, sizes, element, Filling::Counting);
    }

    fn add(&mut self, name: &str, sizes: &[u64], element: Element, filling: Filling) {
        let name = self.path.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(".");
        self.list.push(Given { name, elements: sizes.iter().product(), element, filling });
    }

    pub(super) fn into_list(self) -> Vec<Given> {
        self.list
    }
}

impl From<&Given> for Piece {
    fn from(given: &Given) -> Self {
        let floating = matches!(given.element, Element::Float(_));
        Self { name: given.name.clone(), bytes: given.elements * given.element.bytes(), floating }
    }
}

/// A convolution over two or three dimensions.
#[derive(Clone, Debug)]
pub(super) struct Convolution {
    pub(super) inputs: u64,
    pub(super) outputs: u64,
    pub(super) kernel: Vec<u64>,
    pub(super) stride: Vec<u64>,
    pub(super) padding: Vec<u64>,
    pub(super) bias: bool,
}

impl Convolution {
    /// Two dimensions, a square kernel of odd `side`, sizes kept.
    pub(super) fn flat(inputs: u64, outputs: u64, side: u64) -> Self {
        Self { inputs, outputs, kernel: vec![side; 2], stride: vec![1; 2], padding: vec![side / 2; 2], bias: true }
    }

    /// The same with this stride and padding in both directions.
    pub(super) fn strided(self, stride: u64, padding: u64) -> Self {
        Self { stride: vec![stride; 2], padding: vec![padding; 2], ..self }
    }

    pub(super) fn without_bias(self) -> Self {
        Self { bias: false, ..self }
    }

    fn weight_sizes(&self) -> Vec<u64> {
        [vec![self.outputs, self.inputs], self.kernel.clone()].concat()
    }

    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        pieces.parameter("weight", &self.weight_sizes());
        if self.bias {
            pieces.parameter("bias", &[self.outputs]);
        }
    }

    /// Copies of operands in the library's layout, then the output, then its workspace; the bias is added in place.
    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let weight = recorder.parameter("weight", Shape::of(&self.weight_sizes(), recorder.execution.memory_layout));
        let last = [input.shape.suggested_layout(), weight.shape.suggested_layout()];
        let layout = if last.contains(&MemoryLayout::ChannelsLast) {
            MemoryLayout::ChannelsLast
        } else {
            MemoryLayout::Contiguous
        };
        let spatial = &input.sizes()[2..];
        let output: Vec<u64> = (0..spatial.len())
            .map(|d| (spatial[d] + 2 * self.padding[d] - self.kernel[d]) / self.stride[d] + 1)
            .collect();
        let sizes = [vec![input.size(0), self.outputs], output.clone()].concat();
        let input = recorder.dense_in(input, layout, "convolution input");
        let weight = recorder.dense_in(&weight, layout, "convolution weight");
        let result = recorder.empty_in(&sizes, layout, input.element, "convolution", Role::Output);
        let call = ConvolutionCall {
            dtype: recorder.dtype,
            layout,
            batch: input.size(0),
            input_channels: self.inputs,
            output_channels: self.outputs,
            input: input.sizes()[2..].to_vec(),
            output,
            kernel: self.kernel.clone(),
        };
        let bytes = recorder.execution.workspaces.convolution(&call).total();
        let workspace = recorder.workspace(bytes, "convolution workspace");
        let bias = self.bias.then(|| recorder.parameter("bias", Shape::contiguous(&[self.outputs])));
        let (stride, padding) = (self.stride.clone(), self.padding.clone());
        let kernel = Kernel::Convolution { stride, padding, workspace: workspace.id() };
        let reads: Vec<&Tensor> = [&input, &weight].into_iter().chain(&bias).collect();
        recorder.launch(kernel, &reads, &[&result]);
        drop(workspace);
        drop(weight);
        drop(input);
        result
    }
}

/// Normalisation over groups of channels, with scale and shift.
#[derive(Clone, Debug)]
pub(super) struct GroupNorm {
    pub(super) groups: u64,
    pub(super) channels: u64,
    /// What is added to the variance.
    pub(super) epsilon: f64,
}

impl GroupNorm {
    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        pieces.parameter("weight", &[self.channels]);
        pieces.parameter("bias", &[self.channels]);
    }

    /// The input in row-major order, the output, and four small tensors of statistics.
    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let dense = recorder.contiguous(input);
        let output = recorder.empty(input.sizes(), input.element, "group_norm");
        let batch = input.size(0);
        let mean = recorder.empty(&[batch, self.groups], input.element, "group_norm mean");
        let deviation = recorder.empty(&[batch, self.groups], input.element, "group_norm deviation");
        let scale = recorder.empty(&[batch, self.channels], Element::FP32, "group_norm scale");
        let shift = recorder.empty(&[batch, self.channels], Element::FP32, "group_norm shift");
        let [weight, bias] =
            ["weight", "bias"].map(|name| recorder.parameter(name, Shape::contiguous(&[self.channels])));
        let kernel = Kernel::GroupNorm { groups: self.groups, epsilon: self.epsilon };
        recorder.launch(kernel, &[&dense, &weight, &bias], &[&output, &mean, &deviation, &scale, &shift]);
        drop(shift);
        drop(scale);
        drop(mean);
        drop(deviation);
        drop(dense);
        output
    }
}

/// A matrix product with weights.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    pub(super) inputs: u64,
    pub(super) outputs: u64,
    pub(super) bias: bool,
}

impl Linear {
    /// With a bias.
    pub(super) fn new(inputs: u64, outputs: u64) -> Self {
        Self { inputs, outputs, bias: true }
    }

    pub(super) fn without_bias(inputs: u64, outputs: u64) -> Self {
        Self { inputs, outputs, bias: false }
    }

    pub(super) fn parameters(&self, pieces: &mut Pieces) {
        pieces.parameter("weight", &[self.outputs, self.inputs]);
        if self.bias {
            pieces.parameter("bias", &[self.outputs]);
        }
    }

    /// One output. With a bias and row-major tokens the bias joins the product, which is another library.
    pub(super) fn forward(&self, recorder: &Recorder, input: &Tensor) -> Tensor {
        let mut sizes = input.sizes().to_vec();
        let rank = sizes.len();
        sizes[rank - 1] = self.outputs;
        let joined = self.bias && (rank == 2 || (rank == 3 && input.shape.is_contiguous()));
        recorder.prepare(if joined { Library::CublasLt } else { Library::Cublas });
        let output = recorder.empty(&sizes, input.element, "linear");
        let weight = recorder.parameter("weight", Shape::contiguous(&[self.outputs, self.inputs]));
        let bias = self.bias.then(|| recorder.parameter("bias", Shape::contiguous(&[self.outputs])));
        let reads: Vec<&Tensor> = [input, &weight].into_iter().chain(&bias).collect();
        recorder.launch(Kernel::MatrixProduct, &reads, &[&output]);
        output
    }
}
