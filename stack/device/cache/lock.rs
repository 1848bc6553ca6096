//! The order of events when a model is locked: count, make room, warn, load; and back again when something fails.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use headroom_base::{Budget, DeviceFigures, MIB, Reclaim, budget, mutant};

use super::event::Event;
use super::state::{LockId, Slot, State};
use super::warning::{BeyondDevice, Pressure};
use super::{Cache, CacheError, ModelKey, Move};
use crate::driver::DriverError;

/// A shortfall up to this counts as fitting: figures are tracked in steps, and a model that is 99 % resident is far
/// slower than one that is whole.
pub const TOLERANCE_BYTES: u64 = MIB;

/// The budget that counts as enough for a model of which nothing is missing.
pub(super) const LEAST_BUDGET_BYTES: i64 = -(TOLERANCE_BYTES as i64);

/// What a lock came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockReport {
    /// The budget when it was decided what to load, with the effective working memory in it.
    pub budget: Budget,
    /// What was moved off, in order; a model that went piece by piece stands once.
    pub moves: Vec<Move>,
    /// Bytes of the model that went up.
    pub loaded_bytes: u64,
    /// Bytes of the model on the device.
    pub resident_bytes: u64,
    /// Bytes of the model that are not on the device.
    pub missing_bytes: u64,
    /// Set where more was asked than the device could ever give. Nothing was moved off for that.
    pub beyond_device: Option<BeyondDevice>,
    /// Set where memory was short although everything unlocked was gone, when it was decided what to load.
    pub pressure: Option<Pressure>,
    /// How long it waited for other locks.
    pub waited: Duration,
}

/// What a lock asks for.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Working memory, the measuring allowance included.
    pub(super) asked_bytes: Option<u64>,
    /// Whether a window is to be measured.
    pub(super) measured: bool,
    /// This lock.
    pub(super) lock: LockId,
    /// Locks that its caller keeps meanwhile.
    pub(super) beside: Vec<LockId>,
    /// How often loads had been cancelled when it began.
    pub(super) cancels: u64,
}

/// A lock under way. It holds the cache, except while it waits.
pub(super) struct Locking<'a> {
    pub(super) cache: &'a Cache,
    /// Present except in the middle of a wait.
    pub(super) state: Option<MutexGuard<'a, State>>,
    pub(super) slot: Slot,
    pub(super) key: &'a ModelKey,
    pub(super) request: Request,
    pub(super) events: Vec<Event>,
    pub(super) moves: Vec<Move>,
    pub(super) loaded_bytes: u64,
    /// The pieces that it loaded.
    pub(super) loaded: Vec<usize>,
    pub(super) beyond_device: Option<BeyondDevice>,
    /// The most that the device could ever give, once it was asked for.
    pub(super) most_bytes: Option<u64>,
    pub(super) pressure: Option<Pressure>,
    pub(super) waited: Duration,
    pub(super) told_waiting: bool,
    /// When waiting ends; set by the first wait.
    pub(super) deadline: Option<Instant>,
    /// The device's figures when they were last looked at.
    pub(super) figures: DeviceFigures,
}

impl<'a> Locking<'a> {
    /// A lock that is about to look at the device for the first time.
    pub(super) fn new(
        cache: &'a Cache,
        state: MutexGuard<'a, State>,
        slot: Slot,
        key: &'a ModelKey,
        request: Request,
    ) -> Self {
        let figures = DeviceFigures {
            total_bytes: 0,
            driver_free_bytes: 0,
            allocated_bytes: 0,
            reserved_bytes: 0,
            inactive_split_bytes: 0,
            reclaim: Reclaim::NoCounters,
        };
        Self {
            cache,
            state: Some(state),
            slot,
            key,
            request,
            events: Vec::new(),
            moves: Vec::new(),
            loaded_bytes: 0,
            loaded: Vec::new(),
            beyond_device: None,
            most_bytes: None,
            pressure: None,
            waited: Duration::ZERO,
            told_waiting: false,
            deadline: None,
            figures,
        }
    }

    pub(super) fn state(&mut self) -> &mut State {
        self.state.as_mut().expect("the cache is held except in a wait")
    }

