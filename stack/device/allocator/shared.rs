//! One allocator for several threads, behind a lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Allocation, AllocationError, Allocator, Counters, NotAllocated};
use crate::driver::Driver;

/// A handle to an allocator that several threads use. Clones are the same allocator.
///
/// A thread that uses an allocator alone needs none of this: [`Allocator`] itself takes no lock.
#[derive(Debug)]
pub struct SharedAllocator<D: Driver> {
    allocator: Arc<Mutex<Allocator<D>>>,
}

impl<D: Driver> Clone for SharedAllocator<D> {
    fn clone(&self) -> Self {
        Self { allocator: Arc::clone(&self.allocator) }
    }
}

impl<D: Driver> SharedAllocator<D> {
    /// Shares an allocator.
    pub fn new(allocator: Allocator<D>) -> Self {
        Self { allocator: Arc::new(Mutex::new(allocator)) }
    }

    /// The allocator, for this thread alone until the guard is dropped: for several calls that belong together.
    ///
    /// An allocator is whole between calls, so a thread that panicked while holding it does not spoil it for others.
    pub fn lock(&self) -> MutexGuard<'_, Allocator<D>> {
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [`Allocator::allocate`] under the lock.
    ///
    /// # Errors
    /// As there.
    pub fn allocate(&self, requested_bytes: u64) -> Result<Allocation, AllocationError> {
        self.lock().allocate(requested_bytes)
    }

    /// [`Allocator::free`] under the lock.
    ///
    /// # Errors
    /// As there.
    pub fn free(&self, allocation: Allocation) -> Result<(), NotAllocated> {
        self.lock().free(allocation)
    }

    /// [`Allocator::empty_cache`] under the lock.
    ///
    /// # Errors
    /// As there.
    pub fn empty_cache(&self) -> Result<(), AllocationError> {
        self.lock().empty_cache()
    }

    /// [`Allocator::counters`] under the lock.
    pub fn counters(&self) -> Counters {
        self.lock().counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Settings;
    use crate::driver::SimulatedCard;

    #[test]
    fn threads_that_allocate_and_free_at_once_lose_and_double_nothing() {
        let card = SimulatedCard::with_gib(8);
        let shared = SharedAllocator::new(Allocator::new(card.driver(), Settings::default()));
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let shared = shared.clone();
                scope.spawn(move || {
                    let mut live = Vec::new();
                    for index in 0..2_000_u64 {
                        let bytes = 1 + (index * 7_919 + thread * 104_729) % 3_000_000;
                        live.push(shared.allocate(bytes).expect("8 GiB are enough"));
                        if index % 3 == 0 {
                            shared.free(live.swap_remove(index as usize % live.len())).expect("it is live");
                        }
                        if live.len() > 200 {
                            live.drain(..).for_each(|allocation| shared.free(allocation).expect("it is live"));
                        }
                    }
                    live.into_iter().for_each(|allocation| shared.free(allocation).expect("it is live"));
                });
            }
        });
        shared.empty_cache().unwrap();
        assert_eq!(shared.counters().allocated.current, 0);
        assert_eq!(shared.counters().reserved.current, 0);
        assert_eq!(card.held_bytes(), 0);
    }
}
