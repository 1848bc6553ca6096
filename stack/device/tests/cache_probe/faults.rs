//! The n-th call fails, for n = 1, 2, … until a run passes untouched: nothing leaks, and no window lies.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headroom_base::{AllocatorKind, InvalidReason, MIB, Reading, Validity};
use headroom_device::allocator::Settings;
use headroom_device::cache::{Event, Observer};
use headroom_device::driver::{Address, Driver, DriverCall, DriverError, Fault, MemoryInfo};
use headroom_device::probe::{Hook, HookError, HookPoint};
use headroom_device::{Cache, CacheError, CacheSettings, Device, DeviceId, DeviceParts, Scope, SimulatedCard};

use crate::rig::{key, model, obey};

/// Counts down to a failure; afterwards it fails again or never.
struct Countdown {
    left: AtomicU64,
    persistent: bool,
    fired: AtomicU64,
}

impl Countdown {
    fn new(at: u64, persistent: bool) -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(at), persistent, fired: AtomicU64::new(0) })
    }

    fn strikes(&self) -> bool {
        let before = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(1)));
        let strikes = match before {
            Ok(1) => true,
            Ok(0) => self.persistent && self.fired.load(Ordering::SeqCst) > 0,
            _ => false,
        };
        self.fired.fetch_add(u64::from(strikes), Ordering::SeqCst);
        strikes
    }

    fn disarm(&self) {
        self.left.store(u64::MAX, Ordering::SeqCst);
        self.fired.store(0, Ordering::SeqCst);
    }
}

/// A driver that runs out of memory at the n-th allocation, however much there is.
struct OutOfMemoryAt<D>(D, Arc<Countdown>);

impl<D: Driver> OutOfMemoryAt<D> {
    fn struck(&self, requested_bytes: u64) -> Result<(), DriverError> {
        let out = DriverError::OutOfMemory { requested_bytes, free_bytes: 0, total_bytes: 0 };
        if self.1.strikes() { Err(out) } else { Ok(()) }
    }
}

impl<D: Driver> Driver for OutOfMemoryAt<D> {
    fn memory(&mut self) -> Result<MemoryInfo, DriverError> {
        self.0.memory()
    }
    fn granularity_bytes(&self) -> u64 {
        self.0.granularity_bytes()
    }
    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError> {
        self.struck(bytes)?;
        self.0.allocate(bytes)
    }
    fn free(&mut self, address: Address) -> Result<(), DriverError> {
        self.0.free(address)
    }
    fn reserve(&mut self, bytes: u64) -> Result<Address, DriverError> {
        self.0.reserve(bytes)
    }
    fn release(&mut self, address: Address, bytes: u64) -> Result<(), DriverError> {
        self.0.release(address, bytes)
    }
    fn map(&mut self, address: Address, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        self.struck(bytes)?;
        self.0.map(address, bytes, page_bytes)
    }
    fn unmap(&mut self, address: Address, bytes: u64, page_bytes: u64) -> Result<(), DriverError> {
        self.0.unmap(address, bytes, page_bytes)
    }
    fn process_bytes(&mut self) -> Result<Reading, DriverError> {
        self.0.process_bytes()
    }
    fn spilled_bytes(&mut self) -> Result<Reading, DriverError> {
        self.0.spilled_bytes()
    }
}

/// A hook or an observer that fails, or panics, at the n-th call.
struct FailsAt {
    countdown: Arc<Countdown>,
    panics: bool,
}

impl FailsAt {
    fn struck(&self) -> Result<(), HookError> {
        if !self.countdown.strikes() {
            return Ok(());
        }
        if self.panics {
            std::panic::panic_any("planted panic");
        }
        Err(HookError("planted".to_owned()))
    }
}

impl Hook for FailsAt {
    fn at(&self, _point: HookPoint) -> Result<(), HookError> {
        self.struck()
    }
}

impl Observer for FailsAt {
    fn event(&self, _event: &Event) -> Result<(), HookError> {
        self.struck()
    }
}

/// What the operations of the story take, in MiB: the only demands that a valid window may show.
const OUTER: [u64; 2] = [700, 400];
const INNER: u64 = 900;

/// Runs an operation under a lock: allocate, free; the lock is told when it fails.
fn operate(cache: &Cache, locked: &headroom_device::LockedModel, mib: u64) {
    match cache.device().allocate(mib * MIB) {
        Ok(held) => cache.device().free(held).unwrap(),
        Err(error) => locked.operation_failed(error),
    }
}

