//! What a model brings into the cache.

use std::path::PathBuf;

use super::ModelKey;

/// One piece of a model's weights: what moves to the device and back as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceSpec {
    /// Its name; the tensor's, where weights come from a file.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Whether the model cannot run without it on the device.
    pub required: bool,
}

impl PieceSpec {
    /// A piece that may stay in host memory.
    pub fn new(name: impl Into<String>, bytes: u64) -> Self {
        Self { name: name.into(), bytes, required: false }
    }

    /// A piece without which the model cannot run.
    pub fn required(name: impl Into<String>, bytes: u64) -> Self {
        Self { name: name.into(), bytes, required: true }
    }
}

/// Where a model's weights come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightsSource {
    /// Pieces of these sizes, with no contents.
    Synthetic(Vec<PieceSpec>),
    /// A safetensors file: one piece for each tensor.
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The tensors whose name starts with one of these are required on the device.
        required_prefixes: Vec<String>,
    },
}

/// Whether a model can run while some of its pieces are in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loading {
    /// It can; only its required pieces must be on the device.
    Partial,
    /// It cannot: every piece is required.
    Whole,
}

/// Where a model computes. It is what was said, never inferred from where its weights happen to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ComputeOn {
    /// On the cache's device.
    Device,
    /// On the host: its weights never go to the device.
    Host,
}

/// A model to be added to a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// Its name.
    pub key: ModelKey,
    /// Its weights.
    pub weights: WeightsSource,
    /// Whether it may be loaded in part.
    pub loading: Loading,
    /// Where it computes.
    pub compute: ComputeOn,
}

impl ModelSpec {
    /// A model of these pieces that may be loaded in part and computes on the device.
    pub fn synthetic(key: impl Into<ModelKey>, pieces: impl IntoIterator<Item = PieceSpec>) -> Self {
        let weights = WeightsSource::Synthetic(pieces.into_iter().collect());
        Self { key: key.into(), weights, loading: Loading::Partial, compute: ComputeOn::Device }
    }

    /// A model of `pieces` equal pieces that may be loaded in part, the remainder in the last one.
    pub fn of_bytes(key: impl Into<ModelKey>, total_bytes: u64, pieces: u64) -> Self {
        let pieces = pieces.max(1);
        let each = total_bytes / pieces;
        let size = |index| if index + 1 == pieces { total_bytes - each * (pieces - 1) } else { each };
        Self::synthetic(key, (0..pieces).map(|index| PieceSpec::new(format!("piece.{index}"), size(index))))
    }

    /// A model whose pieces are the tensors of a safetensors file.
    pub fn safetensors(key: impl Into<ModelKey>, path: impl Into<PathBuf>) -> Self {
        let weights = WeightsSource::Safetensors { path: path.into(), required_prefixes: Vec::new() };
        Self { key: key.into(), weights, loading: Loading::Partial, compute: ComputeOn::Device }
    }

    /// The same, loaded whole or not at all.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { loading: Loading::Whole, ..self }
    }

    /// The same, computing on the host.
    #[must_use]
    pub fn on_host(self) -> Self {
        Self { compute: ComputeOn::Host, ..self }
    }
}
