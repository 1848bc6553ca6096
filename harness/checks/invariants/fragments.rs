//! Fragmentation: what a warm allocator holds beyond need is left out, and need is not taken for it.

use headroom_base::{GIB, MIB, RunKind};
use headroom_calibration::{Knowledge, Record, Uncounted};
use headroom_runners::RunError;

use super::stage::{Scene, Stage};
use crate::bench::Setup;
use crate::checks::{CheckError, Claim};

super::invariants![
    a_warm_allocators_surplus_is_left_out,
    an_attempt_is_judged_by_its_own_smallest_size,
    what_is_allocated_beyond_the_smallest_sizes_share_counts,
    one_more_segment_is_rounding,
    room_left_by_others_is_no_measure,
];

/// Allocated by an operation of the smallest size.
const ALLOCATED_BYTES: u64 = 400 * MIB;

/// An operation that allocates `allocated` at its peak and makes the allocator hold `surplus` beside it.
fn with_surplus(scene: &Scene<'_>, allocated: u64, surplus: u64) -> Result<(), RunError> {
    if surplus > 0 {
        scene.take(surplus)?;
    }
    scene.take(allocated)
}

/// A calibration in which every size allocates in proportion to its cost units; `play` says what is held beside it.
fn measured(
    stage: &Stage<'_>,
    record: &mut Record,
    id: &str,
    play: impl Fn(&Scene<'_>, u64, bool) -> Result<(), RunError> + Send + Sync + 'static,
) -> Result<(), CheckError> {
    let least = stage.smallest().units;
    let share = |units: u64| u64::try_from(u128::from(ALLOCATED_BYTES) * u128::from(units) / u128::from(least));
    let sizes: Vec<_> = stage.sizes.iter().map(|size| (size.need_bytes, share(size.units).unwrap_or(GIB))).collect();
    let largest = stage.largest().need_bytes;
    let bench = stage.bench_with(Setup::default(), move |scene| {
        let known = sizes.iter().find(|(need, _)| *need == scene.need_bytes);
        let allocated = known.map_or(ALLOCATED_BYTES, |(_, allocated)| *allocated);
        play(scene, allocated, scene.need_bytes == largest)
    })?;
    stage.calibrate(&bench, record, id)
}

/// How many measured windows of these cost units or more are taken for fragmentation, of how many.
fn flagged(knowledge: &Knowledge, id: &str, least_units: u64) -> (usize, usize) {
    let judged = knowledge.record().windows.iter().zip(knowledge.verdicts());
    let looked_at = judged.filter(|(window, _)| {
        window.cost_units >= least_units
            && window.kind == RunKind::Measured
            && window.attempt_id.as_ref().is_some_and(|attempt| attempt.0 == id)
    });
    let reasons: Vec<_> = looked_at.map(|(_, verdict)| verdict.reason()).collect();
    let is_flagged = |reason: &&Option<&Uncounted>| matches!(reason, Some(Uncounted::Fragmented(_)));
    (reasons.iter().filter(is_flagged).count(), reasons.len())
}

fn a_warm_allocators_surplus_is_left_out(stage: &Stage<'_>) -> Result<(), CheckError> {
    let mut record = stage.record();
    measured(stage, &mut record, "warm", |scene, allocated, is_largest| {
        with_surplus(scene, allocated, if is_largest { allocated / 10 * 4 } else { 0 })
    })?;
    let (flagged, of) = flagged(&stage.knowledge(&record), "warm", stage.largest().units);
    Claim::SurplusIsLeftOut.holds(of > 0 && flagged == of, || format!("{flagged} of {of} windows are seen as surplus"))
}

/// After a clean attempt comes one that holds 30 % beside everything: it is its own measure, not the clean one's.
fn an_attempt_is_judged_by_its_own_smallest_size(stage: &Stage<'_>) -> Result<(), CheckError> {
    let mut record = stage.record();
    measured(stage, &mut record, "clean", |scene, allocated, _| with_surplus(scene, allocated, 0))?;
    measured(stage, &mut record, "even", |scene, allocated, _| with_surplus(scene, allocated, allocated / 10 * 3))?;
    let (flagged, of) = flagged(&stage.knowledge(&record), "even", 0);
    Claim::EachAttemptIsItsOwnReference.holds(of > 0 && flagged == 0, || {
        format!("{flagged} of {of} windows are judged by another attempt's smallest size")
    })
}

/// The largest size allocates a third more for its size than the smallest: another kernel, not fragmentation.
fn what_is_allocated_beyond_the_smallest_sizes_share_counts(stage: &Stage<'_>) -> Result<(), CheckError> {
    let mut record = stage.record();
    measured(stage, &mut record, "kernel", |scene, allocated, is_largest| {
        let allocated = if is_largest { allocated / 3 * 4 } else { allocated };
        with_surplus(scene, allocated, if is_largest { allocated / 10 * 4 } else { 0 })
    })?;
    let (flagged, of) = flagged(&stage.knowledge(&record), "kernel", 0);
    Claim::AllocatedGrowthIsNeed
        .holds(of > 0 && flagged == 0, || format!("{flagged} of {of} windows that need more are taken for surplus"))
}

/// Sizes that are small enough for one segment of 18 MiB to be more than a tenth: every size but the reference has one.
fn one_more_segment_is_rounding(stage: &Stage<'_>) -> Result<(), CheckError> {
    let mut record = stage.record();
    measured(stage, &mut record, "small", |scene, allocated, _| {
        let allocated = allocated / 10;
        let is_reference = allocated == ALLOCATED_BYTES / 10;
        with_surplus(scene, allocated, if is_reference { 0 } else { 18 * MIB })
    })?;
    let (flagged, of) = flagged(&stage.knowledge(&record), "small", 0);
    Claim::OneGrowthStepIsRounding
        .holds(of > 0 && flagged == 0, || format!("{flagged} of {of} windows are left out for one segment more"))
}

/// A tensor of somebody else keeps a segment whose rest is empty: the smallest size finds all that it needs there.
fn room_left_by_others_is_no_measure(stage: &Stage<'_>) -> Result<(), CheckError> {
    let mut record = stage.record();
    let bench = stage.bench_with(Setup::default(), |scene| with_surplus(scene, ALLOCATED_BYTES, 0))?;
    // The weights come first, or they would lie in the room.
    stage.calibrate(&bench, &mut record, "fresh")?;
    let device = bench.session.cache().device();
    let failed = |error: &dyn std::fmt::Display| CheckError::violated(format!("room cannot be left: {error}"));
    device.empty_cache().map_err(|error| failed(&error))?;
    let segment = device.allocate(2 * ALLOCATED_BYTES).map_err(|error| failed(&error))?;
    device.free(segment).map_err(|error| failed(&error))?;
    // More than the segments of the weights have left.
    let other = device.allocate(64 * MIB).map_err(|error| failed(&error))?;
    stage.calibrate(&bench, &mut record, "room")?;
    device.free(other).map_err(|error| failed(&error))?;
    let knowledge = stage.knowledge(&record);
    let of_the_room = record.windows.iter().zip(knowledge.verdicts()).filter(|(window, _)| {
        window.kind == RunKind::Measured && window.attempt_id.as_ref().is_some_and(|id| id.0 == "room")
    });
    let reasons: Vec<_> = of_the_room.map(|(_, verdict)| verdict.reason()).collect();
    let left_out = reasons.iter().filter(|reason| matches!(reason, Some(Uncounted::InRoomLeft { .. }))).count();
    Claim::RoomLeftNeverCounts.holds(left_out > 0 && left_out == reasons.len(), || {
        format!("{left_out} of {} windows in room that others left are left out", reasons.len())
    })
}
