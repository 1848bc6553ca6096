//! A lock from its count to its guard: counted before anything moves, uncounted when it fails, measured in a scope.

use headroom_base::mutant;

use super::guard::GuardParts;
use super::lock::{Locking, Request};
use super::state::Slot;
use super::{Cache, CacheError, ComputeOn, Event, LockReport, LockedModel, ModelKey};
use crate::probe::{Registration, Scope};
use crate::weights::HostPin;

impl Cache {
    pub(super) fn lock_in(
        &self,
        key: &ModelKey,
        working_bytes: Option<u64>,
        held: &[&LockedModel],
        scope: Option<&Scope>,
    ) -> Result<LockedModel, CacheError> {
        let scope_id = scope.map(Scope::id);
        // Counted before anything moves, so that a window that sees its effects also sees the lock.
        self.device().ledger().take(scope_id);
        let outcome = self.lock_counted(key, working_bytes, held, scope);
        if outcome.is_err() {
            self.device().ledger().give_back(scope_id);
        }
        outcome
    }

    fn lock_counted(
        &self,
        key: &ModelKey,
        working_bytes: Option<u64>,
        held: &[&LockedModel],
        scope: Option<&Scope>,
    ) -> Result<LockedModel, CacheError> {
        // Before it waits for anybody, so that whoever cancels meanwhile means this lock too.
        let cancels = self.cancels();
        let beside: Vec<_> = held.iter().filter_map(|guard| guard.lock_in(self)).collect();
        let mut state = self.state();
        let slot = state.find(key).ok_or_else(|| CacheError::UnknownModel { key: key.clone() })?;
        state.locks += 1;
        let lock = state.locks;
        let entry = state.entry_mut(slot);
        entry.holders.push(lock);
        let compute = entry.compute;
        let measured = scope.filter(|_| compute == ComputeOn::Device).zip(working_bytes);
        let allowance_bytes = mutant!(
            "measuring_allowance_left_out",
            "an estimate that is too low spills or fails while it is measured, and is never corrected",
            right: measured.map_or(0, |(scope, _)| scope.allowance_bytes()),
            wrong: 0,
        );
        let asked_bytes = working_bytes.map(|bytes| bytes.saturating_add(allowance_bytes));
        let request = Request { asked_bytes, measured: measured.is_some(), lock, beside, cancels };
        let mut locking = Locking::new(self, state, slot, key, request);
        let outcome = if compute == ComputeOn::Host { locking.on_host() } else { locking.run() };
        let report = self.finish_lock(locking, outcome)?;
        let missing_bytes = report.missing_bytes;
        let scope_id = scope.map(Scope::id);
        let mut guard = LockedModel::new(
            self.clone(),
            GuardParts { slot, key: key.clone(), compute, lock, scope: scope_id, report },
        );
        if let Some(scope) = scope {
            self.pin_for_open_windows(scope, slot);
        }
        if let Some((scope, estimate_bytes)) = measured {
            let pins = self.pin_locked();
            guard.set_window(Registration::open(self.device(), scope, key, estimate_bytes, missing_bytes, pins));
        }
        Ok(guard)
    }

    /// Takes the lock's count back where it failed, and tells what happened.
    fn finish_lock(
        &self,
        mut locking: Locking<'_>,
        outcome: Result<LockReport, CacheError>,
    ) -> Result<LockReport, CacheError> {
        let (slot, lock) = (locking.slot, locking.request.lock);
        if outcome.is_err() {
            locking.unload_after_failure();
        }
        let entry = locking.state().entry_mut(slot);
        let locks = entry.holders.len();
        let uncount = mutant!(
            "failed_lock_stays_counted",
            "a model whose load failed once can never be moved off again",
            right: outcome.is_err(),
            wrong: false,
        );
        if uncount && let Some(position) = entry.holders.iter().rposition(|holder| *holder == lock) {
            entry.holders.remove(position);
        }
        let (key, mut events) = (locking.key, locking.events);
        if self.is_observed() {
            events.push(match &outcome {
                Ok(LockReport { budget, missing_bytes, .. }) => {
                    Event::Locked { key: key.clone(), locks, budget: *budget, missing_bytes: *missing_bytes }
                }
                Err(error) => Event::LockFailed { key: key.clone(), error: error.to_string() },
            });
        }
        if let Some(mut state) = locking.state
            && outcome.is_err()
        {
            if state.drops_due > 0 {
                self.evict_due(&mut state, &mut events);
            }
            self.bell().ring();
        }
        // A failed observer has marked the open windows; the lock stands.
        let _ = self.tell(events);
        outcome
    }

    /// A model that is locked beside open windows of the same scope stays in host memory until they close.
    fn pin_for_open_windows(&self, scope: &Scope, slot: Slot) {
        let state = self.state();
        let entry = state.entry(slot);
        self.device().core().windows.pin(scope.id(), || entry.pins.pin(&entry.host));
    }

    /// Pins of every model that is locked now, for a window that is about to open.
    fn pin_locked(&self) -> Vec<HostPin> {
        let state = self.state();
        let locked = state.entries().filter(|(_, entry)| entry.is_locked());
        locked.map(|(_, entry)| entry.pins.pin(&entry.host)).collect()
    }
}
