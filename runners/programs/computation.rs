//! What an operation computes, beside what it allocates: launches of kernels over views of tensors.
//!
//! A program alone is enough to predict memory. Its computation adds the arithmetic, so that the same program can be
//! executed on a GPU, and by a plain reference on the host that the GPU's results are held against.

use super::program::{Program, TensorId};
use super::shape::Element;

/// Whose memory a view looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A tensor that the program allocates.
    Tensor(TensorId),
    /// An input, by its place in [`Program::inputs`].
    Input(usize),
    /// A parameter or buffer of the model, by its place in [`Computation::parameters`].
    Parameter(usize),
    /// No memory: a tensor of no elements.
    Nothing,
}

/// Elements of one tensor, in the order and under the sizes in which a kernel sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Whose memory.
    pub source: Source,
    /// Their type.
    pub element: Element,
    /// Where the first lies, in elements from the beginning of the memory.
    pub offset: u64,
    /// Sizes, outermost dimension first.
    pub sizes: Vec<u64>,
    /// Strides in elements, of the same dimensions.
    pub strides: Vec<u64>,
}

impl View {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.sizes.iter().product()
    }
}

/// An elementwise function. Operands are broadcast to the output's sizes; arithmetic is in fp32, or in fp64 where an
/// operand or the output is fp64 or an integer. Integers are rounded towards zero, booleans are 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pointwise {
    /// a, in the output's element type.
    Copy,
    /// A number, of no operand.
    Constant(f64),
    /// The index along one of the output's dimensions times a step, of no operand.
    Index {
        /// The dimension.
        dimension: usize,
        /// The step.
        step: f64,
    },
    /// a + b.
    Add,
    /// a − b.
    Subtract,
    /// a · b.
    Multiply,
    /// a ÷ b.
    Divide,
    /// The smaller of a and b.
    Minimum,
    /// A constant ÷ a.
    ConstantOver(f64),
    /// factor · a + summand.
    Affine {
        /// The factor.
        factor: f64,
        /// The summand.
        summand: f64,
    },
    /// a ÷ a constant.
    Over(f64),
    /// a limited to a range.
    Clamp {
        /// Its lower end.
        low: f64,
        /// Its upper end.
        high: f64,
    },
    /// a limited to the range from b to c.
    ClampTo,
    /// a · sigmoid(a).
    Silu,
    /// The Gaussian error linear unit: exact, or its approximation with tanh.
    Gelu {
        /// Whether it is the approximation.
        tanh: bool,
    },
    /// max(a, 0).
    Relu,
    /// tanh a.
    Tanh,
    /// 1 ÷ (1 + e^−a).
    Sigmoid,
    /// e^a.
    Exp,
    /// A constant to the power of a.
    PowerOf(f64),
    /// a to the power of a constant.
    Power(f64),
    /// ln a.
    Log,
    /// 1 ÷ √a.
    InverseRoot,
    /// sin a.
    Sine,
    /// cos a.
    Cosine,
    /// |a|.
    Magnitude,
    /// Whether a is infinite.
    IsInfinite,
    /// Whether a is a constant.
    Equals(f64),
    /// Whether a is greater than 0.
    IsPositive,
    /// Whether a is less than a constant.
    IsLess(f64),
    /// b where a is not 0, c elsewhere.
    Choose,
    /// a where its place in the last dimension is not after its place in the last but one, −∞ elsewhere.
    MaskLater,
}

/// What is reduced along one dimension, which stays with size 1 or goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The mean.
    Mean,
    /// √ of the sum of squares.
    Length,
    /// Whether any is not 0.
    Any,
    /// Whether all are not 0.
    All,
    /// The index of the first that is largest.
    FirstLargest,
}

