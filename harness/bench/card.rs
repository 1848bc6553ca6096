//! The card under a bench, to be looked at and made tight from outside: one of numbers, or one that is attached.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headroom_base::Reading;
use headroom_device::driver::{CardSettings, SimulatedCard};
use headroom_device::{Device, DriverError};

use super::BenchError;
use crate::gpu::{Attached, Ballast, beside_allocators};

/// The unit in which a driver lends memory.
pub const PAGE_BYTES: u64 = 2 << 20;

/// A card with a device of this process on it. Clones are the same card.
#[derive(Clone, Debug)]
pub enum Card {
    /// A card of numbers.
    Simulated {
        /// The card.
        card: SimulatedCard,
        /// What it was when it was set up.
        at_first: CardSettings,
    },
    /// An attached card.
    Attached(AttachedCard),
}

/// An attached card under one bench.
#[derive(Clone)]
pub struct AttachedCard {
    attached: Arc<dyn Attached>,
    device: Device,
    total_bytes: Arc<AtomicU64>,
    /// What it was when it was set up.
    total_bytes_at_first: u64,
    /// Held outside every allocator, each with its bytes, so that the card is as full as a check wants it.
    ballast: Arc<Mutex<Vec<(Ballast, u64)>>>,
}

impl fmt::Debug for AttachedCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedCard").field("attached", &self.attached).finish_non_exhaustive()
    }
}

impl AttachedCard {
    /// The card under `device`, which `attached` made.
    pub fn new(attached: Arc<dyn Attached>, device: Device, total_bytes: u64) -> Self {
        let (at_first, total_bytes) = (total_bytes, Arc::new(AtomicU64::new(total_bytes)));
        Self { attached, device, total_bytes, total_bytes_at_first: at_first, ballast: Arc::default() }
    }

    /// What the process holds beside the ballast: the driver's word, or where it has none the context, the libraries and
    /// the segments.
    fn own_bytes(&self) -> Result<u64, DriverError> {
        if let Reading::Bytes(bytes) = self.attached.process_bytes()? {
            let ballast: u64 = self.ballast().iter().map(|(_, bytes)| bytes).sum();
            return Ok(bytes.saturating_sub(ballast));
        }
        let reserved_bytes = self.device.counters()?.reserved.current;
        Ok(beside_allocators(&*self.attached) + reserved_bytes)
    }

    fn leave_free(&self, bytes: u64) -> Result<(), DriverError> {
        let mut ballast = self.ballast();
        ballast.clear();
        // The driver cannot hand out all that is free in one piece, so what it refuses is asked for in halves.
        let mut piece_bytes = u64::MAX;
        loop {
            let free_bytes = self.attached.memory()?.free_bytes;
            let surplus_bytes = free_bytes.saturating_sub(bytes) / PAGE_BYTES * PAGE_BYTES;
            let asked_bytes = surplus_bytes.min(piece_bytes);
            if asked_bytes == 0 {
                return Ok(());
            }
            match self.attached.ballast(asked_bytes) {
                Ok(held) => ballast.push((held, asked_bytes)),
                Err(error) if error.is_out_of_memory() && asked_bytes > PAGE_BYTES => {
                    piece_bytes = (asked_bytes / 2).next_multiple_of(PAGE_BYTES);
                }
                // A page that is free and cannot be had serves nobody else either.
                Err(error) if error.is_out_of_memory() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn ballast(&self) -> MutexGuard<'_, Vec<(Ballast, u64)>> {
        self.ballast.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<SimulatedCard> for Card {
    fn from(card: SimulatedCard) -> Self {
        let at_first = card.settings();
        Self::Simulated { card, at_first }
    }
}

impl Card {
    /// Bytes the card has, or is made to look like having.
    pub fn total_bytes(&self) -> u64 {
        match self {
            Self::Simulated { card, .. } => card.settings().total_bytes,
            Self::Attached(card) => card.total_bytes.load(Ordering::SeqCst),
        }
    }

    /// Bytes of the card that nobody holds.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn free_bytes(&self) -> Result<u64, BenchError> {
        match self {
            Self::Simulated { card, .. } => Ok(card.free_bytes()),
            Self::Attached(card) => Ok(card.attached.memory()?.free_bytes),
        }
    }

    /// What this process holds on it, as the driver sees it: context, libraries, segments, what the driver keeps.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn own_bytes(&self) -> Result<u64, BenchError> {
        match self {
            Self::Simulated { card, .. } => {
                Ok(card.held_bytes() + card.settings().context_bytes + card.retained_bytes())
            }
            Self::Attached(card) => Ok(card.own_bytes()?),
        }
    }

    /// Leaves the driver this much beside what is held, whatever it has now, as a process that grows would. On an
    /// attached card memory outside every allocator takes the rest, in whole pages.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn leave_free(&self, bytes: u64) -> Result<(), BenchError> {
        match self {
            Self::Simulated { card, .. } => {
                let settings = card.settings();
                card.set_others_bytes((settings.others_bytes + card.free_bytes()).saturating_sub(bytes));
                Ok(())
            }
            Self::Attached(card) => Ok(card.leave_free(bytes)?),
        }
    }

    /// Lets others hold so much more, in whole pages.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn others_grow(&self, bytes: u64) -> Result<(), BenchError> {
        self.leave_free(self.free_bytes()?.saturating_sub(bytes))
    }

    /// Makes it a card of so much less, in whole pages.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn shrink(&self, bytes: u64) -> Result<(), BenchError> {
        match self {
            Self::Simulated { card, .. } => card.change(|settings| settings.total_bytes -= bytes),
            Self::Attached(card) => {
                card.total_bytes.fetch_sub(bytes, Ordering::SeqCst);
                self.others_grow(bytes)?;
            }
        }
        Ok(())
    }

    /// Undoes what [`leave_free`](Self::leave_free) or [`limit`](Self::limit) did.
    pub fn release(&self) {
        match self {
            Self::Simulated { card, at_first } => card.change(|settings| {
                settings.total_bytes = at_first.total_bytes;
                settings.others_bytes = at_first.others_bytes;
            }),
            Self::Attached(card) => {
                card.total_bytes.store(card.total_bytes_at_first, Ordering::SeqCst);
                card.ballast().clear();
            }
        }
    }

    /// Leaves what a card of `total_bytes` would have, with nobody else on it and all that this process holds.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn limit(&self, total_bytes: u64) -> Result<(), BenchError> {
        match self {
            Self::Simulated { card, .. } => {
                card.change(|settings| settings.total_bytes = total_bytes);
                Ok(())
            }
            Self::Attached(card) => {
                let own_bytes = card.own_bytes()?;
                Ok(card.leave_free(total_bytes.saturating_sub(own_bytes))?)
            }
        }
    }

    /// The card of numbers.
    ///
    /// # Errors
    /// When the card is attached: nobody can change what it is.
    pub fn simulated(&self) -> Result<&SimulatedCard, BenchError> {
        match self {
            Self::Simulated { card, .. } => Ok(card),
            Self::Attached(_) => Err(BenchError::NotOnAnAttachedCard),
        }
    }
}
