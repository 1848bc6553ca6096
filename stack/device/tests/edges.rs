//! Settings and cards at their limits: nothing panics, nothing in use is given back, no limit is forgotten.

use headroom_base::budget::credit_bytes;
use headroom_base::{AllocatorKind, MIB};
use headroom_device::allocator::{EventKind, PoolKind, RecordedBlock, RecordedSegment, driver_placements};
use headroom_device::driver::{CardSettings, DriverCall, Fault};
use headroom_device::{Address, Allocator, Settings, SimulatedCard, SimulatedDriver};

const TOTAL: u64 = 128 * MIB;

fn allocator(
    settings: Settings,
    change: impl FnOnce(&mut CardSettings),
) -> (SimulatedCard, Allocator<SimulatedDriver>) {
    let mut card = CardSettings::new(TOTAL);
    change(&mut card);
    let card = SimulatedCard::new(card);
    let allocator = Allocator::new(card.driver(), settings);
    (card, allocator)
}

#[test]
fn what_is_left_of_a_used_segment_is_not_given_back_however_large_it_is() {
    let settings = Settings { large_segment_bytes: 60 * MIB, ..Settings::default().with_max_split_mib(20) };
    let (card, mut allocator) = allocator(settings, |_| {});
    let small = allocator.allocate(5 * MIB).unwrap();
    assert!(allocator.allocate(100 * MIB).unwrap_err().is_out_of_memory());
    assert_eq!(card.calls(DriverCall::Free), 0, "a part of a segment was given back");
    let unused = allocator.allocate(64 * MIB).unwrap();
    allocator.free(unused).unwrap();
    allocator.allocate(30 * MIB).unwrap();
    assert_eq!(card.calls(DriverCall::Free), 1, "an oversize segment that nobody uses makes room");
    assert_eq!(allocator.counters().num_alloc_retries, 1, "the first request retried and the last one need not");
    allocator.free(small).unwrap();
}

#[test]
fn any_number_of_steps_between_powers_of_two_that_is_accepted_rounds_every_size() {
    for steps in [0, 1, 1 << 10, 1 << 31, 1 << 54, 1 << 55, 1 << 63] {
        let settings = Settings::default().with_divisions(steps);
        let (_, mut allocator) = allocator(settings, |_| {});
        for bytes in [0, 1, 513, 3 * MIB + 1, 40 * MIB + 7] {
            let allocation = allocator.allocate(bytes).unwrap();
            assert!(allocation.bytes() >= bytes && allocation.bytes().is_multiple_of(512), "{steps} {bytes}");
            allocator.free(allocation).unwrap();
        }
    }
}

#[test]
fn a_request_beyond_a_growing_range_is_out_of_memory_even_where_the_host_takes_what_the_card_cannot() {
    for kind in [AllocatorKind::ExpandableSegments, AllocatorKind::CudaMallocAsync] {
        let (card, mut allocator) = allocator(Settings::of_kind(kind), |card| card.spill_to_host = true);
        let first = allocator.allocate(TOTAL + 8 * MIB).unwrap();
        assert!(allocator.allocate(3 * TOTAL).unwrap_err().is_out_of_memory(), "{kind}");
        allocator.free(first).unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(card.held_bytes(), 0, "{kind}");
    }
}

/// PyTorch maps the pages of later requests in the range that it had set apart for the one that no range can hold.
#[test]
fn a_request_beyond_every_growing_range_leaves_a_range_that_later_requests_grow_in() {
    let reserved_after = |too_large: Option<u64>| {
        let (_, mut allocator) = allocator(Settings::of_kind(AllocatorKind::ExpandableSegments), |_| {});
        let first = allocator.allocate(10 * MIB).unwrap();
        if let Some(bytes) = too_large {
            assert!(allocator.allocate(bytes).unwrap_err().is_out_of_memory());
            assert_eq!(allocator.counters().reserved.current, 20 * MIB, "nothing is mapped for it");
        }
        let second = allocator.allocate(30 * MIB).unwrap();
        let reserved_bytes = allocator.counters().reserved.current;
        [first, second].into_iter().for_each(|allocation| allocator.free(allocation).unwrap());
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.counters().reserved.current, 0);
        reserved_bytes / MIB
    };
    // The other 10 MiB of the first page are used, or are not.
    assert_eq!(reserved_after(None), 40);
    assert_eq!(reserved_after(Some(TOTAL / 8 * 9)), 40, "the range that is there has addresses for so much");
    assert_eq!(reserved_after(Some(TOTAL / 8 * 9 + 40 * MIB)), 60);
}

