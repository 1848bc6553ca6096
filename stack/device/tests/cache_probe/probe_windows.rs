//! What a window measures, and what makes it worthless.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::rig::{Once, Wishes, in_scope, key, only_window};
use headroom_base::{InvalidReason, MIB, Reading, Residency, Validity};
use headroom_device::probe::{Hook, HookError, HookPoint};
use headroom_device::{Cache, Device, LockedModel, Scope};

#[test]
fn a_window_measures_what_the_operation_took_beyond_weights() {
    let rig = Wishes::mib(24_000).rig();
    rig.add("vae", 300);
    rig.free_and_unreleased(5_000);
    let scope = in_scope(512, |_| {
        let locked = rig.lock("vae", 1_000);
        assert!(locked.is_measured());
        assert_eq!(locked.report().budget.working_bytes, 1_512 * MIB, "the allowance is asked for");
        let (a, b) = (rig.hold(700), rig.hold(400));
        rig.device.free(a).unwrap();
        rig.device.free(b).unwrap();
        drop(locked);
    });
    let recorded = &scope.recorded()[0];
    let measurement = &recorded.measurement;
    assert_eq!((measurement.estimate_bytes, measurement.demand_bytes), (1_000 * MIB, 1_100 * MIB));
    assert_eq!(measurement.deltas.allocated_peak_bytes, 1_100 * MIB);
    assert_eq!(measurement.deltas.reserved_peak_bytes, 1_100 * MIB);
    assert_eq!(measurement.deltas.driver_bytes, Reading::Bytes(1_100 * MIB));
    assert_eq!((measurement.residency, &measurement.validity), (Residency::Full, &Validity::Valid));
    assert_eq!((measurement.stretches, measurement.retries), (1, 0));
    assert!(recorded.reader_verified && recorded.model == key("vae"));
    rig.assert_empties();
}

#[test]
fn no_window_opens_outside_a_scope_or_for_a_lock_that_states_nothing() {
    let rig = Wishes::mib(4_000).rig();
    rig.add("m", 100);
    assert!(!rig.lock("m", 10).is_measured());
    let scope = in_scope(0, |_| assert!(!rig.cache.lock(&key("m"), None).unwrap().is_measured()));
    assert!(scope.recorded().is_empty());
}

#[test]
fn the_measured_lock_moves_all_others_off_whole_and_an_ordinary_one_does_not() {
    let rig = Wishes::mib(10_000).rig();
    rig.add("text", 3_000);
    rig.add("vae", 300);
    rig.load("text");
    drop(rig.lock("vae", 1_000));
    assert_eq!(rig.resident_mib("text"), 3_000);
    in_scope(0, |_| drop(rig.lock("vae", 1_000)));
    assert_eq!((rig.resident_mib("text"), rig.resident_mib("vae")), (0, 300));
}

#[test]
fn a_co_locked_models_weights_are_not_billed() {
    let rig = Wishes::mib(24_000).rig();
    rig.add("vae", 300);
    rig.add("other", 2_000);
    let scope = in_scope(0, |_| {
        let vae = rig.lock("vae", 1_000);
        let before = rig.hold(600);
        rig.device.free(before).unwrap();
        let other = rig.cache.lock(&key("other"), None).unwrap();
        let after = rig.hold(500);
        rig.device.free(after).unwrap();
        drop(vae);
        drop(other);
    });
    assert_eq!(only_window(&scope), (600, 2, Validity::Valid));
}

#[test]
fn a_model_that_leaves_during_a_window_hides_nothing() {
    let rig = Wishes::mib(24_000).rig();
    rig.add("vae", 300);
    rig.add("other", 2_000);
    let scope = in_scope(0, |_| {
        let other = rig.cache.lock(&key("other"), None).unwrap();
        let vae = rig.lock("vae", 1_000);
        drop(other);
        rig.cache.drop_model(&key("other")).unwrap();
        // `other` is pinned while the window is open, so it only leaves the device.
        rig.cache.offload_unlocked().unwrap();
        let held = rig.hold(900);
        rig.device.free(held).unwrap();
        drop(vae);
    });
    let (demand, _, validity) = only_window(&scope);
    assert_eq!((demand, validity), (900, Validity::Valid));
    assert!(rig.cache.model(&key("other")).is_none(), "it goes when the window closes");
}

#[test]
fn an_inner_window_is_billed_to_itself_and_the_outer_peak_before_it_is_kept() {
    for (before, inner, after) in [(700, 1_500, 200), (200, 1_500, 900), (300, 100, 200)] {
        let rig = Wishes::mib(24_000).rig();
        rig.add("outer", 300);
        rig.add("inner", 200);
        let scope = in_scope(0, |_| {
            let outer = rig.lock("outer", 1_000);
            let held = rig.hold(before);
            rig.device.free(held).unwrap();
            let locked = rig.lock("inner", 1_000);
            let held = rig.hold(inner);
            rig.device.free(held).unwrap();
            drop(locked);
            let held = rig.hold(after);
            rig.device.free(held).unwrap();
            drop(outer);
        });
        let demands: Vec<_> =
            scope.recorded().iter().map(|r| (r.model.to_string(), r.measurement.demand_bytes / MIB)).collect();
        assert_eq!(demands, [("inner".into(), inner), ("outer".into(), before.max(after))]);
        assert!(scope.recorded().iter().all(|r| r.measurement.validity.is_valid()));
    }
}

