//! Models on one device within a budget: who is resident, who is in use, and what goes when room is needed.
//!
//! All of a cache's state is under one lock, which is held while models move. Locks are always taken in the order
//! cache, device, and observers are called with neither held, so nothing here can wait in a ring.

mod bell;
mod counting;
mod entry;
mod error;
mod event;
mod footprint;
mod guard;
mod key;
mod load;
mod lock;
mod offload;
mod reach;
mod removal;
mod room;
mod spec;
mod state;
mod view;
mod warning;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use headroom_base::{Cap, DEFAULT_DEVICE_WORKING_BYTES, DeviceFigures, mutant};

use crate::device::Device;
use crate::driver::DriverError;
use crate::probe::{HookError, current};
use crate::weights::HostStore;
use bell::Bell;
use entry::Entry;
pub use error::CacheError;
pub use event::{Event, Observer};
pub use guard::{LockedModel, Unlocked};
pub use key::ModelKey;
pub use lock::{LockReport, TOLERANCE_BYTES};
pub use spec::{ComputeOn, Loading, ModelSpec, PieceSpec, WeightsSource};
use state::State;
pub use view::{ModelView, NotReconciled, WeightHolding};
pub use warning::{Beyond, BeyondDevice, Pressure, Resident};

/// What can be set about a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Working memory that every lock keeps free at least.
    pub floor_bytes: u64,
    /// A limit on what the cache may use, working memory included.
    pub cap: Cap,
    /// How long a lock waits for others to end when the pieces it cannot do without have no room. Nobody can know who
    /// will drop a [`LockedModel`], so this also bounds a wait of a caller for a lock that it holds itself and did not
    /// name ([`Cache::lock_beside`]). Zero never waits.
    pub wait_for_room: Duration,
}

impl Default for CacheSettings {
    /// 3 GiB of working memory, no cap, and half a minute: longer than a decode, shorter than anybody's patience.
    fn default() -> Self {
        let wait_for_room = Duration::from_secs(30);
        Self { floor_bytes: DEFAULT_DEVICE_WORKING_BYTES, cap: Cap::Unlimited, wait_for_room }
    }
}

/// Bytes of one model that a lock moved to host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The model.
    pub key: ModelKey,
    /// How much of it.
    pub bytes: u64,
    /// What of it stayed.
    pub remaining_bytes: u64,
}

/// What became of a model that was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// It is gone.
    Now,
    /// It is in use, and goes with its last lock or window.
    WhenIdle,
}

struct Inner {
    device: Device,
    settings: CacheSettings,
    store: Arc<HostStore>,
    state: Mutex<State>,
    bell: Bell,
    /// How often loads were cancelled. A lock is cancelled when this is no longer what it was when the lock began.
    cancels: AtomicU64,
    observers: RwLock<Vec<Arc<dyn Observer>>>,
    observed: AtomicBool,
}

impl Drop for Inner {
    /// A cache that nobody has any more gives the device back what it held.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.device.change(|memory| state.take_entries().for_each(|mut entry| load::free_all(&mut entry, memory)));
    }
}

/// A cache that may be gone: for what a cache itself keeps, such as its observers. A [`Cache`] in there would keep itself.
#[derive(Clone)]
pub struct WeakCache {
    inner: Weak<Inner>,
}

impl WeakCache {
    /// The cache, where somebody still has it.
    pub fn upgrade(&self) -> Option<Cache> {
        self.inner.upgrade().map(|inner| Cache { inner })
    }
}

impl std::fmt::Debug for WeakCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeakCache").finish_non_exhaustive()
    }
}

/// The models of one device. Clones are the same cache.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("device", self.device()).field("models", &self.models()).finish_non_exhaustive()
    }
}

impl Cache {
    /// An empty cache of `device`, sharing host copies with the process's other caches.
    pub fn new(device: Device, settings: CacheSettings) -> Self {
        Self::with_store(device, settings, Arc::clone(HostStore::shared()))
    }

