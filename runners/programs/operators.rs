//! Operators over tensors, each with the allocations that PyTorch makes for it.

use headroom_base::MemoryLayout;

use super::program::Role;
use super::recorder::{Recorder, Tensor};
use super::shape::{Element, Shape};

impl Recorder {
    /// An elementwise operator: one output, shaped by its broadcast operands.
    pub(super) fn elementwise(&self, operands: &[&Tensor], element: Element, operator: &'static str) -> Tensor {
        let shapes: Vec<&Shape> = operands.iter().map(|tensor| &tensor.shape).collect();
        self.allocate(Shape::elementwise(&shapes), element, operator, Role::Output)
    }

    /// An elementwise operator over one tensor, in its element type.
    pub(super) fn map(&self, tensor: &Tensor, operator: &'static str) -> Tensor {
        self.elementwise(&[tensor], tensor.element, operator)
    }

    /// An elementwise operator of a tensor and a number. The number counts as a tensor of another shape, so that strides
    /// are kept as they are, ambiguous ones too.
    pub(super) fn scale(&self, tensor: &Tensor, operator: &'static str) -> Tensor {
        let number = Shape::contiguous(&[]);
        self.allocate(Shape::elementwise(&[&tensor.shape, &number]), tensor.element, operator, Role::Output)
    }

    /// An elementwise operator over two tensors, in the first one's element type.
    pub(super) fn combine(&self, left: &Tensor, right: &Tensor, operator: &'static str) -> Tensor {
        self.elementwise(&[left, right], left.element, operator)
    }

    /// The tensor in another element type; itself where it has that type already.
    pub(super) fn to(&self, tensor: &Tensor, element: Element, operator: &'static str) -> Tensor {
        if tensor.element == element {
            return tensor.clone();
        }
        self.allocate(tensor.shape.preserved(), element, operator, Role::Copy)
    }

    /// The tensor in this layout; itself where it is in it already.
    pub(super) fn dense_in(&self, tensor: &Tensor, layout: MemoryLayout, operator: &'static str) -> Tensor {
        if tensor.shape.is_dense_in(layout) {
            return tensor.clone();
        }
        self.empty_in(tensor.sizes(), layout, tensor.element, operator, Role::Copy)
    }

    /// The tensor in row-major order; itself where it is so already.
    pub(super) fn contiguous(&self, tensor: &Tensor) -> Tensor {
        self.dense_in(tensor, MemoryLayout::Contiguous, "contiguous")
    }

    /// A copy in the same format.
    pub(super) fn clone_of(&self, tensor: &Tensor) -> Tensor {
        self.allocate(tensor.shape.preserved(), tensor.element, "clone", Role::Copy)
    }

    /// The tensor under other sizes: a view where one exists, a row-major copy otherwise.
    pub(super) fn reshape(&self, tensor: &Tensor, sizes: &[u64]) -> Tensor {
        tensor.viewed(sizes).unwrap_or_else(|| {
            self.empty_in(sizes, MemoryLayout::Contiguous, tensor.element, "reshape copy", Role::Copy)
        })
    }

    /// Tensors joined along a dimension.
    pub(super) fn cat(&self, tensors: &[&Tensor], dimension: usize) -> Tensor {
        let Some(first) = tensors.first() else {
            return self.empty(&[0], self.element(), "cat");
        };
        let mut sizes = first.sizes().to_vec();
        sizes[dimension] = tensors.iter().map(|tensor| tensor.size(dimension)).sum();
        let layout = first.shape.suggested_layout();
        let agreed = tensors.iter().all(|tensor| tensor.shape.suggested_layout() == layout);
        let layout = if agreed { layout } else { MemoryLayout::Contiguous };
        self.empty_in(&sizes, layout, first.element, "cat", Role::Output)
    }

    /// Zeros around the last dimensions: `amounts` are what each grows by, innermost first. Always a copy, and one in the
    /// same format where nothing grows.
    pub(super) fn pad(&self, tensor: &Tensor, amounts: &[u64]) -> Tensor {
        if amounts.iter().all(|amount| *amount == 0) {
            return self.clone_of(tensor);
        }
        let mut sizes = tensor.sizes().to_vec();
        for (size, amount) in sizes.iter_mut().rev().zip(amounts) {
            *size += amount;
        }
        self.empty_in(&sizes, tensor.shape.suggested_layout(), tensor.element, "pad", Role::Copy)
    }

    /// These rows and columns, by repeating pixels.
    pub(super) fn upsample_nearest(&self, tensor: &Tensor, [rows, columns]: [u64; 2]) -> Tensor {
        let sizes = [tensor.size(0), tensor.size(1), rows, columns];
        let layout = tensor.shape.suggested_layout();
        let output = self.empty_in(&sizes, layout, tensor.element, "upsample_nearest", Role::Output);
        drop(self.dense_in(tensor, layout, "upsample_nearest input"));
        output
    }
}