/// A hook that takes memory and gives it back when the second window is about to open.
#[derive(Default)]
struct Busy {
    device: OnceLock<Device>,
    openings: AtomicU64,
}

impl Hook for Busy {
    fn at(&self, point: HookPoint) -> Result<(), HookError> {
        if point == HookPoint::WindowOpening && self.openings.fetch_add(1, Ordering::SeqCst) == 1 {
            let device = self.device.get().unwrap();
            device.free(device.allocate(1_500 * MIB).unwrap()).unwrap();
        }
        Ok(())
    }
}

#[test]
fn what_the_outer_operation_takes_until_the_very_opening_of_an_inner_window_is_kept() {
    let busy = Arc::new(Busy::default());
    let rig = Wishes::mib(24_000).hook(busy.clone()).rig();
    busy.device.set(rig.device.clone()).unwrap();
    rig.add("outer", 300);
    rig.add("inner", 200);
    let scope = in_scope(0, |_| {
        let outer = rig.lock("outer", 1_000);
        drop(rig.lock("inner", 1_000));
        drop(outer);
    });
    let demands: Vec<_> = scope.recorded().iter().map(|r| r.measurement.demand_bytes / MIB).collect();
    assert_eq!(demands, [0, 1_500]);
}

#[test]
fn a_foreign_lock_makes_a_window_invalid_whenever_it_comes() {
    let rig = Wishes::mib(24_000).rig();
    rig.add("vae", 300);
    rig.add("other", 100);
    let held = rig.lock("other", 0);
    let at_open = in_scope(0, |_| drop(rig.lock("vae", 100)));
    drop(held);
    let during = in_scope(0, |_| {
        let vae = rig.lock("vae", 100);
        std::thread::scope(|threads| {
            threads.spawn(|| drop(rig.lock("other", 0)));
        });
        drop(vae);
    });
    let clean = in_scope(0, |_| drop(rig.lock("vae", 100)));
    assert_eq!(only_window(&at_open).2, Validity::Invalid(InvalidReason::ForeignLockAtOpen));
    assert_eq!(only_window(&during).2, Validity::Invalid(InvalidReason::ForeignLockDuring));
    assert_eq!(only_window(&clean).2, Validity::Valid);
}

#[test]
fn a_thread_that_enters_the_scope_works_for_it() {
    let rig = Wishes::mib(24_000).rig();
    rig.add("vae", 300);
    rig.add("other", 100);
    let scope = in_scope(0, |scope| {
        let vae = rig.lock("vae", 100);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let entered = scope.enter();
                drop(rig.cache.lock(&key("other"), None).unwrap());
                drop(entered);
            });
        });
        drop(vae);
    });
    assert_eq!(only_window(&scope).2, Validity::Valid);
}

#[test]
fn two_scopes_on_one_device_are_foreign_to_each_other() {
    let rig = Wishes::mib(24_000).rig();
    rig.add("a", 100);
    rig.add("b", 100);
    let (first, second) = (Scope::new(0), Scope::new(0));
    let entered = first.enter();
    let a = rig.lock("a", 100);
    drop(entered);
    let entered = second.enter();
    drop(rig.lock("b", 100));
    drop(entered);
    drop(a);
    assert_eq!(only_window(&first).2, Validity::Invalid(InvalidReason::ForeignLockDuring));
    assert_eq!(only_window(&second).2, Validity::Invalid(InvalidReason::ForeignLockAtOpen));
}

#[test]
fn a_lock_that_slips_in_while_a_window_registers_is_seen() {
    for still_held_at_the_end in [true, false] {
        let cache = Arc::new(OnceLock::<Cache>::new());
        let slot = Arc::clone(&cache);
        let slipped = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&slipped);
        let hook = Once::new(HookPoint::WindowRegistered, move || {
            let other = slot.get().cloned().unwrap();
            let locked = std::thread::spawn(move || other.lock(&key("other"), None).unwrap()).join().unwrap();
            *keep.lock().unwrap() = still_held_at_the_end.then_some(locked);
        });
        let rig = Wishes::mib(24_000).hook(Arc::new(hook)).rig();
        cache.set(rig.cache.clone()).unwrap();
        rig.add("vae", 300);
        rig.add("other", 100);
        let scope = in_scope(0, |_| drop(rig.lock("vae", 100)));
        drop(slipped.lock().unwrap().take());
        assert!(!only_window(&scope).2.is_valid(), "held at the end: {still_held_at_the_end}");
    }
}

