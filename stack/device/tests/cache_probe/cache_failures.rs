//! Locks that fail half-way: the model that was to be locked is in host memory, whole, unless somebody else runs with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headroom_base::{AllocatorKind, MIB};
use headroom_device::driver::{DriverCall, Fault};
use headroom_device::probe::{Hook, HookError, HookPoint};
use headroom_device::{CacheError, ModelSpec, PieceSpec};

use crate::rig::{Rig, Wishes, key};

/// Fails at one point while it is told to.
struct Fails {
    at: HookPoint,
    now: AtomicBool,
}

impl Hook for Fails {
    fn at(&self, point: HookPoint) -> Result<(), HookError> {
        if point == self.at && self.now.load(Ordering::SeqCst) {
            return Err(HookError("planted".to_owned()));
        }
        Ok(())
    }
}

/// A model that is in part on the device and would be whole there if another one made room.
fn partly_resident(kind: AllocatorKind, hook: Arc<Fails>) -> Rig {
    let rig = Wishes::mib(2_000).allocator(kind).hook(hook).rig();
    rig.add("other", 800);
    let other = rig.lock("other", 0);
    rig.add("m", 1_400);
    rig.load("m");
    drop(other);
    assert_eq!(rig.resident_mib("m"), 1_200);
    rig
}

#[test]
fn a_lock_that_fails_before_it_loads_leaves_no_part_of_its_model_on_the_device() {
    for kind in [AllocatorKind::Native, AllocatorKind::ExpandableSegments] {
        for at in [HookPoint::Offloading, HookPoint::Loading] {
            let hook = Arc::new(Fails { at, now: AtomicBool::new(false) });
            let rig = partly_resident(kind, hook.clone());
            hook.now.store(true, Ordering::SeqCst);
            assert!(matches!(rig.cache.lock(&key("m"), Some(0)), Err(CacheError::Hook { .. })));
            assert_eq!((rig.resident_mib("m"), rig.view("m").locks), (0, 0), "{kind}, {at:?}");
            hook.now.store(false, Ordering::SeqCst);
            assert_eq!(rig.lock("m", 0).report().missing_bytes, 0);
            rig.assert_empties();
        }
        let rig = partly_resident(kind, Arc::new(Fails { at: HookPoint::Loading, now: AtomicBool::new(false) }));
        rig.card.plant_fault(Fault { call: Some(DriverCall::Memory), at: 1, persistent: false });
        assert!(matches!(rig.cache.lock(&key("m"), Some(0)), Err(CacheError::Driver { .. })));
        assert_eq!((rig.resident_mib("m"), rig.view("m").locks), (0, 0), "{kind}");
        rig.assert_empties();
    }
}

#[test]
fn a_lock_that_fails_after_it_loaded_leaves_another_lock_what_that_one_loaded() {
    // Two pieces of 7 MiB share a segment of 20: once the second lock has loaded, its working memory is short.
    let hook = Arc::new(Fails { at: HookPoint::Offloading, now: AtomicBool::new(false) });
    let rig = Wishes::mib(1_000).hook(hook.clone()).rig();
    let pieces = [PieceSpec::required("first", 100 * MIB)];
    let more = (0..40).map(|index| PieceSpec::new(index.to_string(), 7 * MIB));
    rig.cache.add(ModelSpec::synthetic("m", pieces.into_iter().chain(more))).unwrap();
    let first = rig.lock("m", 900);
    assert_eq!(rig.resident_mib("m"), 100);
    rig.add("idle", 100);
    rig.load("idle");
    hook.now.store(true, Ordering::SeqCst);
    assert!(matches!(rig.cache.lock(&key("m"), Some(500 * MIB)), Err(CacheError::Hook { .. })));
    assert_eq!((rig.resident_mib("m"), rig.view("m").locks), (100, 1));
    hook.now.store(false, Ordering::SeqCst);
    drop(first);
    rig.assert_empties();
}

#[test]
fn a_resident_model_that_is_short_by_less_than_the_tolerance_stays_where_it_is() {
    for (short_bytes, stays) in [(MIB / 2, true), (MIB, true), (MIB + 1, false)] {
        let rig = Wishes::mib(1_000).rig();
        rig.add("m", 500);
        let working = 500 * MIB + short_bytes;
        for _step in 0..3 {
            let locked = rig.cache.lock(&key("m"), Some(working)).unwrap();
            let report = locked.report();
            assert_eq!((report.missing_bytes == 0, report.moves.is_empty()), (stays, true), "{short_bytes}");
            assert!(!stays || report.pressure.is_none(), "{short_bytes}: it counts as fitting");
        }
    }
}

#[test]
fn what_could_not_be_given_back_is_no_request() {
    let rig = Wishes::mib(1_000).rig();
    rig.add("m", 800);
    rig.free_and_unreleased(600);
    rig.card.plant_fault(Fault { call: Some(DriverCall::Free), at: 1, persistent: false });
    let error = rig.cache.lock(&key("m"), Some(0)).unwrap_err();
    assert!(matches!(error, CacheError::Allocator { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("giving memory back") && !text.contains("requested"), "{text}");
}
