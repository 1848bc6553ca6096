//! The driver fails at its first call, its second, and so on to the end of a script: nothing leaks and every error says
//! where the allocator stood.

mod scripts;

use headroom_base::{MIB, Reading};
use headroom_device::driver::{CardSettings, Fault};
use headroom_device::{Allocation, AllocationError, Settings, SimulatedCard};
use scripts::{Simulated, Step, allocator, assert_everything_goes_back, assert_sound, many_settings};

const CARD_BYTES: u64 = 320 * MIB;
const LIMIT_BYTES: u64 = 300 * MIB;

/// Small and large blocks, holes, a cache emptied with holes in it, and requests that only fit after a release.
fn script() -> Vec<Step> {
    let mut steps = Vec::new();
    for round in 0..4_u64 {
        for index in 0..12 {
            steps.push(Step::Allocate(700 + 90_000 * index));
            steps.push(Step::Allocate((1 + round) * MIB + index * 300_000));
        }
        steps.extend([3, 7, 1, 11, 5, 2, 9].map(Step::Free));
        steps.push(Step::Allocate(30 * MIB));
        steps.push(Step::Allocate(64 * MIB));
        steps.extend([0, 4, 8, 12].map(Step::Free));
        steps.push(Step::EmptyCache);
        steps.push(Step::Allocate(90 * MIB));
        steps.extend((0..14).map(|index| Step::Free(index * 3)));
        steps.push(Step::Allocate(100 * MIB));
        steps.push(Step::Allocate(200 * MIB));
    }
    steps
}

fn assert_says_where_it_stood(error: &AllocationError, allocator: &Simulated, requested: u64) {
    let counters = allocator.counters();
    let (said_requested, situation) = match error {
        AllocationError::OutOfMemory { requested_bytes, situation }
        | AllocationError::Driver { requested_bytes, situation, .. } => (*requested_bytes, situation),
    };
    assert_eq!(said_requested, requested);
    assert_eq!(situation.allocated_bytes, counters.allocated.current);
    assert_eq!(situation.reserved_bytes, counters.reserved.current);
    assert_eq!(situation.limit_bytes, Some(LIMIT_BYTES));
    if let Reading::Bytes(free) = situation.free {
        assert_eq!(free, allocator.driver().card().free_bytes());
    }
    let text = error.to_string();
    let attempted = if requested == 0 { "giving memory back" } else { "requested" };
    for part in [attempted, "free of", "in use", "limit"] {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
}

/// Runs the script; true when the fault was reached.
fn run_with_fault(settings: &Settings, steps: &[Step], at: u64, persistent: bool) -> bool {
    let card = SimulatedCard::new(CardSettings::new(CARD_BYTES));
    let mut allocator = allocator(settings, &card, Some(LIMIT_BYTES));
    card.plant_fault(Fault { call: None, at, persistent });
    let mut live: Vec<Allocation> = Vec::new();
    for step in steps {
        match *step {
            Step::Allocate(bytes) => match allocator.allocate(bytes) {
                Ok(allocation) => live.push(allocation),
                Err(error) => assert_says_where_it_stood(&error, &allocator, bytes),
            },
            Step::Free(number) if !live.is_empty() => {
                let allocation = live.swap_remove(number % live.len());
                allocator.free(allocation).unwrap();
            }
            Step::EmptyCache => {
                if let Err(error) = allocator.empty_cache() {
                    assert!(!error.is_out_of_memory());
                    assert_says_where_it_stood(&error, &allocator, 0);
                }
            }
            _ => {}
        }
        assert_sound(&allocator, &live);
    }
    let reached = card.total_calls() >= at;
    card.clear_faults();
    if let Some(last) = live.pop() {
        allocator.free(last).unwrap();
    }
    let retried = allocator.allocate(MIB).unwrap();
    live.push(retried);
    assert_everything_goes_back(&mut allocator, &mut live);
    reached
}

#[test]
fn no_failure_of_the_driver_leaks_memory_or_breaks_the_books() {
    let steps = script();
    for settings in many_settings() {
        for persistent in [false, true] {
            let mut at = 1;
            while run_with_fault(&settings, &steps, at, persistent) {
                at += 1;
            }
            assert!(at > 20, "only {at} calls were made to fail under {settings}");
        }
    }
}
