//! Who leaves the device for a lock: everybody, whole, for a measured one; as little as will do for any other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headroom_base::MIB;
use headroom_device::cache::{Move, TOLERANCE_BYTES};
use headroom_runners::{StepReport, StepRequest};

use super::stage::{PAGE_BYTES, Stage, neighbour};
use crate::bench::{Bench, MEASURING_ALLOWANCE_BYTES, Setup};
use crate::checks::{CheckError, Claim};

super::invariants![
    a_measured_lock_moves_every_other_model_off_whole,
    an_ordinary_lock_with_room_to_spare_moves_nothing,
    an_ordinary_lock_moves_the_smallest_model_first_and_only_in_part,
    a_resident_model_still_gets_its_working_memory,
    a_model_whose_lock_failed_can_be_moved_off_again,
    a_shortfall_of_a_mebibyte_counts_as_fitting_and_a_page_does_not,
];

/// A bench on which the stage's model and two neighbours, of 200 and 2,000 MiB, are resident and nobody is locked.
fn crowded<'a>(stage: &Stage<'a>) -> Result<Bench<'a>, CheckError> {
    crowd(stage, stage.bench()?)
}

fn crowd<'a>(stage: &Stage<'a>, bench: Bench<'a>) -> Result<Bench<'a>, CheckError> {
    let cache = bench.session.cache();
    for (key, mib) in [("small", 200), ("large", 2_000)] {
        cache.add(neighbour(key, mib))?;
        cache.lock(&key.into(), Some(0))?.unlock();
    }
    ordinary(stage, &bench, 0)?;
    cache.device().empty_cache().map_err(|error| CheckError::violated(error.to_string()))?;
    Ok(bench)
}

fn request<'r>(stage: &'r Stage<'_>, working_bytes: u64) -> StepRequest<'r> {
    let case = stage.smallest().case;
    StepRequest { model: &stage.model.key, with: &[], case, working_bytes: Some(working_bytes) }
}

/// A step as a generation runs it.
fn ordinary(stage: &Stage<'_>, bench: &Bench<'_>, working_bytes: u64) -> Result<StepReport, CheckError> {
    Ok(bench.session.run(&request(stage, working_bytes))?)
}

fn resident_mib(bench: &Bench<'_>, key: &str) -> u64 {
    bench.session.cache().model(&key.into()).map_or(0, |model| model.resident_bytes / MIB)
}

fn a_measured_lock_moves_every_other_model_off_whole(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = crowded(stage)?;
    // Room for half of the small neighbour beside what is to be measured: the ordinary rule would split it.
    let working = stage.smallest().need_bytes.max(bench.floor_bytes);
    bench.card.leave_free(working + MEASURING_ALLOWANCE_BYTES - 100 * MIB)?;
    let scope = headroom_device::Scope::new(MEASURING_ALLOWANCE_BYTES);
    let report = bench.session.measure(&scope, &request(stage, working))?;
    let left = [resident_mib(&bench, "small"), resident_mib(&bench, "large")];
    Claim::MeasuredLockMovesOthersOffWhole.equal("MiB of others beside the measured model", left, [0, 0])?;
    Claim::MeasuredModelIsResident.equal("bytes of the measured model that are missing", report.lock.missing_bytes, 0)
}

fn an_ordinary_lock_with_room_to_spare_moves_nothing(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = crowded(stage)?;
    let report = ordinary(stage, &bench, stage.smallest().need_bytes)?;
    Claim::OrdinaryLockMovesNothingNeedlessly.equal("moved off", report.lock.moves, Vec::new())?;
    let left = [resident_mib(&bench, "small"), resident_mib(&bench, "large")];
    Claim::OrdinaryLockMovesNothingNeedlessly.equal("MiB of others that stay", left, [200, 2_000])
}

