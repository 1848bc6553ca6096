//! Settings and cards at their limits: nothing panics, nothing in use is given back, no limit is forgotten.

use headroom_base::{AllocatorKind, MIB};
use headroom_device::driver::{CardSettings, DriverCall, Fault};
use headroom_device::{Allocator, Settings, SimulatedCard, SimulatedDriver};

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
