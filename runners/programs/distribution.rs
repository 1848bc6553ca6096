//! The distribution over latents that an encoder returns: chunks and clamps of its moments.

use super::recorder::{Recorder, Tensor};

impl Recorder {
    /// The tensors of `DiagonalGaussianDistribution`, moments included; they live as long as the result.
    pub(super) fn distribution(&self, moments: Tensor) -> Vec<Tensor> {
        let half = moments.size(1) / 2;
        let log_variance = self.map(&moments.narrow(1, half), "clamp log variance");
        let scaled = self.scale(&log_variance, "scale log variance");
        let deviation = self.map(&scaled, "deviation");
        drop(scaled);
        let variance = self.map(&log_variance, "variance");
        vec![moments, log_variance, deviation, variance]
    }
}
