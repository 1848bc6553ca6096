//! Windows during which models come and go, and windows inside windows: each is billed its own memory, once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use headroom_base::{AllocatorKind, InvalidReason, MIB, Reading, Validity};
use headroom_device::probe::{Hook, HookError, HookPoint};
use headroom_device::{Device, Scope};

use crate::rig::{Wishes, in_scope, key, only_window};

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
        assert_eq!((rig.view("other").host_pins, rig.resident_mib("other")), (1, 0));
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

/// The reasons for which a scope's windows are worthless, by model.
fn invalid(scope: &Scope) -> Vec<(String, Option<InvalidReason>)> {
    let reason = |validity: Validity| match validity {
        Validity::Valid => None,
        Validity::Invalid(reason) => Some(reason),
    };
    scope.recorded().into_iter().map(|r| (r.model.to_string(), reason(r.measurement.validity))).collect()
}

const OVERLAPPED: Option<InvalidReason> = Some(InvalidReason::Overlapped);

#[test]
fn an_outer_window_that_closes_first_and_the_inner_one_are_worthless_under_every_allocator() {
    for (allocator, bytes) in AllocatorKind::ALL.into_iter().flat_map(|kind| [(kind, 0), (kind, 800)]) {
        let rig = Wishes::mib(24_000).allocator(allocator).rig();
        rig.add("outer", 300);
        rig.add("inner", 200);
        let scope = in_scope(0, |_| {
            let outer = rig.lock("outer", 1_000);
            let inner = rig.lock("inner", 1_000);
            rig.free_and_unreleased(bytes);
            drop(outer);
            drop(inner);
            // What comes afterwards is clean.
            drop(rig.lock("outer", 1_000));
        });
        let expected = [("outer".into(), OVERLAPPED), ("inner".into(), OVERLAPPED), ("outer".into(), None)];
        assert_eq!(invalid(&scope), expected, "{allocator:?}");
        rig.assert_empties();
    }
}

#[test]
fn two_threads_of_a_step_whose_operations_overlap_leave_nothing_to_believe() {
    let rig = Wishes::mib(24_000).rig();
    rig.add("first", 300);
    rig.add("second", 200);
    let scope = in_scope(0, |scope| {
        let first = rig.lock("first", 1_000);
        let second = std::thread::scope(|threads| {
            let locked = threads.spawn(|| {
                let entered = scope.enter();
                let locked = rig.lock("second", 1_000);
                drop(entered);
                locked
            });
            locked.join().unwrap()
        });
        rig.free_and_unreleased(800);
        drop(first);
        rig.free_and_unreleased(10);
        drop(second);
    });
    assert_eq!(invalid(&scope), [("first".into(), OVERLAPPED), ("second".into(), OVERLAPPED)]);
}

#[test]
fn windows_around_and_inside_those_that_overlapped_are_judged_by_themselves() {
    let rig = Wishes::mib(24_000).rig();
    ["around", "a", "b", "inside"].iter().for_each(|name| rig.add(name, 100));
    let scope = in_scope(0, |_| {
        let around = rig.lock("around", 1_000);
        let a = rig.lock("a", 1_000);
        let b = rig.lock("b", 1_000);
        drop(rig.lock("inside", 1_000));
        drop(a);
        drop(b);
        drop(around);
    });
    let expected = [("inside", None), ("a", OVERLAPPED), ("b", OVERLAPPED), ("around", None)];
    assert_eq!(invalid(&scope), expected.map(|(model, reason)| (model.to_owned(), reason)));
}

#[test]
fn memory_that_the_outer_operation_holds_is_not_billed_to_the_inner_one() {
    let rig = Wishes::mib(24_000).rig();
    rig.add("outer", 300);
    rig.add("inner", 200);
    let scope = in_scope(0, |_| {
        let outer = rig.lock("outer", 1_000);
        let latents = rig.hold(600);
        let inner = rig.lock("inner", 1_000);
        rig.free_and_unreleased(900);
        drop(inner);
        let more = rig.hold(200);
        rig.device.free(latents).unwrap();
        rig.device.free(more).unwrap();
        drop(outer);
    });
    let demands: Vec<_> = scope.recorded().iter().map(|r| r.measurement.demand_bytes / MIB).collect();
    assert_eq!(demands, [900, 800]);
}

