//! Making room for a lock: other models first, smallest first, and no more of them than needed.

use std::time::{Duration, Instant};

use headroom_base::{Budget, Reclaim, mutant};

use super::event::Event;
use super::footprint::there_bytes;
use super::lock::{LEAST_BUDGET_BYTES, Locking, Request, TOLERANCE_BYTES, shows_what_can_be_given_back};
use super::offload::Amount;
use super::reach::Reach;
use super::spec::Loading;
use super::state::{Slot, Waiting};
use super::{CacheError, Move};

/// A wait without end is one of a year: a clock cannot count to the end of the largest duration.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Locking<'_> {
    /// Inside a calibration: every other unlocked model goes, whole, so that the measured one ends fully resident; and
    /// the reserve is emptied, so that its weights do not land in segments that hide what the operation takes.
    pub(super) fn clear_the_device(&mut self) -> Result<(), CacheError> {
        let own = self.slot;
        let enough = mutant!(
            "calibration_offload_off",
            "the measured model ends partly resident and its window cannot count",
            right: false,
            wrong: true,
        );
        let candidates = if enough { Vec::new() } else { self.state().candidates(own) };
        for slot in &candidates {
            let amount = mutant!(
                "calibration_offload_splits",
                "what is left of the others keeps the measured model from being fully resident",
                right: Amount::All,
                wrong: Amount::AtLeast(self.state().entry(*slot).resident_bytes / 2),
            );
            self.offload(*slot, amount)?;
        }
        self.empty_cache()
    }

    /// Moves unlocked models off, smallest first, until the budget holds what the model lacks and the driver has what
    /// that takes from it; not for pieces that could never be had. Returns the budget then.
    pub(super) fn make_room(&mut self, mut budget: Budget) -> Result<Budget, CacheError> {
        let own = self.slot;
        let reclaim = self.figures.reclaim;
        let ignored = mutant!(
            "working_memory_ignored_when_nothing_is_missing",
            "a model that is resident already runs without the memory that its operation needs",
            right: false,
            wrong: self.entry_missing() == 0,
        );
        if ignored {
            return Ok(budget);
        }
        let reach = self.reach(&budget);
        let shown = shows_what_can_be_given_back(reclaim);
        if reclaim == Reclaim::Indistinguishable && self.short_bytes(&budget, reach) > 0 {
            // No counter tells what can be given back, so it is given back before anybody is moved off for it.
            self.empty_cache()?;
            budget = self.budget()?;
        }
        let mut moved = false;
        for slot in self.state().candidates(own) {
            while self.state().entry(slot).resident_bytes > 0 {
                let short = mutant!(
                    "offload_never_stops_early",
                    "every other model is moved off for a lock that needed the smallest of them",
                    right: self.short_bytes(&budget, reach),
                    wrong: u64::MAX,
                );
                if short == 0 {
                    break;
                }
                self.offload(slot, Amount::AtLeast(short))?;
                moved = true;
                if !shown {
                    self.empty_cache()?;
                }
                budget = self.budget()?;
            }
        }
        if moved && shown {
            self.empty_cache()?;
            budget = self.budget()?;
        }
        Ok(budget)
    }

    /// How much has to go before the model can be loaded whole: what the budget lacks for its bytes; after that, what
    /// the driver lacks for the segments, pages or steps that they take. Of a model that could never be there whole,
    /// what can be had counts.
    fn short_bytes(&mut self, budget: &Budget, reach: Reach) -> u64 {
        let (own, figures) = (self.slot, self.figures);
        let entry = self.state().entry(own);
        let (needed, taken_bytes) = match reach {
            Reach::Whole => {
                let taken_bytes = entry.missing_footprint_bytes(figures.reclaim);
                (i128::from(entry.needed_bytes(figures.reclaim)), taken_bytes)
            }
            Reach::Part(cost) => (cost, 0),
        };
        let short = needed - i128::from(budget.budget_bytes);
        if short > 0 {
            return u64::try_from(short).unwrap_or(u64::MAX);
        }
        taken_bytes.saturating_sub(there_bytes(&figures))
    }

    /// Weights take whole segments, which can be half as much again as their own bytes, and a budget of bytes does not
    /// see it. So the figures are read again after a load: others make room for the rest, and what is still short is
    /// said. The model stays as it was loaded.
    pub(super) fn keep_working_memory(&mut self) -> Result<(), CacheError> {
        if self.loaded_bytes == 0 || self.pressure.is_some() {
            return Ok(());
        }
        let mut budget = self.budget()?;
        if budget.budget_bytes < LEAST_BUDGET_BYTES {
            budget = self.make_room(budget)?;
        }
        if budget.budget_bytes < LEAST_BUDGET_BYTES {
            self.warn(&budget);
        }
        Ok(())
    }

    /// The last resort: the model being locked itself, except for the pieces that it needs and would load again.
    pub(super) fn offload_own(&mut self, budget: &Budget) -> Result<(), CacheError> {
        let own = self.slot;
        let entry = self.state().entry(own);
        // Whoever else holds a lock on it is running with its pieces.
        if entry.holders.len() > 1 || entry.loading == Loading::Whole || entry.resident_bytes == 0 {
            return Ok(());
        }
        self.offload(own, Amount::OptionalAtLeast(budget.budget_bytes.unsigned_abs()))?;
        self.empty_cache()
    }

    /// Whether the pieces that must be on the device have to wait for other locks to end.
    pub(super) fn waits(&mut self, budget: &Budget) -> bool {
        let (own, figures) = (self.slot, self.figures);
        let entry = self.state().entry(own);
        let needed_bytes = entry.required_missing_bytes();
        let room = i128::from(budget.before_working_bytes) + i128::from(TOLERANCE_BYTES);
        let short = i128::from(needed_bytes) > room
            || entry.required_missing_footprint_bytes(figures.reclaim) > there_bytes(&figures);
        short && self.somebody_may_make_room()
    }

    fn somebody_may_make_room(&mut self) -> bool {
        let own = self.slot;
        self.state.as_ref().is_some_and(|state| state.somebody_may_make_room(own, &self.request.beside))
    }

    /// Waits until some lock ends; false when the time is up or nobody can make room any more.
    ///
    /// A lock waits only while one is held that may end before it, so of those that name what their callers keep, the
    /// last one to come finds nobody and goes on; and none waits beyond its deadline.
    pub(super) fn wait(&mut self, budget: &Budget) -> Result<bool, CacheError> {
        let started = Instant::now();
        let wait_for_room = self.cache.settings().wait_for_room.min(LONGEST_WAIT);
        let deadline = *self.deadline.get_or_insert_with(|| started + wait_for_room);
        let at_most = deadline.saturating_duration_since(started);
        if at_most.is_zero() {
            return Ok(false);
        }
        let cache = self.cache;
        let rings = cache.bell().rings();
        self.refuse_if_cancelled()?;
        if !self.told_waiting {
            self.told_waiting = true;
            let needed_bytes = budget_needed(self);
            let room_bytes = budget.before_working_bytes;
            self.events.push(Event::WaitingForRoom { key: self.key.clone(), needed_bytes, room_bytes, at_most });
            self.tell_meanwhile();
        }
        let waits = self.somebody_may_make_room();
        let Request { lock, ref beside, .. } = self.request;
        let waiting = Waiting { lock, beside: beside.clone() };
        self.state().waiting.push(waiting);
        if waits {
            drop(self.state.take());
            cache.bell().listen(rings, at_most);
            self.state = Some(cache.state());
        }
        self.state().waiting.retain(|waiting| waiting.lock != lock);
        self.waited += started.elapsed();
        self.refuse_if_cancelled()?;
        Ok(waits || cache.bell().rings() != rings)
    }

    /// Ends a lock whose load was cancelled before it began.
    fn refuse_if_cancelled(&self) -> Result<(), CacheError> {
        if self.cache.cancels() == self.request.cancels {
            return Ok(());
        }
        Err(CacheError::Cancelled { key: self.key.clone() })
    }

    /// Tells what happened so far with the cache let go, so that people see that a lock waits while it does.
    fn tell_meanwhile(&mut self) {
        if !self.cache.is_observed() {
            return;
        }
        let events = std::mem::take(&mut self.events);
        drop(self.state.take());
        // A failed observer has marked the open windows; the lock itself goes on.
        let _ = self.cache.tell(events);
        self.state = Some(self.cache.state());
    }

    /// Moves a model's pieces to host memory and remembers the move.
    pub(super) fn offload(&mut self, slot: Slot, amount: Amount) -> Result<(), CacheError> {
        let cache = self.cache;
        let key = self.key;
        let state = self.state.as_mut().expect("the cache is held except in a wait");
        let bytes = cache.offload_pieces(state, slot, amount).map_err(|error| error.of(key))?;
        let entry = state.entry(slot);
        let remaining_bytes = entry.resident_bytes;
        match self.moves.last_mut().filter(|last| last.key == entry.key) {
            Some(last) => {
                last.bytes += bytes;
                last.remaining_bytes = remaining_bytes;
            }
            None => self.moves.push(Move { key: entry.key.clone(), bytes, remaining_bytes }),
        }
        self.events.push(Event::Offloaded { key: entry.key.clone(), bytes, remaining_bytes });
        Ok(())
    }

    pub(super) fn empty_cache(&self) -> Result<(), CacheError> {
        let emptied = self.cache.device().empty_cache();
        emptied.map_err(|source| CacheError::Allocator { key: self.key.clone(), source: Box::new(source) })
    }
}

/// The bytes that a lock must have on the device.
fn budget_needed(locking: &mut Locking<'_>) -> u64 {
    let own = locking.slot;
    locking.state().entry(own).required_missing_bytes()
}
