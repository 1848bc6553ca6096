//! The n-th call of the driver fails, for n = 1, 2, … until all of it succeeds: nothing may stay behind.

use headroom_base::{AllocatorKind, MIB};
use headroom_device::cuda::libraries::Library;
use headroom_device::cuda::{CudaContext, gpus};
use headroom_device::device::UploadPart;
use headroom_device::{Device, Settings};

use crate::stub::{fail, has_failed, in_child, leaks, own_bytes};

const OUT_OF_MEMORY: i32 = 2;
const UNKNOWN: i32 = 999;

/// Everything a device does, each step going on whatever became of the ones before it.
fn story(device: &Device) -> Result<(), String> {
    let mut outcome = Ok(());
    let mut note = |result: Result<(), String>| {
        if outcome.is_ok() {
            outcome = result;
        }
    };
    let contents = vec![7; 3 << 20];
    let mut held = Vec::new();
    for bytes in [3 * MIB, 50 * MIB, 100_000, 70 * MIB] {
        match device.allocate(bytes) {
            Ok(holding) => held.push(holding),
            Err(error) => note(Err(error.to_string())),
        }
    }
    for to in held.iter().filter(|holding| holding.bytes() >= 3 * MIB).take(1) {
        let part = UploadPart { to: *to, contents: &contents };
        note(device.with_memory(|memory| memory.upload(&[part])).map_err(|error| error.to_string()));
    }
    note(device.figures().map(|_| ()).map_err(|error| error.to_string()));
    note(device.counters().map(|_| ()).map_err(|error| error.to_string()));
    // One stays held, so that what goes back is not simply everything.
    for holding in held.drain(..).skip(1) {
        note(device.free(holding).map_err(|error| error.to_string()));
    }
    note(device.empty_cache().map_err(|error| error.to_string()));
    note(device.with_memory(|memory| memory.reset_peaks()).map_err(|error| error.to_string()));
    outcome
}

fn open(kind: AllocatorKind) -> Result<Device, String> {
    let gpu = gpus().map_err(|error| error.to_string())?.remove(0);
    let context = CudaContext::open(&gpu).map_err(|error| error.to_string())?;
    context.parts(Settings::of_kind(kind)).map(|parts| parts.build()).map_err(|error| error.to_string())
}

fn assert_nothing_stays_behind(kind: AllocatorKind) {
    assert_nothing_stays_behind_a_failure(kind, OUT_OF_MEMORY);
    assert_nothing_stays_behind_a_failure(kind, UNKNOWN);
}

fn assert_nothing_stays_behind_a_failure(kind: AllocatorKind, code: i32) {
    let mut failures = 0;
    // A library is looked at once per process, so what its version call answers is no part of what is repeated here.
    Library::Driver.find().unwrap();
    for n in 1.. {
        fail(n, code);
        let outcome = open(kind).and_then(|device| story(&device));
        let failed = has_failed();
        fail(0, 0);
        assert_eq!(leaks(), [], "{kind}: call {n} failed with {code}, and the story ended with {outcome:?}");
        assert_eq!(own_bytes(0), 0, "{kind}: call {n} failed with {code}, and the story ended with {outcome:?}");
        if !failed {
            assert_eq!(outcome, Ok(()), "{kind}: nothing failed");
            break;
        }
        failures += u64::from(outcome.is_err());
    }
    assert!(failures > 20, "{kind}: only {failures} failures came to anybody's ears");
}

#[test]
fn a_native_allocator_leaves_nothing_behind_whichever_call_fails() {
    in_child(module_path!(), "a_native_allocator_leaves_nothing_behind_whichever_call_fails", &[], || {
        assert_nothing_stays_behind(AllocatorKind::Native);
    });
}

#[test]
fn expandable_segments_leave_nothing_behind_whichever_call_fails() {
    in_child(module_path!(), "expandable_segments_leave_nothing_behind_whichever_call_fails", &[], || {
        assert_nothing_stays_behind(AllocatorKind::ExpandableSegments);
    });
}

#[test]
fn the_pool_leaves_nothing_behind_whichever_call_fails() {
    in_child(module_path!(), "the_pool_leaves_nothing_behind_whichever_call_fails", &[], || {
        assert_nothing_stays_behind(AllocatorKind::CudaMallocAsync);
    });
}