#[test]
fn a_failed_co_lock_leaves_the_window_right_or_invalid_and_the_weights_off() {
    let rig = Wishes::mib(4_000).rig();
    rig.add("vae", 300);
    rig.cache.add(crate::rig::model("huge", 9_000).whole()).unwrap();
    let scope = in_scope(0, |_| {
        let vae = rig.lock("vae", 1_000);
        rig.free_and_unreleased(600);
        assert!(rig.cache.lock(&key("huge"), None).is_err());
        assert_eq!(rig.view("huge").host_pins, 0);
        drop(vae);
    });
    // The failed load ran the allocator out of memory while the window was open.
    assert_eq!(only_window(&scope).2, Validity::Invalid(InvalidReason::OutOfMemory));
    rig.assert_empties();
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
fn a_model_that_comes_after_the_peak_was_never_beside_it() {
    let rig = Wishes::mib(24_000).rig();
    rig.add("vae", 300);
    rig.add("other", 12_000);
    let scope = in_scope(0, |_| {
        let vae = rig.lock("vae", 1_000);
        rig.free_and_unreleased(15_000);
        drop(rig.cache.lock(&key("other"), None).unwrap());
        drop(vae);
    });
    // 15,000 and 12,000 are more than the card has, and never were on it together.
    let (demand, _, validity) = only_window(&scope);
    assert_eq!((demand, validity), (15_000, Validity::Valid));
}

#[test]
fn a_model_that_left_after_the_peak_was_beside_it() {
    let mut wishes = Wishes::mib(24_000);
    wishes.card.spill_to_host = true;
    let rig = wishes.rig();
    rig.add("vae", 300);
    rig.add("other", 12_000);
    let scope = in_scope(0, |_| {
        let other = rig.cache.lock(&key("other"), None).unwrap();
        let vae = rig.lock("vae", 1_000);
        rig.free_and_unreleased(15_000);
        drop(other);
        rig.cache.offload_unlocked().unwrap();
        drop(vae);
    });
    assert_eq!(only_window(&scope).2, Validity::Invalid(InvalidReason::Oversubscribed));
}

#[test]
fn what_the_driver_says_stays_known_when_weights_come_and_go() {
    let rig = Wishes::mib(4_000).rig();
    ["m", "beside"].iter().for_each(|name| rig.add(name, 200));
    let scope = in_scope(0, |_| {
        let locked = rig.lock("m", 10);
        let beside = rig.cache.lock(&"beside".into(), None).unwrap();
        let held = rig.hold(100);
        rig.device.free(held).unwrap();
        drop((beside, locked));
    });
    assert_eq!(scope.recorded()[0].measurement.deltas.driver_bytes, Reading::Bytes(100 * MIB));
    assert!(only_window(&scope).1 > 1);
}

/// Hears of stretches that end.
#[derive(Default)]
struct StretchesEnded(AtomicU64);

impl Hook for StretchesEnded {
    fn at(&self, point: HookPoint) -> Result<(), HookError> {
        self.0.fetch_add(u64::from(point == HookPoint::StretchEnded), Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn where_no_window_is_open_nothing_is_measured_when_weights_come_and_go() {
    let ended = Arc::new(StretchesEnded::default());
    let rig = Wishes::mib(4_000).hook(ended.clone()).rig();
    ["m", "beside"].iter().for_each(|name| rig.add(name, 200));
    rig.load("m");
    rig.cache.offload_unlocked().unwrap();
    assert_eq!(ended.0.load(Ordering::SeqCst), 0);
    in_scope(0, |_| {
        let locked = rig.lock("m", 10);
        drop((rig.cache.lock(&"beside".into(), None).unwrap(), locked));
    });
    assert!(ended.0.load(Ordering::SeqCst) > 0);
}
