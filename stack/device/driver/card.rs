//! A card that exists only as numbers: what is in it, who holds how much, and what a test can change about it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headroom_base::{GIB, MIB, mutant};

use super::addresses::Addresses;
use super::faults::{CallLog, DriverCall, Fault};
use super::perturbation::{Disturbance, Perturbation};
use super::{Address, DriverError, SimulatedDriver};

/// The code of a failure that was planted or that comes from wrong arguments.
const SIMULATED_FAILURE: i64 = 999;

/// Memory that the driver keeps when this process frees, as HIP was seen to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedPool {
    /// At most this much is kept.
    pub most_bytes: u64,
    /// Whether this process's later allocations are served from it before the device's free memory is touched.
    pub reused: bool,
}

/// What a simulated card is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardSettings {
    /// Bytes of device memory.
    pub total_bytes: u64,
    /// What this process's context and libraries take from it.
    pub context_bytes: u64,
    /// What other processes take when the card is made; a test can change it later.
    pub others_bytes: u64,
    /// The unit of every allocation.
    pub granularity_bytes: u64,
    /// What the driver keeps after frees, if it does.
    pub retained: Option<RetainedPool>,
    /// Whether memory beyond the device's is taken from the host instead of failing.
    pub spill_to_host: bool,
    /// The largest single allocation, where the driver has such a limit.
    pub most_allocation_bytes: Option<u64>,
    /// Whether the virtual-memory calls exist.
    pub virtual_memory: bool,
    /// Whether the driver tells what the own process holds; it does not in many containers.
    pub tells_process_bytes: bool,
    /// Disturbances, if any.
    pub perturbation: Option<Perturbation>,
}