    /// Everything between counting the lock and the end of loading.
    pub(super) fn run(&mut self) -> Result<LockReport, CacheError> {
        let mut budget = self.budget()?;
        if self.asks_beyond_the_device(&budget) {
            budget = self.budget()?;
        }
        if self.needs_beyond_the_device(&budget) {
            self.load(&budget)?;
            return Ok(self.report(budget));
        }
        let clears = mutant!(
            "calibration_offload_outside_calibration",
            "every ordinary lock empties the device of all other models",
            right: self.request.measured,
            wrong: true,
        );
        if clears {
            self.clear_the_device()?;
            budget = self.budget()?;
        }
        loop {
            let missing_bytes = self.entry_missing();
            if missing_bytes == 0 && budget.budget_bytes >= 0 {
                self.passed();
                return Ok(self.report(budget));
            }
            budget = self.make_room(budget)?;
            if self.is_short(&budget) {
                self.warn(&budget);
            } else if i128::from(budget.budget_bytes) >= i128::from(missing_bytes) {
                // One that stays partly resident has no room to spare: the stream it belongs to was warned.
                self.passed();
            }
            if budget.budget_bytes < LEAST_BUDGET_BYTES {
                self.offload_own(&budget)?;
                budget = self.budget()?;
            }
            if !self.waits(&budget) || !self.wait(&budget)? {
                self.load(&budget)?;
                self.keep_working_memory()?;
                return Ok(self.report(budget));
            }
            // Others have let go: what was short before says nothing of what is now.
            self.pressure = None;
            budget = self.budget()?;
        }
    }

    /// A model that computes on the host needs nothing of the device.
    pub(super) fn on_host(&mut self) -> Result<LockReport, CacheError> {
        let budget = self.budget()?;
        Ok(self.report(budget))
    }

    pub(super) fn entry_missing(&mut self) -> u64 {
        let slot = self.slot;
        self.state().entry(slot).missing_bytes()
    }

    /// The budget at this moment.
    pub(super) fn budget(&mut self) -> Result<Budget, CacheError> {
        self.figures = self.cache.figures().map_err(|source| self.driver_error(source))?;
        let figures = self.figures;
        let settings = self.cache.settings();
        Ok(budget(&figures, self.request.asked_bytes, settings.floor_bytes, settings.cap))
    }

    pub(super) fn driver_error(&self, source: DriverError) -> CacheError {
        CacheError::Driver { key: self.key.clone(), source }
    }

    /// Whether the working memory cannot be kept free: it is short already, or what must be loaded will eat into it.
    fn is_short(&mut self, budget: &Budget) -> bool {
        let slot = self.slot;
        let required = i128::from(self.state().entry(slot).required_missing_bytes());
        let after = i128::from(budget.budget_bytes) - required;
        after < i128::from(LEAST_BUDGET_BYTES)
    }

    /// Says once that there is too little, naming what is still there.
    pub(super) fn warn(&mut self, budget: &Budget) {
        let working_bytes = mutant!(
            "warning_prints_what_was_asked",
            "people look for a small request while the floor holds the memory",
            right: budget.working_bytes,
            wrong: self.request.asked_bytes.unwrap_or(0),
        );
        let key = self.key.clone();
        let resident = self.state().resident();
        let slot = self.slot;
        let required_bytes = self.state().entry(slot).required_missing_bytes();
        let pressure = Pressure { key, working_bytes, budget_bytes: budget.budget_bytes, required_bytes, resident };
        let news = self.pressure.is_none() && self.state().said.pressure(&pressure.key, budget.working_bytes);
        if news {
            mutant!(
                "warning_left_out",
                "a model that runs slowly from host memory gives people no hint why",
                right: tracing::warn!("{pressure}"),
                wrong: (),
            );
            self.events.push(Event::Pressure(pressure.clone()));
        }
        self.pressure = Some(pressure);
    }

    fn passed(&mut self) {
        let key = self.key;
        self.state().said.passed(key);
    }

    fn report(&mut self, budget: Budget) -> LockReport {
        let slot = self.slot;
        let entry = self.state().entry(slot);
        let (resident_bytes, missing_bytes) = (entry.resident_bytes, entry.missing_bytes());
        LockReport {
            budget,
            moves: std::mem::take(&mut self.moves),
            loaded_bytes: self.loaded_bytes,
            resident_bytes,
            missing_bytes,
            beyond_device: self.beyond_device.take(),
            pressure: self.pressure.take(),
            waited: self.waited,
        }
    }
}

/// Whether counters show, before the cache is emptied, what emptying it would give back.
pub(super) fn shows_what_can_be_given_back(reclaim: Reclaim) -> bool {
    match reclaim {
        Reclaim::WholeSegments | Reclaim::Pool => true,
        Reclaim::Indistinguishable | Reclaim::NoCounters => false,
    }
}
