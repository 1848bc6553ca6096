//! Loading a locked model: whole where it fits, in part where it does not, not at all where loading fails.

use headroom_base::{AllocatorKind, Budget, Reclaim};

use super::entry::Entry;
use super::event::Event;
use super::lock::{Locking, TOLERANCE_BYTES};
use super::{Cache, CacheError};
use crate::allocator::AllocationError;
use crate::device::{DeviceMemory, UploadPart};
use crate::driver::DriverError;
use crate::probe::{HookError, HookPoint};

/// Why loading stopped. What it had loaded is gone again.
enum LoadError {
    Allocation(AllocationError),
    Upload(DriverError),
    Hook(HookError),
}

impl Locking<'_> {
    /// Loads what the budget allows, required pieces always. On failure nothing of it is left behind.
    pub(super) fn load(&mut self, budget: &Budget) -> Result<(), CacheError> {
        let own = self.slot;
        let missing_bytes = self.state().entry(own).missing_bytes();
        if missing_bytes == 0 {
            return Ok(());
        }
        let (cache, request, waited) = (self.cache, self.request, self.waited);
        let entry = self.state().entry_mut(own);
        let chosen = choose(entry, budget);
        let admits = |memory: &mut dyn DeviceMemory, bytes| {
            Self::budget_of(cache, &request, memory).is_some_and(|now| admits(memory, &now, bytes))
        };
        let outcome = match cache.device().hook(HookPoint::Loading) {
            Ok(()) => cache.device().change(|memory| load_pieces(cache, entry, &chosen, memory, admits)),
            Err(error) => Err(LoadError::Hook(error)),
        };
        let key = entry.key.clone();
        match outcome {
            Ok(bytes) => {
                entry.resident_bytes += bytes;
                self.loaded_bytes += bytes;
                if bytes > 0 {
                    self.events.push(Event::Loaded { key, bytes });
                }
                Ok(())
            }
            Err(error) => {
                self.unload_after_failure();
                Err(match error {
                    LoadError::Allocation(source) => CacheError::of_allocation(&key, missing_bytes, waited, source),
                    LoadError::Upload(source) => CacheError::Driver { key, source },
                    LoadError::Hook(source) => CacheError::Hook { key, source },
                })
            }
        }
    }

    /// What was resident before stays only where another lock runs with it. The rest goes back to the driver, where
    /// the driver takes it; the error that led here is the one that is told.
    fn unload_after_failure(&mut self) {
        let own = self.slot;
        let cache = self.cache;
        let entry = self.state().entry_mut(own);
        if entry.holders.len() <= 1 {
            cache.device().change(|memory| free_all(entry, memory));
        }
        let _ = cache.device().empty_cache();
    }
}

/// The pieces to load, in order: those that must, then those that may.
fn choose(entry: &Entry, budget: &Budget) -> Vec<usize> {
    let allowed = i128::from(budget.budget_bytes);
    let fits_whole = i128::from(entry.missing_bytes()) <= allowed + i128::from(TOLERANCE_BYTES);
    let missing = |required: bool| {
        let wanted = move |piece: &super::entry::Piece| piece.holding.is_none() && piece.required == required;
        entry.pieces.iter().enumerate().filter(move |(_, piece)| wanted(piece))
    };
    let mut chosen: Vec<_> = missing(true).map(|(index, _)| index).collect();
    let mut left = allowed - i128::from(entry.required_missing_bytes());
    for (index, piece) in missing(false) {
        let bytes = i128::from(piece.bytes);
        if fits_whole || bytes <= left {
            chosen.push(index);
            left -= bytes;
        }
    }
    chosen
}

/// Whether an optional piece still fits, where the reserve grows in steps that the budget's arithmetic does not see:
/// a stream-ordered pool takes whole steps for a piece that its idle reserve cannot hold.
fn admits(memory: &mut dyn DeviceMemory, now: &Budget, bytes: u64) -> bool {
    let Ok(figures) = memory.figures() else { return true };
    if figures.reclaim != Reclaim::Pool {
        return true;
    }
    let idle = figures.reserved_bytes.saturating_sub(figures.allocated_bytes);
    let step = AllocatorKind::CudaMallocAsync.growth_step_bytes();
    let cost = if bytes <= idle { bytes } else { bytes.next_multiple_of(step) };
    i128::from(cost) <= i128::from(now.budget_bytes) + i128::from(TOLERANCE_BYTES)
}

/// Allocates the chosen pieces and copies their contents up; all of it, or none.
fn load_pieces(
    cache: &Cache,
    entry: &mut Entry,
    chosen: &[usize],
    memory: &mut dyn DeviceMemory,
    admits: impl Fn(&mut dyn DeviceMemory, u64) -> bool,
) -> Result<u64, LoadError> {
    let mut loaded = Vec::with_capacity(chosen.len());
    let mut bytes = 0;
    let outcome = (|| {
        for index in chosen {
            let piece = &mut entry.pieces[*index];
            if !piece.required && !admits(memory, piece.bytes) {
                continue;
            }
            piece.holding = Some(memory.allocate(piece.bytes).map_err(LoadError::Allocation)?);
            loaded.push(*index);
            bytes += piece.bytes;
        }
        cache.device().hook(HookPoint::Uploading).map_err(LoadError::Hook)?;
        let parts: Vec<_> = loaded.iter().filter_map(|index| upload_part(entry, *index)).collect();
        if parts.is_empty() { Ok(()) } else { memory.upload(&parts).map_err(LoadError::Upload) }
    })();
    match outcome {
        Ok(()) => Ok(bytes),
        Err(error) => {
            for index in loaded {
                if let Some(holding) = entry.pieces[index].holding.take() {
                    give_back(memory, holding);
                }
            }
            Err(error)
        }
    }
}

fn upload_part(entry: &Entry, index: usize) -> Option<UploadPart<'_>> {
    let piece = &entry.pieces[index];
    Some(UploadPart { to: piece.holding?, contents: entry.host.contents(&piece.name)? })
}

/// Takes every piece of an entry off the device.
pub(super) fn free_all(entry: &mut Entry, memory: &mut dyn DeviceMemory) {
    for piece in &mut entry.pieces {
        if let Some(holding) = piece.holding.take() {
            give_back(memory, holding);
        }
    }
    entry.resident_bytes = 0;
}

/// Gives one holding back. The holdings of a cache are its own, and each is given back once, so this cannot fail; if
/// it does all the same, the memory is lost to this process and the log says so.
fn give_back(memory: &mut dyn DeviceMemory, holding: crate::device::Holding) {
    if let Err(error) = memory.free(holding) {
        tracing::error!("weights could not be freed: {error}");
    }
}
