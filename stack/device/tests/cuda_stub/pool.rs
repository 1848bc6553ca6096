//! The driver's stream-ordered pool as a device's memory.

use headroom_base::{AllocatorKind, MIB, Reclaim};
use headroom_device::{Counter, Device, Settings};

use crate::stub::{Kind, context, in_child, leaks, live, own_bytes, set_others_bytes};

const CONTEXT_BYTES: u64 = 524 * MIB;

fn device(settings: Settings) -> Device {
    context().parts(settings).unwrap().build()
}

fn pool() -> Device {
    device(Settings::of_kind(AllocatorKind::CudaMallocAsync))
}

fn counter(current: u64, peak: u64) -> Counter {
    Counter { current: current * MIB, peak: peak * MIB }
}

#[test]
fn the_pool_counts_what_was_asked_and_what_the_driver_reserved_and_keeps_it_until_emptied() {
    let name = "the_pool_counts_what_was_asked_and_what_the_driver_reserved_and_keeps_it_until_emptied";
    in_child(module_path!(), name, &[], || {
        let device = pool();
        let (first, second) = (device.allocate(40 * MIB).unwrap(), device.allocate(50 * MIB).unwrap());
        assert_eq!((first.bytes(), live(Kind::Pooled)), (40 * MIB, 2));
        device.free(first).unwrap();
        let counters = device.counters().unwrap();
        assert_eq!(counters.requested, counter(50, 90));
        assert_eq!((counters.allocated, counters.active), (counter(50, 90), counter(50, 90)));
        assert_eq!(counters.reserved, counter(96, 96));
        assert_eq!((counters.segments, counters.inactive_split), (Counter::default(), Counter::default()));
        assert_eq!((counters.num_alloc_retries, counters.num_ooms), (0, 0));
        let figures = device.figures().unwrap();
        assert_eq!((figures.allocated_bytes, figures.reserved_bytes), (50 * MIB, 96 * MIB));
        assert_eq!((figures.reclaim, figures.inactive_split_bytes), (Reclaim::Pool, 0));
        assert_eq!(figures.driver_free_bytes, 24 * 1024 * MIB - CONTEXT_BYTES - 96 * MIB);
        device.with_memory(|memory| memory.reset_peaks()).unwrap();
        let counters = device.counters().unwrap();
        assert_eq!(
            (counters.requested, counters.allocated, counters.reserved),
            (counter(50, 50), counter(50, 50), counter(96, 96))
        );
        device.empty_cache().unwrap();
        assert_eq!(device.counters().unwrap().reserved, counter(64, 96));
        assert_eq!(own_bytes(0), CONTEXT_BYTES + 64 * MIB);
        assert!(device.free(first).is_err(), "it was freed before");
        device.free(second).unwrap();
        device.empty_cache().unwrap();
        assert_eq!((device.counters().unwrap().reserved.current, own_bytes(0)), (0, CONTEXT_BYTES));
        drop(device);
        assert_eq!((leaks(), own_bytes(0)), (Vec::new(), 0));
    });
}

#[test]
fn an_old_handle_never_frees_newer_memory() {
    in_child(module_path!(), "an_old_handle_never_frees_newer_memory", &[], || {
        let (one, other) = (pool(), pool());
        let held = one.allocate(MIB).unwrap();
        assert!(other.free(held).is_err(), "it is another pool's");
        one.free(held).unwrap();
        assert!(one.free(held).is_err());
        let again = one.allocate(MIB).unwrap();
        assert!(one.free(held).is_err());
        one.free(again).unwrap();
    });
}

#[test]
fn an_allocation_that_fails_is_tried_once_more_with_an_emptied_pool() {
    let name = "an_allocation_that_fails_is_tried_once_more_with_an_emptied_pool";
    in_child(module_path!(), name, &[("HEADROOM_STUB_MEMORY_MIB", "2048")], || {
        let device = pool();
        let error = device.allocate(1600 * MIB).unwrap_err();
        assert!(error.is_out_of_memory() && error.to_string().contains("1,600 MiB requested"), "{error}");
        let counters = device.counters().unwrap();
        assert_eq!((counters.num_alloc_retries, counters.num_ooms, counters.requested.peak), (1, 1, 0));
        set_others_bytes(0, 0);
        let held = device.allocate(1500 * MIB).unwrap();
        assert_eq!(device.counters().unwrap().num_ooms, 1);
        device.free(held).unwrap();
        assert_eq!(device.counters().unwrap().reserved.current, 1504 * MIB);
    });
}

#[test]
fn a_share_of_the_device_limits_what_is_handed_out() {
    in_child(
        module_path!(),
        "a_share_of_the_device_limits_what_is_handed_out",
        &[("HEADROOM_STUB_MEMORY_MIB", "2048")],
        || {
            let settings =
                Settings { memory_fraction: Some(0.25), ..Settings::of_kind(AllocatorKind::CudaMallocAsync) };
            let device = device(settings);
            let held = device.allocate(500 * MIB).unwrap();
            assert!(device.allocate(13 * MIB).unwrap_err().is_out_of_memory());
            device.free(held).unwrap();
            device.allocate(512 * MIB).unwrap();
        },
    );
}
