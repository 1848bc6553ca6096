//! Whether the room that a lock needs is made: for all that weights take from the driver, and again after a wait.

use std::time::Duration;

use headroom_base::{AllocatorKind, MIB};
use headroom_device::{CacheSettings, ModelSpec, PieceSpec};

use crate::rig::{Wishes, hears_waits, key, warnings};

/// Far beyond what anything here takes.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_model_that_the_budget_holds_is_loaded_whole_while_others_can_go() {
    for kind in AllocatorKind::ALL {
        for piece_kib in [7 * 1_024, 10_752, 20_992, 700] {
            let floor_mib = CacheSettings::default().floor_bytes / MIB;
            let rig = Wishes::mib(24 * 1_024).floor_mib(floor_mib).allocator(kind).rig();
            rig.cache.add(ModelSpec::of_bytes("idle", 12 * 1_024 * MIB, 1_200)).unwrap();
            rig.load("idle");
            let pieces = 10_234 * 1_024 / piece_kib;
            let sizes = (0..pieces).map(|index| PieceSpec::new(index.to_string(), piece_kib * 1_024));
            rig.cache.add(ModelSpec::synthetic("m", sizes)).unwrap();
            let mut report = None;
            let lines = warnings(|| report = Some(rig.cache.lock(&key("m"), None).unwrap().report().clone()));
            let report = report.unwrap();
            assert_eq!((report.missing_bytes, report.pressure), (0, None), "{kind}, pieces of {piece_kib} KiB");
            assert!(lines.is_empty() && rig.resident_mib("idle") > 2_000, "{kind}, {piece_kib} KiB: too much went");
            assert!(rig.device.allocate((floor_mib - 2) * MIB).is_ok(), "{kind}, {piece_kib} KiB");
        }
    }
}

#[test]
fn a_lock_that_waited_has_its_working_memory_and_tells_of_no_shortage() {
    let rig = Wishes::mib(12 * 1_024).context_mib(500).floor_mib(1_024).wait(LONG).rig();
    rig.cache.add(ModelSpec::of_bytes("a", 4_096 * MIB, 400)).unwrap();
    let pieces = (0..780).map(|index| PieceSpec::required(index.to_string(), 10_752 * 1_024));
    rig.cache.add(ModelSpec::synthetic("b", pieces)).unwrap();
    let hears = hears_waits(&rig.cache);
    let held = rig.lock("a", 0);
    let report = std::thread::scope(|threads| {
        let waiting = threads.spawn(|| rig.cache.lock(&key("b"), None).unwrap());
        hears.recv_timeout(LONG).unwrap();
        drop(held);
        waiting.join().unwrap().report().clone()
    });
    assert!(report.waited > Duration::ZERO);
    assert_eq!((report.missing_bytes, report.pressure), (0, None));
    assert!(rig.resident_mib("a") > 1_000, "more than needed was moved off");
    assert!(rig.device.allocate(1_022 * MIB).is_ok(), "the lock was granted, and its operation runs out of memory");
}
