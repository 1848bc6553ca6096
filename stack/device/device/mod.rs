//! One device of this process: its memory, its locks and its open windows, behind one cheap handle.

mod ledger;
mod memory;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headroom_base::{AllocatorKind, Backend, DeviceClass, DeviceFigures, Reading};

use crate::allocator::{AllocationError, Allocator, Counters, NotAllocated, Settings};
use crate::driver::{Driver, DriverError, SimulatedCard};
use crate::probe::{Hook, HookError, HookPoint, WindowStack};
use crate::readers::{DriverReader, ProcessReader, ReaderError};
pub(crate) use ledger::Ledger;
pub use memory::{AllocatorMemory, DeviceMemory, Holding, UploadPart, Uploaded};

/// Names one device for as long as the process lives: a UUID where the driver gives one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(Arc<str>);

impl DeviceId {
    /// The device of this name.
    pub fn new(name: impl AsRef<str>) -> Self {
        Self(Arc::from(name.as_ref()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Everything about the device that only one thread may touch at a time.
pub(crate) struct Core {
    pub(crate) memory: Box<dyn DeviceMemory>,
    pub(crate) reader: Box<dyn ProcessReader>,
    pub(crate) windows: WindowStack,
}

struct Shared {
    id: DeviceId,
    class: DeviceClass,
    reader_name: &'static str,
    reader_verified: bool,
    hook: Option<Arc<dyn Hook>>,
    ledger: Ledger,
    core: Mutex<Core>,
}

/// A handle to one device. Clones are the same device; no call reads a "current device".
#[derive(Clone)]
pub struct Device {
    shared: Arc<Shared>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("id", &self.shared.id).field("class", &self.shared.class).finish_non_exhaustive()
    }
}

/// What a device is made of.
pub struct DeviceParts {
    /// Its identity.
    pub id: DeviceId,
    /// Its class.
    pub class: DeviceClass,
    /// Its memory.
    pub memory: Box<dyn DeviceMemory>,
    /// Who tells what this process holds on it.
    pub reader: Box<dyn ProcessReader>,
    /// Called at named points of the cache and the probe, by tests.
    pub hook: Option<Arc<dyn Hook>>,
}

impl fmt::Debug for DeviceParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceParts").field("id", &self.id).field("class", &self.class).finish_non_exhaustive()
    }
}

impl DeviceParts {
    /// A device whose memory an allocator over `driver` manages and whose driver tells what this process holds.
    pub fn over_driver(
        id: DeviceId,
        class: DeviceClass,
        driver: impl Driver + 'static,
        settings: Settings,
        verified: bool,
    ) -> Self {
        let memory = Box::new(AllocatorMemory::new(Allocator::new(driver, settings)));
        Self { id, class, memory, reader: Box::new(DriverReader { verified }), hook: None }
    }

    /// A simulated card under an allocator of `settings`. Its class is named "simulated" and its own reader is
    /// believed, since simulated figures are exact.
    pub fn simulated(card: &SimulatedCard, settings: Settings) -> Self {
        let class = DeviceClass::new("simulated", card.settings().total_bytes, Backend::Cuda);
        Self::over_driver(DeviceId::new("simulated-0"), class, card.driver(), settings, true)
    }

    /// The same with this identity.
    #[must_use]
    pub fn named(self, name: impl AsRef<str>) -> Self {
        Self { id: DeviceId::new(name), ..self }
    }

    /// The same with `hook` called at every [`HookPoint`].
    #[must_use]
    pub fn with_hook(self, hook: Arc<dyn Hook>) -> Self {
        Self { hook: Some(hook), ..self }
    }

    /// The same with another reader.
    #[must_use]
    pub fn with_reader(self, reader: Box<dyn ProcessReader>) -> Self {
        Self { reader, ..self }
    }

    /// The device.
    pub fn build(self) -> Device {
        Device::new(self)
    }
}

impl Device {
    /// The device made of `parts`.
    pub fn new(parts: DeviceParts) -> Self {
        let shared = Shared {
            id: parts.id,
            class: parts.class,
            reader_name: parts.reader.name(),
            reader_verified: parts.reader.verified(),
            hook: parts.hook,
            ledger: Ledger::default(),
            core: Mutex::new(Core { memory: parts.memory, reader: parts.reader, windows: WindowStack::default() }),
        };
        let device = Self { shared: Arc::new(shared) };
        #[cfg(feature = "mutants")]
        made::remember(&device);
        device
    }

