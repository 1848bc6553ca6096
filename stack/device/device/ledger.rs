//! How many locks were taken and given back on a device, those of each calibration scope apart.
//!
//! A window learns of other locks by reading these numbers when it opens and when it closes, so a lock outside every
//! scope does nothing for the probe but count itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::probe::ScopeId;

/// Locks taken and given back since the device was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    taken: u64,
    returned: u64,
}

/// The locks of one device.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    unscoped_taken: AtomicU64,
    unscoped_returned: AtomicU64,
    scoped: Mutex<HashMap<ScopeId, Tally>>,
}

impl Ledger {
    /// Counts a lock, before it moves anything.
    pub(crate) fn take(&self, scope: Option<ScopeId>) {
        match scope {
            None => {
                self.unscoped_taken.fetch_add(1, Ordering::SeqCst);
            }
            Some(scope) => self.scoped().entry(scope).or_default().taken += 1,
        }
    }

    /// Counts that lock's end, after it moved everything.
    pub(crate) fn give_back(&self, scope: Option<ScopeId>) {
        match scope {
            None => {
                self.unscoped_returned.fetch_add(1, Ordering::SeqCst);
            }
            Some(scope) => self.scoped().entry(scope).or_default().returned += 1,
        }
    }

    /// Locks of others than `scope` ever taken.
    pub(crate) fn foreign_taken(&self, scope: ScopeId) -> u64 {
        let others = self.others(scope).taken;
        others + self.unscoped_taken.load(Ordering::SeqCst)
    }

    /// Locks of others than `scope` that are held now.
    pub(crate) fn foreign_held(&self, scope: ScopeId) -> u64 {
        let others = self.others(scope);
        // Read in this order, a lock that is given back in between still counts.
        let returned = self.unscoped_returned.load(Ordering::SeqCst);
        let taken = self.unscoped_taken.load(Ordering::SeqCst);
        (others.taken - others.returned) + taken.saturating_sub(returned)
    }

    /// Forgets a scope that has ended. What it took and gave back is equal then.
    pub(crate) fn forget(&self, scope: ScopeId) {
        let mut scoped = self.scoped();
        if scoped.get(&scope).is_some_and(|tally| tally.taken == tally.returned) {
            scoped.remove(&scope);
        }
    }

    fn others(&self, scope: ScopeId) -> Tally {
        self.scoped().iter().filter(|(id, _)| **id != scope).fold(Tally::default(), |sum, (_, tally)| Tally {
            taken: sum.taken + tally.taken,
            returned: sum.returned + tally.returned,
        })
    }

    fn scoped(&self) -> MutexGuard<'_, HashMap<ScopeId, Tally>> {
        self.scoped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
