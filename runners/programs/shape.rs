//! Sizes and strides of a tensor, and the rules by which views, copies and new outputs get theirs.

use headroom_base::{DType, MemoryLayout};

/// Element type of a tensor, floating or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// A floating type.
    Float(DType),
    /// 64-bit integers: token ids, positions.
    Int64,
    /// 32-bit integers: position buckets.
    Int32,
    /// 64-bit floating numbers: rotary frequencies.
    Fp64,
    /// Masks.
    Bool,
}

impl Element {
    /// Single precision.
    pub const FP32: Self = Self::Float(DType::Fp32);

    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Float(dtype) => dtype.element_bytes(),
            Self::Int64 | Self::Fp64 => 8,
            Self::Int32 => 4,
            Self::Bool => 1,
        }
    }

    /// Whether it is a floating type of half width.
    pub const fn is_half(self) -> bool {
        matches!(self, Self::Float(DType::Fp16 | DType::Bf16))
    }
}

/// Sizes and strides, in elements, outermost dimension first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) sizes: Vec<u64>,
    pub(super) strides: Vec<u64>,
}

impl Shape {
    /// Row-major order.
    pub(super) fn contiguous(sizes: &[u64]) -> Self {
        Self::in_order(sizes, &(0..sizes.len()).rev().collect::<Vec<_>>())
    }

    /// Channels (dimension 1) innermost, for two or three spatial dimensions; other ranks are row-major.
    pub(super) fn of(sizes: &[u64], layout: MemoryLayout) -> Self {
        match (layout, sizes.len()) {
            (MemoryLayout::ChannelsLast, 4) => Self::in_order(sizes, &[1, 3, 2, 0]),
            (MemoryLayout::ChannelsLast, 5) => Self::in_order(sizes, &[1, 4, 3, 2, 0]),
            _ => Self::contiguous(sizes),
        }
    }

    /// Dense, with dimensions laid out in `order`, innermost first.
    fn in_order(sizes: &[u64], order: &[usize]) -> Self {
        let mut strides = vec![0; sizes.len()];
        let mut next = 1;
        for &dimension in order {
            strides[dimension] = next;
            next *= sizes[dimension].max(1);
        }
        Self { sizes: sizes.to_vec(), strides }
    }

    /// Number of elements.
    pub(super) fn elements(&self) -> u64 {
        self.sizes.iter().product()
    }

    /// Whether the elements lie in memory in the order in which [`in_order`](Self::in_order) would put them.
    fn lies_in_order(&self, order: &[usize]) -> bool {
        let mut expected = 1;
        order.iter().all(|&dimension| {
            let fits = self.sizes[dimension] == 1 || self.strides[dimension] == expected;
            expected *= self.sizes[dimension];
            fits
        })
    }

    /// Whether it is row-major.
    pub(super) fn is_contiguous(&self) -> bool {
        self.lies_in_order(&(0..self.sizes.len()).rev().collect::<Vec<_>>())
    }

    /// Whether it is dense in this layout.
    pub(super) fn is_dense_in(&self, layout: MemoryLayout) -> bool {
        match (layout, self.sizes.len()) {
            (MemoryLayout::ChannelsLast, 4) => self.lies_in_order(&[1, 3, 2, 0]),
            (MemoryLayout::ChannelsLast, 5) => self.lies_in_order(&[1, 4, 3, 2, 0]),
            _ => self.is_contiguous(),
        }
    }

    /// Whether every element of the covered memory belongs to it exactly once.
    pub(super) fn is_dense(&self) -> bool {
        let mut order: Vec<usize> = (0..self.sizes.len()).filter(|&d| self.sizes[d] != 1).collect();
        order.sort_by_key(|&dimension| self.strides[dimension]);
        self.lies_in_order(&order)
    }

