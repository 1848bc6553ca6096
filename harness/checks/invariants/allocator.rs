//! The allocator and the cards below it: every recorded counter, a neighbour's memory, and what a failed call leaves.

use headroom_base::{AllocatorKind, GIB, MIB};
use headroom_device::Allocator;
use headroom_device::allocator::Settings;
use headroom_device::driver::{CardSettings, Driver, DriverError, SimulatedCard};
use headroom_device::replay::{Request, Requests, run_requests};
use headroom_reports::recordings;

use super::shipping::said;
use crate::checks::{CheckError, Claim};
use crate::replay::recording::compare;
use crate::world::World;

super::general![
    counters_are_the_recorded_ones_with_no_setting,
    counters_are_the_recorded_ones_with_a_split_limit,
    counters_are_the_recorded_ones_with_rounded_sizes,
    counters_are_the_recorded_ones_with_garbage_collection,
    counters_are_the_recorded_ones_with_expandable_segments,
    what_another_process_holds_cannot_be_had,
    a_map_that_fails_keeps_nothing,
    what_comes_and_goes_in_the_drivers_pool_is_charged,
];

/// A scripted run that was recorded on a real card.
macro_rules! recorded {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../../tests/data/h200/", $name, ".jsonl.gz")).as_slice())
    };
}

/// Replays a recording: eight counters after every step, and every recorded address.
fn counts_as_recorded((name, bytes): (&str, &[u8])) -> Result<(), CheckError> {
    let comparison = compare(&recordings::parse(bytes).map_err(said)?).map_err(said)?;
    Claim::AllocatorCountsAsRecorded.holds(comparison.is_exact(), || {
        let (equal, compared, first) = (comparison.equal, comparison.compared, comparison.first_difference);
        format!("{name}: {equal} of {compared} figures are the recorded ones; first {first:?}")
    })
}

fn counters_are_the_recorded_ones_with_no_setting(_: &World) -> Result<(), CheckError> {
    counts_as_recorded(recorded!("scenario-native"))
}

fn counters_are_the_recorded_ones_with_a_split_limit(_: &World) -> Result<(), CheckError> {
    counts_as_recorded(recorded!("scenario-split128"))
}

fn counters_are_the_recorded_ones_with_rounded_sizes(_: &World) -> Result<(), CheckError> {
    counts_as_recorded(recorded!("scenario-pow2"))
}

fn counters_are_the_recorded_ones_with_garbage_collection(_: &World) -> Result<(), CheckError> {
    counts_as_recorded(recorded!("scenario-gc"))
}

fn counters_are_the_recorded_ones_with_expandable_segments(_: &World) -> Result<(), CheckError> {
    counts_as_recorded(recorded!("scenario-expandable"))
}

fn what_another_process_holds_cannot_be_had(_: &World) -> Result<(), CheckError> {
    let card = SimulatedCard::new(CardSettings { others_bytes: 48 * MIB, ..CardSettings::new(64 * MIB) });
    let mut allocator = Allocator::new(card.driver(), Settings::default());
    let refused = allocator.allocate(32 * MIB).is_err_and(|error| error.is_out_of_memory());
    Claim::OthersMemoryCannotBeHad.holds(refused, || "32 MiB were had of 16 that are free".to_owned())?;
    let had = allocator.allocate(16 * MIB).is_ok();
    Claim::OthersMemoryCannotBeHad.holds(had, || "what is free could not be had".to_owned())
}

/// The fourth of ten pages does not fit any more: the three before it go back.
fn a_map_that_fails_keeps_nothing(_: &World) -> Result<(), CheckError> {
    let card = SimulatedCard::new(CardSettings::new(64 * MIB));
    let mut driver = card.driver();
    let base = driver.reserve(200 * MIB).map_err(said)?;
    let refused = matches!(driver.map(base, 200 * MIB, 20 * MIB), Err(DriverError::OutOfMemory { .. }));
    Claim::FailedMapKeepsNothing.holds(refused, || "200 MiB were mapped on a card of 64".to_owned())?;
    Claim::FailedMapKeepsNothing.equal("bytes held after it failed", card.held_bytes(), 0)
}

/// Sixteen tiles, one after the other: the driver's pool was seen to reserve half as much again as one of them.
fn what_comes_and_goes_in_the_drivers_pool_is_charged(_: &World) -> Result<(), CheckError> {
    let tile = |id| [Request::Allocate { id, bytes: GIB }, Request::Free { id }];
    let requests = Requests { live: Vec::new(), operation: (0..16).flat_map(tile).collect() };
    let run = run_requests(&requests, &Settings::of_kind(AllocatorKind::CudaMallocAsync), 139 * GIB).map_err(said)?;
    let peak = run.reserved_peak_delta_bytes();
    Claim::PoolBoundCoversWhatComesAndGoes
        .holds(peak >= GIB / 4 * 5, || format!("{peak} bytes are charged for sixteen tiles of a gibibyte"))
}