#[test]
fn a_share_of_the_device_holds_even_when_the_driver_cannot_say_how_large_the_device_is() {
    for kind in AllocatorKind::ALL {
        let settings = Settings { memory_fraction: Some(0.25), ..Settings::of_kind(kind) };
        let (card, mut allocator) = allocator(settings, |_| {});
        card.plant_fault(Fault { call: Some(DriverCall::Memory), at: 1, persistent: true });
        let error = allocator.allocate(64 * MIB).unwrap_err();
        assert!(!error.is_out_of_memory(), "{kind} {error}");
        assert_eq!(card.held_bytes(), 0, "{kind}");
        card.clear_faults();
        assert!(allocator.allocate(64 * MIB).unwrap_err().is_out_of_memory(), "{kind}");
        allocator.allocate(16 * MIB).unwrap();
    }
}

#[test]
fn a_request_of_exactly_the_split_limit_takes_a_larger_block_whole() {
    for (free_mib, request_mib, taken_mib) in [(30, 24, 24), (40, 32, 40)] {
        let (_, mut allocator) = allocator(Settings::default().with_max_split_mib(32), |_| {});
        let room = allocator.allocate(free_mib * MIB).unwrap();
        allocator.free(room).unwrap();
        let taken = allocator.allocate(request_mib * MIB).unwrap();
        assert_eq!(taken.bytes(), taken_mib * MIB);
    }
}

#[test]
fn what_was_mapped_and_unmapped_is_logged_page_for_page() {
    let (_, mut allocator) = allocator(Settings::of_kind(AllocatorKind::ExpandableSegments), |_| {});
    allocator.log_events(true);
    let [kept, freed] = [30, 60].map(|mib| allocator.allocate(mib * MIB).unwrap());
    allocator.free(freed).unwrap();
    allocator.empty_cache().unwrap();
    let events = allocator.take_events().into_iter().map(|event| (event.kind, event.address, event.bytes / MIB));
    let base = kept.address();
    let at = |mib: u64| Address(base.0 + mib * MIB);
    assert_eq!(
        events.collect::<Vec<_>>(),
        [(EventKind::SegmentMap, base, 40), (EventKind::SegmentMap, at(40), 60), (EventKind::SegmentUnmap, at(40), 60)]
    );
}

#[test]
fn a_segment_shows_what_is_handed_out_of_it_and_what_that_strands() {
    let (_, mut allocator) = allocator(Settings::default(), |_| {});
    let [first, _second] = [5, 3].map(|mib| allocator.allocate(mib * MIB).unwrap());
    let figures = |allocator: &Allocator<SimulatedDriver>| {
        let segments = allocator.segments();
        segments.iter().map(|one| (one.allocated_bytes() / MIB, one.stranded_bytes() / MIB)).collect::<Vec<_>>()
    };
    assert_eq!(figures(&allocator), [(8, 12)]);
    allocator.free(first).unwrap();
    assert_eq!(figures(&allocator), [(3, 17)]);
}

