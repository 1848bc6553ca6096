//! What a window measures: the operation alone, all of it, once.

use std::sync::{Arc, Mutex};

use headroom_base::{InvalidReason, MIB, Measurement, Validity};
use headroom_device::cache::ModelKey;
use headroom_device::driver::DriverCall;
use headroom_device::probe::{Hook, HookError, HookPoint};
use headroom_device::{Device, LockedModel, Scope};
use headroom_runners::{RunError, StepReport, StepRequest};

use super::failed;
use super::stage::{Scene, Stage, neighbour};
use crate::bench::{Bench, MEASURING_ALLOWANCE_BYTES, Setup};
use crate::checks::{CheckError, Claim};

super::invariants![
    weights_that_come_beside_are_not_billed,
    an_inner_operation_is_billed_to_itself_and_the_outer_peak_is_kept,
    what_the_outer_takes_until_an_inner_window_opens_is_kept,
    operations_of_a_step_that_overlap_and_do_not_nest_are_not_believed,
    a_window_begins_with_nothing_idle_in_the_reserve,
    every_measured_step_leaves_its_window,
    models_are_pinned_while_a_window_is_open_and_not_longer,
    a_dropped_model_stays_while_a_window_needs_it,
    a_measured_lock_asks_for_the_allowance_too,
    a_step_outside_every_scope_asks_nothing_of_the_probe,
    a_demand_is_the_largest_of_the_three_deltas,
];

/// A step of the smallest size that states what it needs.
pub(super) fn request<'r>(stage: &'r Stage<'_>) -> StepRequest<'r> {
    let size = stage.smallest();
    StepRequest { model: &stage.model.key, with: &[], case: size.case, working_bytes: Some(size.need_bytes) }
}

/// Measures the stage's smallest size; the report and the scope it was measured in.
pub(super) fn measure(stage: &Stage<'_>, bench: &Bench<'_>) -> Result<(StepReport, Scope), CheckError> {
    let scope = Scope::new(MEASURING_ALLOWANCE_BYTES);
    let report = bench.session.measure(&scope, &request(stage))?;
    Ok((report, scope))
}

/// The window of a step that was measured.
pub(super) fn window(stage: &Stage<'_>, bench: &Bench<'_>) -> Result<Measurement, CheckError> {
    let (report, _) = measure(stage, bench)?;
    report.measurement.ok_or_else(|| CheckError::violated("the step left no window"))
}

/// A window that nothing disturbed came to this demand.
fn came_to(claim: Claim, window: &Measurement, demand_mib: u64) -> Result<(), CheckError> {
    Claim::UndisturbedWindowIsValid.equal("the window", window.validity.clone(), Validity::Valid)?;
    claim.equal("MiB that the window came to", window.demand_bytes / MIB, demand_mib)
}

fn weights_that_come_beside_are_not_billed(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench_with(Setup::default(), |scene| {
        scene.take(600 * MIB)?;
        let beside = scene.cache.lock(&ModelKey::from("beside"), None).map_err(failed)?;
        scene.take(500 * MIB)?;
        beside.unlock();
        Ok(())
    })?;
    bench.session.cache().add(neighbour("beside", 2_000))?;
    came_to(Claim::WeightsBesideAreNotBilled, &window(stage, &bench)?, 600)
}

/// An operation of `mib` in a window of its own, inside whatever window is open.
fn inner(scene: &Scene<'_>, mib: u64) -> Result<Option<Measurement>, RunError> {
    let locked = scene.cache.lock(&ModelKey::from("inner"), Some(scene.need_bytes)).map_err(failed)?;
    scene.take(mib * MIB)?;
    Ok(locked.unlock().measurement)
}

fn an_inner_operation_is_billed_to_itself_and_the_outer_peak_is_kept(stage: &Stage<'_>) -> Result<(), CheckError> {
    for (before, within, after) in [(700, 1_500, 200), (200, 1_500, 900), (300, 100, 200)] {
        let inner_window = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&inner_window);
        let bench = stage.bench_with(Setup::default(), move |scene| {
            scene.take(before * MIB)?;
            *keep.lock().map_err(failed)? = inner(scene, within)?;
            scene.take(after * MIB)
        })?;
        bench.session.cache().add(neighbour("inner", 200))?;
        came_to(Claim::InnerPeakIsBilledOnce, &window(stage, &bench)?, before.max(after))?;
        let inner_window = inner_window.lock().ok().and_then(|mut window| window.take());
        let inner_window = inner_window.ok_or_else(|| CheckError::violated("the inner step left no window"))?;
        came_to(Claim::InnerPeakIsBilledOnce, &inner_window, within)?;
    }
    Ok(())
}

