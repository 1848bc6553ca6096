//! What a launch becomes: calls of kernels and libraries, with everything but addresses decided.

use headroom_base::DType;

use crate::programs::Element;
use crate::programs::computation::{Source, View};

use super::convolution::ConvolutionShape;
use super::product::Gemm;

/// A place in memory whose address is known when it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::cuda) struct Place {
    /// Whose memory.
    pub(in crate::cuda) source: Source,
    /// Where in it.
    pub(in crate::cuda) offset_bytes: u64,
}

impl Place {
    /// Where a view's first element lies.
    pub(in crate::cuda) fn of(view: &View) -> Self {
        Self { source: view.source, offset_bytes: view.offset * view.element.bytes() }
    }

    /// The place this many elements of a type further on.
    pub(in crate::cuda) fn after(self, elements: u64, element: Element) -> Self {
        Self { offset_bytes: self.offset_bytes + elements * element.bytes(), ..self }
    }
}

/// One argument of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::cuda) enum Argument {
    /// An address.
    At(Place),
    /// The address that points nowhere.
    Nowhere,
    /// Words of 64 bits, handed over as one value.
    Words(Vec<u64>),
}

impl Argument {
    /// A whole number.
    pub(in crate::cuda) fn count(value: u64) -> Self {
        Self::Words(vec![value])
    }

    /// A number of double precision.
    pub(in crate::cuda) fn number(value: f64) -> Self {
        Self::Words(vec![value.to_bits()])
    }

    /// An address, where there is a view.
    pub(in crate::cuda) fn maybe(view: Option<&View>) -> Self {
        view.map_or(Self::Nowhere, |view| Self::At(Place::of(view)))
    }
}

/// The sources of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::cuda) enum Part {
    /// Products of any strides.
    Product,
    /// Convolutions that cuDNN refuses.
    Convolution,
    /// Normalisations.
    Norms,
    /// Softmax and reductions.
    Rows,
    /// Rows and pixels picked from others.
    Picks,
    /// Values for memory that nobody has written, and a look for what is no number.
    Contents,
    /// Attention on tensor cores.
    Attention,
    /// Attention in single precision.
    AttentionSingle,
}

impl Part {
    /// Its text.
    pub(in crate::cuda) const fn source(self) -> &'static str {
        match self {
            Self::Product => include_str!("../kernels/product.cu"),
            Self::Convolution => include_str!("../kernels/convolution.cu"),
            Self::Norms => include_str!("../kernels/norms.cu"),
            Self::Rows => include_str!("../kernels/rows.cu"),
            Self::Picks => include_str!("../kernels/picks.cu"),
            Self::Contents => include_str!("../kernels/contents.cu"),
            Self::Attention => include_str!("../kernels/attention.cu"),
            Self::AttentionSingle => include_str!("../kernels/attention_single.cu"),
        }
    }
}

/// A kernel for certain element types: its name, and the text that makes it out of its part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::cuda) struct Instance {
    /// Its name, unique among all.
    pub(in crate::cuda) name: String,
    /// The part it is made of.
    pub(in crate::cuda) part: Option<Part>,
    /// Its text.
    pub(in crate::cuda) text: String,
}

impl Instance {
    /// A kernel of `threads` threads a block that calls the template of this name for these types (and numbers).
    ///
    /// `parameters` are the kernel's, as C declares them; they are handed on by name.
    pub(in crate::cuda) fn of_template(
        part: Part,
        template: &str,
        types: &[&str],
        threads: u32,
        parameters: &[(&str, &str)],
    ) -> Self {
        let name = [&[template], types].concat().join("_");
        let declared: Vec<String> = parameters.iter().map(|(kind, name)| format!("{kind} {name}")).collect();
        let handed: Vec<&str> = parameters.iter().map(|(_, name)| *name).collect();
        let text = format!(
            "extern \"C\" __global__ void __launch_bounds__({threads}) {name}({}) {{\n    {template}<{}>({});\n}}\n",
            declared.join(", "),
            types.join(", "),
            handed.join(", "),
        );
        Self { name, part: Some(part), text }
    }
}

/// A launch of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::cuda) struct KernelCall {
    /// Which.
    pub(in crate::cuda) instance: Instance,
    /// Blocks in each dimension.
    pub(in crate::cuda) blocks: [u32; 3],
    /// Threads of a block.
    pub(in crate::cuda) threads: u32,
    /// Shared memory beyond what the kernel declares.
    pub(in crate::cuda) shared_bytes: u32,
    /// What it is given.
    pub(in crate::cuda) arguments: Vec<Argument>,
}

/// Matrix products by cuBLAS, all of one element type.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::cuda) struct ProductCall {
    /// The element type.
    pub(in crate::cuda) dtype: DType,
    /// Whether products are added to what the output holds.
    pub(in crate::cuda) adds: bool,
    /// Whether PyTorch would go through cuBLASLt and its workspace.
    pub(in crate::cuda) biased: bool,
    /// The products, and where they begin: first operand, second operand, output.
    pub(in crate::cuda) gemm: Gemm,
    /// Where each begins.
    pub(in crate::cuda) places: Vec<[Place; 3]>,
}

/// A convolution by cuDNN.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::cuda) struct ConvolutionCall {
    /// Its shapes.
    pub(in crate::cuda) shape: ConvolutionShape,
    /// Input, weights, output.
    pub(in crate::cuda) places: [Place; 3],
    /// The workspace, where it has one.
    pub(in crate::cuda) workspace: Option<Place>,
}

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::cuda) enum Call {
    /// Of a kernel.
    Kernel(KernelCall),
    /// Of cuBLAS.
    Product(ProductCall),
    /// Of cuDNN.
    Convolution(ConvolutionCall),
}

/// The name of an element type in the kernels' sources.
pub(in crate::cuda) const fn name_of(element: Element) -> &'static str {
    match element {
        Element::Float(DType::Fp16) => "f16",
        Element::Float(DType::Bf16) => "bf16",
        Element::Float(DType::Fp32) => "f32",
        Element::Fp64 => "f64",
        Element::Int64 => "i64",
        Element::Int32 => "i32",
        Element::Bool => "boolean",
    }
}

/// Blocks of `threads` threads for one thread an element; each goes on to further elements where there are more.
pub(in crate::cuda) fn blocks_for(elements: u64, threads: u64) -> [u32; 3] {
    /// More than any device runs at once.
    const MOST: u64 = 1 << 14;
    [elements.div_ceil(threads).clamp(1, MOST) as u32, 1, 1]
}
