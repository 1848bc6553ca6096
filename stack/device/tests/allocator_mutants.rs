//! Each wrong decision of the allocator and the simulated card is noticed, by the recordings or by a scene made for it.

#![allow(clippy::print_stdout, reason = "which checks notice a wrong decision is part of the result")]

mod recorded;

use std::panic::catch_unwind;

use headroom_base::{AllocatorKind, MIB};
use headroom_device::driver::{CardSettings, Driver, DriverError};
use headroom_device::replay::{Request, Requests, replay_script, replay_trace, run_requests};
use headroom_device::{Allocator, Settings, SimulatedCard};
use recorded::{DEVICE_BYTES, scripts, trace, trace_recordings};

/// A check panics where something is wrong.
type Check = (&'static str, fn());

const CHECKS: [Check; 9] = [
    ("native scripts", || scripts_are_exact("scenario-native.jsonl.gz")),
    ("split limit scripts", || scripts_are_exact("scenario-split128.jsonl.gz")),
    ("power of two scripts", || scripts_are_exact("scenario-pow2.jsonl.gz")),
    ("garbage collection scripts", || scripts_are_exact("scenario-gc.jsonl.gz")),
    ("expandable scripts", || scripts_are_exact("scenario-expandable.jsonl.gz")),
    ("native traces", native_traces_are_exact),
    ("another process", another_process_takes_free_memory),
    ("a failed map", a_failed_map_keeps_nothing),
    ("the pool's bound", what_comes_and_goes_is_charged),
];

fn scripts_are_exact(name: &str) {
    for script in scripts(name) {
        let comparison = replay_script(&script, DEVICE_BYTES);
        assert!(comparison.is_exact(), "{name}: {comparison:?}");
    }
}

fn native_traces_are_exact() {
    for recording in trace_recordings("trace-native.jsonl.gz") {
        let comparison = replay_trace(&trace(&recording), DEVICE_BYTES).unwrap();
        assert!(comparison.figures.is_exact() && comparison.segment_events.is_exact());
    }
}

fn another_process_takes_free_memory() {
    let card = SimulatedCard::new(CardSettings { others_bytes: 48 * MIB, ..CardSettings::new(64 * MIB) });
    let mut allocator = Allocator::new(card.driver(), Settings::default());
    assert!(allocator.allocate(32 * MIB).is_err());
    allocator.allocate(16 * MIB).unwrap();
}

fn a_failed_map_keeps_nothing() {
    let card = SimulatedCard::new(CardSettings::new(64 * MIB));
    let mut driver = card.driver();
    let base = driver.reserve(200 * MIB).unwrap();
    assert!(matches!(driver.map(base, 200 * MIB, 20 * MIB), Err(DriverError::OutOfMemory { .. })));
    assert_eq!(card.held_bytes(), 0);
}

/// Sixteen tiles one after the other: PyTorch's pool was seen to reserve half as much again as one of them.
fn what_comes_and_goes_is_charged() {
    let tile = |id| [Request::Allocate { id, bytes: 1024 * MIB }, Request::Free { id }];
    let requests = Requests { live: vec![], operation: (0..16).flat_map(tile).collect() };
    let run = run_requests(&requests, &Settings::of_kind(AllocatorKind::CudaMallocAsync), DEVICE_BYTES).unwrap();
    let peak = run.reserved_peak_delta_bytes();
    assert!(peak >= 1024 * MIB * 5 / 4, "{peak}");
}

fn failing() -> Vec<&'static str> {
    CHECKS.into_iter().filter(|(_, check)| catch_unwind(check).is_err()).map(|(name, _)| name).collect()
}

#[test]
fn every_check_passes_with_every_decision_right_and_every_wrong_one_fails_some() {
    assert!(failing().is_empty(), "a check fails with every decision right");
    #[cfg(feature = "mutants")]
    graded();
}

#[cfg(feature = "mutants")]
fn graded() {
    use headroom_base::mutants::{choose, clear, points};

    let here = |file: &str| file.contains("device/allocator/") || file.contains("device/driver/");
    let own = points().into_iter().filter(|point| here(point.file)).map(|point| point.name);
    let names: std::collections::BTreeSet<_> = own.collect();
    assert!(names.len() >= 15, "a mutant was lost: {names:?}");
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let outcomes: Vec<_> = names.into_iter().map(|name| (choose(name), name, failing())).collect();
    clear();
    std::panic::set_hook(hook);
    for (_, name, failing) in &outcomes {
        println!("{name}: {}", failing.join(", "));
    }
    let survivors: Vec<_> =
        outcomes.iter().filter(|(chosen, _, failing)| !chosen || failing.is_empty()).map(|(_, name, _)| name).collect();
    assert!(survivors.is_empty(), "nothing notices {survivors:?}");
}
