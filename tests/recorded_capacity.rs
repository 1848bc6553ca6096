//! The recorded decode of SDXL alone, on ever smaller cards: reserved says what it takes where memory is plenty, and
//! the least card on which it completes is far below that and just above what is allocated. Printed with `--nocapture`.

use headroom::replay::recording::requests_of;
use headroom_base::{AllocatorKind, Bytes, GIB, MIB};
use headroom_device::Settings;
use headroom_device::replay::{Requests, Run, least_capacity_bytes, run_requests};
use headroom_reports::recordings::{self, Recording};

/// The unit in which a card's memory is tried: a driver's page.
const PAGE_BYTES: u64 = 2 * MIB;

/// What the recorded decode of SDXL at 1024x1024 in fp16 asks of the native allocator, without what was there before.
fn recorded_decode() -> Requests {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/h200/trace-native.jsonl.gz");
    let recordings = recordings::read(path.as_ref()).unwrap();
    let is_decode = |recording: &&Recording| match recording {
        Recording::Scenario(_) => false,
        Recording::Trace(trace) => {
            (trace.family.as_str(), trace.operation.as_str(), trace.dtype.as_str()) == ("sdxl", "vae_decode", "fp16")
                && (trace.width, trace.height) == (Some(1024), Some(1024))
        }
    };
    let recording = recordings.iter().find(is_decode).expect("a recorded decode of SDXL");
    Requests { live: Vec::new(), ..requests_of(recording).expect("a trace") }
}

fn on(decode: &Requests, total_bytes: u64) -> Run {
    run_requests(decode, &Settings::of_kind(AllocatorKind::Native), total_bytes).unwrap()
}

#[test]
fn the_recorded_decode_completes_on_2566_mib_where_4274_are_reserved_and_2434_allocated() {
    let decode = recorded_decode();
    let ample = on(&decode, 141 * GIB);
    let (allocated, reserved) = (ample.allocated_peak_delta_bytes(), ample.reserved_peak_delta_bytes());
    let least = least_capacity_bytes(&decode, &Settings::of_kind(AllocatorKind::Native), reserved, PAGE_BYTES);
    let least = least.expect("what is reserved is enough");
    eprintln!(
        "least capacity {}, {} reserved and {} allocated where memory is plenty",
        Bytes(least),
        Bytes(reserved),
        Bytes(allocated)
    );
    assert_eq!((least / MIB, reserved / MIB, allocated / MIB), (2566, 4274, 2434));
    assert_eq!((ample.failure, ample.after.num_alloc_retries), (None, 0));
    let enough = on(&decode, reserved);
    assert_eq!((enough.failure, enough.after.num_alloc_retries), (None, 0), "what is reserved is not enough");
    let smallest = on(&decode, least);
    assert_eq!(smallest.failure, None);
    assert!(smallest.after.num_alloc_retries > 0, "nothing had to be given back, so a smaller card would do");
    // From a page under the least down to what is allocated, and a page less than that, every card is too small.
    let mut total = least - PAGE_BYTES;
    while total >= allocated - PAGE_BYTES {
        let short = on(&decode, total);
        assert!(short.failure.is_some() && short.after.num_ooms == 1, "it completed on {}", Bytes(total));
        total -= PAGE_BYTES;
    }
}
