//! How a kernel walks over views: dimensions in the order of memory, joined where every operand allows it.

use crate::cuda::error::CudaError;
use crate::programs::computation::View;

/// Dimensions a kernel can walk over, after joining.
const DIMENSIONS: usize = 6;
/// Operands of one walk; the first is what is written.
const OPERANDS: usize = 5;

/// A walk over all elements of some operands. A kernel is given it as it lies here: words of 64 bits, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Walk {
    /// How many elements.
    pub(in crate::cuda) count: u64,
    /// How many dimensions.
    pub(in crate::cuda) rank: usize,
    /// Sizes, innermost first.
    pub(in crate::cuda) sizes: [u64; DIMENSIONS],
    /// Strides of every operand, innermost first.
    pub(in crate::cuda) strides: [[u64; DIMENSIONS]; OPERANDS],
}

impl Walk {
    /// A walk over `sizes`, in which each operand has these strides.
    ///
    /// The dimension in which the first operand is densest comes innermost, so that neighbouring threads write to
    /// neighbouring places.
    ///
    /// # Errors
    /// When more dimensions are left than a kernel can walk over.
    pub(in crate::cuda) fn over(sizes: &[u64], operands: &[&[u64]]) -> Result<Self, CudaError> {
        let mut order: Vec<usize> = (0..sizes.len()).rev().filter(|&dimension| sizes[dimension] != 1).collect();
        let key = |dimension: usize| operands.iter().map(|strides| strides[dimension]).collect::<Vec<_>>();
        order.sort_by_key(|&dimension| key(dimension));
        let mut walk = Self {
            count: sizes.iter().product(),
            rank: 0,
            sizes: [1; DIMENSIONS],
            strides: [[0; DIMENSIONS]; OPERANDS],
        };
        for dimension in order {
            if walk.join(sizes[dimension], &key(dimension)) {
                continue;
            }
            if walk.rank == DIMENSIONS {
                return Err(CudaError::NoKernel { what: format!("more than {DIMENSIONS} dimensions ({sizes:?})") });
            }
            walk.sizes[walk.rank] = sizes[dimension];
            for (own, strides) in walk.strides.iter_mut().zip(operands) {
                own[walk.rank] = strides[dimension];
            }
            walk.rank += 1;
        }
        Ok(walk)
    }

    /// Makes the outermost dimension longer where the new one only continues it.
    fn join(&mut self, size: u64, strides: &[u64]) -> bool {
        let Some(last) = self.rank.checked_sub(1) else { return false };
        let continues = |(own, stride): (&[u64; DIMENSIONS], &u64)| own[last] * self.sizes[last] == *stride;
        let joins = self.strides.iter().zip(strides).all(continues);
        if joins {
            self.sizes[last] *= size;
        }
        joins
    }

    /// Whether these operands lie densely and in the same order, so that element i of one belongs to element i of all.
    pub(in crate::cuda) fn is_dense(&self, operands: usize) -> bool {
        self.rank == 0 || self.rank == 1 && self.strides[..operands].iter().all(|strides| strides[0] == 1)
    }

    /// The words a kernel is given.
    pub(in crate::cuda) fn words(&self) -> Vec<u64> {
        let mut words = vec![self.count, self.rank as u64];
        words.extend(self.sizes);
        words.extend(self.strides.as_flattened());
        words
    }
}

/// Strides of a view under larger sizes: dimensions that it lacks or has once are repeated.
pub(in crate::cuda) fn broadcast(view: &View, sizes: &[u64]) -> Vec<u64> {
    let missing = sizes.len().saturating_sub(view.sizes.len());
    (0..sizes.len())
        .map(|dimension| match dimension.checked_sub(missing) {
            Some(own) if view.sizes[own] == sizes[dimension] => view.strides[own],
            _ => 0,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every offset that a walk gives an operand, as a kernel computes them.
    fn offsets(walk: &Walk, operand: usize) -> Vec<u64> {
        (0..walk.count)
            .map(|index| {
                let mut rest = index;
                (0..walk.rank)
                    .map(|dimension| {
                        let at = rest % walk.sizes[dimension];
                        rest /= walk.sizes[dimension];
                        at * walk.strides[operand][dimension]
                    })
                    .sum()
            })
            .collect()
    }

    /// Every offset of strides over sizes, outermost dimension first.
    fn naive(sizes: &[u64], strides: &[u64]) -> Vec<u64> {
        let mut all = vec![0];
        for (&size, &stride) in sizes.iter().zip(strides) {
            all = all.iter().flat_map(|start| (0..size).map(move |at| start + at * stride)).collect();
        }
        all
    }

    #[test]
    fn dense_operands_of_one_order_are_one_dimension_whatever_the_order() {
        for strides in [[24, 12, 4, 1], [24, 1, 8, 2]] {
            let walk = Walk::over(&[3, 2, 3, 4], &[&strides, &strides]).unwrap();
            assert_eq!((walk.rank, walk.count, walk.is_dense(2)), (1, 72, true));
        }
        let walk = Walk::over(&[3, 2, 3, 4], &[&[24, 12, 4, 1], &[24, 1, 8, 2]]).unwrap();
        assert!(!walk.is_dense(2));
    }

    #[test]
    fn a_walk_of_nothing_counts_nothing() {
        assert_eq!(Walk::over(&[3, 0, 2], &[&[2, 2, 1]]).unwrap().count, 0);
    }

    #[test]
    fn a_broadcast_operand_is_never_taken_for_a_dense_one() {
        let walk = Walk::over(&[8, 8], &[&[8, 1], &[0, 0]]).unwrap();
        assert!(!walk.is_dense(2));
        assert_eq!(offsets(&walk, 1), vec![0; 64]);
    }

    proptest! {
        /// A walk pairs the same elements of its operands as plain loops over the dimensions do.
        #[test]
        fn a_walk_pairs_what_plain_loops_pair(
            dimensions in prop::collection::vec((1_u64..4, 0_u64..9, 0_u64..9), 0..5),
        ) {
            let sizes: Vec<u64> = dimensions.iter().map(|dimension| dimension.0).collect();
            let first: Vec<u64> = dimensions.iter().map(|dimension| dimension.1).collect();
            let second: Vec<u64> = dimensions.iter().map(|dimension| dimension.2).collect();
            let walk = Walk::over(&sizes, &[&first, &second]).unwrap();
            let mut walked: Vec<_> = offsets(&walk, 0).into_iter().zip(offsets(&walk, 1)).collect();
            let mut expected: Vec<_> = naive(&sizes, &first).into_iter().zip(naive(&sizes, &second)).collect();
            walked.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(walked, expected);
        }
    }
}