    /// Some other device of this process, where there is one: what a query that does not name its device may hit.
    #[cfg(feature = "mutants")]
    pub(crate) fn another(&self) -> Self {
        made::other_than(self).unwrap_or_else(|| self.clone())
    }

    /// A simulated card under an allocator of this kind with its default settings.
    pub fn simulated(card: &SimulatedCard, kind: AllocatorKind) -> Self {
        DeviceParts::simulated(card, Settings::of_kind(kind)).build()
    }

    /// Which device this is.
    pub fn id(&self) -> &DeviceId {
        &self.shared.id
    }

    /// Its class.
    pub fn class(&self) -> &DeviceClass {
        &self.shared.class
    }

    /// Whether a person saw this device's reader agree with the allocator on such hardware.
    pub fn reader_verified(&self) -> bool {
        self.shared.reader_verified
    }

    /// Who tells what this process holds on the device.
    pub fn reader_name(&self) -> &'static str {
        self.shared.reader_name
    }

    /// The figures of a budget, at this moment.
    ///
    /// # Errors
    /// When the driver cannot be asked.
    pub fn figures(&self) -> Result<DeviceFigures, DriverError> {
        self.core().memory.figures()
    }

    /// All counters of the device's allocator.
    ///
    /// # Errors
    /// When whoever counts cannot be asked.
    pub fn counters(&self) -> Result<Counters, DriverError> {
        self.core().memory.counters()
    }

    /// What the driver says this process holds on the device.
    ///
    /// # Errors
    /// When the reader failed, which is not the same as not knowing.
    pub fn process_bytes(&self) -> Result<Reading, ReaderError> {
        let Core { memory, reader, .. } = &mut *self.core();
        reader.read(memory.as_mut())
    }

    /// Hands out memory for `requested_bytes`: what an operation calls for its activations.
    ///
    /// # Errors
    /// As [`DeviceMemory::allocate`].
    pub fn allocate(&self, requested_bytes: u64) -> Result<Holding, AllocationError> {
        self.core().memory.allocate(requested_bytes)
    }

    /// Takes memory back.
    ///
    /// # Errors
    /// As [`DeviceMemory::free`].
    pub fn free(&self, holding: Holding) -> Result<(), NotAllocated> {
        self.core().memory.free(holding)
    }

    /// Gives reserved memory that nobody holds back to the driver. An open window starts a new stretch.
    ///
    /// # Errors
    /// As [`DeviceMemory::empty_cache`].
    pub fn empty_cache(&self) -> Result<(), AllocationError> {
        self.change(|memory| memory.empty_cache())
    }

    /// Lets `use_memory` have the device's memory for itself. Other threads wait, so it should be quick; it must not
    /// call this device, or a cache on it, again.
    pub fn with_memory<T>(&self, use_memory: impl FnOnce(&mut dyn DeviceMemory) -> T) -> T {
        use_memory(self.core().memory.as_mut())
    }

    /// Runs something that changes what is resident. Open windows end a stretch before it and start one after it, so
    /// that the change is not taken for working memory.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut dyn DeviceMemory) -> T) -> T {
        let mut core = self.core();
        if core.windows.is_empty() {
            return change(core.memory.as_mut());
        }
        core.change_under_windows(self.shared.hook.as_deref(), change)
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// Calls the hook, if there is one. A hook that panics has failed.
    pub(crate) fn hook(&self, point: HookPoint) -> Result<(), HookError> {
        crate::probe::call_hook(self.shared.hook.as_deref(), point)
    }

    /// The core is whole at every point where a panic could leave it, so a poisoned lock is taken as it is.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.shared.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The devices of this process, so that a mutant can read the wrong one.
#[cfg(feature = "mutants")]
mod made {
    use std::sync::{Arc, Mutex, PoisonError, Weak};

    use super::{Device, Shared};

    static MADE: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

    pub(super) fn remember(device: &Device) {
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|other| other.strong_count() > 0);
        made.push(Arc::downgrade(&device.shared));
    }

    pub(super) fn other_than(device: &Device) -> Option<Device> {
        let made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let newest_first = made.iter().rev().filter_map(Weak::upgrade);
        let mut others = newest_first.filter(|shared| !Arc::ptr_eq(shared, &device.shared));
        others.next().map(|shared| Device { shared })
    }
}
