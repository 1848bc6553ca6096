//! A calibration scope, and which thread works for it.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headroom_base::{Measurement, mutant};

use crate::cache::ModelKey;
use crate::device::DeviceId;

/// Names a scope for as long as the process lives. 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeId(pub(crate) u64);

/// One closed window of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The measured model.
    pub model: ModelKey,
    /// The device.
    pub device: DeviceId,
    /// Whether the device's reader is verified on this platform.
    pub reader_verified: bool,
    /// What was measured.
    pub measurement: Measurement,
}

#[derive(Debug)]
struct Inner {
    id: ScopeId,
    allowance_bytes: u64,
    records: Mutex<Vec<Recorded>>,
}

/// One step of a pipeline under calibration. Clones are the same scope, for other threads to enter.
#[derive(Clone, Debug)]
pub struct Scope {
    inner: Arc<Inner>,
}

thread_local! {
    /// The number of the scope this thread works for: the one read of a lock outside every scope.
    static ACTIVE: Cell<u64> = const { Cell::new(0) };
    /// The scopes it entered and has not left, the latest last, each with the number of its entry.
    static ENTERED: RefCell<Vec<(u64, Scope)>> = const { RefCell::new(Vec::new()) };
    static ENTRIES: Cell<u64> = const { Cell::new(0) };
}

/// The scope this thread works for.
#[inline]
pub(crate) fn current() -> Option<Scope> {
    if ACTIVE.get() == 0 {
        return None;
    }
    ENTERED.with_borrow(|entered| entered.last().map(|(_, scope)| scope.clone()))
}

impl Scope {
    /// A scope whose locks ask for `allowance_bytes` beyond their estimate (the measuring allowance), so that an
    /// estimate that is too low neither spills nor fails while it is measured.
    pub fn new(allowance_bytes: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = ScopeId(NEXT.fetch_add(1, Ordering::Relaxed));
        Self { inner: Arc::new(Inner { id, allowance_bytes, records: Mutex::default() }) }
    }

    /// Makes this thread work for the scope until the result is dropped. The scope that it entered before and has not
    /// left is resumed then.
    #[must_use = "the thread leaves the scope when this is dropped"]
    pub fn enter(&self) -> Entered {
        let entry = ENTRIES.get();
        ENTRIES.set(entry + 1);
        ENTERED.with_borrow_mut(|entered| entered.push((entry, self.clone())));
        ACTIVE.set(self.inner.id.0);
        Entered { entry, not_send: PhantomData }
    }

    /// The windows that closed in this scope so far, in the order in which they closed.
    pub fn recorded(&self) -> Vec<Recorded> {
        self.records().clone()
    }

    /// Takes the windows that closed in this scope so far.
    pub fn take_recorded(&self) -> Vec<Recorded> {
        std::mem::take(&mut *self.records())
    }

    /// What a lock asks for beyond its estimate.
    pub fn allowance_bytes(&self) -> u64 {
        self.inner.allowance_bytes
    }

    pub(crate) fn id(&self) -> ScopeId {
        self.inner.id
    }

    pub(crate) fn record(&self, recorded: Recorded) {
        mutant!(
            "unlock_not_recorded",
            "a run is measured and its window is lost, so the calibration has fewer points than it ran",
            right: self.records().push(recorded),
            wrong: drop(recorded),
        );
    }

    fn records(&self) -> MutexGuard<'_, Vec<Recorded>> {
        self.inner.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While it lives, the thread that entered works for a scope.
#[derive(Debug)]
pub struct Entered {
    entry: u64,
    /// The mark is the thread's; another one must enter for itself.
    not_send: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Scopes may be left in another order than they were entered in.
        let left = ENTERED.with_borrow_mut(|entered| {
            let position = entered.iter().position(|(entry, _)| *entry == self.entry);
            let left = position.map(|position| entered.remove(position));
            ACTIVE.set(entered.last().map_or(0, |(_, scope)| scope.inner.id.0));
            left
        });
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_works_for_the_scope_it_entered_and_no_other_thread_does() {
        let (outer, inner) = (Scope::new(0), Scope::new(0));
        assert!(current().is_none());
        let first = outer.enter();
        let second = inner.enter();
        assert_eq!(current().map(|scope| scope.id()), Some(inner.id()));
        std::thread::scope(|threads| {
            threads.spawn(|| assert!(current().is_none()));
        });
        drop(second);
        assert_eq!(current().map(|scope| scope.id()), Some(outer.id()));
        drop(first);
        assert!(current().is_none());
    }
}
