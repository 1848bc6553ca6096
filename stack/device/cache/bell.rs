//! Rung when a lock ends or loads are cancelled: what a lock that waits for room listens to.
//!
//! It has a lock of its own, held for moments, so that ringing it never waits for whoever holds the cache. Whoever reads
//! the count before it looks at what it waits for misses nothing that happens after the look.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A bell that counts how often it was rung.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    /// How often it was rung.
    pub(super) fn rings(&self) -> u64 {
        *self.count()
    }

    /// Rings it, and wakes whoever listens.
    pub(super) fn ring(&self) {
        *self.count() += 1;
        self.rung.notify_all();
    }

    /// Rings it where nobody listens: only the count shows it.
    pub(super) fn ring_unheard(&self) {
        *self.count() += 1;
    }

    /// Listens until it was rung more often than `heard`, for a limited time.
    pub(super) fn listen(&self, heard: u64, at_most: Duration) {
        let listened = self.rung.wait_timeout_while(self.count(), at_most, |rings| *rings == heard);
        drop(listened.unwrap_or_else(PoisonError::into_inner));
    }

    fn count(&self) -> MutexGuard<'_, u64> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
