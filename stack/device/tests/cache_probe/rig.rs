//! A simulated card with a device and a cache on it, for the tests of both.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headroom_base::{AllocatorKind, Cap, MIB, Validity};
use headroom_device::allocator::Settings;
use headroom_device::cache::{Event, ModelView, Observer};
use headroom_device::driver::CardSettings;
use headroom_device::probe::{Hook, HookError, HookPoint};
use headroom_device::{
    Cache, CacheSettings, Device, DeviceParts, Holding, LockedModel, ModelKey, ModelSpec, Scope, SimulatedCard,
};
use tracing::field::{Field, Visit};
use tracing::span;

/// A card with one device and one cache on it.
pub(crate) struct Rig {
    pub(crate) card: SimulatedCard,
    pub(crate) device: Device,
    pub(crate) cache: Cache,
}

/// How a rig differs from the plain one.
pub(crate) struct Wishes {
    pub(crate) card: CardSettings,
    pub(crate) allocator: AllocatorKind,
    pub(crate) floor_mib: u64,
    pub(crate) cap: Cap,
    pub(crate) wait: Duration,
    pub(crate) hook: Option<Arc<dyn Hook>>,
}

impl Wishes {
    /// A card of `mib` MiB under the native allocator; nothing is kept free unless a lock asks.
    pub(crate) fn mib(mib: u64) -> Self {
        let card = CardSettings::new(mib * MIB);
        let (allocator, cap) = (AllocatorKind::Native, Cap::Unlimited);
        Self { card, allocator, floor_mib: 0, cap, wait: Duration::ZERO, hook: None }
    }

    pub(crate) fn context_mib(mut self, mib: u64) -> Self {
        self.card.context_bytes = mib * MIB;
        self
    }

    pub(crate) fn others_mib(mut self, mib: u64) -> Self {
        self.card.others_bytes = mib * MIB;
        self
    }

    pub(crate) fn floor_mib(self, floor_mib: u64) -> Self {
        Self { floor_mib, ..self }
    }

    pub(crate) fn allocator(self, allocator: AllocatorKind) -> Self {
        Self { allocator, ..self }
    }

    pub(crate) fn cap_mib(self, mib: u64) -> Self {
        Self { cap: Cap::Bytes(mib * MIB), ..self }
    }

    pub(crate) fn wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    pub(crate) fn hook(self, hook: Arc<dyn Hook>) -> Self {
        Self { hook: Some(hook), ..self }
    }

    pub(crate) fn rig(self) -> Rig {
        let floor_bytes = self.floor_mib * MIB;
        self.rig_with_floor(floor_bytes)
    }

    /// The rig with a floor that need not be whole MiB.
    pub(crate) fn rig_with_floor(self, floor_bytes: u64) -> Rig {
        obey();
        let card = SimulatedCard::new(self.card);
        let parts = DeviceParts::simulated(&card, Settings::of_kind(self.allocator));
        let device = DeviceParts { hook: self.hook, ..parts }.build();
        let settings = CacheSettings { floor_bytes, cap: self.cap, wait_for_room: self.wait };
        let cache = Cache::new(device.clone(), settings);
        Rig { card, device, cache }
    }
}

/// Listens to the log. Under the feature `mutants`, the variable `HEADROOM_MUTANT` names the wrong decision that these
/// tests must notice.
pub(crate) fn obey() {
    listen();
    #[cfg(feature = "mutants")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            if let Ok(name) = std::env::var("HEADROOM_MUTANT") {
                assert!(headroom_base::mutants::choose(&name), "no mutant is named {name}");
            }
        });
    }
}

impl Rig {
    /// Adds a model of `mib` MiB in pieces of 20 MiB (the last may be smaller).
    pub(crate) fn add(&self, key: &str, mib: u64) {
        self.cache.add(model(key, mib)).unwrap();
    }

    /// Locks with a stated working memory.
    pub(crate) fn lock(&self, key: &str, working_mib: u64) -> LockedModel {
        self.cache.lock(&key.into(), Some(working_mib * MIB)).unwrap()
    }

    /// Loads a model as far as it fits, and leaves it unlocked.
    pub(crate) fn load(&self, key: &str) {
        drop(self.cache.lock(&key.into(), Some(0)).unwrap());
    }

    pub(crate) fn view(&self, key: &str) -> ModelView {
        self.cache.model(&key.into()).unwrap()
    }

    pub(crate) fn resident_mib(&self, key: &str) -> u64 {
        self.view(key).resident_bytes / MIB
    }

    /// Memory that belongs to no model.
    pub(crate) fn hold(&self, mib: u64) -> Holding {
        self.device.allocate(mib * MIB).unwrap()
    }