/// Takes memory and gives it back the n-th time that a window is about to open.
struct BusyAtOpening {
    /// Taken away again after its window: a device that its own hook holds on to would never go.
    device: Mutex<Option<Device>>,
    openings_left: Mutex<u32>,
    bytes: u64,
}

impl BusyAtOpening {
    fn new(nth: u32, bytes: u64) -> Arc<Self> {
        Arc::new(Self { device: Mutex::new(None), openings_left: Mutex::new(nth), bytes })
    }

    /// The window of a step on a bench that has this hook.
    fn window(&self, stage: &Stage<'_>, bench: &Bench<'_>) -> Result<Measurement, CheckError> {
        let hand = |device: Option<Device>| {
            let handed = self.device.lock().map(|mut known| *known = device);
            handed.map_err(|error| CheckError::violated(error.to_string()))
        };
        hand(Some(bench.session.cache().device().clone()))?;
        let measured = window(stage, bench);
        hand(None)?;
        measured
    }
}

impl Hook for BusyAtOpening {
    fn at(&self, point: HookPoint) -> Result<(), HookError> {
        if point != HookPoint::WindowOpening {
            return Ok(());
        }
        let mut left = self.openings_left.lock().map_err(|error| HookError(error.to_string()))?;
        *left = left.saturating_sub(1);
        let device = self.device.lock().map_err(|error| HookError(error.to_string()))?.clone();
        let Some(device) = device.filter(|_| *left == 0) else { return Ok(()) };
        let held = device.allocate(self.bytes).map_err(|error| HookError(error.to_string()))?;
        device.free(held).map_err(|error| HookError(error.to_string()))
    }
}

fn what_the_outer_takes_until_an_inner_window_opens_is_kept(stage: &Stage<'_>) -> Result<(), CheckError> {
    let busy = BusyAtOpening::new(2, 1_500 * MIB);
    let setup = Setup { hook: Some(Arc::clone(&busy) as Arc<dyn Hook>), ..Setup::default() };
    let bench = stage.bench_with(setup, |scene| inner(scene, 100).map(drop))?;
    bench.session.cache().add(neighbour("inner", 200))?;
    came_to(Claim::OuterPeakIsKept, &busy.window(stage, &bench)?, 1_500)
}

/// The step ends while an operation that began in it goes on.
fn operations_of_a_step_that_overlap_and_do_not_nest_are_not_believed(stage: &Stage<'_>) -> Result<(), CheckError> {
    let still_locked = Arc::new(Mutex::new(None::<LockedModel>));
    let keep = Arc::clone(&still_locked);
    let bench = stage.bench_with(Setup::default(), move |scene| {
        let locked = scene.cache.lock(&ModelKey::from("inner"), Some(scene.need_bytes)).map_err(failed)?;
        *keep.lock().map_err(failed)? = Some(locked);
        scene.take(800 * MIB)
    })?;
    bench.session.cache().add(neighbour("inner", 200))?;
    let step = window(stage, &bench)?;
    let locked = still_locked.lock().ok().and_then(|mut locked| locked.take());
    let inner = locked.and_then(|locked| locked.unlock().measurement);
    let inner = inner.ok_or_else(|| CheckError::violated("the inner operation left no window"))?;
    let expected = Validity::Invalid(InvalidReason::Overlapped);
    let claim = Claim::OverlappingWindowsAreInvalid;
    claim.equal("the window of the step", step.validity, expected.clone())?;
    claim.equal("the window of the operation inside it", inner.validity, expected)
}

/// An idle gibibyte would serve both tensors of an operation that takes one after the other.
fn a_window_begins_with_nothing_idle_in_the_reserve(stage: &Stage<'_>) -> Result<(), CheckError> {
    let busy = BusyAtOpening::new(1, 1_024 * MIB);
    let setup = Setup { hook: Some(Arc::clone(&busy) as Arc<dyn Hook>), ..Setup::default() };
    let bench = stage.bench_with(setup, |scene| {
        scene.take(600 * MIB)?;
        scene.take(700 * MIB)
    })?;
    came_to(Claim::BaselineIsReleased, &busy.window(stage, &bench)?, 1_300)
}

