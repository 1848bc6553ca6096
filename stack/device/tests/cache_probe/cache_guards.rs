//! Guards that change hands, and locks that wait for them: whoever holds one, it is waited for, and never beyond a limit.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headroom_base::MIB;
use headroom_device::probe::HookPoint;
use headroom_device::{Cache, CacheError, LockedModel, ModelSpec, PieceSpec};

use crate::rig::{Once, Rig, Wishes, hears_waits, key, model};

/// Far beyond what anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Enough to be announced, and over at once.
const SHORT: Duration = Duration::from_millis(1);

/// Two models of which the card holds one.
fn two_models(wait: Duration) -> Rig {
    let rig = Wishes::mib(2_000).wait(wait).rig();
    for name in ["a", "b"] {
        rig.cache.add(model(name, 1_500).whole()).unwrap();
    }
    rig
}

#[test]
fn a_guard_that_was_handed_to_another_thread_is_waited_for() {
    let rig = two_models(LONG);
    let waits = hears_waits(&rig.cache);
    let handed = rig.lock("a", 0);
    let worker = std::thread::spawn(move || {
        let waited_for = waits.recv_timeout(LONG).is_ok();
        drop(handed);
        waited_for
    });
    let outcome = rig.cache.lock(&key("b"), Some(0)).map(drop);
    assert!(outcome.is_ok(), "the worker was about to let go: {outcome:?}");
    assert!(worker.join().unwrap());
    rig.assert_empties();
}

#[test]
fn a_wait_for_oneself_is_bounded_and_its_error_says_what_is_in_use() {
    let rig = two_models(SHORT);
    let held = std::thread::scope(|threads| threads.spawn(|| rig.lock("a", 0)).join().unwrap());
    let error = rig.cache.lock(&key("b"), Some(0)).unwrap_err();
    assert!(error.to_string().contains("in use: a 1,500 MiB"), "{error}");
    let CacheError::OutOfMemory { waited, in_use, .. } = error else { panic!("{error}") };
    assert!(waited >= SHORT && in_use.len() == 1, "{waited:?}, {in_use:?}");
    drop(held);
    rig.assert_empties();
}

#[test]
fn what_the_caller_says_it_keeps_is_not_waited_for_and_what_others_hold_is() {
    let rig = Wishes::mib(2_000).wait(LONG).rig();
    for (name, mib) in [("kept", 700), ("other", 700), ("wanted", 1_200)] {
        rig.cache.add(model(name, mib).whole()).unwrap();
    }
    let waits = hears_waits(&rig.cache);
    let kept = rig.lock("kept", 0);
    let lock = |held: &[&LockedModel]| rig.cache.lock_beside(&key("wanted"), Some(0), held).map(drop);
    let other = rig.lock("other", 0);
    let (kept_alone, beside_other) = std::thread::scope(|threads| {
        let both = lock(&[&kept, &other]);
        assert!(both.unwrap_err().is_out_of_memory() && waits.try_recv().is_err(), "it waited for itself");
        let waiting = threads.spawn(|| lock(&[&kept]));
        let waited = waits.recv_timeout(LONG).is_ok();
        drop(other);
        (waiting.join().unwrap(), waited)
    });
    assert!(kept_alone.is_ok() && beside_other, "{kept_alone:?}");
    drop(kept);
    rig.assert_empties();
}

#[test]
fn a_guard_of_another_cache_says_nothing_of_this_one() {
    let (rig, elsewhere) = (two_models(LONG), two_models(LONG));
    let waits = hears_waits(&rig.cache);
    let (held, foreign) = (rig.lock("a", 0), elsewhere.lock("a", 0));
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| rig.cache.lock_beside(&key("b"), Some(0), &[&foreign]).map(drop));
        let waited = waits.recv_timeout(LONG);
        drop(held);
        waiting.join().unwrap().unwrap();
        waited.expect("the first lock of each has the same place, and is not the same lock");
    });
}

#[test]
fn pieces_whose_segments_have_no_room_are_waited_for_as_well() {
    let rig = Wishes::mib(1_000).wait(LONG).rig();
    rig.cache.add(model("a", 400).whole()).unwrap();
    // 560 MiB in segments of 20 MiB for every two pieces: 800 MiB.
    let pieces = (0..80).map(|index| PieceSpec::required(index.to_string(), 7 * MIB));
    rig.cache.add(ModelSpec::synthetic("b", pieces)).unwrap();
    let waits = hears_waits(&rig.cache);
    let held = rig.lock("a", 0);
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| rig.cache.lock(&key("b"), Some(0)).map(drop));
        let waited = waits.recv_timeout(LONG);
        drop(held);
        waiting.join().unwrap().expect("there was room when the other one ended");
        waited.unwrap();
    });
    rig.assert_empties();
}

#[test]
fn a_lock_that_waits_for_room_ends_when_loads_are_cancelled() {
    let rig = two_models(Duration::MAX);
    let waits = hears_waits(&rig.cache);
    let held = rig.lock("a", 0);
    let (ended, ends) = channel();
    let outcome = std::thread::scope(|threads| {
        threads.spawn(|| ended.send(rig.cache.lock(&key("b"), Some(0)).map(drop)).unwrap());
        waits.recv_timeout(LONG).unwrap();
        rig.cache.cancel_loads();
        let outcome = ends.recv_timeout(LONG);
        drop(held);
        outcome
    });
    let outcome = outcome.expect("it waited until there was room");
    assert!(matches!(outcome, Err(CacheError::Cancelled { .. })), "{outcome:?}");
    assert_eq!(rig.view("b").locks, 0);
    drop(rig.lock("b", 0));
    rig.assert_empties();
}

#[test]
fn a_load_without_contents_is_cancelled_after_it_was_allocated_too() {
    let cache: Arc<Mutex<Option<Cache>>> = Arc::default();
    let cancels = Arc::clone(&cache);
    let cancel = move || cancels.lock().unwrap().as_ref().unwrap().cancel_loads();
    let rig = Wishes::mib(2_000).hook(Arc::new(Once::new(HookPoint::Uploading, cancel))).rig();
    rig.add("m", 500);
    *cache.lock().unwrap() = Some(rig.cache.clone());
    let outcome = rig.cache.lock(&key("m"), Some(0)).map(drop);
    assert!(matches!(outcome, Err(CacheError::Cancelled { .. })), "{outcome:?}");
    assert_eq!((rig.view("m").resident_bytes, rig.view("m").locks), (0, 0));
    drop(rig.lock("m", 0));
    rig.assert_empties();
}
