//! Matrix products in cuBLAS's words: strides become transposes and leading dimensions, what is left becomes batches.

use headroom_base::DType;

use crate::cuda::error::CudaError;
use crate::programs::Element;
use crate::programs::computation::View;

use super::call::{Argument, Call, Instance, KernelCall, Part, Place, ProductCall, blocks_for, name_of};
use super::walk::Walk;

/// Calls of cuBLAS for one launch from which on a kernel of any strides takes all of it.
const MOST_CALLS: u64 = 1024;
const THREADS: u32 = 256;

/// Strides of a matrix, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Matrix {
    /// From one row to the next.
    pub(in crate::cuda) row: u64,
    /// From one column to the next.
    pub(in crate::cuda) column: u64,
}

impl Matrix {
    fn transposed(self) -> Self {
        Self { row: self.column, column: self.row }
    }

    /// How cuBLAS sees `rows` × `columns` of it, which wants columns dense: whether transposed, and the distance of
    /// neighbouring columns (rows where transposed).
    fn oriented(self, rows: u64, columns: u64) -> Option<(bool, u64)> {
        let distance = |count: u64, stride: u64, dense: u64| match count {
            1 => Some(dense.max(1)),
            _ => (stride >= dense.max(1)).then_some(stride),
        };
        let as_rows = || distance(rows, self.row, columns).map(|leading| (true, leading));
        let as_columns = || distance(columns, self.column, rows).map(|leading| (false, leading));
        match (rows, columns) {
            (1, 1) => Some((false, 1)),
            (_, 1) if self.row != 1 => (self.row > 0).then_some((true, self.row)),
            (1, _) if self.column != 1 => (self.column > 0).then_some((false, self.column)),
            (1, _) => as_rows(),
            (_, 1) => as_columns(),
            _ if self.column == 1 => as_rows(),
            _ if self.row == 1 => as_columns(),
            _ => None,
        }
    }
}

/// A dimension over which a product is repeated: how often, and the strides of left, right and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Batch {
    pub(in crate::cuda) size: u64,
    pub(in crate::cuda) strides: [u64; 3],
}

/// out (m, n) = left (m, k) · right (k, n), repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Problem {
    pub(in crate::cuda) sizes: [u64; 3],
    pub(in crate::cuda) left: Matrix,
    pub(in crate::cuda) right: Matrix,
    pub(in crate::cuda) out: Matrix,
    pub(in crate::cuda) batches: Vec<Batch>,
}

/// Arguments of a strided batch of products, as cuBLAS takes them: columns dense, first · second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Gemm {
    /// Whether the first operand is the right one: the output's transpose is computed.
    pub(in crate::cuda) swapped: bool,
    /// Whether the operands are transposed.
    pub(in crate::cuda) transposed: [bool; 2],
    /// Rows and columns of the output as cuBLAS sees it, and terms of a sum.
    pub(in crate::cuda) sizes: [i32; 3],
    /// Leading dimensions of first, second and output.
    pub(in crate::cuda) leading: [i32; 3],
    /// Products, and the strides between them.
    pub(in crate::cuda) count: i32,
    /// Strides of first, second and output from one product to the next.
    pub(in crate::cuda) strides: [i64; 3],
}

/// How a problem is computed by cuBLAS: one call, repeated at offsets of left, right and output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Mapped {
    pub(in crate::cuda) gemm: Gemm,
    pub(in crate::cuda) offsets: Vec<[u64; 3]>,
}