    /// An empty cache that shares host copies with the users of `store`.
    pub fn with_store(device: Device, settings: CacheSettings, store: Arc<HostStore>) -> Self {
        let inner = Inner {
            device,
            settings,
            store,
            state: Mutex::default(),
            bell: Bell::default(),
            cancels: AtomicU64::new(0),
            observers: RwLock::default(),
            observed: AtomicBool::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The device it serves.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Its settings.
    pub fn settings(&self) -> &CacheSettings {
        &self.inner.settings
    }

    /// A handle that does not keep the cache.
    pub fn downgrade(&self) -> WeakCache {
        WeakCache { inner: Arc::downgrade(&self.inner) }
    }

    /// Tells `observer` what happens from now on, for as long as the cache lives. One that calls the cache has it from
    /// [`downgrade`](Self::downgrade): with a [`Cache`] of its own it would keep the cache, and the cache it, for ever.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        self.inner.observers.write().unwrap_or_else(PoisonError::into_inner).push(observer);
        self.inner.observed.store(true, Ordering::Release);
    }

    /// Adds a model, in host memory. Nothing of it goes to the device before it is locked.
    ///
    /// # Errors
    /// [`CacheError::AlreadyAdded`], [`CacheError::DuplicatePiece`], [`CacheError::TooLarge`], or
    /// [`CacheError::Weights`] when its file cannot be used.
    pub fn add(&self, spec: ModelSpec) -> Result<(), CacheError> {
        let entry = Entry::new(spec, &self.inner.store)?;
        let mut state = self.state();
        if state.find(&entry.key).is_some() {
            return Err(CacheError::AlreadyAdded { key: entry.key });
        }
        state.insert(entry);
        Ok(())
    }

    /// Locks a model for an operation that needs `working_bytes` beyond weights, and loads what the budget allows.
    ///
    /// In a calibration scope, a lock that states its working memory asks for the scope's allowance as well and opens
    /// a window. Stating none keeps the floor free.
    ///
    /// Where the pieces that must be on the device have no room while other models are in use, this waits for their
    /// locks to end, up to [`CacheSettings::wait_for_room`]: whoever holds them, on whatever thread. A caller that holds
    /// some itself names them ([`lock_beside`](Self::lock_beside)); otherwise it may wait that long for itself, and the
    /// error says what was in use.
    ///
    /// # Errors
    /// [`CacheError::UnknownModel`]; [`CacheError::OutOfMemory`] when what is to be loaded does not fit after all, above
    /// all the pieces that must be on the device; [`CacheError::Cancelled`] when its load was; [`CacheError::Weights`]
    /// when its file changed under it; otherwise what the driver, the allocator or a hook said. The lock is not counted then, no bytes that it loaded
    /// are left, and a model that nobody else uses is in host memory, whole.
    pub fn lock(&self, key: &ModelKey, working_bytes: Option<u64>) -> Result<LockedModel, CacheError> {
        self.lock_beside(key, working_bytes, &[])
    }

    /// [`lock`](Self::lock) for a caller that keeps `held` meanwhile: it does not wait for those, and while it waits for
    /// others, nobody else waits for those. So callers that name what they keep never wait for each other in a ring.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn lock_beside(
        &self,
        key: &ModelKey,
        working_bytes: Option<u64>,
        held: &[&LockedModel],
    ) -> Result<LockedModel, CacheError> {
        let scope = current();
        let works_when_idle = mutant!(
            "idle_scope_does_work",
            "every lock of a busy server asks the driver although nobody measures",
            right: false,
            wrong: scope.is_none(),
        );
        if works_when_idle {
            drop(self.device().process_bytes());
        }
        self.lock_in(key, working_bytes, held, scope.as_ref())
    }

    /// [`lock`](Self::lock) without asking which scope the thread works for: what that question costs can be measured
    /// against it. Inside a scope it is a foreign lock.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    #[doc(hidden)]
    pub fn lock_outside_scopes(&self, key: &ModelKey, working_bytes: Option<u64>) -> Result<LockedModel, CacheError> {
        self.lock_in(key, working_bytes, &[], None)
    }

    /// Cancels every load of this cache that is under way, and those of locks that were begun and have not come to
    /// load yet. Such a lock fails with [`CacheError::Cancelled`] as after any failure: it is not counted, nothing that
    /// it loaded is left, and the memory it staged through is unpinned. Locks that need nothing loaded succeed, and so
    /// do those that begin later.
    ///
    /// This returns at once, whoever holds the cache; a load under way ends with the chunk that is being copied, and a
    /// lock that waits for room ends its wait.
    pub fn cancel_loads(&self) {
        self.inner.cancels.fetch_add(1, Ordering::Relaxed);
        self.bell().ring();
    }

    fn cancels(&self) -> u64 {
        self.inner.cancels.load(Ordering::Relaxed)
    }

    /// The figures of this cache's own device.
    fn figures(&self) -> Result<DeviceFigures, DriverError> {
        mutant!(
            "wrong_device_read",
            "the figures of an idle device are taken for this one's, and nothing is moved off",
            right: self.device().figures(),
            wrong: self.device().another().figures(),
        )
    }

    /// Tells the observers. One that fails, or panics, makes the device's open windows invalid.
    fn tell(&self, events: Vec<Event>) -> Result<(), HookError> {
        if events.is_empty() || !self.is_observed() {
            return Ok(());
        }
        let observers = self.inner.observers.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut outcome = Ok(());
        for event in &events {
            for observer in &observers {
                let told = crate::probe::guarded(|| observer.event(event));
                if let Err(error) = &told {
                    self.device().core().windows.fail_all(&error.0);
                }
                outcome = outcome.and(told);
            }
        }
        outcome
    }

    fn is_observed(&self) -> bool {
        self.inner.observed.load(Ordering::Acquire)
    }

    fn bell(&self) -> &Bell {
        &self.inner.bell
    }

    /// The state is whole at every point where a panic could leave it, so a poisoned lock is taken as it is.
    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