#[test]
fn a_lock_that_ends_while_a_window_registers_is_seen() {
    let foreign = Arc::new(Mutex::new(None::<LockedModel>));
    let slot = Arc::clone(&foreign);
    let hook = Once::new(HookPoint::WindowRegistered, move || {
        // The baseline is taken; the foreign operation uses memory once more and ends before locks are counted.
        let locked = slot.lock().unwrap().take().unwrap();
        let held = locked.device().allocate(500 * MIB).unwrap();
        locked.device().free(held).unwrap();
        drop(locked);
    });
    let rig = Wishes::mib(24_000).hook(Arc::new(hook)).rig();
    rig.add("vae", 300);
    rig.add("other", 100);
    *foreign.lock().unwrap() = Some(rig.lock("other", 0));
    let scope = in_scope(0, |_| drop(rig.lock("vae", 100)));
    assert_eq!(only_window(&scope).2, Validity::Invalid(InvalidReason::ForeignLockAtOpen));
}

#[test]
fn a_window_of_a_partly_resident_model_is_kept_and_marked() {
    let rig = Wishes::mib(2_000).rig();
    rig.add("m", 1_900);
    let scope = in_scope(0, |_| drop(rig.lock("m", 500)));
    let measurement = scope.recorded()[0].measurement.clone();
    assert_eq!(measurement.residency, Residency::Partial { missing_bytes: 400 * MIB });
    assert_eq!(measurement.validity, Validity::Valid);
}

#[test]
fn a_retry_or_an_out_of_memory_makes_a_window_invalid() {
    let rig = Wishes::mib(2_000).rig();
    rig.add("m", 500);
    let retried = in_scope(0, |_| {
        let locked = rig.lock("m", 100);
        rig.free_and_unreleased(1_000);
        let held = rig.hold(1_200);
        rig.device.free(held).unwrap();
        drop(locked);
    });
    let failed = in_scope(0, |_| {
        let locked = rig.lock("m", 100);
        assert!(rig.device.allocate(1_800 * MIB).is_err());
        locked.operation_failed("no room");
        drop(locked);
    });
    assert_eq!(only_window(&retried).2, Validity::Invalid(InvalidReason::AllocatorRetry { retries: 1 }));
    assert_eq!(only_window(&failed).2, Validity::Invalid(InvalidReason::OutOfMemory));
}

#[test]
fn an_operation_that_fails_or_panics_makes_its_window_invalid() {
    let rig = Wishes::mib(2_000).rig();
    rig.add("m", 500);
    let failed = in_scope(0, |_| {
        let locked = rig.lock("m", 100);
        locked.operation_failed("the decoder was given nonsense");
        drop(locked);
    });
    let panicked = Scope::new(0);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _entered = panicked.enter();
        let _locked = rig.lock("m", 100);
        panic!("on purpose");
    }));
    assert!(outcome.is_err());
    let message = "the decoder was given nonsense".to_owned();
    assert_eq!(only_window(&failed).2, Validity::Invalid(InvalidReason::OperationFailed { message }));
    let message = "panicked".to_owned();
    assert_eq!(only_window(&panicked).2, Validity::Invalid(InvalidReason::OperationFailed { message }));
    rig.assert_empties();
}

#[test]
fn spill_that_persists_makes_a_window_invalid_and_spill_that_went_does_not_count_twice() {
    let mut wishes = Wishes::mib(2_000);
    wishes.card.spill_to_host = true;
    let rig = wishes.rig();
    rig.add("m", 500);
    let scope = in_scope(0, |_| {
        let locked = rig.lock("m", 100);
        let held = rig.hold(1_400);
        rig.card.set_others_bytes(400 * MIB);
        let more = rig.hold(100);
        drop(locked);
        rig.device.free(held).unwrap();
        rig.device.free(more).unwrap();
    });
    assert_eq!(only_window(&scope).2, Validity::Invalid(InvalidReason::Spill { bytes: 100 * MIB }));
}

#[test]
fn another_processs_growth_is_not_billed() {
    let rig = Wishes::mib(24_000).rig();
    rig.add("m", 500);
    let scope = in_scope(0, |_| {
        let locked = rig.lock("m", 100);
        let held = rig.hold(700);
        rig.card.set_others_bytes(9_000 * MIB);
        rig.device.free(held).unwrap();
        drop(locked);
    });
    assert_eq!(only_window(&scope), (700, 1, Validity::Valid));
}

#[test]
fn pins_are_released_once_on_every_path() {
    let rig = Wishes::mib(24_000).rig();
    rig.add("m", 500);
    rig.add("co", 100);
    in_scope(0, |_| {
        let co = rig.cache.lock(&key("co"), None).unwrap();
        let locked = rig.lock("m", 100);
        assert_eq!((rig.view("m").host_pins, rig.view("co").host_pins), (1, 1));
        let again = rig.cache.lock(&key("co"), None).unwrap();
        assert_eq!(rig.view("co").host_pins, 2);
        drop(locked);
        assert_eq!((rig.view("m").host_pins, rig.view("co").host_pins), (0, 0));
        drop((co, again));
    });
    rig.assert_empties();
}