fn every_measured_step_leaves_its_window(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench()?;
    let scope = Scope::new(MEASURING_ALLOWANCE_BYTES);
    for steps in 1..=2 {
        bench.session.measure(&scope, &request(stage))?;
        Claim::EveryWindowIsRecorded.equal("windows in the scope", scope.recorded().len(), steps)?;
    }
    let demand = scope.recorded()[0].measurement.demand_bytes;
    Claim::EveryWindowIsRecorded.equal("the first one's demand", demand, stage.smallest().need_bytes)
}

fn models_are_pinned_while_a_window_is_open_and_not_longer(stage: &Stage<'_>) -> Result<(), CheckError> {
    let during = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&during);
    let bench = stage.bench_with(Setup::default(), move |scene| {
        let beside = scene.cache.lock(&ModelKey::from("beside"), None).map_err(failed)?;
        let pins = scene.cache.models().into_iter().filter(|model| model.locks > 0).map(|model| model.host_pins);
        *keep.lock().map_err(failed)? = pins.collect();
        beside.unlock();
        Ok(())
    })?;
    bench.session.cache().add(neighbour("beside", 100))?;
    measure(stage, &bench)?;
    let during = during.lock().map(|pins| pins.clone()).unwrap_or_default();
    Claim::PinIsReleasedOnce.equal("pins of the locked models while the window was open", during, vec![1, 1])?;
    let after: u32 = bench.session.cache().models().iter().map(|model| model.host_pins).sum();
    Claim::PinIsReleasedOnce.equal("pins after the window closed", after, 0)
}

/// A step locks a model, unlocks it, somebody drops it, and the step locks it again.
fn a_dropped_model_stays_while_a_window_needs_it(stage: &Stage<'_>) -> Result<(), CheckError> {
    let again = Arc::new(Mutex::new(false));
    let keep = Arc::clone(&again);
    let bench = stage.bench_with(Setup::default(), move |scene| {
        let key = ModelKey::from("beside");
        scene.cache.lock(&key, None).map_err(failed)?.unlock();
        scene.cache.drop_model(&key).map_err(failed)?;
        *keep.lock().map_err(failed)? = scene.cache.lock(&key, None).is_ok();
        Ok(())
    })?;
    bench.session.cache().add(neighbour("beside", 100))?;
    measure(stage, &bench)?;
    let locked_again = again.lock().is_ok_and(|again| *again);
    Claim::DroppedModelStaysWhileNeeded.holds(locked_again, || "it is gone while its window is open".to_owned())?;
    let gone = bench.session.cache().model(&"beside".into()).is_none();
    Claim::DroppedModelStaysWhileNeeded.holds(gone, || "it is still there after its window closed".to_owned())
}

fn a_measured_lock_asks_for_the_allowance_too(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench_with(Setup { floor_bytes: Some(0), ..Setup::default() }, |_| Ok(()))?;
    let (report, _) = measure(stage, &bench)?;
    let expected = stage.smallest().need_bytes + MEASURING_ALLOWANCE_BYTES;
    Claim::AllowanceIsAskedFor.equal("working memory of the lock", report.lock.budget.working_bytes, expected)
}

fn a_step_outside_every_scope_asks_nothing_of_the_probe(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench()?;
    let card = bench.card.simulated()?;
    let asked = || card.calls(DriverCall::ProcessBytes) + card.calls(DriverCall::SpilledBytes);
    let before = asked();
    bench.session.run(&request(stage))?;
    Claim::IdleScopeAsksNothing.equal("questions of the probe", asked() - before, 0)
}

/// Three cards: one whose driver lends in large steps, one whose driver says nothing, one without anything unusual.
fn a_demand_is_the_largest_of_the_three_deltas(stage: &Stage<'_>) -> Result<(), CheckError> {
    let coarse = |settings: &mut headroom_device::driver::CardSettings| settings.granularity_bytes = 64 * MIB;
    let silent = |settings: &mut headroom_device::driver::CardSettings| settings.tells_process_bytes = false;
    let cards: [(Setup, u64); 3] = [
        // 600 and 700 are reserved, 700 allocated at the most.
        (Setup::default(), 1_300),
        (Setup { card: Some(silent), ..Setup::default() }, 1_300),
        // 640 and 704 are lent.
        (Setup { card: Some(coarse), ..Setup::default() }, 1_344),
    ];
    for (setup, expected) in cards {
        let bench = stage.bench_with(setup, |scene| {
            scene.take(600 * MIB)?;
            scene.take(700 * MIB)
        })?;
        came_to(Claim::DemandIsTheLargestDelta, &window(stage, &bench)?, expected)?;
    }
    Ok(())
}
