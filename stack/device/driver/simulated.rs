//! A device that exists only as numbers: every rule a real driver was seen to follow, and no payload.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headroom_base::{GIB, MIB, Reading};

use super::addresses::Addresses;
use super::faults::{CallLog, DriverCall, Fault};
use super::perturbation::{Disturbance, Perturbation};
use super::{Address, Driver, DriverError, MemoryInfo};

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
struct Held {
    /// Device memory it costs, jitter included.
    device_bytes: u64,
    /// The part that lies in host memory.
    spilled_bytes: u64,
}

#[derive(Debug)]
struct Card {
    settings: CardSettings,
    addresses: Addresses,
    allocations: HashMap<u64, Held>,
    reservations: Addresses,
    pages: HashMap<u64, (u64, Held)>,
    own_bytes: u64,
    spilled_bytes: u64,
    retained_bytes: u64,
    log: CallLog,
    disturbance: Option<Disturbance>,
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
        SimulatedDriver { card: self.clone() }
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
    fn lock(&self) -> MutexGuard<'_, Card> {
        self.card.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Card {
    fn free_bytes(&self) -> u64 {
        let in_device = self.own_bytes - self.spilled_bytes + self.retained_bytes;
        let taken = self.settings.context_bytes.saturating_add(self.settings.others_bytes).saturating_add(in_device);
        self.settings.total_bytes.saturating_sub(taken)
    }

    fn call(&mut self, call: DriverCall) -> Result<(), DriverError> {
        if self.log.fails(call) { Err(failed(call, "planted failure")) } else { Ok(()) }
    }

    fn rounded(&self, bytes: u64) -> Option<u64> {
        bytes.max(1).checked_next_multiple_of(self.settings.granularity_bytes)
    }

    /// Charges `bytes`, or says that there are too few. The disturbance strikes first, as another process would.
    fn take(&mut self, requested_bytes: u64) -> Result<Held, DriverError> {
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

    fn give(&mut self, held: &Held) {
        self.own_bytes -= held.device_bytes;
        self.spilled_bytes -= held.spilled_bytes;
        if let Some(pool) = self.settings.retained {
            let room = pool.most_bytes.saturating_sub(self.retained_bytes);
            self.retained_bytes += room.min(held.device_bytes - held.spilled_bytes);
        }
    }

    fn place(&mut self, bytes: u64, call: DriverCall) -> Result<u64, DriverError> {
        let granularity = self.settings.granularity_bytes;
        self.addresses.place(bytes, granularity).ok_or_else(|| failed(call, "no addresses left"))
    }

    fn require_virtual_memory(&self, call: DriverCall) -> Result<(), DriverError> {
        if self.settings.virtual_memory { Ok(()) } else { Err(DriverError::Unsupported { call }) }
    }

    /// Whether `bytes` at `address` lie inside one reserved range and are whole pages.
    fn check_range(&self, call: DriverCall, address: u64, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
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

    fn unmap_page(&mut self, address: u64) {
        if let Some((_, held)) = self.pages.remove(&address) {
            self.give(&held);
        }
    }
}

fn failed(call: DriverCall, reason: &str) -> DriverError {
    DriverError::Failed { call, code: SIMULATED_FAILURE, reason: reason.to_owned() }
}

/// The [`Driver`] of a [`SimulatedCard`].
#[derive(Clone, Debug)]
pub struct SimulatedDriver {
    card: SimulatedCard,
}

impl SimulatedDriver {
    /// The card it drives.
    pub fn card(&self) -> &SimulatedCard {
        &self.card
    }
}

impl Driver for SimulatedDriver {
    fn memory(&mut self) -> Result<MemoryInfo, DriverError> {
        let mut card = self.card.lock();
        card.call(DriverCall::Memory)?;
        Ok(MemoryInfo { free_bytes: card.free_bytes(), total_bytes: card.settings.total_bytes })
    }

    fn granularity_bytes(&self) -> u64 {
        self.card.lock().settings.granularity_bytes
    }

    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError> {
        let mut card = self.card.lock();
        card.call(DriverCall::Allocate)?;
        let held = card.take(bytes)?;
        match card.place(bytes.max(1), DriverCall::Allocate) {
            Ok(start) => {
                card.allocations.insert(start, held);
                Ok(Address(start))
            }
            Err(error) => {
                card.give(&held);
                Err(error)
            }
        }
    }

    fn free(&mut self, address: Address) -> Result<(), DriverError> {
        let mut card = self.card.lock();
        card.call(DriverCall::Free)?;
        let Some(held) = card.allocations.remove(&address.0) else {
            return Err(failed(DriverCall::Free, "nothing was allocated at this address"));
        };
        card.addresses.vacate(address.0);
        card.give(&held);
        Ok(())
    }

    fn reserve(&mut self, bytes: u64) -> Result<Address, DriverError> {
        let mut card = self.card.lock();
        card.call(DriverCall::Reserve)?;
        card.require_virtual_memory(DriverCall::Reserve)?;
        let start = card.place(bytes, DriverCall::Reserve)?;
        card.reservations.occupy(start, bytes);
        Ok(Address(start))
    }

    fn release(&mut self, address: Address, bytes: u64) -> Result<(), DriverError> {
        let mut card = self.card.lock();
        card.call(DriverCall::Release)?;
        if card.reservations.length(address.0) != Some(bytes) {
            return Err(failed(DriverCall::Release, "no range of this size was reserved at this address"));
        }
        if card.pages.keys().any(|page| (address.0..address.0 + bytes).contains(page)) {
            return Err(failed(DriverCall::Release, "memory is still mapped in this range"));
        }
        card.reservations.vacate(address.0);
        card.addresses.vacate(address.0);
        Ok(())
    }

    fn map(&mut self, address: Address, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        let mut card = self.card.lock();
        card.call(DriverCall::Map)?;
        card.require_virtual_memory(DriverCall::Map)?;
        card.check_range(DriverCall::Map, address.0, bytes, page_bytes)?;
        let pages = (address.0..address.0 + bytes).step_by(page_bytes as usize);
        if pages.clone().any(|page| card.pages.contains_key(&page)) {
            return Err(failed(DriverCall::Map, "memory is already mapped in this range"));
        }
        for page in pages {
            match card.take(page_bytes) {
                Ok(held) => card.pages.insert(page, (page_bytes, held)),
                Err(error) => {
                    (address.0..page).step_by(page_bytes as usize).for_each(|mapped| card.unmap_page(mapped));
                    return Err(error);
                }
            };
        }
        Ok(())
    }

    fn unmap(&mut self, address: Address, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        let mut card = self.card.lock();
        card.call(DriverCall::Unmap)?;
        card.check_range(DriverCall::Unmap, address.0, bytes, page_bytes)?;
        let pages = (address.0..address.0 + bytes).step_by(page_bytes as usize);
        if pages.clone().any(|page| card.pages.get(&page).is_none_or(|(length, _)| *length != page_bytes)) {
            return Err(failed(DriverCall::Unmap, "no memory is mapped in this range"));
        }
        pages.for_each(|page| card.unmap_page(page));
        Ok(())
    }

    fn process_bytes(&mut self) -> Result<Reading, DriverError> {
        let mut card = self.card.lock();
        card.call(DriverCall::ProcessBytes)?;
        if !card.settings.tells_process_bytes {
            return Ok(Reading::Unknown);
        }
        Ok(Reading::Bytes(card.settings.context_bytes + card.own_bytes - card.spilled_bytes + card.retained_bytes))
    }

    fn spilled_bytes(&mut self) -> Result<Reading, DriverError> {
        let mut card = self.card.lock();
        card.call(DriverCall::SpilledBytes)?;
        Ok(Reading::Bytes(card.spilled_bytes))
    }
}
