//! A locked model, and how its lock ends.

use std::fmt;

use headroom_base::{InvalidReason, Measurement, mutant};

use super::entry::Piece;
use super::event::Event;
use super::lock::LockReport;
use super::spec::ComputeOn;
use super::state::{LockId, Slot};
use super::view::WeightHolding;
use super::{Cache, ModelKey};
use crate::device::Device;
use crate::probe::{Closing, Registration, ScopeId};

/// What an unlock came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unlocked {
    /// What was measured, where the lock opened a window.
    pub measurement: Option<Measurement>,
    /// Whether the model was dropped meanwhile and is gone now.
    pub evicted: bool,
}

/// A model that is in use. Dropping it unlocks the model; [`unlock`](Self::unlock) also says what was measured.
///
/// It may be sent to another thread and end there. So locks that need its room wait for it whoever holds it, and the
/// caller of such a lock that keeps this one meanwhile says so: [`Cache::lock_beside`].
#[must_use = "the model is unlocked when this is dropped"]
pub struct LockedModel {
    cache: Cache,
    slot: Slot,
    key: ModelKey,
    compute: ComputeOn,
    lock: LockId,
    scope: Option<ScopeId>,
    report: LockReport,
    window: Option<Registration>,
    ended: bool,
}

impl fmt::Debug for LockedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedModel").field("key", &self.key).field("report", &self.report).finish_non_exhaustive()
    }
}

/// What a guard is made of.
pub(super) struct GuardParts {
    pub(super) slot: Slot,
    pub(super) key: ModelKey,
    pub(super) compute: ComputeOn,
    pub(super) lock: LockId,
    pub(super) scope: Option<ScopeId>,
    pub(super) report: LockReport,
}

impl LockedModel {
    pub(super) fn new(cache: Cache, parts: GuardParts) -> Self {
        let GuardParts { slot, key, compute, lock, scope, report } = parts;
        Self { cache, slot, key, compute, lock, scope, report, window: None, ended: false }
    }

    /// Which lock of `cache` it is.
    pub(super) fn lock_in(&self, cache: &Cache) -> Option<LockId> {
        std::sync::Arc::ptr_eq(&self.cache.inner, &cache.inner).then_some(self.lock)
    }

    pub(super) fn set_window(&mut self, window: Registration) {
        self.window = Some(window);
    }

    /// The model.
    pub fn key(&self) -> &ModelKey {
        &self.key
    }

    /// The device that its cache serves.
    pub fn device(&self) -> &Device {
        self.cache.device()
    }

    /// Where it computes: what its spec said, wherever its weights are.
    pub fn compute(&self) -> ComputeOn {
        self.compute
    }

    /// The model's pieces in the order of its spec, and where each lies on the device now: what executes an operation
    /// reads them there.
    pub fn weights(&self) -> Vec<WeightHolding> {
        let state = self.cache.state();
        let entry = state.entry(self.slot);
        let holding = |piece: &Piece| WeightHolding {
            name: piece.name.clone(),
            bytes: piece.bytes,
            holding: piece.holding,
            has_contents: entry.host.contents(&piece.name).is_some(),
        };
        entry.pieces.iter().map(holding).collect()
    }

    /// What the lock came to.
    pub fn report(&self) -> &LockReport {
        &self.report
    }

    /// Whether a window is open for this lock.
    pub fn is_measured(&self) -> bool {
        self.window.is_some()
    }

    /// Says that the operation failed, so that its window does not count.
    pub fn operation_failed(&self, message: impl fmt::Display) {
        self.fail(InvalidReason::OperationFailed { message: message.to_string() });
    }

    /// Says that the operation ran out of memory, so that its window does not count.
    pub fn out_of_memory(&self) {
        self.fail(InvalidReason::OutOfMemory);
    }

    fn fail(&self, reason: InvalidReason) {
        let marked = mutant!(
            "failed_operation_not_marked",
            "an operation that broke off half-way says how little it needs",
            right: self.window.as_ref(),
            wrong: None::<&Registration>,
        );
        if let Some(window) = marked {
            window.fail(reason);
        }
    }

    /// Unlocks the model and says what was measured.
    pub fn unlock(mut self) -> Unlocked {
        self.end()
    }

    /// Measure, unlock, let go of the host copies, evict what was waiting for it, tell the observers, record: in this
    /// order, so that an observer's failure still reaches the window and nobody moves anything under it.
    fn end(&mut self) -> Unlocked {
        if std::mem::replace(&mut self.ended, true) {
            return Unlocked { measurement: None, evicted: false };
        }
        let (slot, lock) = (self.slot, self.lock);
        let mut closing = self.window.take().map(Registration::measure);
        let mut state = self.cache.state();
        let entry = state.entry_mut(slot);
        if let Some(position) = entry.holders.iter().position(|holder| *holder == lock) {
            entry.holders.swap_remove(position);
        }
        let locks = entry.holders.len();
        drop(closing.as_mut().map(Closing::take_pins));
        let mut events = Vec::new();
        if self.cache.is_observed() {
            events.push(Event::Unlocked { key: self.key.clone(), locks });
        }
        let evicted = if state.drops_due > 0 { self.cache.evict_due(&mut state, &mut events) } else { Vec::new() };
        if state.waiting.is_empty() {
            self.cache.bell().ring_unheard();
        } else {
            self.cache.bell().ring();
        }
        drop(state);
        let told = self.cache.tell(events);
        let measurement = closing.map(|closing| closing.record(told));
        self.cache.device().ledger().give_back(self.scope);
        Unlocked { measurement, evicted: evicted.contains(&self.key) }
    }
}

impl Drop for LockedModel {
    fn drop(&mut self) {
        if !self.ended && std::thread::panicking() {
            self.fail(InvalidReason::OperationFailed { message: "panicked".to_owned() });
        }
        let _ = self.end();
    }
}
