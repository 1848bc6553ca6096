//! Operators over tensors, each with the allocations that PyTorch makes for it.

use headroom_base::MemoryLayout;

use super::computation::{Kernel, Pointwise, Reduction};
use super::program::Role;
use super::recorder::{Recorder, Tensor};
use super::shape::{Element, Shape};

impl Recorder {
    /// An elementwise operator: one output, shaped by its broadcast operands.
    pub(super) fn elementwise(
        &self,
        operands: &[&Tensor],
        element: Element,
        function: Pointwise,
        operator: &'static str,
    ) -> Tensor {
        let shapes: Vec<&Shape> = operands.iter().map(|tensor| &tensor.shape).collect();
        let output = self.allocate(Shape::elementwise(&shapes), element, operator, Role::Output);
        self.pointwise(function, operands, &output);
        output
    }

    /// An elementwise operator over one tensor, in its element type.
    pub(super) fn map(&self, tensor: &Tensor, function: Pointwise, operator: &'static str) -> Tensor {
        self.elementwise(&[tensor], tensor.element, function, operator)
    }

    /// An elementwise operator of a tensor and a number. The number counts as a tensor of another shape, so that strides
    /// are kept as they are, ambiguous ones too.
    pub(super) fn scale(&self, tensor: &Tensor, function: Pointwise, operator: &'static str) -> Tensor {
        let number = Shape::contiguous(&[]);
        let shape = Shape::elementwise(&[&tensor.shape, &number]);
        let output = self.allocate(shape, tensor.element, operator, Role::Output);
        self.pointwise(function, &[tensor], &output);
        output
    }

    /// An elementwise operator over two tensors, in the first one's element type.
    pub(super) fn combine(&self, left: &Tensor, right: &Tensor, function: Pointwise, operator: &'static str) -> Tensor {
        self.elementwise(&[left, right], left.element, function, operator)
    }

    /// An elementwise operator over these operands into a new row-major tensor of these sizes.
    pub(super) fn computed(
        &self,
        sizes: &[u64],
        element: Element,
        function: Pointwise,
        operands: &[&Tensor],
        operator: &'static str,
    ) -> Tensor {
        let output = self.empty(sizes, element, operator);
        self.pointwise(function, operands, &output);
        output
    }

    /// A tensor like another, of one number.
    pub(super) fn filled_like(&self, tensor: &Tensor, number: f64, operator: &'static str) -> Tensor {
        let output = self.allocate(Shape::elementwise(&[&tensor.shape]), tensor.element, operator, Role::Output);
        self.pointwise(Pointwise::Constant(number), &[], &output);
        output
    }

    /// 0, `step`, 2 · `step`, …
    pub(super) fn range(&self, length: u64, step: f64, element: Element, operator: &'static str) -> Tensor {
        self.computed(&[length], element, Pointwise::Index { dimension: 0, step }, &[], operator)
    }

    /// Every number of one list times every number of another.
    pub(super) fn outer(&self, left: &Tensor, right: &Tensor, element: Element, operator: &'static str) -> Tensor {
        let sizes = [left.size(0), right.size(0)];
        let (left, right) = (left.unsqueeze(1), right.unsqueeze(0));
        self.computed(&sizes, element, Pointwise::Multiply, &[&left, &right], operator)
    }

    /// A reduction of a dimension into a new row-major tensor of these sizes.
    pub(super) fn reduced(
        &self,
        tensor: &Tensor,
        (reduction, dimension): (Reduction, usize),
        sizes: &[u64],
        element: Element,
        operator: &'static str,
    ) -> Tensor {
        let output = self.empty(sizes, element, operator);
        self.launch(Kernel::Reduce { reduction, dimension }, &[tensor], &[&output]);
        output
    }

    /// Rows of a table by their indices.
    pub(super) fn gathered(&self, table: &Tensor, indices: &Tensor, operator: &'static str) -> Tensor {
        let sizes = [indices.sizes(), &table.sizes()[1..]].concat();
        let output = self.empty(&sizes, table.element, operator);
        self.launch(Kernel::Gather, &[table, indices], &[&output]);
        output
    }

