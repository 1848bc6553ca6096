//! A driver that answers as real ones were seen to, from a card that exists only as numbers.

use headroom_base::{Reading, mutant};

use super::card::{SimulatedCard, failed};
use super::faults::DriverCall;
use super::{Address, Driver, DriverError, MemoryInfo};

/// The [`Driver`] of a [`SimulatedCard`].
#[derive(Clone, Debug)]
pub struct SimulatedDriver {
    card: SimulatedCard,
}

impl SimulatedDriver {
    pub(super) fn new(card: SimulatedCard) -> Self {
        Self { card }
    }

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
                    mutant!(
                        "simulated_card_keeps_pages_of_a_failed_map",
                        "each request that does not fit leaves pages behind, until nothing fits",
                        right: (address.0..page).step_by(page_bytes as usize).for_each(|at| card.unmap_page(at)),
                        wrong: (),
                    );
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
