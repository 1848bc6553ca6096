//! Loading a locked model: whole where it fits, in part where it does not, not at all where loading fails.

use headroom_base::budget::credit_bytes;
use headroom_base::{Budget, DeviceFigures, Reclaim, mutant};

use super::entry::Entry;
use super::event::Event;
use super::footprint::{Footprint, there_bytes};
use super::lock::{Locking, TOLERANCE_BYTES};
use super::{Cache, CacheError};
use crate::allocator::AllocationError;
use crate::device::{DeviceMemory, UploadPart, Uploaded};
use crate::driver::DriverError;
use crate::probe::{HookError, HookPoint};
use crate::weights::WeightsError;

/// Why loading stopped. What it had loaded is gone again.
enum LoadError {
    Allocation(AllocationError),
    Upload(DriverError),
    Weights(WeightsError),
    Hook(HookError),
    Cancelled,
}

impl Locking<'_> {
    /// Loads what the budget allows, required pieces always. On failure nothing of it is left behind.
    pub(super) fn load(&mut self, budget: &Budget) -> Result<(), CacheError> {
        let own = self.slot;
        let missing_bytes = self.state().entry(own).missing_bytes();
        if missing_bytes == 0 {
            return Ok(());
        }
        let (cache, waited) = (self.cache, self.waited);
        let budget = self.settle(budget)?;
        let (figures, cancels) = (self.figures, self.request.cancels);
        let entry = self.state().entry_mut(own);
        let chosen = if fits_whole(entry, &budget, &figures) {
            missing(entry)
        } else {
            choose(entry, budget.budget_bytes.into(), figures.reclaim).0
        };
        let is_cancelled = || cache.cancels() != cancels;
        let outcome = match cache.device().hook(HookPoint::Loading) {
            Ok(()) if is_cancelled() => Err(LoadError::Cancelled),
            Ok(()) => cache.device().change(|memory| load_pieces(cache, entry, &chosen, memory, &is_cancelled)),
            Err(error) => Err(LoadError::Hook(error)),
        };
        let key = entry.key.clone();
        match outcome {
            Ok(bytes) => {
                entry.resident_bytes += bytes;
                self.loaded_bytes += bytes;
                self.loaded = chosen;
                if bytes > 0 {
                    self.events.push(Event::Loaded { key, bytes });
                }
                Ok(())
            }
            Err(error) => Err(match error {
                LoadError::Allocation(source) => {
                    let in_use = self.state().in_use_beside(&key);
                    CacheError::of_allocation(key, missing_bytes, waited, in_use, source)
                }
                LoadError::Upload(source) => CacheError::Driver { key, source },
                LoadError::Weights(source) => CacheError::Weights(source),
                LoadError::Hook(source) => CacheError::Hook { key, source },
                LoadError::Cancelled => CacheError::Cancelled { key },
            }),
        }
    }

    /// Where the driver alone cannot hold what is missing, what lies idle goes back to it first: a credit says that it
    /// can, not that pieces of these sizes fit into it. The same where the working memory counts on idle segments: a
    /// piece that landed in one would split it, and the rest could not be given back any more. Never allows more than
    /// was decided before.
    fn settle(&mut self, decided: &Budget) -> Result<Budget, CacheError> {
        let (own, figures) = (self.slot, self.figures);
        let missing_bytes = self.state().entry(own).missing_footprint_bytes(figures.reclaim);
        let splits = figures.reclaim == Reclaim::WholeSegments && credit_bytes(&figures) > 0;
        let needed_bytes = if splits { missing_bytes.saturating_add(decided.working_bytes) } else { missing_bytes };
        if needed_bytes <= figures.driver_free_bytes {
            return Ok(*decided);
        }
        self.empty_cache()?;
        let now = self.budget()?;
        Ok(if now.budget_bytes < decided.budget_bytes { now } else { *decided })
    }

    /// A lock that failed leaves nothing of what it loaded; what was resident before stays only where another lock runs
    /// with it. The rest goes back to the driver, where the driver takes it; the error that led here is the one told.
    pub(super) fn unload_after_failure(&mut self) {
        let (own, cache) = (self.slot, self.cache);
        let loaded = std::mem::take(&mut self.loaded);
        let entry = self.state().entry_mut(own);
        let alone = entry.holders.len() <= 1;
        cache.device().change(|memory| if alone { free_all(entry, memory) } else { free_some(entry, &loaded, memory) });
        let _ = cache.device().empty_cache();
    }
}

