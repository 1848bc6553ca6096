//! Normalisations as calls: statistics by blocks, then scale and shift.

use headroom_base::DType;

use crate::cuda::error::CudaError;
use crate::programs::Element;
use crate::programs::computation::{Launch, View};

use super::call::{Argument, Call, Instance, KernelCall, Part, Place, blocks_for, name_of};
use super::walk::Walk;

/// Threads of a block that sums up a group.
const GROUP_THREADS: u32 = 512;
const THREADS: u32 = 256;

fn refused(what: &str) -> CudaError {
    CudaError::NoKernel { what: what.to_owned() }
}

/// Row-major strides.
pub(super) fn dense_strides(sizes: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; sizes.len()];
    for dimension in (1..sizes.len()).rev() {
        strides[dimension - 1] = strides[dimension] * sizes[dimension].max(1);
    }
    strides
}

/// Whether a view is row-major without gaps.
pub(super) fn is_dense(view: &View) -> bool {
    let dense = dense_strides(&view.sizes);
    (0..view.sizes.len()).all(|dimension| view.sizes[dimension] == 1 || view.strides[dimension] == dense[dimension])
}

/// A tensor of statistics: dense, of so many elements and this type.
fn statistics(view: &View, elements: u64, element: Option<Element>) -> Result<Place, CudaError> {
    let fits = is_dense(view) && view.elements() == elements && element.is_none_or(|element| view.element == element);
    fits.then(|| Place::of(view)).ok_or_else(|| refused("a normalisation whose statistics are not dense"))
}

/// A parameter along the normalised dimension: dense, of so many elements.
fn parameter(view: Option<&View>, elements: u64) -> Result<Argument, CudaError> {
    match view {
        Some(view) if !is_dense(view) || view.elements() != elements => {
            Err(refused("a normalisation whose scale or shift is not dense"))
        }
        view => Ok(Argument::maybe(view)),
    }
}

/// Statistics of each group, and factor and summand of each channel; then every element by its channel's.
pub(super) fn group_norm(launch: &Launch, groups: u64, epsilon: f64) -> Result<Vec<Call>, CudaError> {
    let ([x, scale, shift], [out, mean, deviation, factor, summand]) = (&launch.reads[..], &launch.writes[..]) else {
        return Err(refused("a group norm of other than three operands and five results"));
    };
    let (Some(&batch), Some(&channels)) = (x.sizes.first(), x.sizes.get(1)) else {
        return Err(refused("a group norm of less than two dimensions"));
    };
    if x.elements() == 0 {
        return Ok(Vec::new());
    }
    if groups == 0 || channels % groups != 0 || scale.element != shift.element || mean.element != deviation.element {
        return Err(refused("a group norm whose channels or element types do not fit"));
    }
    let each = channels / groups;
    let inside: Vec<u64> = std::iter::once(each).chain(x.sizes[2..].iter().copied()).collect();
    let walk = Walk::over(&inside, &[&x.strides[1..]])?;
    let single = Some(Element::FP32);
    let [factor_at, summand_at] =
        [statistics(factor, batch * channels, single)?, statistics(summand, batch * channels, single)?];
    let types = [x.element, scale.element, mean.element].map(name_of);
    let summed = KernelCall {
        instance: Instance::of_template(Part::Norms, "group_statistics", &types, GROUP_THREADS, &GROUP_PARAMETERS),
        blocks: [u32::try_from(batch * groups).map_err(|_| refused("a group norm of 2³² groups"))?, 1, 1],
        threads: GROUP_THREADS,
        shared_bytes: 0,
        arguments: vec![
            Argument::Words(walk.words()),
            Argument::At(Place::of(x)),
            parameter(Some(scale), channels)?,
            parameter(Some(shift), channels)?,
            Argument::At(statistics(mean, batch * groups, None)?),
            Argument::At(statistics(deviation, batch * groups, None)?),
            Argument::At(factor_at),
            Argument::At(summand_at),
            Argument::count(groups),
            Argument::count(each),
            Argument::count(x.strides[0]),
            Argument::count(each * x.strides[1]),
            Argument::number(epsilon),
        ],
    };
    Ok(vec![Call::Kernel(summed), scaled(x, out, factor_at, summand_at)?])
}

