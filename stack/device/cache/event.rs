//! What happens in a cache, told to whoever watches.

use std::time::Duration;

use headroom_base::Budget;

use super::ModelKey;
use super::warning::{BeyondDevice, Pressure};
use crate::probe::HookError;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A model is locked, and what could be loaded is.
    Locked {
        /// The model.
        key: ModelKey,
        /// Locks on it now.
        locks: usize,
        /// The budget when it was decided what to load.
        budget: Budget,
        /// Bytes of it that are not on the device.
        missing_bytes: u64,
    },
    /// Pieces went up.
    Loaded {
        /// The model.
        key: ModelKey,
        /// How much.
        bytes: u64,
    },
    /// Pieces went to host memory.
    Offloaded {
        /// The model.
        key: ModelKey,
        /// How much.
        bytes: u64,
        /// What of it is still on the device.
        remaining_bytes: u64,
    },
    /// Too little memory for a lock, although everything that could go has gone.
    Pressure(Pressure),
    /// A lock asked for more than the device could ever give.
    BeyondDevice(BeyondDevice),
    /// A lock waits for others to end.
    WaitingForRoom {
        /// The model that is to be locked.
        key: ModelKey,
        /// Bytes it must have on the device.
        needed_bytes: u64,
        /// What there is for them; negative where even working memory of others is short.
        room_bytes: i64,
        /// How long it will wait at most.
        at_most: Duration,
    },
    /// A lock failed. The cache is as it was.
    LockFailed {
        /// The model.
        key: ModelKey,
        /// Why, in words.
        error: String,
    },
    /// A lock ended.
    Unlocked {
        /// The model.
        key: ModelKey,
        /// Locks on it now.
        locks: usize,
    },
    /// A model is gone altogether.
    Evicted {
        /// The model.
        key: ModelKey,
        /// Bytes it had on the device.
        device_bytes: u64,
    },
}

/// Watches a cache. It is called after the cache has let go of itself, so it may call the cache, which it keeps as a
/// [`WeakCache`](super::WeakCache).
///
/// Events of one operation come in order; those of several threads may be interleaved.
pub trait Observer: Send + Sync {
    /// Something happened.
    ///
    /// # Errors
    /// An observer that fails, or panics, makes the open windows of the device invalid and nothing else.
    fn event(&self, event: &Event) -> Result<(), HookError>;
}
