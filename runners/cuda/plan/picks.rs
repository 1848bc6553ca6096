//! Reductions of one dimension, rows picked by index, and pixels repeated, as calls.

use crate::cuda::error::CudaError;
use crate::programs::Element;
use crate::programs::computation::{Reduction, View};

use super::call::{Argument, Call, Instance, KernelCall, Part, Place, blocks_for, name_of};
use super::walk::Walk;

const THREADS: u32 = 256;
/// Elements side by side from which on a block sums them up; fewer, or apart, are one thread's.
const WIDE_ROW: u64 = 64;

fn refused(what: &str) -> CudaError {
    CudaError::NoKernel { what: what.to_owned() }
}

/// A call of a kernel whose threads each take an element of a walk.
fn each(instance: Instance, walk: &Walk, blocks: [u32; 3], places: Vec<Argument>, counts: &[u64]) -> Call {
    let mut arguments = vec![Argument::Words(walk.words())];
    arguments.extend(places);
    arguments.extend(counts.iter().copied().map(Argument::count));
    Call::Kernel(KernelCall { instance, blocks, threads: THREADS, shared_bytes: 0, arguments })
}

/// A reduction of a dimension, which stays with size 1 or goes away.
pub(super) fn reduce(reduction: Reduction, dimension: usize, x: &View, out: &View) -> Result<Vec<Call>, CudaError> {
    if out.elements() == 0 {
        return Ok(Vec::new());
    }
    let Some(&count) = x.sizes.get(dimension) else {
        return Err(refused("a reduction of a dimension that is not there"));
    };
    let (mut sizes, mut strides, mut out_strides) = (x.sizes.clone(), x.strides.clone(), out.strides.clone());
    sizes.remove(dimension);
    let stride = strides.remove(dimension);
    let mut out_sizes = out.sizes.clone();
    if out_sizes.len() == x.sizes.len() && out_sizes[dimension] == 1 {
        out_sizes.remove(dimension);
        out_strides.remove(dimension);
    }
    if out_sizes != sizes {
        return Err(refused("a reduction whose output does not fit its input"));
    }
    let walk = Walk::over(&sizes, &[&out_strides, &strides])?;
    let [own, out_type] = [x.element, out.element].map(name_of);
    let places = vec![Argument::At(Place::of(out)), Argument::At(Place::of(x))];
    let parameters =
        [("const Walk", "walk"), ("void*", "out"), ("const void*", "x"), ("u64", "count"), ("u64", "stride")];
    let side_by_side = stride == 1 && count >= WIDE_ROW && !super::pointwise::is_wide(x.element);
    let (template, kind, blocks) = match reduction {
        Reduction::Mean if side_by_side => ("reduce_rows", "true", blocks_for(walk.count, 1)),
        Reduction::Length if side_by_side => ("reduce_rows", "false", blocks_for(walk.count, 1)),
        Reduction::Mean => ("reduce_each", "Mean", blocks_for(walk.count, u64::from(THREADS))),
        Reduction::Length => ("reduce_each", "Length", blocks_for(walk.count, u64::from(THREADS))),
        Reduction::Any => ("reduce_each", "Any", blocks_for(walk.count, u64::from(THREADS))),
        Reduction::All => ("reduce_each", "All", blocks_for(walk.count, u64::from(THREADS))),
        Reduction::FirstLargest => ("reduce_each", "FirstLargest", blocks_for(walk.count, u64::from(THREADS))),
    };
    let instance = Instance::of_template(Part::Rows, template, &[kind, out_type, own], THREADS, &parameters);
    Ok(vec![each(instance, &walk, blocks, places, &[count, stride])])
}

/// Rows of a table (rows, channels) by indices: the output has their sizes and then the channels.
pub(super) fn gather(table: &View, indices: &View, out: &View) -> Result<Vec<Call>, CudaError> {
    let ([rows, channels], [row_stride, channel_stride]) = (&table.sizes[..], &table.strides[..]) else {
        return Err(refused("rows of a table of other than two dimensions"));
    };
    if out.sizes != [&indices.sizes[..], &[*channels]].concat() {
        return Err(refused("rows of a table whose output does not fit"));
    }
    let indexed = [&indices.strides[..], &[0]].concat();
    let mut in_table = vec![0; out.sizes.len()];
    in_table[indices.sizes.len()] = *channel_stride;
    picked(table, indices, out, [&indexed, &in_table], [*rows, *row_stride])
}