const GROUP_PARAMETERS: [(&str, &str); 13] = [
    ("const Walk", "walk"),
    ("const void*", "x"),
    ("const void*", "scale"),
    ("const void*", "shift"),
    ("void*", "mean"),
    ("void*", "deviation"),
    ("void*", "factor"),
    ("void*", "summand"),
    ("u64", "groups"),
    ("u64", "channels"),
    ("u64", "item_stride"),
    ("u64", "group_stride"),
    ("double", "epsilon"),
];

fn scaled(x: &View, out: &View, factor: Place, summand: Place) -> Result<Call, CudaError> {
    if out.sizes != x.sizes {
        return Err(refused("a group norm whose output has other sizes than its input"));
    }
    let mut by_channel = vec![0; x.sizes.len()];
    (by_channel[0], by_channel[1]) = (x.sizes[1], 1);
    let walk = Walk::over(&x.sizes, &[&out.strides, &x.strides, &by_channel])?;
    let parameters = [
        ("const Walk", "walk"),
        ("void*", "out"),
        ("const void*", "x"),
        ("const void*", "factor"),
        ("const void*", "summand"),
    ];
    let types = [out.element, x.element].map(name_of);
    Ok(Call::Kernel(KernelCall {
        instance: Instance::of_template(Part::Norms, "scale_and_shift", &types, THREADS, &parameters),
        blocks: blocks_for(walk.count, u64::from(THREADS)),
        threads: THREADS,
        shared_bytes: 0,
        arguments: vec![
            Argument::Words(walk.words()),
            Argument::At(Place::of(out)),
            Argument::At(Place::of(x)),
            Argument::At(factor),
            Argument::At(summand),
        ],
    }))
}

/// Rows along the last dimension: a walk over them with output, input and statistics, and the last dimension's size.
struct Rows {
    walk: Walk,
    width: u64,
    strides: [u64; 2],
}

impl Rows {
    fn of(x: &View, out: &View) -> Result<Self, CudaError> {
        let inner = x.sizes.len().checked_sub(1).ok_or_else(|| refused("rows of a single number"))?;
        if x.sizes != out.sizes {
            return Err(refused("rows whose output has other sizes than their input"));
        }
        let outer = &x.sizes[..inner];
        let walk = Walk::over(outer, &[&out.strides[..inner], &x.strides[..inner], &dense_strides(outer)])?;
        Ok(Self { walk, width: x.sizes[inner], strides: [out.strides[inner], x.strides[inner]] })
    }

    fn sizes(&self) -> [Argument; 3] {
        [self.width, self.strides[0], self.strides[1]].map(Argument::count)
    }

    /// One block for each row.
    fn blocks(&self) -> [u32; 3] {
        blocks_for(self.walk.count, 1)
    }
}

/// Mean and deviation of each row, and its elements by them.
pub(super) fn layer_norm(launch: &Launch, epsilon: f64) -> Result<Vec<Call>, CudaError> {
    let (Some(x), Some(out)) = (launch.reads.first(), launch.writes.first()) else {
        return Err(refused("a layer norm without operands"));
    };
    if x.elements() == 0 {
        return Ok(Vec::new());
    }
    let rows = Rows::of(x, out)?;
    let (scale, shift) = (launch.reads.get(1), launch.reads.get(2));
    let weight = scale.map_or(Element::FP32, |view| view.element);
    if shift.is_some_and(|view| view.element != weight) {
        return Err(refused("a layer norm whose scale and shift differ in type"));
    }
    let single = Some(Element::FP32);
    let kept = |index: usize| match launch.writes.get(index) {
        Some(view) => statistics(view, rows.walk.count, single).map(Argument::At),
        None => Ok(Argument::Nowhere),
    };
    let mut arguments = vec![
        Argument::Words(rows.walk.words()),
        Argument::At(Place::of(out)),
        Argument::At(Place::of(x)),
        parameter(scale, rows.width)?,
        parameter(shift, rows.width)?,
        kept(1)?,
        kept(2)?,
    ];
    arguments.extend(rows.sizes());
    arguments.push(Argument::number(epsilon));
    let parameters = [
        ("const Walk", "rows"),
        ("void*", "out"),
        ("const void*", "x"),
        ("const void*", "scale"),
        ("const void*", "shift"),
        ("void*", "mean"),
        ("void*", "deviation"),
        ("u64", "width"),
        ("u64", "out_stride"),
        ("u64", "x_stride"),
        ("double", "epsilon"),
    ];
    let types = [out.element, x.element, weight].map(name_of);
    Ok(vec![Call::Kernel(KernelCall {
        instance: Instance::of_template(Part::Norms, "layer_norm", &types, THREADS, &parameters),
        blocks: rows.blocks(),
        threads: THREADS,
        shared_bytes: 0,
        arguments,
    })])
}

