//! Everything a cache knows, under its one lock.

use headroom_base::mutant;
use rustc_hash::FxHashMap;

use super::ModelKey;
use super::entry::Entry;
use super::warning::{Resident, Said};

/// An entry's place; it stays the same while the entry lives.
pub(super) type Slot = usize;

/// Tells one lock of a cache from all others.
pub(super) type LockId = u64;

/// A lock that waits for room.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) lock: LockId,
    /// Locks that end only after it, since its caller keeps them meanwhile.
    pub(super) beside: Vec<LockId>,
}

/// The entries, what was said, who waits.
#[derive(Debug, Default)]
pub(super) struct State {
    slots: Vec<Option<Entry>>,
    index: FxHashMap<ModelKey, Slot>,
    free: Vec<Slot>,
    pub(super) said: Said,
    /// Locks that were ever begun.
    pub(super) locks: LockId,
    pub(super) waiting: Vec<Waiting>,
    /// Entries to be evicted when nobody needs them.
    pub(super) drops_due: usize,
}

impl State {
    pub(super) fn find(&self, key: &ModelKey) -> Option<Slot> {
        self.index.get(key).copied()
    }

    /// The entry of a slot that is in use: whoever holds a slot holds a lock on its entry, or the state.
    pub(super) fn entry(&self, slot: Slot) -> &Entry {
        self.slots[slot].as_ref().expect("a held slot is in use")
    }

    pub(super) fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        self.slots[slot].as_mut().expect("a held slot is in use")
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (Slot, &Entry)> {
        self.slots.iter().enumerate().filter_map(|(slot, entry)| Some((slot, entry.as_ref()?)))
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.index.insert(entry.key.clone(), slot);
        self.slots[slot] = Some(entry);
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Option<Entry> {
        let entry = self.slots.get_mut(slot)?.take()?;
        self.index.remove(&entry.key);
        self.free.push(slot);
        self.said.forget(&entry.key);
        if entry.drop_when_idle {
            self.drops_due -= 1;
        }
        Some(entry)
    }

    /// Takes every entry out.
    pub(super) fn take_entries(&mut self) -> impl Iterator<Item = Entry> {
        self.index.clear();
        std::mem::take(&mut self.slots).into_iter().flatten()
    }

    /// The models that may be moved off for `own`, smallest first; equal ones by name.
    pub(super) fn candidates(&self, own: Slot) -> Vec<Slot> {
        let movable = |slot: Slot, entry: &Entry| slot != own && !entry.is_locked() && entry.resident_bytes > 0;
        let mut slots: Vec<_> = self.entries().filter(|(slot, entry)| movable(*slot, entry)).collect();
        slots.sort_by(|(_, a), (_, b)| {
            let by_size = mutant!(
                "largest_moved_off_first",
                "the model that takes longest to load again goes for a few bytes",
                right: a.total_bytes.cmp(&b.total_bytes),
                wrong: b.total_bytes.cmp(&a.total_bytes),
            );
            by_size.then_with(|| a.key.cmp(&b.key))
        });
        slots.into_iter().map(|(slot, _)| slot).collect()
    }

    /// Every model with bytes on the device, by name.
    pub(super) fn resident(&self) -> Vec<Resident> {
        let on_device = self.entries().filter(|(_, entry)| entry.resident_bytes > 0);
        let mut resident: Vec<_> = on_device
            .map(|(_, entry)| Resident {
                key: entry.key.clone(),
                bytes: entry.resident_bytes,
                locked: entry.is_locked(),
            })
            .collect();
        resident.sort_by(|a, b| a.key.cmp(&b.key));
        resident
    }

    /// Whether a lock is held that may end before this one and would free bytes: neither one of `beside`, which its
    /// caller keeps, nor one that itself ends only after a wait.
    pub(super) fn somebody_may_make_room(&self, own: Slot, beside: &[LockId]) -> bool {
        let waits =
            |lock: &LockId| self.waiting.iter().any(|waiting| waiting.lock == *lock || waiting.beside.contains(lock));
        let may_end = |lock: &LockId| !beside.contains(lock) && !waits(lock);
        self.entries().any(|(slot, entry)| slot != own && entry.resident_bytes > 0 && entry.holders.iter().any(may_end))
    }

    /// The models in use beside `own`, by name.
    pub(super) fn in_use_beside(&self, own: &ModelKey) -> Vec<Resident> {
        let mut resident = self.resident();
        resident.retain(|resident| resident.locked && resident.key != *own);
        resident
    }
}
