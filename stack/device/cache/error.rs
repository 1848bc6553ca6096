//! Why the cache could not do what it was asked.

use std::time::Duration;

use headroom_base::Bytes;

use super::{ModelKey, Resident};
use crate::allocator::sizes::REFUSED_FROM_BYTES;
use crate::allocator::{AllocationError, NotAllocated};
use crate::driver::DriverError;
use crate::probe::HookError;
use crate::weights::WeightsError;

/// Why a model could not be added, locked or dropped. Whatever it is, the cache is as whole as before.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// No model of this name was added.
    #[error("the cache holds no model `{key}`; add it before it is locked")]
    UnknownModel {
        /// The name.
        key: ModelKey,
    },
    /// A model of this name is there already, or still in use after it was dropped.
    #[error("the cache holds a model `{key}` already; drop it and wait for its last unlock first")]
    AlreadyAdded {
        /// The name.
        key: ModelKey,
    },
    /// Two pieces of a model have the same name.
    #[error("model `{key}` has two pieces named `{piece}`")]
    DuplicatePiece {
        /// The model.
        key: ModelKey,
        /// The piece.
        piece: String,
    },
    /// The sizes of a model's pieces add up to what no device has.
    #[error(
        "the pieces of model `{key}` add up to {} or more, and no device has that; check their sizes",
        Bytes(REFUSED_FROM_BYTES)
    )]
    TooLarge {
        /// The model.
        key: ModelKey,
    },
    /// The device has too little memory for the pieces that must be on it, or had less than the budget said for others.
    #[error(
        "model `{key}` needs {} more on the device: {source} (waited {waited:?} for other locks; {})",
        Bytes(*missing_bytes), InUse(in_use)
    )]
    OutOfMemory {
        /// The model.
        key: ModelKey,
        /// What was still to be loaded when the lock began to load.
        missing_bytes: u64,
        /// How long the lock waited for others to end.
        waited: Duration,
        /// The other models that were in use, on whatever thread: room comes back with their last locks.
        in_use: Vec<Resident>,
        /// What the allocator said.
        #[source]
        source: Box<AllocationError>,
    },
    /// The allocator failed for another reason than lack of memory: handing memory out, or giving it back to the driver.
    #[error("model `{key}`: {source}")]
    Allocator {
        /// The model.
        key: ModelKey,
        /// What the allocator said.
        #[source]
        source: Box<AllocationError>,
    },
    /// A piece that should be on the device is not held there.
    #[error("model `{key}`: {source}")]
    NotHeld {
        /// The model.
        key: ModelKey,
        /// What the allocator said.
        #[source]
        source: NotAllocated,
    },
    /// The device's figures cannot be read, or a copy failed.
    #[error("model `{key}`: {source}")]
    Driver {
        /// The model.
        key: ModelKey,
        /// What the driver said.
        #[source]
        source: DriverError,
    },
    /// Somebody called [`Cache::cancel_loads`](super::Cache::cancel_loads) before the model was loaded.
    #[error("loading model `{key}` was cancelled; lock it again if it is wanted after all")]
    Cancelled {
        /// The model.
        key: ModelKey,
    },
    /// A hook failed at a point of the cache.
    #[error("model `{key}`: a hook failed: {source}")]
    Hook {
        /// The model.
        key: ModelKey,
        /// What it said.
        #[source]
        source: HookError,
    },
    /// The weights cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

impl CacheError {
    /// Whether more free device memory would have helped.
    pub fn is_out_of_memory(&self) -> bool {
        // A copy needs memory too: for its streams and events.
        match self {
            Self::OutOfMemory { .. } => true,
            Self::Driver { source, .. } => source.is_out_of_memory(),
            _ => false,
        }
    }

    /// Allocating for a model failed, after so long a wait and beside these models.
    pub(super) fn of_allocation(
        key: ModelKey,
        missing_bytes: u64,
        waited: Duration,
        in_use: Vec<Resident>,
        source: AllocationError,
    ) -> Self {
        let source = Box::new(source);
        if source.is_out_of_memory() {
            Self::OutOfMemory { key, missing_bytes, waited, in_use, source }
        } else {
            Self::Allocator { key, source }
        }
    }
}

/// Models in use, in words.
struct InUse<'a>(&'a [Resident]);

impl std::fmt::Display for InUse<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("no other model is in use");
        }
        f.write_str("in use: ")?;
        for (index, Resident { key, bytes, .. }) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{key} {}", Bytes(*bytes))?;
        }
        Ok(())
    }
}
