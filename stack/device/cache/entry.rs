//! One model of a cache: its pieces, where they are, and who needs them.

use std::sync::Arc;

use super::spec::{ComputeOn, Loading, ModelSpec, PieceSpec, WeightsSource};
use super::state::LockId;
use super::{CacheError, ModelKey};
use crate::allocator::sizes::REFUSED_FROM_BYTES;
use crate::device::Holding;
use crate::weights::{HostCopy, HostStore, PinCount};

/// One piece of weights and, when it is on the device, its memory there.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) required: bool,
    pub(super) holding: Option<Holding>,
}

impl Piece {
    /// Whether it is to be loaded. A piece without bytes needs no memory, and would hold a block of it if it had any.
    pub(super) fn is_missing(&self) -> bool {
        self.holding.is_none() && self.bytes > 0
    }
}

/// One model.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: ModelKey,
    pub(super) pieces: Vec<Piece>,
    pub(super) loading: Loading,
    pub(super) compute: ComputeOn,
    pub(super) host: Arc<HostCopy>,
    pub(super) pins: PinCount,
    /// The locks on it.
    pub(super) holders: Vec<LockId>,
    /// Evict it when nobody needs it any more.
    pub(super) drop_when_idle: bool,
    pub(super) total_bytes: u64,
    pub(super) resident_bytes: u64,
}

impl Entry {
    pub(super) fn new(spec: ModelSpec, store: &HostStore) -> Result<Self, CacheError> {
        let ModelSpec { key, weights, loading, compute } = spec;
        let (specs, host) = match weights {
            WeightsSource::Synthetic(pieces) => (pieces, HostCopy::synthetic()),
            WeightsSource::Safetensors { path, required_prefixes } => {
                let host = store.open(&path)?;
                let tensors = host.mapped().map(|mapped| mapped.tensors()).unwrap_or_default();
                let required = |name: &str| required_prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()));
                let piece = |name: &str, bytes| PieceSpec { name: name.to_owned(), bytes, required: required(name) };
                (tensors.iter().map(|span| piece(&span.name, span.bytes)).collect(), host)
            }
        };
        let mut names = std::collections::HashSet::new();
        if let Some(twice) = specs.iter().find(|piece| !names.insert(piece.name.as_str())) {
            return Err(CacheError::DuplicatePiece { key, piece: twice.name.clone() });
        }
        let sum = specs.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.bytes));
        let Some(total_bytes) = sum.filter(|total_bytes| *total_bytes < REFUSED_FROM_BYTES) else {
            return Err(CacheError::TooLarge { key });
        };
        let whole = loading == Loading::Whole;
        let pieces: Vec<_> = specs
            .into_iter()
            .map(|PieceSpec { name, bytes, required }| Piece {
                name,
                bytes,
                required: required || whole,
                holding: None,
            })
            .collect();
        let (pins, holders) = (PinCount::default(), Vec::new());
        let (drop_when_idle, resident_bytes) = (false, 0);
        Ok(Self { key, pieces, loading, compute, host, pins, holders, drop_when_idle, total_bytes, resident_bytes })
    }

    /// What of the model is to be on the device and is not.
    pub(super) fn missing_bytes(&self) -> u64 {
        match self.compute {
            ComputeOn::Device => self.total_bytes - self.resident_bytes,
            ComputeOn::Host => 0,
        }
    }

    /// What of its required pieces is not on the device.
    pub(super) fn required_missing_bytes(&self) -> u64 {
        let needed = |piece: &&Piece| piece.required && piece.is_missing();
        match self.compute {
            ComputeOn::Device => self.pieces.iter().filter(needed).map(|piece| piece.bytes).sum(),
            ComputeOn::Host => 0,
        }
    }

    /// All its required pieces.
    pub(super) fn required_bytes(&self) -> u64 {
        match self.compute {
            ComputeOn::Device => self.pieces.iter().filter(|piece| piece.required).map(|piece| piece.bytes).sum(),
            ComputeOn::Host => 0,
        }
    }

    pub(super) fn is_locked(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Whether nobody needs it: no lock, and no window that wants its host copy to stay.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_locked() && self.pins.get() == 0
    }
}