impl Problem {
    /// The product of a (…, k) and the transpose of weights (n, k): rows are joined as far as strides allow.
    pub(in crate::cuda) fn of_weights(a: &View, weights: &View, out: &View) -> Option<Self> {
        let (inner, rank) = (a.sizes.len().checked_sub(1)?, out.sizes.len());
        let [n, k] = weights.sizes[..].try_into().ok()?;
        if rank != a.sizes.len()
            || a.sizes[inner] != k
            || out.sizes[inner] != n
            || a.sizes[..inner] != out.sizes[..inner]
        {
            return None;
        }
        let mut rows: Vec<Batch> = joined((0..inner).map(|dimension| Batch {
            size: a.sizes[dimension],
            strides: [a.strides[dimension], 0, out.strides[dimension]],
        }));
        let longest = (0..rows.len()).max_by_key(|&index| rows[index].size);
        let longest = longest.map_or(Batch { size: 1, strides: [k, 0, n] }, |index| rows.remove(index));
        Some(Self {
            sizes: [longest.size, n, k],
            left: Matrix { row: longest.strides[0], column: a.strides[inner] },
            right: Matrix { row: weights.strides[1], column: weights.strides[0] },
            out: Matrix { row: longest.strides[2], column: out.strides[inner] },
            batches: rows,
        })
    }

    /// One product for each item and head of (batch, heads, m, k) and (batch, heads, k, n), or (batch, heads, n, k).
    pub(in crate::cuda) fn batched(a: &View, b: &View, out: &View, transposed: bool) -> Option<Self> {
        let outer = a.sizes.len().checked_sub(2)?;
        let columns = if transposed { [outer + 1, outer] } else { [outer, outer + 1] };
        let ([m, k], n) = ([a.sizes[outer], a.sizes[outer + 1]], *b.sizes.get(columns[1])?);
        let fits =
            b.sizes.len() == a.sizes.len() && b.sizes[columns[0]] == k && out.sizes.get(outer..) == Some(&[m, n]);
        if !fits || out.sizes[..outer] != a.sizes[..outer] {
            return None;
        }
        let strides_of_b = super::walk::broadcast(b, &[&a.sizes[..outer], &b.sizes[outer..]].concat());
        let batches = joined((0..outer).map(|dimension| Batch {
            size: a.sizes[dimension],
            strides: [a.strides[dimension], strides_of_b[dimension], out.strides[dimension]],
        }));
        Some(Self {
            sizes: [m, n, k],
            left: Matrix { row: a.strides[outer], column: a.strides[outer + 1] },
            right: Matrix { row: b.strides[columns[0]], column: b.strides[columns[1]] },
            out: Matrix { row: out.strides[outer], column: out.strides[outer + 1] },
            batches,
        })
    }

    /// The same in cuBLAS's words, where it has any for these strides.
    pub(in crate::cuda) fn mapped(&self) -> Option<Mapped> {
        let [mut m, mut n, k] = self.sizes;
        let (swapped, leading_out) = self.out.oriented(m, n)?;
        let (mut first, mut second, mut order) = (self.left, self.right, [0, 1, 2]);
        if swapped {
            (m, n, first, second) = (n, m, self.right.transposed(), self.left.transposed());
            order = [1, 0, 2];
        }
        let (first_transposed, leading_first) = first.oriented(m, k)?;
        let (second_transposed, leading_second) = second.oriented(k, n)?;
        let (inner, looped) = split(&self.batches)?;
        let gemm = Gemm {
            swapped,
            transposed: [first_transposed, second_transposed],
            sizes: whole([m, n, k])?,
            leading: whole([leading_first, leading_second, leading_out])?,
            count: i32::try_from(inner.size).ok()?,
            strides: order.map(|operand| inner.strides[operand] as i64),
        };
        Some(Mapped { gemm, offsets: looped })
    }
}

fn whole(numbers: [u64; 3]) -> Option<[i32; 3]> {
    let [Ok(first), Ok(second), Ok(third)] = numbers.map(i32::try_from) else { return None };
    Some([first, second, third])
}

/// Dimensions joined where the inner one only continues in the outer, in all three operands.
fn joined(dimensions: impl Iterator<Item = Batch>) -> Vec<Batch> {
    let mut all: Vec<Batch> = Vec::new();
    for inner in dimensions.filter(|dimension| dimension.size != 1) {
        match all.last_mut() {
            Some(outer) if (0..3).all(|i| outer.strides[i] == inner.size * inner.strides[i]) => {
                *outer = Batch { size: outer.size * inner.size, ..inner };
            }
            _ => all.push(inner),
        }
    }
    all
}