impl CardSettings {
    /// A card of `total_bytes` with no other process, no context cost, and nothing unusual.
    pub fn new(total_bytes: u64) -> Self {
        Self {
            total_bytes,
            context_bytes: 0,
            others_bytes: 0,
            granularity_bytes: 2 * MIB,
            retained: None,
            spill_to_host: false,
            most_allocation_bytes: None,
            virtual_memory: true,
            tells_process_bytes: true,
            perturbation: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Held {
    /// Device memory it costs, jitter included.
    device_bytes: u64,
    /// The part that lies in host memory.
    spilled_bytes: u64,
}

#[derive(Debug)]
pub(super) struct Card {
    pub(super) settings: CardSettings,
    pub(super) addresses: Addresses,
    pub(super) allocations: HashMap<u64, Held>,
    pub(super) reservations: Addresses,
    pub(super) pages: HashMap<u64, (u64, Held)>,
    pub(super) own_bytes: u64,
    pub(super) spilled_bytes: u64,
    pub(super) retained_bytes: u64,
    pub(super) log: CallLog,
    pub(super) disturbance: Option<Disturbance>,
}

/// A handle to a simulated card. Clones are the same card, so that a test can change it while a driver uses it.
#[derive(Clone, Debug)]
pub struct SimulatedCard {
    card: Arc<Mutex<Card>>,
}

impl SimulatedCard {
    /// A card with these settings.
    pub fn new(settings: CardSettings) -> Self {
        let card = Card {
            settings,
            addresses: Addresses::new(),
            allocations: HashMap::new(),
            reservations: Addresses::new(),
            pages: HashMap::new(),
            own_bytes: 0,
            spilled_bytes: 0,
            retained_bytes: 0,
            log: CallLog::default(),
            disturbance: settings.perturbation.map(Disturbance::new),
        };
        Self { card: Arc::new(Mutex::new(card)) }
    }

    /// A plain card of `gib` GiB.
    pub fn with_gib(gib: u64) -> Self {
        Self::new(CardSettings::new(gib * GIB))
    }

    /// A driver for this card.
    pub fn driver(&self) -> SimulatedDriver {
        SimulatedDriver::new(self.clone())
    }

    /// Sets what other processes hold, from now on.
    pub fn set_others_bytes(&self, bytes: u64) {
        self.lock().settings.others_bytes = bytes;
    }

    /// Changes any setting from now on; what is held stays held.
    pub fn change(&self, change: impl FnOnce(&mut CardSettings)) {
        let mut card = self.lock();
        let before = card.settings.perturbation;
        change(&mut card.settings);
        if card.settings.perturbation != before {
            card.disturbance = card.settings.perturbation.map(Disturbance::new);
        }
    }

    /// What the card is at this moment.
    pub fn settings(&self) -> CardSettings {
        self.lock().settings
    }

    /// Plants a failure. Several can wait at once.
    pub fn plant_fault(&self, fault: Fault) {
        self.lock().log.plant(fault);
    }

    /// Removes every planted failure.
    pub fn clear_faults(&self) {
        self.lock().log.clear_faults();
    }

    /// The next allocations (and reservations of addresses) are placed at these `(address, bytes)`, in order, as long
    /// as the sizes agree.
    pub fn script_addresses(&self, ranges: impl IntoIterator<Item = (Address, u64)>) {
        self.lock().addresses.script(ranges.into_iter().map(|(address, bytes)| (address.0, bytes)));
    }

    /// How often a scripted address could not be used, because another size was asked for or it was taken.
    pub fn script_misses(&self) -> u64 {
        self.lock().addresses.script_misses()
    }

    /// How often `call` was made.
    pub fn calls(&self, call: DriverCall) -> u64 {
        self.lock().log.count(call)
    }

    /// How often any call was made.
    pub fn total_calls(&self) -> u64 {
        self.lock().log.total()
    }

    /// Device memory this process holds beyond its context, as the driver counts it: whole granules, jitter included,
    /// what is retained not.
    pub fn held_bytes(&self) -> u64 {
        self.lock().own_bytes
    }

    /// What the driver keeps of memory that was freed.
    pub fn retained_bytes(&self) -> u64 {
        self.lock().retained_bytes
    }

    /// Free device memory, without counting as a call.
    pub fn free_bytes(&self) -> u64 {
        self.lock().free_bytes()
    }

    /// The card's state stays whole at every point where a panic could leave it, so a poisoned lock is taken as it is.
    pub(super) fn lock(&self) -> MutexGuard<'_, Card> {
        self.card.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Card {
    pub(super) fn free_bytes(&self) -> u64 {
        let in_device = self.own_bytes - self.spilled_bytes + self.retained_bytes;
        let others_bytes = mutant!(
            "simulated_card_ignores_other_processes",
            "a plan for a shared card counts on memory that another process holds",
            right: self.settings.others_bytes,
            wrong: 0,
        );
        let taken = self.settings.context_bytes.saturating_add(others_bytes).saturating_add(in_device);
        self.settings.total_bytes.saturating_sub(taken)
    }

    pub(super) fn call(&mut self, call: DriverCall) -> Result<(), DriverError> {
        if self.log.fails(call) { Err(failed(call, "planted failure")) } else { Ok(()) }
    }

    fn rounded(&self, bytes: u64) -> Option<u64> {
        bytes.max(1).checked_next_multiple_of(self.settings.granularity_bytes)
    }

    /// Charges `bytes`, or says that there are too few. The disturbance strikes first, as another process would.
    pub(super) fn take(&mut self, requested_bytes: u64) -> Result<Held, DriverError> {
        let (jitter, others_grow) = self.disturbance.as_mut().map_or((0, 0), Disturbance::at_allocation);
        self.settings.others_bytes = self.settings.others_bytes.saturating_add(others_grow);
        let free_bytes = self.free_bytes();
        let reusable = match self.settings.retained {
            Some(RetainedPool { reused: true, .. }) => self.retained_bytes,
            _ => 0,
        };
        let out_of_memory =
            DriverError::OutOfMemory { requested_bytes, free_bytes, total_bytes: self.settings.total_bytes };
        let over_limit = self.settings.most_allocation_bytes.is_some_and(|most| requested_bytes > most);
        let Some(needed) = self.rounded(requested_bytes).filter(|_| !over_limit) else { return Err(out_of_memory) };
        let (needed, available) = (needed.saturating_add(jitter), free_bytes + reusable);
        if needed > available && !self.settings.spill_to_host {
            return Err(out_of_memory);
        }
        let spilled_bytes = needed.saturating_sub(available);
        self.retained_bytes -= reusable.min(needed);
        self.own_bytes += needed;
        self.spilled_bytes += spilled_bytes;
        Ok(Held { device_bytes: needed, spilled_bytes })
    }

    pub(super) fn give(&mut self, held: &Held) {
        self.own_bytes -= held.device_bytes;
        self.spilled_bytes -= held.spilled_bytes;
        if let Some(pool) = self.settings.retained {
            let room = pool.most_bytes.saturating_sub(self.retained_bytes);
            self.retained_bytes += room.min(held.device_bytes - held.spilled_bytes);
        }
    }

    pub(super) fn place(&mut self, bytes: u64, call: DriverCall) -> Result<u64, DriverError> {
        let granularity = self.settings.granularity_bytes;
        self.addresses.place(bytes, granularity).ok_or_else(|| failed(call, "no addresses left"))
    }

    pub(super) fn require_virtual_memory(&self, call: DriverCall) -> Result<(), DriverError> {
        if self.settings.virtual_memory { Ok(()) } else { Err(DriverError::Unsupported { call }) }
    }

    /// Whether `bytes` at `address` lie inside one reserved range and are whole pages.
    pub(super) fn check_range(
        &self,
        call: DriverCall,
        address: u64,
        bytes: u64,
        page_bytes: u64,
    ) -> Result<(), DriverError> {
        let granularity = self.settings.granularity_bytes;
        let whole = page_bytes > 0 && page_bytes.is_multiple_of(granularity) && bytes.is_multiple_of(page_bytes);
        if !whole || !address.is_multiple_of(granularity) {
            return Err(failed(call, "not whole pages of a multiple of the granularity"));
        }
        match (self.reservations.containing(address), address.checked_add(bytes)) {
            (Some((start, length)), Some(end)) if end <= start + length => Ok(()),
            _ => Err(failed(call, "not inside one reserved range")),
        }
    }

    pub(super) fn unmap_page(&mut self, address: u64) {
        if let Some((_, held)) = self.pages.remove(&address) {
            self.give(&held);
        }
    }
}

pub(super) fn failed(call: DriverCall, reason: &str) -> DriverError {
    DriverError::Failed { call, code: SIMULATED_FAILURE, reason: reason.to_owned() }
}