    /// The layout that operators take it to be in: PyTorch's reading of strides, in which ambiguous ones are row-major.
    pub(super) fn suggested_layout(&self) -> MemoryLayout {
        let order: &[usize] = match self.sizes.len() {
            4 => &[1, 3, 2, 0],
            5 => &[1, 4, 3, 2, 0],
            _ => return MemoryLayout::Contiguous,
        };
        if self.strides[1] == 0 {
            return MemoryLayout::Contiguous;
        }
        let mut least = 0;
        for &dimension in order {
            let (size, stride) = (self.sizes[dimension], self.strides[dimension]);
            if size == 0 || stride < least || (dimension == 0 && least == self.strides[1]) {
                return MemoryLayout::Contiguous;
            }
            least = if size > 1 { stride * size } else { stride };
        }
        MemoryLayout::ChannelsLast
    }

    /// The same elements with dimensions in another order.
    pub(super) fn permuted(&self, order: &[usize]) -> Self {
        Self {
            sizes: order.iter().map(|&d| self.sizes[d]).collect(),
            strides: order.iter().map(|&d| self.strides[d]).collect(),
        }
    }

    /// The same elements under other sizes, where that needs no copy.
    pub(super) fn viewed(&self, sizes: &[u64]) -> Option<Self> {
        if self.elements() != sizes.iter().product::<u64>() {
            return None;
        }
        let mut strides = vec![1; sizes.len()];
        let mut next = sizes.len();
        let (mut old_elements, mut new_elements) = (1, 1);
        let mut base = *self.strides.last()?;
        for dimension in (0..self.sizes.len()).rev() {
            old_elements *= self.sizes[dimension];
            let breaks = dimension == 0
                || (self.sizes[dimension - 1] != 1 && self.strides[dimension - 1] != old_elements * base);
            if !breaks {
                continue;
            }
            while next > 0 && (new_elements < old_elements || sizes[next - 1] == 1) {
                next -= 1;
                strides[next] = new_elements * base;
                new_elements *= sizes[next];
            }
            if new_elements != old_elements {
                return None;
            }
            if dimension > 0 {
                base = self.strides[dimension - 1];
                (old_elements, new_elements) = (1, 1);
            }
        }
        (next == 0).then(|| Self { sizes: sizes.to_vec(), strides })
    }

    /// A dense shape of these elements that keeps the order of strides, as a copy that preserves the format has.
    pub(super) fn preserved(&self) -> Self {
        if self.is_dense() { self.clone() } else { Self::elementwise(&[self]) }
    }

    /// The output of an elementwise operator over broadcast operands: dimensions are ordered by the first operand that
    /// tells two of them apart, and row-major where none does.
    pub(super) fn elementwise(operands: &[&Self]) -> Self {
        let rank = operands.iter().map(|operand| operand.sizes.len()).max().unwrap_or(0);
        let mut sizes = vec![1; rank];
        for operand in operands {
            let missing = rank - operand.sizes.len();
            for (dimension, &size) in operand.sizes.iter().enumerate() {
                if size != 1 {
                    sizes[missing + dimension] = size;
                }
            }
        }
        if let Some(shape) = alike(operands, &sizes) {
            return shape;
        }
        let strides: Vec<Vec<u64>> = operands.iter().map(|operand| operand.broadcast_strides(&sizes)).collect();
        let mut order: Vec<usize> = (0..rank).rev().collect();
        for start in 1..rank {
            let mut moving = start;
            for before in (0..start).rev() {
                match compare(&strides, &sizes, order[before], order[moving]) {
                    std::cmp::Ordering::Greater => {
                        order.swap(before, moving);
                        moving = before;
                    }
                    std::cmp::Ordering::Less => break,
                    std::cmp::Ordering::Equal => {}
                }
            }
        }
        Self::in_order(&sizes, &order)
    }

    fn broadcast_strides(&self, sizes: &[u64]) -> Vec<u64> {
        let missing = sizes.len() - self.sizes.len();
        (0..sizes.len())
            .map(|dimension| match dimension.checked_sub(missing) {
                Some(own) if self.sizes[own] == sizes[dimension] => self.strides[own],
                _ => 0,
            })
            .collect()
    }
}

