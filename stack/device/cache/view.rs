//! What a cache shows of itself, and whether it agrees with its device.

use headroom_base::{Bytes, SignedBytes};

use super::{Cache, CacheError, ModelKey};
use crate::device::Holding;

/// One model as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelView {
    /// Its name.
    pub key: ModelKey,
    /// All its weights.
    pub total_bytes: u64,
    /// Those on the device.
    pub resident_bytes: u64,
    /// What those cost there, rounded up by the allocator.
    pub device_bytes: u64,
    /// Locks on it.
    pub locks: usize,
    /// Windows that need its host copy to stay.
    pub host_pins: u32,
    /// Whether it goes when nobody needs it any more.
    pub dropped: bool,
}

/// One piece of a locked model's weights, for what computes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightHolding {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Where it lies on the device; nowhere where it is in host memory.
    pub holding: Option<Holding>,
    /// Whether it has contents of its own: synthetic weights have none.
    pub has_contents: bool,
}

/// The cache and the allocator disagree about weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "models hold {} on the device, other holders {}, and the allocator handed out {}: {} differ",
    Bytes(*weights_bytes), Bytes(*others_bytes), Bytes(*allocated_bytes), SignedBytes(*difference_bytes)
)]
pub struct NotReconciled {
    /// What the cache's models hold, rounded up by the allocator.
    pub weights_bytes: u64,
    /// What the caller says others hold.
    pub others_bytes: u64,
    /// What the allocator says it handed out.
    pub allocated_bytes: u64,
    /// Handed out and held by nobody, or the other way round where negative.
    pub difference_bytes: i64,
}

impl Cache {
    /// Every model, by name.
    pub fn models(&self) -> Vec<ModelView> {
        let state = self.state();
        let mut models: Vec<_> = state
            .entries()
            .map(|(_, entry)| ModelView {
                key: entry.key.clone(),
                total_bytes: entry.total_bytes,
                resident_bytes: entry.resident_bytes,
                device_bytes: entry.pieces.iter().filter_map(|piece| piece.holding).map(|held| held.bytes()).sum(),
                locks: entry.holders.len(),
                host_pins: entry.pins.get(),
                dropped: entry.drop_when_idle,
            })
            .collect();
        models.sort_by(|a, b| a.key.cmp(&b.key));
        models
    }

    /// One model.
    pub fn model(&self, key: &ModelKey) -> Option<ModelView> {
        self.models().into_iter().find(|model| model.key == *key)
    }

    /// Whether what the models hold, together with `others_bytes` that others hold on the device, is what the allocator
    /// handed out, to the byte. Meaningful while nobody moves anything.
    ///
    /// # Errors
    /// [`CacheError::Driver`] when the allocator cannot be asked; the inner result tells the numbers that differ.
    pub fn reconcile(&self, others_bytes: u64) -> Result<Result<(), NotReconciled>, CacheError> {
        let counters = self.device().counters();
        let counters =
            counters.map_err(|source| CacheError::Driver { key: ModelKey::model("(all models)"), source })?;
        let weights_bytes = self.models().iter().map(|model| model.device_bytes).sum();
        let allocated_bytes = counters.allocated.current;
        let difference = i128::from(allocated_bytes) - i128::from(weights_bytes) - i128::from(others_bytes);
        let difference_bytes = i64::try_from(difference).unwrap_or(i64::MAX);
        if difference == 0 {
            return Ok(Ok(()));
        }
        Ok(Err(NotReconciled { weights_bytes, others_bytes, allocated_bytes, difference_bytes }))
    }
}
