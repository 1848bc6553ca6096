//! Many threads at once: nothing is lost, nobody waits for ever, and a window never believes another job's memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use headroom_base::{AllocatorKind, MIB, Validity};
use headroom_device::cache::{Event, Observer};
use headroom_device::probe::HookError;
use headroom_device::{CacheError, LockedModel, ModelKey, Scope};

use crate::rig::{Rig, Wishes, key, model};

const THREADS: u64 = 8;
const OPERATIONS: u64 = 600;
const SEEDS: [u64; 6] = [1, 2, 3, 0x5eed, 0xdead_beef, u64::MAX];

/// SplitMix64: the same draws on every machine.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// Counts what happened, so that a test can say that everything did.
#[derive(Default)]
struct Tally {
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

impl Observer for Tally {
    fn event(&self, event: &Event) -> Result<(), HookError> {
        let name = match event {
            Event::Locked { .. } => "locked",
            Event::Loaded { .. } => "loaded",
            Event::Offloaded { .. } => "offloaded",
            Event::Pressure(_) => "pressure",
            Event::BeyondDevice(_) => "beyond",
            Event::WaitingForRoom { .. } => "waiting",
            Event::LockFailed { .. } => "failed",
            Event::Unlocked { .. } => "unlocked",
            Event::Evicted { .. } => "evicted",
        };
        *self.counts.lock().unwrap().entry(name).or_default() += 1;
        Ok(())
    }
}

fn model_key(index: u64) -> ModelKey {
    ModelKey::submodel("m", index.to_string())
}

fn add_models(rig: &Rig) {
    for index in 0..10 {
        let spec = model(&format!("m:{index}"), 150 + 170 * index);
        let spec = if index % 3 == 0 { spec.whole() } else { spec };
        rig.cache.add(spec).unwrap();
    }
}

/// One thread's share: locks of random models with random working memory, operations, scopes, drops and offloads.
fn work(rig: &Rig, seed: u64, scopes: &[Scope], errors: &AtomicU64) {
    let mut draws = Draws(seed);
    let mut held: Vec<LockedModel> = Vec::new();
    for _operation in 0..OPERATIONS {
        let entered = match draws.below(4) {
            0 => Some(scopes[draws.below(scopes.len() as u64) as usize].enter()),
            _ => None,
        };
        let wanted = model_key(draws.below(10));
        match draws.below(20) {
            0..=11 => {
                let working = (draws.below(3) > 0).then(|| draws.below(900) * MIB);
                match rig.cache.lock(&wanted, working) {
                    Ok(locked) => held.push(locked),
                    Err(CacheError::OutOfMemory { .. } | CacheError::UnknownModel { .. }) => {
                        errors.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            12..=15 => {
                if let Ok(memory) = rig.device.allocate(draws.below(300) * MIB + 1) {
                    rig.device.free(memory).unwrap();
                }
            }
            16 => drop(rig.cache.drop_model(&wanted)),
            17 => {
                rig.cache.offload_unlocked().unwrap();
            }
            18 => {
                let spec = model(&wanted.to_string(), 150 + 170 * draws.below(10));
                let _ = rig.cache.add(spec);
            }
            _ => rig.device.empty_cache().unwrap(),
        }
        while held.len() > 2 || (!held.is_empty() && draws.below(2) == 0) {
            drop(held.swap_remove(draws.below(held.len() as u64) as usize));
        }
        drop(entered);
    }
}

#[test]
fn eight_threads_and_thousands_of_operations_reconcile_to_the_byte() {
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (round, seed) in SEEDS.into_iter().enumerate() {
        let kind = AllocatorKind::ALL[round % 3];
        let rig = Wishes::mib(2_000).floor_mib(100).allocator(kind).wait(Duration::from_millis(2)).rig();
        let tally = Arc::new(Tally::default());
        rig.cache.observe(tally.clone());
        add_models(&rig);
        let scopes: Vec<_> = (0..3).map(|_| Scope::new(32 * MIB)).collect();
        let errors = AtomicU64::new(0);
        std::thread::scope(|threads| {
            for thread in 0..THREADS {
                let (rig, scopes, errors) = (&rig, &scopes, &errors);
                threads.spawn(move || work(rig, seed ^ (thread << 32), scopes, errors));
            }
        });
        rig.assert_empties();
        let counts = tally.counts.lock().unwrap().clone();
        assert_eq!(counts["locked"], counts["unlocked"], "seed {seed}");
        for (name, count) in counts {
            *seen.entry(name).or_default() += count;
        }
        let windows: Vec<_> = scopes.iter().flat_map(Scope::recorded).collect();
        *seen.entry("windows").or_default() += windows.len() as u64;
        let invalid = windows.iter().filter(|recorded| !recorded.measurement.validity.is_valid()).count();
        *seen.entry("invalid windows").or_default() += invalid as u64;
    }
    for name in
        ["locked", "loaded", "offloaded", "pressure", "failed", "waiting", "evicted", "windows", "invalid windows"]
    {
        assert!(seen.get(name).is_some_and(|count| *count > 0), "{name} never happened: {seen:?}");
    }
    assert!(seen["locked"] > 5_000, "{seen:?}");
}

/// Locks a model and uses memory under it, again and again; the first time it stays locked from one meeting to the next.
fn disturb(rig: &Rig, name: &str, seed: u64, stop: &AtomicBool, meet: &Barrier) {
    let mut draws = Draws(seed);
    let held = rig.lock(name, 0);
    meet.wait();
    meet.wait();
    drop(held);
    while !stop.load(Ordering::SeqCst) {
        let locked = rig.lock(name, 0);
        let memory = rig.hold(draws.below(500) + 1);
        rig.device.free(memory).unwrap();
        drop(locked);
        if draws.below(3) == 0 {
            // Long enough for a window to fit in between, now and then.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Windows of one scope on a device that other threads use all the time: none may be valid and wrong.
#[test]
fn a_valid_window_is_right_whatever_others_do_meanwhile() {
    for seed in SEEDS {
        let rig = Wishes::mib(40_000).wait(Duration::ZERO).rig();
        for name in ["measured", "a", "b"] {
            rig.add(name, 400);
        }
        let scope = Scope::new(0);
        let (stop, meet) = (AtomicBool::new(false), Barrier::new(3));
        let measure = |window: u64| {
            let locked = rig.lock("measured", 10);
            let memory = rig.hold(20 * (1 + window % 40));
            rig.device.free(memory).unwrap();
            drop(locked);
        };
        std::thread::scope(|threads| {
            for name in ["a", "b"] {
                let (rig, stop, meet) = (&rig, &stop, &meet);
                threads.spawn(move || disturb(rig, name, seed, stop, meet));
            }
            let entered = scope.enter();
            meet.wait();
            measure(0);
            meet.wait();
            (1..200).for_each(measure);
            drop(entered);
            stop.store(true, Ordering::SeqCst);
        });
        let entered = scope.enter();
        measure(200);
        drop(entered);
        let windows = scope.recorded();
        assert_eq!(windows.len(), 201);
        for (window, recorded) in (0..).zip(&windows) {
            if recorded.measurement.validity == Validity::Valid {
                assert_eq!(recorded.measurement.demand_bytes / MIB, 20 * (1 + window % 40), "seed {seed}");
            }
        }
        assert!(!windows[0].measurement.validity.is_valid() && windows[200].measurement.validity.is_valid());
        rig.assert_empties();
    }
}

#[test]
fn a_lock_waits_for_room_says_so_and_goes_on_when_it_comes() {
    let longest = Duration::from_secs(20);
    let rig = Wishes::mib(2_000).wait(longest).rig();
    let (said, hears) = channel();
    struct Says(Mutex<std::sync::mpsc::Sender<Event>>);
    impl Observer for Says {
        fn event(&self, event: &Event) -> Result<(), HookError> {
            if matches!(event, Event::WaitingForRoom { .. }) {
                self.0.lock().unwrap().send(event.clone()).unwrap();
            }
            Ok(())
        }
    }
    rig.cache.observe(Arc::new(Says(Mutex::new(said))));
    for name in ["used", "wanted"] {
        rig.cache.add(model(name, 1_500).whole()).unwrap();
    }
    let used = rig.lock("used", 0);
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| rig.lock("wanted", 0).report().clone());
        let event = hears.recv_timeout(longest).unwrap();
        assert!(matches!(event, Event::WaitingForRoom { needed_bytes, .. } if needed_bytes == 1_500 * MIB));
        assert_eq!(rig.view("wanted").locks, 1, "it is counted while it waits");
        drop(used);
        let report = waiting.join().unwrap();
        assert!(report.missing_bytes == 0 && report.waited > Duration::ZERO);
        assert!(report.waited < longest, "nobody told it of the room, and it looked again when its time was up");
    });
    rig.assert_empties();
}

#[test]
fn two_locks_that_would_wait_for_what_the_other_keeps_do_not() {
    for _round in 0..20 {
        let rig = Wishes::mib(2_000).wait(Duration::from_secs(60)).rig();
        for name in ["a", "b", "c", "d"] {
            rig.cache.add(model(name, 900).whole()).unwrap();
        }
        let started = Instant::now();
        let meet = Barrier::new(2);
        let outcomes: Vec<_> = std::thread::scope(|threads| {
            let threads: Vec<_> = [("a", "c"), ("b", "d")]
                .map(|(first, second)| {
                    let (rig, meet) = (&rig, &meet);
                    threads.spawn(move || {
                        let held = rig.lock(first, 0);
                        meet.wait();
                        let outcome = rig.cache.lock_beside(&key(second), Some(0), &[&held]).map(drop);
                        drop(held);
                        outcome
                    })
                })
                .into_iter()
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let failed: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
        assert_eq!(failed.len(), 1, "one gives way, the other goes on: {outcomes:?}");
        assert!(failed[0].is_out_of_memory());
        assert!(started.elapsed() < Duration::from_secs(30), "it was the time limit that ended it");
        rig.assert_empties();
    }
}

#[test]
fn a_lock_that_finds_only_what_its_caller_keeps_in_the_way_fails_at_once() {
    let rig = Wishes::mib(2_000).wait(Duration::from_secs(60)).rig();
    for name in ["a", "b"] {
        rig.cache.add(model(name, 1_500).whole()).unwrap();
    }
    let started = Instant::now();
    let held = rig.lock("a", 0);
    let error = rig.cache.lock_beside(&key("b"), Some(0), &[&held]).unwrap_err();
    assert!(error.is_out_of_memory() && started.elapsed() < Duration::from_secs(30), "{error}");
    drop(held);
    drop(rig.lock("b", 0));
    rig.assert_empties();
}

#[test]
fn a_wait_that_is_in_vain_ends_with_the_time_it_took() {
    let rig = Wishes::mib(2_000).wait(Duration::from_millis(30)).rig();
    for name in ["a", "b"] {
        rig.cache.add(model(name, 1_500).whole()).unwrap();
    }
    let held = rig.lock("a", 0);
    let outcome =
        std::thread::scope(|threads| threads.spawn(|| rig.cache.lock(&key("b"), Some(0)).map(drop)).join().unwrap());
    let Err(CacheError::OutOfMemory { waited, .. }) = outcome else { panic!("{outcome:?}") };
    assert!(waited >= Duration::from_millis(30), "{waited:?}");
    drop(held);
    rig.assert_empties();
}