/// Every operation of cache and probe: partial and whole models, a co-lock, nested windows, offloads, a drop in use.
/// Whatever fails, it goes on as a pipeline would, and leaves nothing locked.
fn story(cache: &Cache, scope: &Scope) -> Result<(), CacheError> {
    let mut first = Ok(());
    let mut note = |outcome: Result<(), CacheError>| {
        if first.is_ok() {
            first = outcome;
        }
    };
    note(cache.lock(&key("text"), None).map(drop));
    note(cache.lock(&key("unet"), Some(500 * MIB)).map(drop));
    let entered = scope.enter();
    match cache.lock(&key("unet"), Some(500 * MIB)) {
        Ok(unet) => {
            operate(cache, &unet, OUTER[0]);
            match cache.lock(&key("text"), None) {
                Ok(text) => {
                    operate(cache, &unet, OUTER[1]);
                    note(cache.drop_model(&key("text")).map(drop));
                    drop(text);
                }
                Err(error) => note(Err(error)),
            }
            match cache.lock(&key("vae"), Some(100 * MIB)) {
                Ok(vae) => {
                    operate(cache, &vae, INNER);
                    drop(vae);
                }
                Err(error) => note(Err(error)),
            }
            drop(unet);
        }
        Err(error) => note(Err(error)),
    }
    drop(entered);
    note(cache.lock(&key("whole"), None).map(drop));
    note(cache.offload_unlocked().map(drop));
    first
}

fn cache_of(device: Device) -> Cache {
    obey();
    let cache = Cache::new(device, CacheSettings { floor_bytes: 0, ..CacheSettings::default() });
    for spec in [model("text", 1_000), model("unet", 3_000), model("vae", 300), model("whole", 4_000).whole()] {
        cache.add(spec).unwrap();
    }
    cache
}

/// The story is over and nothing is planted any more: everything is as it should be.
fn assert_whole(cache: &Cache, scope: &Scope, card: &SimulatedCard, told: &str) {
    for model in cache.models() {
        assert_eq!((model.locks, model.host_pins), (0, 0), "{told}: {}", model.key);
    }
    cache.reconcile(0).unwrap().unwrap_or_else(|difference| panic!("{told}: {difference}"));
    for recorded in scope.recorded() {
        let measurement = &recorded.measurement;
        let right = match recorded.model.model_name() {
            "unet" => OUTER[0],
            _ => INNER,
        };
        match &measurement.validity {
            Validity::Valid => assert_eq!(measurement.demand_bytes, right * MIB, "{told}: {}", recorded.model),
            Validity::Invalid(reason) => assert!(is_planted(reason), "{told}: {}: {reason}", recorded.model),
        }
    }
    // The next job finds a cache that works.
    cache.offload_unlocked().unwrap();
    let locked = cache.lock(&key("unet"), Some(500 * MIB)).unwrap_or_else(|error| panic!("{told}: {error}"));
    assert_eq!(locked.report().missing_bytes, 0, "{told}");
    drop(locked);
    cache.offload_unlocked().unwrap();
    cache.device().empty_cache().unwrap();
    cache.reconcile(0).unwrap().unwrap_or_else(|difference| panic!("{told}: {difference}"));
    assert_eq!(card.held_bytes(), 0, "{told}: device memory leaked");
}

/// Whether the reason is one that a planted failure explains.
fn is_planted(reason: &InvalidReason) -> bool {
    match reason {
        InvalidReason::OutOfMemory | InvalidReason::AllocatorRetry { .. } => true,
        InvalidReason::OperationFailed { message } => message.contains("planted failure"),
        InvalidReason::ProbeFailed { message } => message.contains("planted"),
        _ => false,
    }
}

/// Runs the story with a failure planted at n = 1, 2, …; `plant` returns how to tell whether it struck, and how to
/// disarm it. Returns how many failures struck.
fn loop_over(persistent: bool, mut run: impl FnMut(u64) -> bool) -> u64 {
    let mut at = 1;
    while run(at) {
        at += 1;
        assert!(at < 20_000, "the story never ends");
    }
    assert!(at > 10, "only {at} points struck (persistent: {persistent})");
    at - 1
}

const KINDS: [AllocatorKind; 2] = [AllocatorKind::Native, AllocatorKind::ExpandableSegments];

#[test]
fn the_untouched_story_measures_exactly_what_it_took() {
    for kind in AllocatorKind::ALL {
        let card = SimulatedCard::with_gib(5);
        let cache = cache_of(Device::simulated(&card, kind));
        let scope = Scope::new(0);
        story(&cache, &scope).unwrap();
        let demands: Vec<_> = scope
            .recorded()
            .iter()
            .map(|r| {
                (r.model.to_string(), r.measurement.deltas.allocated_peak_bytes / MIB, r.measurement.validity.clone())
            })
            .collect();
        let expected = [("vae".to_owned(), INNER, Validity::Valid), ("unet".to_owned(), OUTER[0], Validity::Valid)];
        assert_eq!(demands, expected, "{kind}");
        assert!(cache.model(&key("text")).is_none(), "it was dropped while in use, and goes when the window closes");
    }
}

