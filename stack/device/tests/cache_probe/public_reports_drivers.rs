//! Public reports about what drivers and tools say: wrong device, not available, containers, spill, other processes.
//! Sizes are MiB.

use headroom_base::{AllocatorKind, Cap, DeviceFigures, InvalidReason, MIB, Reading, Reclaim, Validity, budget};
use headroom_device::allocator::Settings;
use headroom_device::readers::{Basis, Platform, UnknownReader, attribute, figure};
use headroom_device::{Cache, CacheSettings, DeviceParts, SimulatedCard};

use crate::rig::{Rig, Wishes, in_scope, key, model, only_window};

fn figures(total: u64, free: u64, allocated: u64, reserved: u64) -> DeviceFigures {
    DeviceFigures {
        total_bytes: total * MIB,
        driver_free_bytes: free * MIB,
        allocated_bytes: allocated * MIB,
        reserved_bytes: reserved * MIB,
        inactive_split_bytes: 0,
        reclaim: Reclaim::WholeSegments,
    }
}

/// Report 21, https://github.com/pytorch/pytorch/pull/186809. The report's recipe takes the unaccounted bytes off the
/// budget. Driver-free excludes them already, so taking them off again would count them twice: they are shown only.
#[test]
fn r21_memory_outside_the_reserve_is_shown_and_not_taken_off_twice() {
    for unaccounted in [0, 2_048, 5_000] {
        let process = 1_500 + 300 + unaccounted;
        let figures = figures(24_000, 24_000 - process, 1_000, 1_500);
        let shown = attribute(&figures, Reading::Bytes(process * MIB), 300 * MIB);
        assert_eq!((shown.unaccounted_bytes / MIB, shown.others_bytes), (unaccounted, 0));
        let now = budget(&figures, None, 0, Cap::Unlimited);
        assert_eq!(now.before_working_bytes / MIB as i64, (24_000 - process + 500) as i64);
    }
}

/// Report 25, https://github.com/Project-HAMi/HAMi/issues/406
#[test]
fn r25_a_reading_below_what_this_process_holds_is_contradicted_and_never_makes_others_negative() {
    for reading in [0, 500, 1_499] {
        let shown = attribute(&figures(16_000, 12_000, 1_400, 1_500), Reading::Bytes(reading * MIB), 300 * MIB);
        assert_eq!((shown.basis, shown.own_bytes / MIB), (Basis::Contradicted, 1_800));
        assert_eq!(shown.others_bytes / MIB, 4_000 - 1_800);
    }
    let shown = attribute(&figures(16_000, 15_000, 1_400, 1_500), Reading::Bytes(0), 300 * MIB);
    assert_eq!((shown.own_bytes / MIB, shown.others_bytes), (1_000, 0), "no more than is used together");
}

/// Report 47, https://github.com/invoke-ai/InvokeAI/pull/9263
#[test]
fn r47_a_cache_reads_its_own_device_and_no_other() {
    let busy = Wishes::mib(23_000).floor_mib(3_072).rig();
    let idle_card = SimulatedCard::with_gib(24);
    let idle = DeviceParts::simulated(&idle_card, Settings::of_kind(AllocatorKind::Native)).named("gpu1").build();
    let idle = Cache::new(idle, CacheSettings::default());
    idle.add(model("vae", 200)).unwrap();
    drop(idle.lock(&key("vae"), None).unwrap());
    busy.add("transformer", 19_760);
    busy.add("vae", 240);
    for name in ["vae", "transformer"] {
        drop(busy.cache.lock(&key(name), Some(0)).unwrap());
    }
    busy.card.set_others_bytes(0);
    let calls = idle_card.total_calls();
    let locked = busy.cache.lock(&key("vae"), None).unwrap();
    let moved: u64 = locked.report().moves.iter().map(|moved| moved.bytes / MIB).sum();
    assert!(busy.card.free_bytes() >= 3_072 * MIB, "{moved} moved");
    assert_eq!(idle_card.total_calls(), calls, "the idle device was asked");
    assert_eq!(idle.model(&key("vae")).unwrap().resident_bytes / MIB, 200);
}