/// The quick rules for operands of equal sizes: all row-major, all channels-last, or all with the same dense strides.
fn alike(operands: &[&Shape], sizes: &[u64]) -> Option<Shape> {
    let first = operands.first()?;
    if operands.iter().any(|operand| operand.sizes != sizes) {
        return None;
    }
    for layout in MemoryLayout::ALL {
        if operands.iter().all(|operand| operand.is_dense_in(layout)) {
            return Some(Shape::of(sizes, layout));
        }
    }
    let same = first.is_dense() && operands.iter().all(|operand| operand.strides == first.strides);
    same.then(|| (*first).clone())
}

/// Whether `outer` must change places with `inner` for strides to grow outwards; the first operand that decides wins.
fn compare(strides: &[Vec<u64>], sizes: &[u64], inner: usize, outer: usize) -> std::cmp::Ordering {
    use std::cmp::Ordering;
    for operand in strides {
        let (first, second) = (operand[inner], operand[outer]);
        if first == 0 || second == 0 {
            continue;
        }
        match first.cmp(&second) {
            Ordering::Equal if sizes[inner] > sizes[outer] => return Ordering::Greater,
            Ordering::Equal => {}
            decided => return decided,
        }
    }
    Ordering::Equal
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What attention gives back: tokens innermost turned into an image.
    fn attended(batch: u64) -> Shape {
        let tokens = Shape::contiguous(&[batch, 16384, 512]);
        tokens.permuted(&[0, 2, 1]).viewed(&[batch, 512, 128, 128]).unwrap()
    }

    #[test]
    fn a_transposed_attention_output_is_ambiguous_for_one_image_and_channels_last_for_several() {
        let number = Shape::contiguous(&[]);
        for (batch, layout) in [(1, MemoryLayout::Contiguous), (2, MemoryLayout::ChannelsLast)] {
            let image = attended(batch);
            let residual = Shape::contiguous(&[batch, 512, 128, 128]);
            let sum = Shape::elementwise(&[&image, &residual]);
            let scaled = Shape::elementwise(&[&sum, &number]);
            for shape in [image, sum, scaled] {
                assert_eq!(shape.suggested_layout(), layout);
                assert!(!shape.is_contiguous());
            }
        }
    }

    #[test]
    fn the_first_operand_decides_the_order_of_a_sum() {
        let residual = Shape::contiguous(&[2, 512, 128, 128]);
        assert!(Shape::elementwise(&[&residual, &attended(2)]).is_contiguous());
        assert!(!Shape::elementwise(&[&attended(2), &residual]).is_contiguous());
    }

    #[test]
    fn a_view_is_found_where_one_exists_and_nowhere_else() {
        let map = Shape::contiguous(&[2, 6, 4]);
        assert_eq!(map.viewed(&[2, 24]), Some(Shape::contiguous(&[2, 24])));
        assert_eq!(map.viewed(&[2, 2, 3, 4]), Some(Shape::contiguous(&[2, 2, 3, 4])));
        assert_eq!(map.permuted(&[0, 2, 1]).viewed(&[2, 24]), None);
        assert_eq!(map.viewed(&[3, 24]), None);
    }

    #[test]
    fn a_one_by_one_kernel_is_not_taken_for_channels_last() {
        assert_eq!(Shape::contiguous(&[512, 256, 1, 1]).suggested_layout(), MemoryLayout::Contiguous);
    }

    #[test]
    fn broadcasting_keeps_the_order_of_the_larger_operand() {
        let map = Shape::of(&[1, 8, 4, 4], MemoryLayout::ChannelsLast);
        let bias = Shape::contiguous(&[8, 1, 1]);
        assert_eq!(Shape::elementwise(&[&map, &bias]), map);
    }
}