#[test]
fn any_driver_call_may_fail_once_or_for_ever() {
    for kind in KINDS {
        for persistent in [false, true] {
            let mut errors = 0;
            let struck = loop_over(persistent, |at| {
                let card = SimulatedCard::with_gib(5);
                let (cache, scope) = (cache_of(Device::simulated(&card, kind)), Scope::new(0));
                let before = card.total_calls();
                card.plant_fault(Fault { call: None, at, persistent });
                errors += u64::from(story(&cache, &scope).is_err());
                let strikes = card.total_calls() - before >= at;
                card.clear_faults();
                assert_whole(&cache, &scope, &card, &format!("{kind}, call {at} fails (persistent: {persistent})"));
                strikes
            });
            assert!(struck > 100 && errors > 20, "{kind}: {struck} struck, {errors} told");
        }
    }
}

#[test]
fn any_kind_of_driver_call_may_fail_for_ever_from_its_nth_on() {
    for call in
        [DriverCall::Memory, DriverCall::Allocate, DriverCall::Free, DriverCall::ProcessBytes, DriverCall::SpilledBytes]
    {
        let mut at = 1;
        loop {
            let card = SimulatedCard::with_gib(5);
            let (cache, scope) = (cache_of(Device::simulated(&card, AllocatorKind::Native)), Scope::new(0));
            let before = card.calls(call);
            card.plant_fault(Fault { call: Some(call), at, persistent: true });
            let _ = story(&cache, &scope);
            let struck = card.calls(call) - before >= at;
            card.clear_faults();
            assert_whole(&cache, &scope, &card, &format!("{call}: from {at} on"));
            if !struck {
                break;
            }
            at += 1;
        }
        assert!(at > 2, "{call} is never called");
    }
}

#[test]
fn any_allocation_may_run_out_of_memory_once_or_for_ever() {
    for kind in KINDS {
        for persistent in [false, true] {
            loop_over(persistent, |at| {
                let card = SimulatedCard::with_gib(5);
                let countdown = Countdown::new(u64::MAX, persistent);
                let driver = OutOfMemoryAt(card.driver(), Arc::clone(&countdown));
                let class = headroom_base::DeviceClass::new("simulated", 5 << 30, headroom_base::Backend::Cuda);
                let id = DeviceId::new("faulty");
                let parts = DeviceParts::over_driver(id, class, driver, Settings::of_kind(kind), true);
                let (cache, scope) = (cache_of(parts.build()), Scope::new(0));
                countdown.left.store(at, Ordering::SeqCst);
                let outcome = story(&cache, &scope);
                let struck = countdown.fired.load(Ordering::SeqCst) > 0;
                countdown.disarm();
                let told = format!("{kind}, allocation {at} runs out (persistent: {persistent})");
                if let Err(error) = outcome {
                    assert!(error.is_out_of_memory(), "{told}: another kind of error: {error}");
                }
                assert_whole(&cache, &scope, &card, &told);
                struck
            });
        }
    }
}

#[test]
fn any_hook_or_observer_may_fail_or_panic() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() != Some(&"planted panic") {
            quiet(info);
        }
    }));
    for (persistent, panics) in [(false, false), (true, false), (false, true), (true, true)] {
        for observer in [false, true] {
            loop_over(persistent, |at| {
                let card = SimulatedCard::with_gib(5);
                let countdown = Countdown::new(at, persistent);
                let fails = Arc::new(FailsAt { countdown: Arc::clone(&countdown), panics });
                let parts = DeviceParts::simulated(&card, Settings::default());
                let device = if observer { parts.build() } else { parts.with_hook(fails.clone()).build() };
                let (cache, scope) = (cache_of(device), Scope::new(0));
                if observer {
                    cache.observe(fails);
                }
                let outcome = catch_unwind(AssertUnwindSafe(|| story(&cache, &scope)));
                let struck = countdown.fired.load(Ordering::SeqCst) > 0;
                countdown.disarm();
                let told =
                    format!("call {at} fails (observer: {observer}, panics: {panics}, persistent: {persistent})");
                let outcome = outcome.unwrap_or_else(|_| panic!("{told}: the panic came through"));
                assert!(!observer || outcome.is_ok(), "{told}: an observer's failure is not the lock's");
                assert_whole(&cache, &scope, &card, &told);
                struck
            });
        }
    }
}
