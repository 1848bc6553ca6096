//! What a simulated card does, rule by rule.

use headroom_base::{MIB, Reading};
use headroom_device::driver::{CardSettings, DriverCall, Fault, Perturbation, RetainedPool};
use headroom_device::{Address, Driver, DriverError, SimulatedCard};

const TOTAL: u64 = 1_024 * MIB;

fn card(change: impl FnOnce(&mut CardSettings)) -> SimulatedCard {
    let mut settings = CardSettings::new(TOTAL);
    change(&mut settings);
    SimulatedCard::new(settings)
}

#[test]
fn an_allocation_costs_whole_granules_and_a_free_gives_them_back() {
    let card = card(|settings| settings.context_bytes = 300 * MIB);
    let mut driver = card.driver();
    assert_eq!(driver.memory().unwrap().free_bytes, 724 * MIB);
    let address = driver.allocate(1).unwrap();
    assert_eq!(driver.memory().unwrap().free_bytes, 722 * MIB);
    assert_eq!(driver.process_bytes().unwrap(), Reading::Bytes(302 * MIB));
    driver.free(address).unwrap();
    assert_eq!(driver.memory().unwrap().free_bytes, 724 * MIB);
}

#[test]
fn what_cannot_be_had_says_what_was_free_and_takes_nothing() {
    let mut driver = card(|settings| settings.others_bytes = 1_000 * MIB).driver();
    let error = driver.allocate(25 * MIB).unwrap_err();
    let expected = DriverError::OutOfMemory { requested_bytes: 25 * MIB, free_bytes: 24 * MIB, total_bytes: TOTAL };
    assert_eq!(error, expected);
    assert!(driver.allocate(u64::MAX).is_err());
    assert_eq!(driver.memory().unwrap().free_bytes, 24 * MIB);
}

#[test]
fn another_process_that_grows_takes_free_memory_and_is_not_billed_to_this_one() {
    let card = card(|_| {});
    let mut driver = card.driver();
    driver.allocate(100 * MIB).unwrap();
    card.set_others_bytes(900 * MIB);
    assert_eq!(driver.memory().unwrap().free_bytes, 24 * MIB);
    assert_eq!(driver.process_bytes().unwrap(), Reading::Bytes(100 * MIB));
    card.set_others_bytes(2 * TOTAL);
    assert_eq!(driver.memory().unwrap().free_bytes, 0);
}

#[test]
fn a_retained_pool_keeps_freed_memory_up_to_its_size_and_serves_later_allocations_only_where_told() {
    for reused in [false, true] {
        let card = card(|settings| settings.retained = Some(RetainedPool { most_bytes: 64 * MIB, reused }));
        let mut driver = card.driver();
        let address = driver.allocate(100 * MIB).unwrap();
        driver.free(address).unwrap();
        assert_eq!(card.retained_bytes(), 64 * MIB);
        assert_eq!(driver.memory().unwrap().free_bytes, TOTAL - 64 * MIB);
        assert_eq!(driver.process_bytes().unwrap(), Reading::Bytes(64 * MIB));
        driver.allocate(40 * MIB).unwrap();
        let kept = if reused { 24 * MIB } else { 64 * MIB };
        assert_eq!(card.retained_bytes(), kept);
        assert_eq!(driver.memory().unwrap().free_bytes, TOTAL - kept - 40 * MIB);
        let whole = driver.allocate(TOTAL - 40 * MIB);
        assert_eq!(whole.is_ok(), reused);
    }
}

#[test]
fn with_spilling_a_full_card_goes_on_in_host_memory_and_says_how_much() {
    let card = card(|settings| settings.spill_to_host = true);
    let mut driver = card.driver();
    let address = driver.allocate(TOTAL + 10 * MIB).unwrap();
    assert_eq!(driver.spilled_bytes().unwrap(), Reading::Bytes(10 * MIB));
    assert_eq!(driver.process_bytes().unwrap(), Reading::Bytes(TOTAL));
    assert_eq!(driver.memory().unwrap().free_bytes, 0);
    driver.free(address).unwrap();
    assert_eq!(driver.spilled_bytes().unwrap(), Reading::Bytes(0));
    assert_eq!(driver.memory().unwrap().free_bytes, TOTAL);
}