/// Report 49, https://github.com/invoke-ai/InvokeAI/pull/9401
#[test]
fn r49_a_blind_reader_is_unverified_and_others_are_seen_through_the_driver() {
    let figures = figures(32_768, 15_926, 0, 282);
    let shown = attribute(&figures, Reading::Unknown, 176 * MIB);
    assert_eq!((shown.basis, shown.others_bytes / MIB), (Basis::Allocator, 16_384));
    for platform in [Platform::Xpu, Platform::Mps, Platform::D3dkmt] {
        let card = SimulatedCard::with_gib(32);
        let parts =
            DeviceParts::simulated(&card, Settings::default()).with_reader(Box::new(UnknownReader { platform }));
        let device = parts.build();
        assert!(!device.reader_verified());
        assert_eq!((device.process_bytes().unwrap(), device.reader_name()), (Reading::Unknown, platform.name()));
    }
    let now = budget(&figures, None, 0, Cap::Unlimited);
    assert_eq!(now.available_bytes / MIB, 15_926 + 282, "never the card's total less the own reserve");
}

/// Report 51, https://github.com/Syllo/nvtop/issues/432
#[test]
fn r51_not_available_is_unknown_and_makes_no_number() {
    assert_eq!(figure(u64::MAX), Reading::Unknown);
    let shown = attribute(&figures(8_000, 7_000, 700, 800), figure(u64::MAX), 300 * MIB);
    assert_eq!((shown.own_bytes / MIB, shown.others_bytes), (1_000, 0));
    let mut wishes = Wishes::mib(8_000);
    wishes.card.tells_process_bytes = false;
    let rig = wishes.rig();
    rig.add("m", 500);
    let scope = in_scope(0, |_| {
        let locked = rig.lock("m", 100);
        rig.free_and_unreleased(700);
        drop(locked);
    });
    assert_eq!(only_window(&scope), (700, 1, Validity::Valid), "the allocator's own peaks are enough");
    assert_eq!(scope.recorded()[0].measurement.deltas.driver_bytes, Reading::Unknown);
}

/// Report 53, https://github.com/microsoft/WSL/issues/11050
#[test]
fn r53_a_run_that_needed_more_than_the_card_is_marked_and_is_no_measurement() {
    let mut wishes = Wishes::mib(16_374);
    wishes.card.spill_to_host = true;
    let rig = wishes.rig();
    rig.add("m", 500);
    let run = |held_at_the_end: bool| {
        in_scope(0, |_| {
            let locked = rig.lock("m", 100);
            let held = rig.hold(30_720);
            rig.device.free(held).unwrap();
            if !held_at_the_end {
                rig.device.empty_cache().unwrap();
            }
            drop(locked);
            rig.device.empty_cache().unwrap();
        })
    };
    for held_at_the_end in [true, false] {
        let scope = run(held_at_the_end);
        assert_eq!(only_window(&scope).2, Validity::Invalid(InvalidReason::Oversubscribed));
    }
}

/// Report 55, https://github.com/vllm-project/vllm/issues/56830
#[test]
fn r55_a_neighbour_that_leaves_costs_nothing_and_no_growth_is_a_valid_zero() {
    let run = |rig: &Rig, need: u64| {
        in_scope(0, |_| {
            let locked = rig.lock("m", 100);
            rig.card.set_others_bytes(1_000 * MIB);
            if need > 0 {
                rig.free_and_unreleased(need);
            }
            drop(locked);
        })
    };
    for need in [0, 2_000] {
        let rig = Wishes::mib(96_000).others_mib(9_000).rig();
        rig.add("m", 500);
        assert_eq!(only_window(&run(&rig, need)), (need, 1, Validity::Valid));
    }
}
