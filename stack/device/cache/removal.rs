//! Models that leave: dropped by name, or moved to host memory because nobody uses them.

use headroom_base::mutant;

use super::entry::Entry;
use super::offload::Amount;
use super::state::{Slot, State};
use super::{Cache, CacheError, Dropped, Event, ModelKey, load};

impl Cache {
    /// Drops a model: now, or with its last lock where it is in use. Until then it can be locked again, which keeps it
    /// until that lock has ended too.
    ///
    /// # Errors
    /// [`CacheError::UnknownModel`].
    pub fn drop_model(&self, key: &ModelKey) -> Result<Dropped, CacheError> {
        let mut events = Vec::new();
        let mut state = self.state();
        let slot = state.find(key).ok_or_else(|| CacheError::UnknownModel { key: key.clone() })?;
        let entry = state.entry_mut(slot);
        if !std::mem::replace(&mut entry.drop_when_idle, true) {
            state.drops_due += 1;
        }
        let gone = self.evict_due(&mut state, &mut events);
        drop(state);
        // A failed observer has marked the open windows; the model is dropped all the same.
        let _ = self.tell(events);
        Ok(if gone.contains(key) { Dropped::Now } else { Dropped::WhenIdle })
    }

    /// Moves every model that nobody uses to host memory and, where any moved, empties the allocator's cache. Returns
    /// the bytes moved.
    ///
    /// # Errors
    /// What the driver said. What could be moved was.
    pub fn offload_unlocked(&self) -> Result<u64, CacheError> {
        let mut state = self.state();
        let mut bytes = 0;
        let mut events = Vec::new();
        let mut failure = None;
        for slot in state.candidates(Slot::MAX) {
            let key = state.entry(slot).key.clone();
            match self.offload_pieces(&mut state, slot, Amount::All) {
                Ok(moved) => {
                    bytes += moved;
                    events.push(Event::Offloaded { key, bytes: moved, remaining_bytes: 0 });
                }
                Err(error) => failure = failure.or(Some(error.of(&key))),
            }
        }
        drop(state);
        if bytes > 0 {
            // Whatever stays cached is still credited to the next budget.
            let _ = self.device().empty_cache();
        }
        let _ = self.tell(events);
        failure.map_or(Ok(bytes), Err)
    }

    /// Evicts what was dropped and is idle. Returns whose.
    pub(super) fn evict_due(&self, state: &mut State, events: &mut Vec<Event>) -> Vec<ModelKey> {
        let due = |entry: &Entry| {
            let idle = mutant!(
                "dropped_while_pinned",
                "a model of a measured step is gone when the step locks it again",
                right: entry.is_idle(),
                wrong: !entry.is_locked(),
            );
            entry.drop_when_idle && idle
        };
        let slots: Vec<_> = state.entries().filter(|(_, entry)| due(entry)).map(|(slot, _)| slot).collect();
        let mut gone = Vec::new();
        for slot in slots {
            let Some(mut entry) = state.remove(slot) else { continue };
            let device_bytes = entry.resident_bytes;
            if device_bytes > 0 {
                self.device().change(|memory| load::free_all(&mut entry, memory));
            }
            events.push(Event::Evicted { key: entry.key.clone(), device_bytes });
            gone.push(entry.key);
        }
        gone
    }
}