#[test]
fn a_single_allocation_beyond_the_drivers_limit_fails_however_much_is_free() {
    let mut driver = card(|settings| settings.most_allocation_bytes = Some(256 * MIB)).driver();
    assert!(matches!(driver.allocate(257 * MIB), Err(DriverError::OutOfMemory { .. })));
    assert!(driver.allocate(256 * MIB).is_ok());
}

#[test]
fn a_planted_failure_strikes_at_its_call_once_or_for_ever() {
    for persistent in [false, true] {
        let card = card(|_| {});
        let mut driver = card.driver();
        card.plant_fault(Fault { call: Some(DriverCall::Allocate), at: 2, persistent });
        let outcomes: Vec<_> = (0..4).map(|_| driver.allocate(MIB).is_ok()).collect();
        assert_eq!(outcomes, [true, false, !persistent, !persistent]);
        assert!(driver.memory().is_ok(), "another call was struck");
        assert_eq!(card.calls(DriverCall::Allocate), 4);
        card.clear_faults();
        assert!(driver.allocate(MIB).is_ok());
    }
}

#[test]
fn pages_are_mapped_whole_inside_one_range_or_not_at_all() {
    let card = card(|_| {});
    let mut driver = card.driver();
    let base = driver.reserve(4 * TOTAL).unwrap();
    let (page, at) = (20 * MIB, |pages: u64| Address(base.0 + pages * 20 * MIB));
    driver.map(at(3), 2 * page, page).unwrap();
    assert_eq!(card.held_bytes(), 2 * page);
    assert!(driver.map(at(4), page, page).is_err(), "mapped twice");
    assert!(driver.map(at(2), 2 * page, page).is_err(), "half of it was mapped already");
    assert!(driver.map(at(0), page + MIB, page).is_err(), "not whole pages");
    assert!(driver.map(Address(base.0 + 4 * TOTAL), page, page).is_err(), "outside the range");
    assert!(driver.map(Address(u64::MAX - page + 1), page, page).is_err(), "beyond all addresses");
    assert_eq!(card.held_bytes(), 2 * page);
    let too_many = driver.map(at(10), 100 * page, page);
    assert!(matches!(too_many, Err(DriverError::OutOfMemory { .. })));
    assert_eq!(card.held_bytes(), 2 * page, "a failed map kept pages");
    assert!(driver.release(base, 4 * TOTAL).is_err(), "released with pages mapped");
    driver.unmap(at(3), 2 * page, page).unwrap();
    assert!(driver.unmap(at(3), page, page).is_err(), "unmapped twice");
    driver.release(base, 4 * TOTAL).unwrap();
    assert_eq!(card.held_bytes(), 0);
}

#[test]
fn a_driver_without_virtual_memory_says_so() {
    let mut driver = card(|settings| settings.virtual_memory = false).driver();
    assert_eq!(driver.reserve(TOTAL), Err(DriverError::Unsupported { call: DriverCall::Reserve }));
}

#[test]
fn a_free_of_something_else_is_refused_and_changes_nothing() {
    let card = card(|_| {});
    let mut driver = card.driver();
    let address = driver.allocate(4 * MIB).unwrap();
    assert!(driver.free(Address(address.0 + 2 * MIB)).is_err());
    driver.free(address).unwrap();
    assert!(driver.free(address).is_err());
    assert_eq!(card.held_bytes(), 0);
}

#[test]
fn a_perturbed_card_is_the_same_for_the_same_seed_and_gives_everything_back() {
    let run = |seed| {
        let card = card(|settings| {
            settings.total_bytes = 64 * TOTAL;
            settings.perturbation = Some(Perturbation::seeded(seed));
        });
        let mut driver = card.driver();
        let addresses: Vec<_> = (0..40).map(|_| driver.allocate(8 * MIB).unwrap()).collect();
        let held = card.held_bytes();
        let others = card.settings().others_bytes;
        addresses.into_iter().for_each(|address| driver.free(address).unwrap());
        assert_eq!(card.held_bytes(), 0);
        (held, others)
    };
    let (held, others) = run(1);
    assert!(held > 40 * 8 * MIB, "no allocation cost more than its own");
    assert!(others > 0 && others <= 256 * MIB);
    assert_eq!(run(1), (held, others));
    assert_ne!(run(2), (held, others));
}

#[test]
fn a_process_that_the_driver_cannot_see_is_unknown_and_not_zero() {
    let mut driver = card(|settings| settings.tells_process_bytes = false).driver();
    assert_eq!(driver.process_bytes().unwrap(), Reading::Unknown);
}