/// Inverse deviation of each row, and its elements by it.
pub(super) fn rms_norm(launch: &Launch, epsilon: f64) -> Result<Vec<Call>, CudaError> {
    let (Some(x), Some(out)) = (launch.reads.first(), launch.writes.first()) else {
        return Err(refused("a root-mean-square norm without operands"));
    };
    if x.elements() == 0 {
        return Ok(Vec::new());
    }
    let rows = Rows::of(x, out)?;
    let scale = launch.reads.get(1);
    let deviation = match launch.writes.get(1) {
        Some(view) => Argument::At(statistics(view, rows.walk.count, Some(Element::FP32))?),
        None => Argument::Nowhere,
    };
    let mut arguments = vec![
        Argument::Words(rows.walk.words()),
        Argument::At(Place::of(out)),
        Argument::At(Place::of(x)),
        parameter(scale, rows.width)?,
        deviation,
    ];
    arguments.extend(rows.sizes());
    arguments.push(Argument::number(epsilon));
    let parameters = [
        ("const Walk", "rows"),
        ("void*", "out"),
        ("const void*", "x"),
        ("const void*", "scale"),
        ("void*", "deviation"),
        ("u64", "width"),
        ("u64", "out_stride"),
        ("u64", "x_stride"),
        ("double", "epsilon"),
    ];
    let types = [out.element, x.element, scale.map_or(Element::FP32, |view| view.element)].map(name_of);
    Ok(vec![Call::Kernel(KernelCall {
        instance: Instance::of_template(Part::Norms, "rms_norm", &types, THREADS, &parameters),
        blocks: rows.blocks(),
        threads: THREADS,
        shared_bytes: 0,
        arguments,
    })])
}

/// Softmax of each row.
pub(super) fn softmax(launch: &Launch) -> Result<Vec<Call>, CudaError> {
    let (Some(x), Some(out)) = (launch.reads.first(), launch.writes.first()) else {
        return Err(refused("a softmax without operands"));
    };
    if x.elements() == 0 {
        return Ok(Vec::new());
    }
    let floats = |view: &View| matches!(view.element, Element::Float(DType::Fp16 | DType::Bf16 | DType::Fp32));
    if !floats(x) || !floats(out) {
        return Err(refused("a softmax of other than floating numbers"));
    }
    let rows = Rows::of(x, out)?;
    let mut arguments =
        vec![Argument::Words(rows.walk.words()), Argument::At(Place::of(out)), Argument::At(Place::of(x))];
    arguments.extend(rows.sizes());
    let parameters = [
        ("const Walk", "rows"),
        ("void*", "out"),
        ("const void*", "x"),
        ("u64", "width"),
        ("u64", "out_stride"),
        ("u64", "x_stride"),
    ];
    let types = [out.element, x.element].map(name_of);
    Ok(vec![Call::Kernel(KernelCall {
        instance: Instance::of_template(Part::Rows, "softmax", &types, THREADS, &parameters),
        blocks: rows.blocks(),
        threads: THREADS,
        shared_bytes: 0,
        arguments,
    })])
}