/// The longest dimension, and the offsets of all steps of the others.
fn split(batches: &[Batch]) -> Option<(Batch, Vec<[u64; 3]>)> {
    let longest = (0..batches.len()).max_by_key(|&index| batches[index].size);
    let inner = longest.map_or(Batch { size: 1, strides: [0; 3] }, |index| batches[index]);
    let others = || batches.iter().enumerate().filter(|(index, _)| Some(*index) != longest).map(|(_, batch)| batch);
    if others().map(|batch| batch.size).product::<u64>() > MOST_CALLS {
        return None;
    }
    let mut offsets = vec![[0; 3]];
    for batch in others() {
        let step = |start: [u64; 3], at| std::array::from_fn(|i| start[i] + at * batch.strides[i]);
        offsets = offsets.iter().flat_map(|&start| (0..batch.size).map(move |at| step(start, at))).collect();
    }
    Some((inner, offsets))
}

/// The calls that compute a problem over these views: cuBLAS where it can, a kernel of any strides otherwise.
pub(super) fn calls(problem: &Problem, views: [&View; 3], adds: bool, biased: bool) -> Result<Vec<Call>, CudaError> {
    let [m, n, k] = problem.sizes;
    if m == 0 || n == 0 || problem.batches.iter().any(|batch| batch.size == 0) {
        return Ok(Vec::new());
    }
    let elements = views.map(|view| view.element);
    if let ([Element::Float(dtype), second, third], true, Some(mapped)) = (elements, k > 0, problem.mapped())
        && elements[0] == second
        && elements[0] == third
    {
        return Ok(vec![Call::Product(library_call(&mapped, dtype, views, adds, biased))]);
    }
    strided(problem, views, adds).map(|call| vec![call])
}

fn library_call(mapped: &Mapped, dtype: DType, views: [&View; 3], adds: bool, biased: bool) -> ProductCall {
    let order = if mapped.gemm.swapped { [1, 0, 2] } else { [0, 1, 2] };
    let place =
        |offsets: &[u64; 3], operand: usize| Place::of(views[operand]).after(offsets[operand], views[operand].element);
    let places = mapped.offsets.iter().map(|offsets| order.map(|operand| place(offsets, operand))).collect();
    ProductCall { dtype, adds, biased, gemm: mapped.gemm, places }
}

/// One thread for each element of the output.
fn strided(problem: &Problem, views: [&View; 3], adds: bool) -> Result<Call, CudaError> {
    let [m, n, k] = problem.sizes;
    let mut sizes: Vec<u64> = problem.batches.iter().map(|batch| batch.size).collect();
    let mut strides: [Vec<u64>; 3] =
        [0, 1, 2].map(|operand| problem.batches.iter().map(|batch| batch.strides[operand]).collect());
    sizes.extend([m, n]);
    strides[0].extend([problem.left.row, 0]);
    strides[1].extend([0, problem.right.column]);
    strides[2].extend([problem.out.row, problem.out.column]);
    let walk = Walk::over(&sizes, &[&strides[2], &strides[0], &strides[1]])?;
    let [left, right, out] = views.map(|view| name_of(view.element));
    let parameters = [
        ("const Walk", "walk"),
        ("void*", "out"),
        ("const void*", "left"),
        ("const void*", "right"),
        ("u64", "terms"),
        ("u64", "left_stride"),
        ("u64", "right_stride"),
        ("u64", "adds"),
    ];
    Ok(Call::Kernel(KernelCall {
        instance: Instance::of_template(Part::Product, "product", &[out, left, right], THREADS, &parameters),
        blocks: blocks_for(walk.count, u64::from(THREADS)),
        threads: THREADS,
        shared_bytes: 0,
        arguments: vec![
            Argument::Words(walk.words()),
            Argument::At(Place::of(views[2])),
            Argument::At(Place::of(views[0])),
            Argument::At(Place::of(views[1])),
            Argument::count(k),
            Argument::count(problem.left.column),
            Argument::count(problem.right.row),
            Argument::count(u64::from(adds)),
        ],
    }))
}
