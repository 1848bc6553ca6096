//! Convolutions in cuDNN's words.

use headroom_base::{DType, MemoryLayout};

use crate::cuda::error::CudaError;
use crate::programs::computation::{Kernel, Launch, View};
use crate::programs::{ConvolutionCall as TableCall, Element};

use super::call::{Argument, Call, ConvolutionCall, Instance, KernelCall, Part, Place, blocks_for, name_of};
use super::pointwise;

/// What decides how cuDNN computes a convolution, and how much workspace it asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::cuda) struct ConvolutionShape {
    /// The element type of all operands.
    pub(in crate::cuda) dtype: DType,
    /// Their layout.
    pub(in crate::cuda) layout: MemoryLayout,
    /// Batch, channels and space of the input.
    pub(in crate::cuda) input: Vec<i32>,
    /// Outputs, inputs and space of the weights.
    pub(in crate::cuda) weights: Vec<i32>,
    /// Batch, channels and space of the output.
    pub(in crate::cuda) output: Vec<i32>,
    /// Of each spatial dimension.
    pub(in crate::cuda) stride: Vec<i32>,
    /// Zeros on both sides of each spatial dimension.
    pub(in crate::cuda) padding: Vec<i32>,
}

impl ConvolutionShape {
    /// The shape of a launch; `None` where it is no convolution or computes nothing.
    ///
    /// # Errors
    /// When cuDNN cannot be told of it: operands of several types or layouts, or sizes beyond its numbers.
    pub(in crate::cuda) fn of(launch: &Launch) -> Result<Option<Self>, CudaError> {
        let Kernel::Convolution { stride, padding, .. } = &launch.kernel else { return Ok(None) };
        let ([input, weights, ..], [output, ..]) = (&launch.reads[..], &launch.writes[..]) else {
            return Err(refused("a convolution without operands"));
        };
        if [input, weights, output].iter().any(|view| view.elements() == 0) {
            return Ok(None);
        }
        let Element::Float(dtype) = input.element else { return Err(refused("a convolution of integers")) };
        if weights.element != input.element || output.element != input.element {
            return Err(refused("a convolution of several element types"));
        }
        let rank = input.sizes.len();
        if !(4..=5).contains(&rank) || weights.sizes.len() != rank || output.sizes.len() != rank {
            return Err(refused("a convolution in other than two or three dimensions"));
        }
        let shared = MemoryLayout::ALL
            .into_iter()
            .find(|&layout| [input, weights, output].iter().all(|view| lies_in(view, layout)));
        let Some(layout) = shared else {
            return Err(refused("a convolution whose operands lie in different layouts"));
        };
        Ok(Some(Self {
            dtype,
            layout,
            input: whole(&input.sizes)?,
            weights: whole(&weights.sizes)?,
            output: whole(&output.sizes)?,
            stride: whole(stride)?,
            padding: whole(padding)?,
        }))
    }

    /// Strides of a dense tensor of these sizes in the operands' layout, outermost dimension first. They may be beyond
    /// cuDNN's numbers.
    pub(in crate::cuda) fn strides(&self, sizes: &[i32]) -> Vec<u64> {
        let mut strides = vec![0; sizes.len()];
        let mut next = 1;
        for dimension in order(sizes.len(), self.layout) {
            strides[dimension] = next;
            next *= u64::from(sizes[dimension].unsigned_abs());
        }
        strides
    }

    /// The call as the table of workspaces sees it.
    pub(in crate::cuda) fn table_call(&self) -> TableCall {
        let wide = |sizes: &[i32]| sizes.iter().map(|&size| u64::from(size.unsigned_abs())).collect::<Vec<_>>();
        let (input, weights, output) = (wide(&self.input), wide(&self.weights), wide(&self.output));
        TableCall {
            dtype: self.dtype,
            layout: self.layout,
            batch: input[0],
            input_channels: input[1],
            output_channels: output[1],
            input: input[2..].to_vec(),
            output: output[2..].to_vec(),
            kernel: weights[2..].to_vec(),
        }
    }
}

fn refused(what: &str) -> CudaError {
    CudaError::NoKernel { what: what.to_owned() }
}

fn whole(sizes: &[u64]) -> Result<Vec<i32>, CudaError> {
    let size = |&size: &u64| i32::try_from(size).map_err(|_| refused("a convolution of a size beyond 2³¹"));
    sizes.iter().map(size).collect()
}

/// Dimensions, innermost first.
fn order(rank: usize, layout: MemoryLayout) -> Vec<usize> {
    match layout {
        MemoryLayout::Contiguous => (0..rank).rev().collect(),
        MemoryLayout::ChannelsLast => std::iter::once(1).chain((2..rank).rev()).chain([0]).collect(),
    }
}

fn lies_in(view: &View, layout: MemoryLayout) -> bool {
    let mut expected = 1;
    order(view.sizes.len(), layout).into_iter().all(|dimension| {
        let fits = view.sizes[dimension] == 1 || view.strides[dimension] == expected;
        expected *= view.sizes[dimension];
        fits
    })
}

/// The convolution, and its bias added in place.
pub(super) fn calls(launch: &Launch) -> Result<Vec<Call>, CudaError> {
    let Some(shape) = ConvolutionShape::of(launch)? else { return Ok(Vec::new()) };
    let Kernel::Convolution { workspace, .. } = &launch.kernel else { return Ok(Vec::new()) };
    let output = &launch.writes[0];
    let source = workspace.map(crate::programs::computation::Source::Tensor);
    let mut calls = vec![Call::Convolution(ConvolutionCall {
        shape,
        places: [&launch.reads[0], &launch.reads[1], output].map(Place::of),
        workspace: source.map(|source| Place { source, offset_bytes: 0 }),
    })];
    if let Some(bias) = launch.reads.get(2) {
        calls.push(pointwise::added(output, &per_channel(bias, output)?)?);
    }
    Ok(calls)
}

