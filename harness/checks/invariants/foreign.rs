//! Another party's lock beside a window: seen whenever it comes, held at the decision by a hook and never by a sleep.

use std::sync::{Arc, Mutex};

use headroom_base::{InvalidReason, Validity};
use headroom_device::cache::ModelKey;
use headroom_device::probe::{Hook, HookError, HookPoint};
use headroom_device::{Cache, LockedModel};

use super::stage::{Stage, foreign_lock, neighbour};
use super::windows::window;
use crate::bench::Setup;
use crate::checks::{CheckError, Claim};

super::invariants![
    a_lock_that_is_held_when_a_window_opens_is_seen,
    a_lock_that_comes_while_an_operation_runs_is_seen,
    a_lock_that_slips_in_while_a_window_registers_is_seen,
    a_lock_that_ends_while_a_window_registers_is_seen,
];

fn is_invalid_for(expected: InvalidReason, found: Validity) -> Result<(), CheckError> {
    Claim::ForeignLockIsSeen.equal("the window", found, Validity::Invalid(expected))
}

fn a_lock_that_is_held_when_a_window_opens_is_seen(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench()?;
    let cache = bench.session.cache();
    cache.add(neighbour("other", 100))?;
    let held = cache.lock(&ModelKey::from("other"), None)?;
    let measured = window(stage, &bench)?;
    held.unlock();
    is_invalid_for(InvalidReason::ForeignLockAtOpen, measured.validity)
}

fn a_lock_that_comes_while_an_operation_runs_is_seen(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench_with(Setup::default(), |scene| {
        scene.foreign_lock("other")?;
        scene.take(scene.need_bytes)
    })?;
    bench.session.cache().add(neighbour("other", 100))?;
    is_invalid_for(InvalidReason::ForeignLockDuring, window(stage, &bench)?.validity)
}

/// What the other party does at the moment when a window registers.
type Deed = Box<dyn Fn(&Cache) -> Result<(), CheckError> + Send + Sync>;

/// Another party that is held until a window registers, and acts then.
struct OtherParty {
    /// Taken away again after its window: a device that its own hook holds on to would never go.
    cache: Mutex<Option<Cache>>,
    deed: Deed,
}

impl Hook for OtherParty {
    fn at(&self, point: HookPoint) -> Result<(), HookError> {
        let acts = point == HookPoint::WindowRegistered;
        let cache = self.cache.lock().map_err(|error| HookError(error.to_string()))?.clone();
        let Some(cache) = cache.filter(|_| acts) else { return Ok(()) };
        (self.deed)(&cache).map_err(|error| HookError(error.to_string()))
    }
}

/// The window of a step during whose registration the other party acts.
fn registered_beside(
    stage: &Stage<'_>,
    deed: Deed,
    before: impl FnOnce(&Cache) -> Result<(), CheckError>,
) -> Result<Validity, CheckError> {
    let other = Arc::new(OtherParty { cache: Mutex::new(None), deed });
    let setup = Setup { hook: Some(Arc::clone(&other) as Arc<dyn Hook>), ..Setup::default() };
    let bench = stage.bench_with(setup, |scene| scene.take(scene.need_bytes))?;
    let cache = bench.session.cache();
    cache.add(neighbour("other", 100))?;
    before(cache)?;
    let hand = |cache: Option<Cache>| {
        let other = other.cache.lock().map(|mut known| *known = cache);
        other.map_err(|error| CheckError::violated(error.to_string()))
    };
    hand(Some(cache.clone()))?;
    let measured = window(stage, &bench);
    hand(None)?;
    Ok(measured?.validity)
}

fn a_lock_that_slips_in_while_a_window_registers_is_seen(stage: &Stage<'_>) -> Result<(), CheckError> {
    let came_and_went: Deed = Box::new(|cache| foreign_lock(cache, "other"));
    let found = registered_beside(stage, came_and_went, |_| Ok(()))?;
    is_invalid_for(InvalidReason::ForeignLockDuring, found)?;
    let kept: Arc<Mutex<Option<LockedModel>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let stays: Deed = Box::new(move |cache| {
        let cache = cache.clone();
        let locked = std::thread::spawn(move || cache.lock(&ModelKey::from("other"), None)).join();
        let locked = locked.map_err(|_| CheckError::violated("the other thread panicked"))??;
        *keep.lock().map_err(|error| CheckError::violated(error.to_string()))? = Some(locked);
        Ok(())
    });
    let found = registered_beside(stage, stays, |_| Ok(()))?;
    drop(kept.lock().map(|mut kept| kept.take()));
    let seen = matches!(found, Validity::Invalid(InvalidReason::ForeignLockAtOpen | InvalidReason::ForeignLockDuring));
    Claim::ForeignLockIsSeen.holds(seen, || format!("a lock slipped in and stayed, and the window is {found:?}"))
}

/// It held its model until the window was registered: what it took before is in the baseline, and it is gone when
/// locks are counted.
fn a_lock_that_ends_while_a_window_registers_is_seen(stage: &Stage<'_>) -> Result<(), CheckError> {
    let held: Arc<Mutex<Option<LockedModel>>> = Arc::default();
    let (ends, begins) = (Arc::clone(&held), Arc::clone(&held));
    let poisoned = |error: &dyn std::fmt::Display| CheckError::violated(error.to_string());
    let deed: Deed = Box::new(move |_| {
        drop(ends.lock().map_err(|error| poisoned(&error))?.take());
        Ok(())
    });
    let found = registered_beside(stage, deed, move |cache| {
        let locked = cache.lock(&ModelKey::from("other"), None)?;
        *begins.lock().map_err(|error| poisoned(&error))? = Some(locked);
        Ok(())
    })?;
    is_invalid_for(InvalidReason::ForeignLockAtOpen, found)
}