/// A resident model is locked for more working memory than is free: what is short is `short_mib`.
fn short_of(stage: &Stage<'_>, short_mib: u64) -> Result<Vec<Move>, CheckError> {
    let bench = crowded(stage)?;
    let working = stage.smallest().need_bytes.max(bench.floor_bytes);
    bench.card.leave_free(working - short_mib * MIB)?;
    Ok(ordinary(stage, &bench, working)?.lock.moves)
}

fn an_ordinary_lock_moves_the_smallest_model_first_and_only_in_part(stage: &Stage<'_>) -> Result<(), CheckError> {
    // The stage's own model is no candidate; of the neighbours the small one is the smallest.
    let expected = |mib: u64, left: u64| Move { key: "small".into(), bytes: mib * MIB, remaining_bytes: left * MIB };
    let moves = short_of(stage, 100)?;
    Claim::OrdinaryLockMovesTheLeast.equal("moved off for 100 MiB", moves, vec![expected(100, 100)])?;
    let moves = short_of(stage, 300)?;
    let large = Move { key: "large".into(), bytes: 100 * MIB, remaining_bytes: 1_900 * MIB };
    Claim::OrdinaryLockMovesTheLeast.equal("moved off for 300 MiB", moves, vec![expected(200, 0), large])
}

fn a_resident_model_still_gets_its_working_memory(stage: &Stage<'_>) -> Result<(), CheckError> {
    let found = Arc::new(AtomicU64::new(0));
    let finds = Arc::clone(&found);
    let bench = crowd(
        stage,
        stage.bench_with(Setup::default(), move |scene| {
            finds.store(scene.card.free_bytes().map_err(super::failed)?, Ordering::SeqCst);
            Ok(())
        })?,
    )?;
    let working = stage.smallest().need_bytes.max(bench.floor_bytes);
    bench.card.leave_free(working - 100 * MIB)?;
    let report = ordinary(stage, &bench, working)?;
    Claim::ResidentModelStillGetsItsWorkingMemory.equal("loaded by the lock", report.lock.loaded_bytes, 0)?;
    let free = found.load(Ordering::SeqCst);
    Claim::ResidentModelStillGetsItsWorkingMemory
        .holds(free >= working, || format!("an operation that needs {working} bytes finds {free} free"))
}

/// A model that must be on the device whole finds no room, and the next one finds all of the room.
fn a_model_whose_lock_failed_can_be_moved_off_again(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench()?;
    let cache = bench.session.cache();
    cache.add(neighbour("whole", 2_000).whole())?;
    bench.card.leave_free(1_000 * MIB)?;
    let failed = cache.lock(&"whole".into(), Some(0)).is_err_and(|error| error.is_out_of_memory());
    Claim::FailureLeavesTheCacheAsItWas.holds(failed, || "a model was locked that has no room".to_owned())?;
    let locks = cache.model(&"whole".into()).map_or(0, |model| model.locks);
    Claim::FailedLockIsNotCounted.equal("locks of the model whose lock failed", locks, 0)
}

fn a_shortfall_of_a_mebibyte_counts_as_fitting_and_a_page_does_not(stage: &Stage<'_>) -> Result<(), CheckError> {
    for (short_bytes, missing_mib) in [(TOLERANCE_BYTES, 0), (PAGE_BYTES, 20)] {
        let bench = stage.bench()?;
        let cache = bench.session.cache();
        cache.add(neighbour("pieces", 200))?;
        let room_bytes = bench.floor_bytes + 200 * MIB;
        bench.card.leave_free(room_bytes - short_bytes)?;
        // Of an attached card only whole pages can be taken: up to one more is left than was asked for.
        if missing_mib > 0 && bench.card.free_bytes()? + TOLERANCE_BYTES >= room_bytes {
            bench.card.leave_free(room_bytes - short_bytes - PAGE_BYTES)?;
        }
        let locked = cache.lock(&"pieces".into(), None)?;
        let missing = locked.report().missing_bytes / MIB;
        locked.unlock();
        let what = format!("MiB missing of a model that lacks {short_bytes} bytes of room");
        Claim::SmallShortfallIsTolerated.equal(&what, missing, missing_mib)?;
    }
    Ok(())
}
