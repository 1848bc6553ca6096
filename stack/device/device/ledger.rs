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

/// The locks taken inside scopes.
#[derive(Debug, Default)]
struct Scoped {
    /// Scopes that hold a lock now. A scope with an open window is always here.
    live: HashMap<ScopeId, Tally>,
    /// All that others took and gave back, so that the sums never fall.
    ended: Tally,
}

/// The locks of one device.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    unscoped_taken: AtomicU64,
    unscoped_returned: AtomicU64,
    scoped: Mutex<Scoped>,
}

impl Ledger {
    /// Counts a lock, before it moves anything.
    pub(crate) fn take(&self, scope: Option<ScopeId>) {
        match scope {
            None => {
                self.unscoped_taken.fetch_add(1, Ordering::SeqCst);
            }
            Some(scope) => self.scoped().live.entry(scope).or_default().taken += 1,
        }
    }

    /// Counts that lock's end, after it moved everything and its window is closed.
    pub(crate) fn give_back(&self, scope: Option<ScopeId>) {
        let Some(scope) = scope else {
            self.unscoped_returned.fetch_add(1, Ordering::SeqCst);
            return;
        };
        let mut scoped = self.scoped();
        let tally = scoped.live.entry(scope).or_default();
        tally.returned += 1;
        let Tally { taken, returned } = *tally;
        if taken == returned {
            scoped.live.remove(&scope);
            scoped.ended.taken += taken;
            scoped.ended.returned += returned;
        }
    }

    /// Locks of others than `scope` ever taken; meaningful while `scope` holds one itself.
    pub(crate) fn foreign_taken(&self, scope: ScopeId) -> u64 {
        self.others(scope).taken + self.unscoped_taken.load(Ordering::SeqCst)
    }

    /// Locks of others than `scope` that are held now.
    pub(crate) fn foreign_held(&self, scope: ScopeId) -> u64 {
        let others = self.others(scope);
        // In this order, a lock that is given back between the two reads still counts.
        let returned = self.unscoped_returned.load(Ordering::SeqCst);
        let taken = self.unscoped_taken.load(Ordering::SeqCst);
        (others.taken - others.returned) + taken.saturating_sub(returned)
    }

    fn others(&self, scope: ScopeId) -> Tally {
        let scoped = self.scoped();
        let live = scoped.live.iter().filter(|(id, _)| **id != scope).map(|(_, tally)| tally);
        live.fold(scoped.ended, |sum, tally| Tally {
            taken: sum.taken + tally.taken,
            returned: sum.returned + tally.returned,
        })
    }

    fn scoped(&self) -> MutexGuard<'_, Scoped> {
        self.scoped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scopes_own_locks_are_never_foreign_to_it() {
        let (ledger, own, other) = (Ledger::default(), ScopeId(1), ScopeId(2));
        ledger.take(Some(own));
        ledger.take(Some(own));
        assert_eq!((ledger.foreign_taken(own), ledger.foreign_held(own)), (0, 0));
        ledger.take(None);
        ledger.take(Some(other));
        assert_eq!((ledger.foreign_taken(own), ledger.foreign_held(own)), (2, 2));
        assert_eq!((ledger.foreign_taken(other), ledger.foreign_held(other)), (3, 3));
    }

    #[test]
    fn a_lock_that_came_and_went_was_still_taken() {
        let (ledger, own, other) = (Ledger::default(), ScopeId(1), ScopeId(2));
        ledger.take(Some(own));
        let before = ledger.foreign_taken(own);
        for scope in [None, Some(other)] {
            ledger.take(scope);
            ledger.give_back(scope);
        }
        assert_eq!(ledger.foreign_held(own), 0);
        assert_eq!(ledger.foreign_taken(own), before + 2);
    }

    /// What a window does, in order, between opening and closing.
    #[derive(Clone, Copy, PartialEq)]
    enum Step {
        ReadMark,
        ReadHeld,
        TakeBaseline,
        ReadHeldAgain,
        ReadPeaks,
        ReadTaken,
    }

    const WINDOW: [Step; 6] =
        [Step::ReadMark, Step::ReadHeld, Step::TakeBaseline, Step::ReadHeldAgain, Step::ReadPeaks, Step::ReadTaken];

    /// One order in which a window and two foreign locks (take, use memory, give back) can come; `order` names whose
    /// step is next. Returns whether the peaks hold foreign memory, and whether the window knows of a foreign lock.
    fn played(order: &[usize]) -> (bool, bool) {
        let (ledger, own) = (Ledger::default(), ScopeId(1));
        ledger.take(Some(own));
        let mut at = [0; 3];
        let (mut mark, mut seen, mut measuring, mut polluted) = (0, false, false, false);
        for who in order {
            let step = at[*who];
            at[*who] += 1;
            let foreign = if *who == 1 { None } else { Some(ScopeId(2)) };
            match (who, step) {
                (0, step) => match WINDOW[step] {
                    Step::ReadMark => mark = ledger.foreign_taken(own),
                    Step::ReadHeld | Step::ReadHeldAgain => seen |= ledger.foreign_held(own) > 0,
                    Step::TakeBaseline => measuring = true,
                    Step::ReadPeaks => measuring = false,
                    Step::ReadTaken => seen |= ledger.foreign_taken(own) != mark,
                },
                (_, 0) => ledger.take(foreign),
                (_, 1) => polluted |= measuring,
                _ => ledger.give_back(foreign),
            }
        }
        (polluted, seen)
    }

    /// Calls `play` with every order of 6 steps of a window and 3 of each foreign lock.
    fn every_order(order: &mut Vec<usize>, left: [usize; 3], play: &mut impl FnMut(&[usize])) {
        if left == [0; 3] {
            return play(order);
        }
        for who in 0..3 {
            if left[who] > 0 {
                let mut rest = left;
                rest[who] -= 1;
                order.push(who);
                every_order(order, rest, play);
                order.pop();
            }
        }
    }

    #[test]
    fn in_every_order_of_events_a_window_that_saw_foreign_memory_knows_of_a_foreign_lock() {
        let (mut orders, mut polluted_orders, mut clean_orders) = (0, 0, 0);
        every_order(&mut Vec::new(), [WINDOW.len(), 3, 3], &mut |order| {
            let (polluted, seen) = played(order);
            assert!(seen || !polluted, "{order:?}");
            orders += 1;
            polluted_orders += u32::from(polluted);
            clean_orders += u32::from(!seen);
        });
        assert_eq!(orders, 18_480);
        assert!(polluted_orders > 1_000 && clean_orders > 0, "{polluted_orders} polluted, {clean_orders} clean");
    }
}