#[test]
fn a_recorded_range_with_a_gap_ends_where_its_addresses_end() {
    let (total_bytes, base) = (1_000 * MIB, 0x7f00_0000_0000_u64);
    let run = |mib: u64| RecordedSegment {
        address: Address(base + mib * MIB),
        pool: PoolKind::Large,
        is_expandable: true,
        blocks: vec![RecordedBlock { bytes: 20 * MIB, requested_bytes: Some(20 * MIB) }],
    };
    let settings = Settings::of_kind(AllocatorKind::ExpandableSegments);
    let segments = [run(0), run(40)];
    let card = SimulatedCard::new(CardSettings { spill_to_host: true, ..CardSettings::new(total_bytes) });
    card.script_addresses(driver_placements(&segments, &settings, total_bytes));
    let (mut allocator, live) = Allocator::from_recorded_state(card.driver(), settings, &segments).unwrap();
    // The range has 1,140 MiB, of which 1,080 lie behind the second run.
    let other = allocator.allocate(1_100 * MIB).unwrap();
    assert!(!(base..base + 1_140 * MIB).contains(&other.address().0));
    let behind = allocator.allocate(1_080 * MIB).unwrap();
    assert_eq!(behind.address(), Address(base + 60 * MIB));
    live.into_iter().chain([other, behind]).for_each(|allocation| allocator.free(allocation).unwrap());
    allocator.empty_cache().unwrap();
    assert_eq!((card.held_bytes(), allocator.counters().reserved.current), (0, 0));
}

#[test]
fn a_limit_may_be_reached_and_not_passed() {
    for kind in AllocatorKind::ALL {
        let (_, mut allocator) = allocator(Settings::of_kind(kind), |_| {});
        allocator.set_memory_limit(Some(64 * MIB));
        let all = allocator.allocate(64 * MIB);
        // Pages of 20 MiB go beyond it, after its segment was compared with the limit.
        assert!(all.is_ok() && allocator.counters().reserved.current <= 80 * MIB, "{kind}");
        assert!(allocator.allocate(1).unwrap_err().is_out_of_memory(), "{kind}");
    }
}

#[test]
fn settings_made_in_code_are_those_that_the_variable_gives() {
    for (made, text) in [
        (Settings::default().with_max_split_mib(128), "max_split_size_mb:128"),
        (Settings::default().with_garbage_collection_threshold(0.6), "garbage_collection_threshold:0.6"),
        (Settings::default().with_divisions(4), "roundup_power2_divisions:4"),
    ] {
        assert_eq!(made, Settings::parse("variable", text).unwrap());
        assert_ne!(made, Settings::default());
    }
}

#[test]
fn the_bound_follows_what_comes_back_although_the_pool_need_not_grow() {
    let (_, mut allocator) = allocator(Settings::of_kind(AllocatorKind::CudaMallocAsync), |card| {
        card.total_bytes = 2_000 * MIB;
    });
    let charged = (0..5).map(|_| {
        let allocation = allocator.allocate(1_024 * MIB).unwrap();
        let charged = allocator.pool_excess_bytes() / MIB;
        allocator.free(allocation).unwrap();
        charged
    });
    let charged: Vec<_> = charged.collect();
    assert_eq!(charged, [0, 32, 96, 128, 160]);
}

#[test]
fn what_is_idle_between_live_blocks_of_the_pool_is_credited_and_serves_no_larger_request() {
    let (card, mut allocator) = allocator(Settings::of_kind(AllocatorKind::CudaMallocAsync), |_| {});
    let held: Vec<_> = (0..6).map(|_| allocator.allocate(20 * MIB).unwrap()).collect();
    held.into_iter().step_by(2).for_each(|held| allocator.free(held).unwrap());
    allocator.empty_cache().unwrap();
    let figures = allocator.figures().unwrap();
    assert_eq!((card.free_bytes(), credit_bytes(&figures)), (0, 68 * MIB));
    assert!(allocator.allocate(21 * MIB).unwrap_err().is_out_of_memory());
    let pieces: Vec<_> = std::iter::from_fn(|| allocator.allocate(20 * MIB).ok()).collect();
    assert_eq!(pieces.len(), 3, "one in each hole; the rest of the last step is not counted on");
}