    /// Memory that is handed out and taken back: it stays in the reserve.
    pub(crate) fn free_and_unreleased(&self, mib: u64) {
        let held = self.hold(mib);
        self.device.free(held).unwrap();
    }

    /// Everything is where the counters say, and `others_mib` belong to no model.
    pub(crate) fn assert_reconciled(&self, others_mib: u64) {
        self.cache.reconcile(others_mib * MIB).unwrap().unwrap();
    }

    /// Nothing of any model is left, and the card is as empty as at the start.
    pub(crate) fn assert_empties(&self) {
        self.cache.offload_unlocked().unwrap();
        self.device.empty_cache().unwrap();
        self.assert_reconciled(0);
        assert_eq!(self.card.held_bytes(), 0, "the driver still counts memory as held");
        for model in self.cache.models() {
            assert_eq!((model.locks, model.resident_bytes, model.host_pins), (0, 0, 0), "{}", model.key);
        }
    }
}

/// A model of `mib` MiB in pieces of 20 MiB.
pub(crate) fn model(key: &str, mib: u64) -> ModelSpec {
    let sizes = (0..mib.div_ceil(20)).map(|index| 20.min(mib - index * 20) * MIB);
    let pieces = sizes.enumerate().map(|(index, bytes)| headroom_device::PieceSpec::new(format!("{index}"), bytes));
    ModelSpec::synthetic(key, pieces)
}

/// Runs `work` in a scope of this thread and returns the scope.
pub(crate) fn in_scope(allowance_mib: u64, work: impl FnOnce(&Scope)) -> Scope {
    let scope = Scope::new(allowance_mib * MIB);
    let entered = scope.enter();
    work(&scope);
    drop(entered);
    scope
}

/// The one window a scope closed: its demand in MiB, stretches and validity.
pub(crate) fn only_window(scope: &Scope) -> (u64, u32, Validity) {
    let recorded = scope.recorded();
    assert_eq!(recorded.len(), 1, "{recorded:?}");
    let measurement = recorded[0].measurement.clone();
    (measurement.demand_bytes / MIB, measurement.stretches, measurement.validity)
}

thread_local! {
    /// What this thread wrote to the log at WARN level, while somebody wants to know.
    static WARNED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// What `work` wrote to the log at WARN level, line by line.
pub(crate) fn warnings(work: impl FnOnce()) -> Vec<String> {
    listen();
    WARNED.set(Some(Vec::new()));
    work();
    WARNED.take().unwrap_or_default()
}

/// One listener for all threads, there before anything is said: a place in the code that speaks while a listener comes or
/// goes may be taken for one that nobody hears.
fn listen() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Warnings).unwrap());
}

struct Warnings;

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}
    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        WARNED.with_borrow_mut(|warned| warned.as_mut().map(|lines| lines.push(message.0)));
    }
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}

/// Remembers every event.
#[derive(Default)]
pub(crate) struct Watcher {
    events: Mutex<Vec<Event>>,
}

impl Watcher {
    pub(crate) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().unwrap())
    }
}

impl Observer for Watcher {
    fn event(&self, event: &Event) -> Result<(), HookError> {
        self.events.lock().unwrap().push(event.clone());
        Ok(())
    }
}

/// A hook that runs `action` the first time it is called at `point`.
pub(crate) struct Once<F: FnOnce() + Send> {
    point: HookPoint,
    action: Mutex<Option<F>>,
}

impl<F: FnOnce() + Send> Once<F> {
    pub(crate) fn new(point: HookPoint, action: F) -> Self {
        Self { point, action: Mutex::new(Some(action)) }
    }
}

impl<F: FnOnce() + Send> Hook for Once<F> {
    fn at(&self, point: HookPoint) -> Result<(), HookError> {
        let action = if point == self.point { self.action.lock().unwrap().take() } else { None };
        if let Some(action) = action {
            action();
        }
        Ok(())
    }
}

/// A key.
pub(crate) fn key(text: &str) -> ModelKey {
    text.into()
}

/// Tells when a lock begins to wait.
struct SaysThatItWaits(Mutex<Sender<()>>);

impl Observer for SaysThatItWaits {
    fn event(&self, event: &Event) -> Result<(), HookError> {
        if matches!(event, Event::WaitingForRoom { .. }) {
            self.0.lock().unwrap().send(()).unwrap();
        }
        Ok(())
    }
}

/// Says on a channel whenever a lock of this cache begins to wait.
pub(crate) fn hears_waits(cache: &Cache) -> Receiver<()> {
    let (said, hears) = channel();
    cache.observe(Arc::new(SaysThatItWaits(Mutex::new(said))));
    hears
}