    /// The tensor in another element type; itself where it has that type already.
    pub(super) fn to(&self, tensor: &Tensor, element: Element, operator: &'static str) -> Tensor {
        if tensor.element == element {
            return tensor.clone();
        }
        let output = self.allocate(tensor.shape.preserved(), element, operator, Role::Copy);
        self.pointwise(Pointwise::Copy, &[tensor], &output);
        output
    }

    /// The tensor in this layout; itself where it is in it already.
    pub(super) fn dense_in(&self, tensor: &Tensor, layout: MemoryLayout, operator: &'static str) -> Tensor {
        if tensor.shape.is_dense_in(layout) {
            return tensor.clone();
        }
        let output = self.empty_in(tensor.sizes(), layout, tensor.element, operator, Role::Copy);
        self.pointwise(Pointwise::Copy, &[tensor], &output);
        output
    }

    /// The tensor in row-major order; itself where it is so already.
    pub(super) fn contiguous(&self, tensor: &Tensor) -> Tensor {
        self.dense_in(tensor, MemoryLayout::Contiguous, "contiguous")
    }

    /// A copy in the same format.
    pub(super) fn clone_of(&self, tensor: &Tensor) -> Tensor {
        let output = self.allocate(tensor.shape.preserved(), tensor.element, "clone", Role::Copy);
        self.pointwise(Pointwise::Copy, &[tensor], &output);
        output
    }

    /// The tensor under other sizes: a view where one exists, a row-major copy otherwise.
    pub(super) fn reshape(&self, tensor: &Tensor, sizes: &[u64]) -> Tensor {
        tensor.viewed(sizes).unwrap_or_else(|| {
            let output = self.empty_in(sizes, MemoryLayout::Contiguous, tensor.element, "reshape copy", Role::Copy);
            // A fresh row-major tensor can be seen under any sizes.
            let as_before = output.viewed(tensor.sizes()).unwrap_or_else(|| output.clone());
            self.pointwise(Pointwise::Copy, &[tensor], &as_before);
            output
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
        let output = self.empty_in(&sizes, layout, first.element, "cat", Role::Output);
        self.join_into(&output, tensors, dimension);
        output
    }

    /// Copies tensors one after the other into a tensor along a dimension.
    pub(super) fn join_into(&self, output: &Tensor, tensors: &[&Tensor], dimension: usize) {
        let mut start = 0;
        for tensor in tensors {
            let length = tensor.size(dimension);
            self.pointwise(Pointwise::Copy, &[tensor], &output.narrow(dimension, start, length));
            start += length;
        }
    }

    /// Zeros around the last dimensions: how many before and after each, innermost first. Always a copy, and one in the
    /// same format where nothing grows.
    pub(super) fn pad(&self, tensor: &Tensor, amounts: &[[u64; 2]]) -> Tensor {
        if amounts.iter().all(|amount| *amount == [0, 0]) {
            return self.clone_of(tensor);
        }
        let mut sizes = tensor.sizes().to_vec();
        for (size, [before, after]) in sizes.iter_mut().rev().zip(amounts) {
            *size += before + after;
        }
        let output = self.empty_in(&sizes, tensor.shape.suggested_layout(), tensor.element, "pad", Role::Copy);
        self.pointwise(Pointwise::Constant(0.0), &[], &output);
        let mut inner = output.clone();
        for (dimension, [before, _]) in (0..sizes.len()).rev().zip(amounts) {
            inner = inner.narrow(dimension, *before, tensor.size(dimension));
        }
        self.pointwise(Pointwise::Copy, &[tensor], &inner);
        drop(inner);
        output
    }

    /// These rows and columns, by repeating pixels.
    pub(super) fn upsample_nearest(&self, tensor: &Tensor, [rows, columns]: [u64; 2]) -> Tensor {
        let sizes = [tensor.size(0), tensor.size(1), rows, columns];
        let layout = tensor.shape.suggested_layout();
        let output = self.empty_in(&sizes, layout, tensor.element, "upsample_nearest", Role::Output);
        let dense = self.dense_in(tensor, layout, "upsample_nearest input");
        self.launch(Kernel::UpsampleNearest, &[&dense], &[&output]);
        drop(dense);
        output
    }
}