/// What a launch computes. `a`, `b`, `c` are what it reads, in order; it writes its outputs in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Kernel {
    /// An elementwise function.
    Pointwise(Pointwise),
    /// Convolution of a (batch, channels, space) with weights b (outputs, inputs, space) and a bias c where there is one.
    /// a, b and the output are dense in one layout: row-major, or channels innermost.
    Convolution {
        /// Of each spatial dimension.
        stride: Vec<u64>,
        /// Zeros on both sides of each spatial dimension.
        padding: Vec<u64>,
        /// The tensor that the program allocates as workspace, where it allocates one.
        workspace: Option<TensorId>,
    },
    /// a (…, k) times the transpose of weights b (n, k), plus a bias c (n) where there is one.
    MatrixProduct,
    /// a (batch, heads, m, k) times b, one product for each item and head.
    BatchedProduct {
        /// Whether b is (batch, heads, n, k) and is transposed; (batch, heads, k, n) otherwise.
        transposed: bool,
    },
    /// Softmax of (a · bᵀ · scale), times c. All are (batch, heads, tokens, channels of a head), channels innermost.
    Attention {
        /// What scores are multiplied by.
        scale: f64,
        /// Whether a query sees no later key.
        causal: bool,
    },
    /// Softmax along the last dimension.
    Softmax,
    /// Normalisation over groups of channels (dimension 1) with scale b and shift c. Writes the output, mean and inverse
    /// deviation (batch, groups), and the factor and summand of each channel in fp32 (batch, channels).
    GroupNorm {
        /// Groups.
        groups: u64,
        /// What is added to the variance.
        epsilon: f64,
    },
    /// Normalisation along the last dimension with scale b and shift c where they are. Writes the output, and mean and
    /// inverse deviation of every row in fp32.
    LayerNorm {
        /// What is added to the variance.
        epsilon: f64,
    },
    /// Root-mean-square normalisation along the last dimension with scale b. Writes the output, and the inverse
    /// deviation of every row in fp32.
    RmsNorm {
        /// What is added to the mean square.
        epsilon: f64,
    },
    /// A reduction of a along a dimension.
    Reduce {
        /// Which.
        reduction: Reduction,
        /// Along which dimension of a.
        dimension: usize,
    },
    /// Rows of a table a (rows, channels) by indices b: the output has b's sizes and then the channels.
    Gather,
    /// One row of each item of a (batch, rows, channels), by an index b (batch).
    PickRow,
    /// Pixels of a (batch, channels, rows, columns) repeated to the output's rows and columns.
    UpsampleNearest,
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// How many of the program's steps are done before it.
    pub after: usize,
    /// What it computes.
    pub kernel: Kernel,
    /// What it reads.
    pub reads: Vec<View>,
    /// What it writes.
    pub writes: Vec<View>,
}

/// What stands in memory that nobody has written: values that are the same wherever they are made.
///
/// The value at index i is `amplitude · (2 · u(i) − 1) + centre` in fp32, rounded to the element type, or
/// `floor(u(i) · below)` for integers; u(i) is in [0, 1), from [`uniform`] with the seed of the tensor's name. Indices are
/// those of the memory, from its beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Filling {
    /// Numbers around `centre`.
    Around {
        /// Their mean.
        centre: f32,
        /// Their greatest distance from it.
        amplitude: f32,
    },
    /// Whole numbers from 0 to below this.
    Below(u64),
    /// The index itself.
    Counting,
}

/// A number in [0, 1) that depends on nothing but its arguments: 24 bits of a mixed counter.
pub fn uniform(seed: u32, index: u64) -> f32 {
    let mut x = (index as u32) ^ ((index >> 32) as u32).wrapping_mul(0x85eb_ca6b) ^ seed.wrapping_mul(0x9e37_79b9);
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^= x >> 16;
    (x >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// The seed of what stands in the tensor of a name.
pub fn seed_of(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A parameter, buffer or input: its name, its shape and what stands in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// Its name in the reference's words.
    pub name: String,
    /// Its elements.
    pub elements: u64,
    /// Its element type.
    pub element: Element,
    /// What stands in it where nobody gave it contents.
    pub filling: Filling,
}

/// A program with what it computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Computation {
    /// What it allocates and frees.
    pub program: Program,
    /// Its launches, in order.
    pub launches: Vec<Launch>,
    /// Its inputs, in the order of [`Program::inputs`].
    pub inputs: Vec<Given>,
    /// The model's parameters and buffers, in the order of [`weights`](super::weights).
    pub parameters: Vec<Given>,
    /// The operation's results.
    pub outputs: Vec<View>,
}