/// A kernel for what cuDNN refuses: one thread for each element of the output, and no workspace.
pub(in crate::cuda) fn own_kernel(call: &ConvolutionCall) -> KernelCall {
    const THREADS: u32 = 256;
    let ConvolutionCall { shape, places: [input, weights, output], .. } = call;
    // Two dimensions of space are three, the first of size 1.
    let in_space = |mut all: Vec<u64>, filler: u64| {
        if all.len().is_multiple_of(2) {
            all.insert(all.len() - 2, filler);
        }
        all
    };
    let wide = |numbers: &[i32], filler: u64| {
        in_space(numbers.iter().map(|&number| u64::from(number.unsigned_abs())).collect(), filler)
    };
    let mut words = Vec::new();
    for sizes in [&shape.output, &shape.input, &shape.weights] {
        words.extend(wide(sizes, 1));
    }
    for sizes in [&shape.output, &shape.input, &shape.weights] {
        words.extend(in_space(shape.strides(sizes), 0));
    }
    words.extend(wide(&shape.stride, 1));
    words.extend(wide(&shape.padding, 0));
    let parameters =
        [("const Convolution", "shape"), ("void*", "out"), ("const void*", "input"), ("const void*", "weights")];
    let elements: u64 = wide(&shape.output, 1).iter().product();
    let types = [name_of(Element::Float(shape.dtype))];
    KernelCall {
        instance: Instance::of_template(Part::Convolution, "convolution", &types, THREADS, &parameters),
        blocks: blocks_for(elements, u64::from(THREADS)),
        threads: THREADS,
        shared_bytes: 0,
        arguments: vec![Argument::Words(words), Argument::At(*output), Argument::At(*input), Argument::At(*weights)],
    }
}

/// A bias as an operand of the output's rank.
fn per_channel(bias: &View, output: &View) -> Result<View, CudaError> {
    let ([channels], [stride]) = (&bias.sizes[..], &bias.strides[..]) else {
        return Err(refused("a bias of more than one dimension"));
    };
    let mut view = View { sizes: vec![1; output.sizes.len()], strides: vec![0; output.sizes.len()], ..bias.clone() };
    (view.sizes[1], view.strides[1]) = (*channels, *stride);
    Ok(view)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::computation::Source;

    fn view(sizes: &[u64], layout: MemoryLayout) -> View {
        let mut strides = vec![0; sizes.len()];
        let mut next = 1;
        for dimension in order(sizes.len(), layout) {
            strides[dimension] = next;
            next *= sizes[dimension];
        }
        let element = Element::Float(DType::Fp16);
        View { source: Source::Nothing, element, offset: 0, sizes: sizes.to_vec(), strides }
    }

    fn launch(layouts: [MemoryLayout; 3]) -> Launch {
        Launch {
            after: 0,
            kernel: Kernel::Convolution { stride: vec![1; 2], padding: vec![1; 2], workspace: None },
            reads: vec![view(&[1, 4, 8, 8], layouts[0]), view(&[6, 4, 3, 3], layouts[1])],
            writes: vec![view(&[1, 6, 8, 8], layouts[2])],
        }
    }

    #[test]
    fn operands_of_one_layout_are_told_as_that_layout_and_mixed_ones_are_refused() {
        for layout in MemoryLayout::ALL {
            let shape = ConvolutionShape::of(&launch([layout; 3])).unwrap().unwrap();
            assert_eq!(shape.layout, layout);
            let expected: Vec<u64> = view(&[1, 4, 8, 8], layout).strides;
            assert_eq!(shape.strides(&shape.input), expected);
        }
        let mixed = [MemoryLayout::ChannelsLast, MemoryLayout::Contiguous, MemoryLayout::Contiguous];
        assert!(ConvolutionShape::of(&launch(mixed)).is_err());
    }

    #[test]
    fn an_own_kernel_is_told_strides_beyond_32_bits_as_they_are() {
        for layout in MemoryLayout::ALL {
            let mut vast = launch([layout; 3]);
            vast.reads = vec![view(&[2, 256, 3072, 3072], layout), view(&[128, 256, 3, 3], layout)];
            vast.writes = vec![view(&[2, 128, 3072, 3072], layout)];
            let planned = calls(&vast).unwrap();
            let [Call::Convolution(call)] = &planned[..] else { panic!("a convolution was expected, not {planned:?}") };
            let KernelCall { arguments, .. } = own_kernel(call);
            let Argument::Words(words) = &arguments[0] else { panic!("a shape was expected, not {arguments:?}") };
            let [batch, channels, rows, columns] = vast.reads[0].strides[..] else { unreachable!("four dimensions") };
            assert_eq!(batch, 256 * 3072 * 3072);
            assert_eq!(words[20..25], [batch, channels, 0, rows, columns], "{layout:?}");
        }
    }

    #[test]
    fn an_empty_convolution_is_none() {
        let mut empty = launch([MemoryLayout::Contiguous; 3]);
        empty.reads[0].sizes[0] = 0;
        assert_eq!(ConvolutionShape::of(&empty).unwrap(), None);
    }
}
