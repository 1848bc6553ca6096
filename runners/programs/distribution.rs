//! The distribution over latents that an encoder returns: chunks and clamps of its moments.

use super::computation::Pointwise;
use super::recorder::{Recorder, Tensor};

impl Recorder {
    /// The tensors of `DiagonalGaussianDistribution`, moments included; they live as long as the result.
    pub(super) fn distribution(&self, moments: Tensor) -> Vec<Tensor> {
        let limits = Pointwise::Clamp { low: -30.0, high: 20.0 };
        let log_variance = self.map(&moments.part(1, 1, 2), limits, "clamp log variance");
        let half = Pointwise::Affine { factor: 0.5, summand: 0.0 };
        let scaled = self.scale(&log_variance, half, "scale log variance");
        let deviation = self.map(&scaled, Pointwise::Exp, "deviation");
        drop(scaled);
        let variance = self.map(&log_variance, Pointwise::Exp, "variance");
        vec![moments, log_variance, deviation, variance]
    }
}
