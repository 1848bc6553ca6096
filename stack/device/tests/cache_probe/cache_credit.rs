//! Memory that was freed and not released: what the credit is for, and where it would promise too much.

use headroom_base::{AllocatorKind, GIB, MIB, Reclaim};
use headroom_device::allocator::Settings;
use headroom_device::device::AllocatorMemory;
use headroom_device::{Allocator, Cache, CacheSettings, DeviceParts, SimulatedCard};

use crate::rig::{Wishes, key, model, obey};

const TRANSFORMER_MIB: u64 = 20 * 1_024;

/// A 48 GiB card on which 46 GiB were used and freed, and the share of a 20 GiB transformer that a lock then loads.
fn loaded_share(kind: AllocatorKind, reclaim: Option<Reclaim>) -> (f64, u64) {
    obey();
    let card = SimulatedCard::with_gib(48);
    let memory = AllocatorMemory::new(Allocator::new(card.driver(), Settings::of_kind(kind)));
    let memory = match reclaim {
        Some(reclaim) => memory.with_reclaim(reclaim),
        None => memory,
    };
    let parts = DeviceParts::simulated(&card, Settings::of_kind(kind));
    let device = DeviceParts { memory: Box::new(memory), ..parts }.build();
    let held: Vec<_> = (0..46).map(|_| device.allocate(GIB).unwrap()).collect();
    held.into_iter().for_each(|held| device.free(held).unwrap());
    assert!(card.free_bytes() <= 2 * GIB);
    let cache = Cache::new(device, CacheSettings::default());
    cache.add(model("flux:transformer", TRANSFORMER_MIB)).unwrap();
    let locked = cache.lock(&key("flux:transformer"), None).unwrap();
    let ooms = cache.device().counters().unwrap().num_ooms;
    assert!(locked.report().moves.is_empty());
    (locked.report().resident_bytes as f64 / (TRANSFORMER_MIB * MIB) as f64 * 100.0, ooms)
}

#[test]
fn a_freed_and_unreleased_reserve_is_used_where_counters_show_it_and_costs_all_weights_where_they_do_not() {
    assert_eq!(loaded_share(AllocatorKind::Native, None), (100.0, 0));
    assert_eq!(loaded_share(AllocatorKind::Native, Some(Reclaim::NoCounters)), (0.0, 0));
    assert_eq!(loaded_share(AllocatorKind::CudaMallocAsync, None), (100.0, 0));
}

#[test]
fn under_expandable_segments_nothing_is_credited_and_what_can_go_back_is_given_back_first() {
    assert_eq!(loaded_share(AllocatorKind::ExpandableSegments, None), (100.0, 0));
}

/// A card under expandable segments on which `holes` blocks of 15 MiB are free between as many that are not: no page
/// of 20 MiB is wholly free, so none of it can be given back.
pub(crate) fn with_pinned_holes(card_mib: u64, holes: usize) -> crate::rig::Rig {
    let rig = Wishes::mib(card_mib).allocator(AllocatorKind::ExpandableSegments).rig();
    let blocks: Vec<_> = (0..2 * holes).map(|_| rig.hold(15)).collect();
    blocks.into_iter().step_by(2).for_each(|block| rig.device.free(block).unwrap());
    rig
}

#[test]
fn holes_that_live_blocks_pin_are_not_promised_to_a_load() {
    let rig = with_pinned_holes(4_000, 100);
    let figures = rig.device.figures().unwrap();
    assert!(figures.reserved_bytes - figures.allocated_bytes >= 1_500 * MIB && figures.inactive_split_bytes == 0);
    rig.add("m", 2_000);
    let locked = rig.lock("m", 0);
    let loaded = locked.report().resident_bytes / MIB;
    assert!(loaded > 900 && loaded <= 1_000, "{loaded} of the 1,000 MiB that the driver has");
    assert_eq!(rig.device.counters().unwrap().num_ooms, 0);
}

#[test]
fn offloading_stops_as_soon_as_the_budget_suffices_whatever_the_allocator_shows() {
    for kind in [AllocatorKind::Native, AllocatorKind::ExpandableSegments, AllocatorKind::CudaMallocAsync] {
        let rig = Wishes::mib(10_000).allocator(kind).rig();
        for index in 0..6 {
            let name = format!("m{index}");
            rig.add(&name, 1_400 + 20 * index);
            rig.load(&name);
        }
        rig.add("new", 2_500);
        let locked = rig.lock("new", 1_000);
        let moves: Vec<_> = locked.report().moves.iter().map(|moved| moved.key.to_string()).collect();
        assert_eq!(moves, ["m0", "m1"], "{kind}");
        assert_eq!(locked.report().missing_bytes, 0, "{kind}");
        assert!(locked.report().moves[1].remaining_bytes > 0, "{kind}: the last one goes in part");
    }
}

/// What a partial offload of the last candidate does to a measurement, to the byte.
#[test]
fn an_ordinary_lock_ends_partly_resident_where_the_measured_one_is_whole() {
    let scene = || {
        let rig = Wishes::mib(12_000).floor_mib(0).rig();
        // Two blocks that cannot be told apart by size: the second is offloaded only as far as it must.
        rig.add("text", 5_000);
        rig.add("transformer", 6_500);
        rig.load("text");
        rig.load("transformer");
        rig.add("vae", 300);
        rig
    };
    let rig = scene();
    let ordinary = rig.lock("vae", 4_000);
    let text = rig.view("text");
    assert_eq!((text.resident_bytes, text.total_bytes), (1_200 * MIB, 5_000 * MIB));
    assert_eq!(rig.view("transformer").resident_bytes, 6_500 * MIB);
    assert_eq!(ordinary.report().missing_bytes, 0);
    drop(ordinary);

    let rig = scene();
    let scope = crate::rig::in_scope(0, |_| drop(rig.lock("vae", 4_000)));
    assert_eq!((rig.view("text").resident_bytes, rig.view("transformer").resident_bytes), (0, 0));
    assert_eq!(rig.view("vae").resident_bytes, 300 * MIB);
    assert!(crate::rig::only_window(&scope).2.is_valid());

    // What is left of the split one keeps the next model from being whole; after a measured lock it is.
    for (measured, missing) in [(false, 200), (true, 0)] {
        let rig = scene();
        let used = rig.lock("text", 0);
        let lock = || rig.lock("transformer", 700);
        let missing_bytes = if measured {
            drop(used);
            let mut missing_bytes = 0;
            crate::rig::in_scope(0, |_| missing_bytes = lock().report().missing_bytes);
            missing_bytes
        } else {
            lock().report().missing_bytes
        };
        assert_eq!(missing_bytes, missing * MIB, "measured: {measured}");
    }
}
