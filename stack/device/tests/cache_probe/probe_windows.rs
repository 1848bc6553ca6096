//! What a window measures, and what makes it worthless.

use std::sync::{Arc, Mutex, OnceLock};

use crate::rig::{Once, Wishes, in_scope, key, only_window};
use headroom_base::{InvalidReason, MIB, Reading, Residency, Validity};
use headroom_device::probe::HookPoint;
use headroom_device::{Cache, LockedModel, Scope};

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

#[test]
fn a_perturbed_card_changes_what_is_measured_and_never_what_is_believed() {
    for seed in 0..20 {
        let mut wishes = Wishes::mib(24_000);
        wishes.card.perturbation = Some(headroom_device::driver::Perturbation::seeded(seed));
        let rig = wishes.rig();
        rig.add("vae", 300);
        let scope = in_scope(0, |_| {
            let locked = rig.lock("vae", 1_000);
            let held: Vec<_> = (0..5).map(|_| rig.hold(100)).collect();
            held.into_iter().for_each(|held| rig.device.free(held).unwrap());
            drop(locked);
        });
        let measurement = scope.recorded()[0].measurement.clone();
        // Each of the five segments may cost one step of 32 MiB more; what another process takes is not seen.
        assert!(measurement.demand_bytes >= 500 * MIB && measurement.demand_bytes <= 660 * MIB, "seed {seed}");
        assert_eq!(measurement.deltas.reserved_peak_bytes, 500 * MIB);
        assert!(measurement.validity.is_valid());
    }
}

#[test]
fn a_thread_that_leaves_its_scopes_in_any_order_is_outside_afterwards() {
    let rig = Wishes::mib(4_000).rig();
    rig.add("m", 100);
    let (first, second) = (Scope::new(0), Scope::new(0));
    let (a, b) = (first.enter(), second.enter());
    drop(a);
    drop(rig.lock("m", 10));
    assert_eq!((first.recorded().len(), second.recorded().len()), (0, 1), "it is still in the second one");
    drop(b);
    assert!(!rig.lock("m", 10).is_measured(), "it left both");
    assert_eq!((first.recorded().len(), second.recorded().len()), (0, 1));
}
