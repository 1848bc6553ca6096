//! How far results of a GPU may lie from the reference's, and how far they do.

use headroom_base::DType;

use super::execute::Output;
use crate::programs::computation::{Computation, Kernel, Pointwise};

/// How far values may lie from the reference's, as parts of the reference's root mean square.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// The root mean square of all differences.
    pub rms: f64,
    /// The largest difference, as a part of the value itself where that is larger than the root mean square.
    pub largest: f64,
}

impl Tolerance {
    /// The same values.
    pub const EXACT: Self = Self { rms: 0.0, largest: 0.0 };

    /// What these kernels may add up to when they run in a row in a computation of this element type.
    ///
    /// A GPU sums in fp32 and in another order than the reference, so that a stored value may fall to its neighbour: an
    /// error of about the unit roundoff u of its type, 2⁻¹¹ in fp16 and 2⁻⁸ in bf16. In fp32 convolutions round their
    /// operands to TF32, which is 2⁻¹¹ again; of sines and cosines no more is known, since time steps and guidance make
    /// angles of up to 7000, of which fp32 holds steps of 2⁻¹¹; other kernels are taken to keep 20 bits, as sums of some
    /// hundred terms and the GPU's exponentials do. Kernels that only move values do nothing to them.
    ///
    /// Independent errors add up as the root of the sum of their squares: that is what the root mean square may be. The
    /// largest is six times that, which normally distributed errors reach once in 10⁹; but where a value of five times
    /// the root mean square falls to its neighbour it is 10 u off, so it is 16 u at least.
    pub fn of<'a>(dtype: DType, kernels: impl IntoIterator<Item = &'a Kernel>) -> Self {
        let (mut squares, mut coarsest) = (0.0, 0.0_f64);
        for kernel in kernels.into_iter().filter(|kernel| !moves(kernel)) {
            let roundoff: f64 = match (dtype, kernel) {
                (DType::Bf16, _) => 1.0 / 256.0,
                (DType::Fp16, _)
                | (_, Kernel::Convolution { .. } | Kernel::Pointwise(Pointwise::Sine | Pointwise::Cosine)) => {
                    1.0 / 2048.0
                }
                (DType::Fp32, _) => 1.0 / 1_048_576.0,
            };
            squares += roundoff * roundoff;
            coarsest = coarsest.max(roundoff);
        }
        let rms = squares.sqrt();
        Self { rms, largest: (6.0 * rms).max(16.0 * coarsest) }
    }

    /// What a whole computation may: as if its launches ran in a row, each on the result of the one before.
    pub fn of_computation(computation: &Computation) -> Self {
        Self::of(computation.program.case.dtype, computation.launches.iter().map(|launch| &launch.kernel))
    }
}

/// Whether a kernel only moves values, or makes them of nothing.
fn moves(kernel: &Kernel) -> bool {
    matches!(
        kernel,
        Kernel::Pointwise(Pointwise::Copy | Pointwise::Constant(_) | Pointwise::Index { .. })
            | Kernel::Gather
            | Kernel::PickRow
            | Kernel::UpsampleNearest
    )
}

/// How far values lie from the reference's, as parts of the reference's root mean square.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deviation {
    /// The root mean square of all differences.
    pub rms: f64,
    /// The largest difference.
    pub largest: f64,
    /// The element where it is the largest.
    pub at: usize,
    /// The reference's value there.
    pub reference: f64,
    /// The other's value there.
    pub other: f64,
}

/// Why values are not those of the reference.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Mismatch {
    /// More or fewer values.
    #[error("{found} values, and the reference has {expected}")]
    Length {
        /// Values given.
        found: usize,
        /// Values of the reference.
        expected: usize,
    },
    /// A value that is no finite number.
    #[error("element {at} is {other}, and the reference's {reference}")]
    NotFinite {
        /// The element.
        at: usize,
        /// The reference's value there.
        reference: f64,
        /// The other's value there.
        other: f64,
    },
    /// Values that lie too far away.
    #[error(
        "off by {:.2e} in the root mean square and {:.2e} at most (element {}: {} for {}), where {:.2e} and {:.2e} are allowed",
        deviation.rms, deviation.largest, deviation.at, deviation.other, deviation.reference, tolerance.rms, tolerance.largest
    )]
    TooFar {
        /// How far.
        deviation: Deviation,
        /// How far they may.
        tolerance: Tolerance,
    },
}

/// Holds values against the reference's.
///
/// # Errors
/// When they lie further away than the tolerance, are more or fewer, or any of either is no finite number.
pub fn compare(reference: &Output, other: &[f64], tolerance: Tolerance) -> Result<Deviation, Mismatch> {
    let values = &reference.values;
    if values.len() != other.len() {
        return Err(Mismatch::Length { found: other.len(), expected: values.len() });
    }
    let mut deviation = Deviation { rms: 0.0, largest: 0.0, at: 0, reference: 0.0, other: 0.0 };
    let mut square_differences = 0.0;
    let count = values.len().max(1) as f64;
    let all: f64 = values.iter().map(|value| value * value).sum();
    let scale = if all > 0.0 { (all / count).sqrt() } else { 1.0 };
    for (at, (&reference, &other)) in values.iter().zip(other).enumerate() {
        if !(reference.is_finite() && other.is_finite()) {
            return Err(Mismatch::NotFinite { at, reference, other });
        }
        let difference = (reference - other).abs();
        square_differences += difference * difference;
        // Roundings are shares of a value: one far above the root mean square, as exponentials have them, is held to a
        // share of itself.
        let share = difference / scale.max(reference.abs());
        if at == 0 || share > deviation.largest {
            deviation = Deviation { largest: share, at, reference, other, ..deviation };
        }
    }
    deviation.rms = (square_differences / count).sqrt() / scale;
    if deviation.rms > tolerance.rms || deviation.largest > tolerance.largest {
        return Err(Mismatch::TooFar { deviation, tolerance });
    }
    Ok(deviation)
}