/// Whether the whole model is to be loaded: its bytes fit the budget, and what they take from the driver is there.
fn fits_whole(entry: &Entry, budget: &Budget, figures: &DeviceFigures) -> bool {
    let tolerated = mutant!(
        "small_shortfall_not_tolerated",
        "an error of tracking leaves a model 99 % resident, which is far slower than whole",
        right: i128::from(budget.budget_bytes) + i128::from(TOLERANCE_BYTES),
        wrong: i128::from(budget.budget_bytes),
    );
    i128::from(entry.needed_bytes(figures.reclaim)) <= tolerated
        && entry.missing_footprint_bytes(figures.reclaim) <= there_bytes(figures)
}

/// Every piece that is not on the device.
fn missing(entry: &Entry) -> Vec<usize> {
    let missing = entry.pieces.iter().enumerate().filter(|(_, piece)| piece.is_missing());
    missing.map(|(index, _)| index).collect()
}

/// The pieces to load in part, in order: those that must be there, then those that fit beside them; and what they cost.
pub(super) fn choose(entry: &Entry, budget_bytes: i128, reclaim: Reclaim) -> (Vec<usize>, i128) {
    let mut left = budget_bytes;
    let mut footprint = Footprint::new(reclaim);
    let mut chosen = Vec::new();
    for required in [true, false] {
        for (index, piece) in entry.pieces.iter().enumerate() {
            if !piece.is_missing() || piece.required != required || (!required && left < 0) {
                continue;
            }
            let mut with_piece = footprint.clone();
            let cost = i128::from(with_piece.add(piece.bytes));
            if required || cost <= left {
                chosen.push(index);
                left -= cost;
                footprint = with_piece;
            }
        }
    }
    (chosen, budget_bytes - left)
}

/// Allocates the chosen pieces and copies their contents up; all of it, or none.
fn load_pieces(
    cache: &Cache,
    entry: &mut Entry,
    chosen: &[usize],
    memory: &mut dyn DeviceMemory,
    is_cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<u64, LoadError> {
    let mut loaded = Vec::with_capacity(chosen.len());
    let mut bytes = 0;
    let outcome = (|| {
        for index in chosen {
            let piece = &mut entry.pieces[*index];
            piece.holding = Some(memory.allocate(piece.bytes).map_err(LoadError::Allocation)?);
            loaded.push(*index);
            bytes += piece.bytes;
        }
        cache.device().hook(HookPoint::Uploading).map_err(LoadError::Hook)?;
        let parts: Vec<_> = loaded.iter().filter_map(|index| upload_part(entry, *index)).collect();
        if parts.is_empty() {
            return if is_cancelled() { Err(LoadError::Cancelled) } else { Ok(()) };
        }
        entry.host.check().map_err(LoadError::Weights)?;
        match memory.upload_unless(&parts, is_cancelled).map_err(LoadError::Upload)? {
            Uploaded::Whole => Ok(()),
            Uploaded::Cancelled => Err(LoadError::Cancelled),
        }
    })();
    match outcome {
        Ok(()) => Ok(bytes),
        Err(error) => {
            for index in loaded {
                let taken = entry.pieces[index].holding.take();
                let returned = mutant!(
                    "failed_load_leaves_bytes_behind",
                    "half a model stays on the device, held by nobody, until the process ends",
                    right: taken,
                    wrong: taken.filter(|_| false),
                );
                if let Some(holding) = returned {
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

/// Takes these pieces of an entry off the device.
fn free_some(entry: &mut Entry, pieces: &[usize], memory: &mut dyn DeviceMemory) {
    for index in pieces {
        let piece = &mut entry.pieces[*index];
        if let Some(holding) = piece.holding.take() {
            entry.resident_bytes -= piece.bytes;
            give_back(memory, holding);
        }
    }
}

/// Gives one holding back. The holdings of a cache are its own, and each is given back once, so this cannot fail; if
/// it does all the same, the memory is lost to this process and the log says so.
fn give_back(memory: &mut dyn DeviceMemory, holding: crate::device::Holding) {
    if let Err(error) = memory.free(holding) {
        tracing::error!("weights could not be freed: {error}");
    }
}