/// One row of each item of a table (batch, rows, channels), by an index for each.
pub(super) fn pick_row(table: &View, indices: &View, out: &View) -> Result<Vec<Call>, CudaError> {
    let ([batch, rows, channels], [batch_stride, row_stride, channel_stride]) = (&table.sizes[..], &table.strides[..])
    else {
        return Err(refused("a row of each item of other than three dimensions"));
    };
    if indices.sizes != [*batch] || out.sizes != [*batch, *channels] {
        return Err(refused("a row of each item whose output does not fit"));
    }
    picked(table, indices, out, [&[indices.strides[0], 0], &[*batch_stride, *channel_stride]], [*rows, *row_stride])
}

fn picked(
    table: &View,
    indices: &View,
    out: &View,
    strides: [&[u64]; 2],
    rows: [u64; 2],
) -> Result<Vec<Call>, CudaError> {
    if out.elements() == 0 {
        return Ok(Vec::new());
    }
    if !matches!(indices.element, Element::Int64 | Element::Int32) {
        return Err(refused("rows by indices that are no integers"));
    }
    let walk = Walk::over(&out.sizes, &[&out.strides, strides[0], strides[1]])?;
    let types = [out.element, table.element, indices.element].map(name_of);
    let parameters = [
        ("const Walk", "walk"),
        ("void*", "out"),
        ("const void*", "table"),
        ("const void*", "indices"),
        ("u64", "rows"),
        ("u64", "row_stride"),
    ];
    let instance = Instance::of_template(Part::Picks, "gather", &types, THREADS, &parameters);
    let places = [out, table, indices].map(|view| Argument::At(Place::of(view))).to_vec();
    Ok(vec![each(instance, &walk, blocks_for(walk.count, u64::from(THREADS)), places, &rows)])
}

/// Pixels of (batch, channels, rows, columns) repeated to the output's rows and columns.
pub(super) fn upsample(x: &View, out: &View) -> Result<Vec<Call>, CudaError> {
    let ([batch, channels, rows, columns], [out_batch, out_channels, out_rows, out_columns]) =
        (&x.sizes[..], &out.sizes[..])
    else {
        return Err(refused("repeated pixels in other than four dimensions"));
    };
    if batch != out_batch || channels != out_channels {
        return Err(refused("repeated pixels of other channels than the input's"));
    }
    if out.elements() == 0 {
        return Ok(Vec::new());
    }
    let elsewhere = [x.strides[0], x.strides[1], 0, 0];
    let walk = Walk::over(&out.sizes, &[&out.strides, &[0, 0, 1, 0], &[0, 0, 0, 1], &elsewhere])?;
    let parameters = [
        ("const Walk", "walk"),
        ("void*", "out"),
        ("const void*", "x"),
        ("u64", "rows"),
        ("u64", "out_rows"),
        ("u64", "columns"),
        ("u64", "out_columns"),
        ("u64", "row_stride"),
        ("u64", "column_stride"),
    ];
    let types = [out.element, x.element].map(name_of);
    let instance = Instance::of_template(Part::Picks, "upsample", &types, THREADS, &parameters);
    let places = vec![Argument::At(Place::of(out)), Argument::At(Place::of(x))];
    let counts = [*rows, *out_rows, *columns, *out_columns, x.strides[2], x.strides[3]];
    Ok(vec![each(instance, &walk, blocks_for(walk.count, u64::from(THREADS)), places, &counts)])
}

/// A count of what is infinite or no number in a view, added to a counter of 64 bits.
pub(in crate::cuda) fn not_finite(x: &View, counter: Argument) -> Result<Option<KernelCall>, CudaError> {
    if x.elements() == 0 {
        return Ok(None);
    }
    let walk = Walk::over(&x.sizes, &[&x.strides])?;
    let parameters = [("const Walk", "walk"), ("void*", "counter"), ("const void*", "x")];
    Ok(Some(KernelCall {
        instance: Instance::of_template(
            Part::Contents,
            "count_not_finite",
            &[name_of(x.element)],
            THREADS,
            &parameters,
        ),
        blocks: blocks_for(walk.count, u64::from(THREADS)),
        threads: THREADS,
        shared_bytes: 0,
        arguments: vec![Argument::Words(walk.words()), counter, Argument::At(Place::of(x))],
    }))
}
