//! What a device could ever give, and what of a lock's wishes lies beyond it: that is said, and moves nobody.

use headroom_base::{Budget, Cap, Reclaim, mutant};

use super::event::Event;
use super::load::choose;
use super::lock::{Locking, TOLERANCE_BYTES};
use super::warning::{Beyond, BeyondDevice};

/// How much of a model can be loaded, with everything else gone.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reach {
    /// All of it.
    Whole,
    /// Missing pieces that cost the budget this much; the others could never be had.
    Part(i128),
}

impl Locking<'_> {
    /// Working memory that no state of this device could give is not pursued: it says nothing of how much would be
    /// enough, so the lock keeps the floor free, as if nothing had been asked.
    pub(super) fn asks_beyond_the_device(&mut self, budget: &Budget) -> bool {
        let Some(asked_bytes) = self.request.asked_bytes else { return false };
        let floor_bytes = self.cache.settings().floor_bytes;
        let own = self.slot;
        let required_bytes = self.state().entry(own).required_bytes();
        if budget.working_bytes <= floor_bytes || self.is_within_reach(sum([asked_bytes, required_bytes])) {
            return false;
        }
        let most_bytes = self.most_bytes().saturating_sub(required_bytes);
        let what = Beyond::WorkingMemory;
        self.say_beyond(BeyondDevice {
            key: self.key.clone(),
            what,
            asked_bytes,
            most_bytes,
            working_bytes: floor_bytes,
        });
        self.request.asked_bytes = mutant!(
            "impossible_request_pursued",
            "everything is moved off for working memory that the device could never give",
            right: None,
            wrong: Some(asked_bytes),
        );
        true
    }

    /// Whether pieces that must be on the device could never all be there. Nothing is moved off for such a model; what
    /// its load comes to is for the driver to say.
    pub(super) fn needs_beyond_the_device(&mut self, budget: &Budget) -> bool {
        let own = self.slot;
        let entry = self.state().entry(own);
        let asked_bytes = entry.required_bytes();
        let beyond = entry.required_missing_bytes() > 0
            && !self.is_within_reach(sum([asked_bytes]) - i128::from(TOLERANCE_BYTES));
        if beyond {
            let (most_bytes, working_bytes) = (self.most_bytes(), budget.working_bytes);
            let what = Beyond::Weights;
            self.say_beyond(BeyondDevice { key: self.key.clone(), what, asked_bytes, most_bytes, working_bytes });
        }
        beyond
    }

    /// How much of the model could be loaded beside this working memory. Pieces that would not fit alone, beside those
    /// that must be there and the floor, are said.
    pub(super) fn reach(&mut self, budget: &Budget) -> Reach {
        let (own, reclaim) = (self.slot, self.figures.reclaim);
        let total_bytes = self.state().entry(own).total_bytes;
        if self.is_within_reach(sum([total_bytes, budget.working_bytes]) - i128::from(TOLERANCE_BYTES)) {
            return Reach::Whole;
        }
        let (limit_bytes, floor_bytes) = (self.most_bytes(), self.cache.settings().floor_bytes);
        let entry = self.state().entry(own);
        let most_bytes = limit_bytes.saturating_sub(floor_bytes).saturating_sub(entry.required_bytes());
        let is_too_large = |bytes: u64| bytes > most_bytes.saturating_add(TOLERANCE_BYTES);
        let too_large =
            entry.pieces.iter().filter(|piece| piece.is_missing() && !piece.required && is_too_large(piece.bytes));
        let asked_bytes: u64 = too_large.map(|piece| piece.bytes).sum();
        let left = i128::from(limit_bytes) - sum([budget.working_bytes, entry.resident_bytes]);
        let (_, cost) = choose(entry, left, reclaim);
        if asked_bytes > 0 {
            let (key, what, working_bytes) = (self.key.clone(), Beyond::Weights, floor_bytes);
            self.say_beyond(BeyondDevice { key, what, asked_bytes, most_bytes, working_bytes });
        }
        Reach::Part(cost)
    }

    fn say_beyond(&mut self, beyond: BeyondDevice) {
        if self.beyond_device.is_some() {
            return;
        }
        if self.state().said.beyond(&beyond.key, beyond.asked_bytes) {
            tracing::warn!("{beyond}");
        }
        self.events.push(Event::BeyondDevice(beyond.clone()));
        self.beyond_device = Some(beyond);
    }

    /// Whether the device could hold so much for one model and its operation. The driver is asked what this process
    /// itself keeps only where other processes may be what is in the way.
    fn is_within_reach(&mut self, bytes: i128) -> bool {
        let figures = self.figures;
        let taken_bytes = figures.reserved_bytes.max(figures.allocated_bytes);
        let outside_bytes = figures.total_bytes.saturating_sub(figures.driver_free_bytes.saturating_add(taken_bytes));
        bytes <= i128::from(self.limit_bytes(outside_bytes)) || bytes <= i128::from(self.most_bytes())
    }

    /// The most that this device could ever give: all of it but what this process keeps beside the allocator's memory,
    /// its context above all. Models in use will be unlocked and other processes may end.
    fn most_bytes(&mut self) -> u64 {
        if let Some(most_bytes) = self.most_bytes {
            return most_bytes;
        }
        let figures = self.figures;
        let kept_bytes = match figures.reclaim {
            // What of the process's memory are weights cannot be told.
            Reclaim::NoCounters => 0,
            Reclaim::WholeSegments | Reclaim::Pool | Reclaim::Indistinguishable => {
                let held = self.cache.device().process_bytes().ok().and_then(|reading| reading.known());
                held.map_or(0, |held_bytes| held_bytes.saturating_sub(figures.reserved_bytes))
            }
        };
        let most_bytes = self.limit_bytes(kept_bytes);
        self.most_bytes = Some(most_bytes);
        most_bytes
    }

    /// The device without `kept_bytes`, or the cap where that is less.
    fn limit_bytes(&self, kept_bytes: u64) -> u64 {
        let left_bytes = self.figures.total_bytes.saturating_sub(kept_bytes);
        match self.cache.settings().cap {
            Cap::Unlimited => left_bytes,
            Cap::Bytes(cap_bytes) => cap_bytes.min(left_bytes),
        }
    }
}

fn sum<const N: usize>(bytes: [u64; N]) -> i128 {
    bytes.into_iter().map(i128::from).sum()
}
