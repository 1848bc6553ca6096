//! Runs that did not go well: each makes its window invalid, for its own reason, and people are told once.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use headroom_base::{InvalidReason, MIB, Measurement, Residency, Validity};
use headroom_device::Scope;
use headroom_device::cache::{Event, ModelKey, Observer};
use headroom_device::probe::{Hook, HookError, HookPoint};
use headroom_runners::{RunError, StepError, StepRequest};
use tracing::field::{Field, Visit};

use super::stage::{Scene, Stage, neighbour};
use super::windows::{request, window};
use crate::bench::{Bench, MEASURING_ALLOWANCE_BYTES, Setup};
use crate::checks::{CheckError, Claim};

super::invariants![
    a_run_that_had_to_try_again_makes_its_window_invalid,
    memory_that_stays_in_the_host_makes_a_window_invalid,
    a_run_out_of_memory_makes_its_window_invalid_for_that_reason,
    a_run_that_failed_makes_its_window_invalid,
    a_probe_that_could_not_look_makes_its_window_invalid,
    a_watcher_that_failed_makes_the_window_invalid,
    a_window_says_what_of_its_model_was_missing,
    too_little_memory_is_said_once_and_in_full,
];

fn is_invalid_for(claim: Claim, found: &Validity, right: fn(&InvalidReason) -> bool) -> Result<(), CheckError> {
    let holds = matches!(found, Validity::Invalid(reason) if right(reason));
    claim.holds(holds, || format!("the window is {found:?}"))
}

/// Two tensors, one after the other, on a card that holds only one of them.
fn two_on_a_card_for_one(scene: &Scene<'_>) -> Result<(), RunError> {
    scene.leave_free(1_500 * MIB)?;
    scene.take(1_000 * MIB)?;
    scene.take(1_200 * MIB)
}

fn a_run_that_had_to_try_again_makes_its_window_invalid(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench_with(Setup::default(), two_on_a_card_for_one)?;
    let measured = window(stage, &bench)?;
    let right = |reason: &InvalidReason| matches!(reason, InvalidReason::AllocatorRetry { retries: 1 });
    is_invalid_for(Claim::RetryIsSeen, &measured.validity, right)
}

fn memory_that_stays_in_the_host_makes_a_window_invalid(stage: &Stage<'_>) -> Result<(), CheckError> {
    let spills = |settings: &mut headroom_device::driver::CardSettings| settings.spill_to_host = true;
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    let bench = stage.bench_with(Setup { card: Some(spills), ..Setup::default() }, move |scene| {
        scene.leave_free(1_000 * MIB)?;
        let held = scene.hold(1_100 * MIB)?;
        keep.lock().map_err(super::failed)?.push(held);
        Ok(())
    })?;
    let measured = window(stage, &bench)?;
    let right = |reason: &InvalidReason| matches!(reason, InvalidReason::Spill { bytes } if *bytes == 100 * MIB);
    is_invalid_for(Claim::SpillIsSeen, &measured.validity, right)
}

/// The window of a step whose operation fails.
fn failing(stage: &Stage<'_>, bench: &Bench<'_>) -> Result<Measurement, CheckError> {
    let scope = Scope::new(MEASURING_ALLOWANCE_BYTES);
    match bench.session.measure(&scope, &request(stage)) {
        Err(StepError::Run { measurement: Some(measurement), .. }) => Ok(*measurement),
        Err(error) => Err(error.into()),
        Ok(_) => Err(CheckError::violated("the step was to fail and did not")),
    }
}

fn a_run_out_of_memory_makes_its_window_invalid_for_that_reason(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench_with(Setup::default(), |scene| {
        scene.leave_free(500 * MIB)?;
        scene.take(1_000 * MIB)
    })?;
    let measured = failing(stage, &bench)?;
    is_invalid_for(Claim::OutOfMemoryIsSeen, &measured.validity, |reason| *reason == InvalidReason::OutOfMemory)?;
    // An operation may catch it and go on with less: what it then needed is not what it needs.
    let bench = stage.bench_with(Setup::default(), |scene| {
        scene.leave_free(500 * MIB)?;
        // Refused on purpose.
        drop(scene.take(1_000 * MIB));
        scene.take(100 * MIB)
    })?;
    let measured = window(stage, &bench)?;
    is_invalid_for(Claim::OutOfMemoryIsSeen, &measured.validity, |reason| *reason == InvalidReason::OutOfMemory)
}

fn a_run_that_failed_makes_its_window_invalid(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench_with(Setup::default(), |scene| {
        scene.take(100 * MIB)?;
        Err(RunError::Failed { message: "the decoder was given nonsense".to_owned() })
    })?;
    let right = |reason: &InvalidReason| matches!(reason, InvalidReason::OperationFailed { .. });
    is_invalid_for(Claim::FailureIsSeen, &failing(stage, &bench)?.validity, right)
}

/// Fails at one point.
struct Broken(HookPoint);

impl Hook for Broken {
    fn at(&self, point: HookPoint) -> Result<(), HookError> {
        if point == self.0 { Err(HookError("the reader is gone".to_owned())) } else { Ok(()) }
    }
}

fn a_probe_that_could_not_look_makes_its_window_invalid(stage: &Stage<'_>) -> Result<(), CheckError> {
    use HookPoint::{StretchBegun, StretchEnded, WindowClosing, WindowMeasured, WindowOpening, WindowRegistered};
    for point in [WindowOpening, WindowRegistered, StretchEnded, StretchBegun, WindowClosing, WindowMeasured] {
        let setup = Setup { hook: Some(Arc::new(Broken(point))), ..Setup::default() };
        // A model that comes and goes makes stretches.
        let bench = stage.bench_with(setup, |scene| {
            let beside = scene.cache.lock(&ModelKey::from("beside"), None).map_err(super::failed)?;
            scene.take(scene.need_bytes)?;
            beside.unlock();
            Ok(())
        })?;
        bench.session.cache().add(neighbour("beside", 100))?;
        let measured = window(stage, &bench)?;
        let right = |reason: &InvalidReason| matches!(reason, InvalidReason::ProbeFailed { .. });
        is_invalid_for(Claim::ProbeFailureIsSeen, &measured.validity, right)?;
    }
    Ok(())
}

/// Fails when a model is loaded.
struct Blind;

impl Observer for Blind {
    fn event(&self, event: &Event) -> Result<(), HookError> {
        match event {
            Event::Loaded { key, .. } if *key == ModelKey::from("beside") => Err(HookError("no disk".to_owned())),
            _ => Ok(()),
        }
    }
}

fn a_watcher_that_failed_makes_the_window_invalid(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench_with(Setup::default(), |scene| {
        scene.cache.lock(&ModelKey::from("beside"), None).map_err(super::failed)?.unlock();
        scene.take(scene.need_bytes)
    })?;
    bench.session.cache().add(neighbour("beside", 100))?;
    bench.session.cache().observe(Arc::new(Blind));
    let right = |reason: &InvalidReason| matches!(reason, InvalidReason::ProbeFailed { .. });
    is_invalid_for(Claim::ProbeFailureIsSeen, &window(stage, &bench)?.validity, right)
}

/// A model of pieces of 20 MiB on a card with room for half of it.
fn a_window_says_what_of_its_model_was_missing(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench_with(Setup { floor_bytes: Some(0), ..Setup::default() }, |_| Ok(()))?;
    let cache = bench.session.cache();
    cache.add(neighbour("pieces", 400))?;
    bench.card.leave_free(700 * MIB)?;
    let entered = Scope::new(0).enter();
    let locked = cache.lock(&ModelKey::from("pieces"), Some(500 * MIB))?;
    drop(entered);
    let measured = locked.unlock().measurement.ok_or_else(|| CheckError::violated("no window"))?;
    let expected = Residency::Partial { missing_bytes: 200 * MIB };
    Claim::PartialResidencyIsSaid.equal("residency of the window", measured.residency, expected)
}

/// Keeps what is logged at WARN level.
#[derive(Clone, Default)]
struct Log {
    lines: Arc<Mutex<Vec<String>>>,
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string cannot fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        if let Ok(mut lines) = self.lines.lock() {
            lines.push(message.0);
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Ten steps of a denoise beside a locked part of another pipeline, on a card with less than the floor.
fn too_little_memory_is_said_once_and_in_full(stage: &Stage<'_>) -> Result<(), CheckError> {
    let bench = stage.bench_with(Setup::default(), |_| Ok(()))?;
    let cache = bench.session.cache();
    cache.add(neighbour("pipeline:text_encoder", 200))?;
    let beside = cache.lock(&ModelKey::from("pipeline:text_encoder"), Some(0))?;
    let asked = 100 * MIB;
    let step = StepRequest { working_bytes: Some(asked), ..request(stage) };
    bench.session.run(&step)?;
    bench.card.leave_free(bench.floor_bytes / 2)?;
    let log = Log::default();
    tracing::subscriber::with_default(log.clone(), || (0..10).try_for_each(|_| bench.session.run(&step).map(drop)))?;
    beside.unlock();
    let lines = log.lines.lock().map(|lines| lines.clone()).unwrap_or_default();
    // A card that is filled for good may also have to say, once, that it could never hold a piece of the model.
    let (pressure, other): (Vec<_>, Vec<_>) =
        lines.iter().partition(|line| line.contains("too little device memory to lock"));
    let repeated = other.iter().collect::<std::collections::HashSet<_>>().len() < other.len();
    Claim::PressureIsSaidOnce
        .holds(pressure.len() == 1 && !repeated, || format!("{} warnings of ten steps: {lines:?}", lines.len()))?;
    let effective = headroom_base::Bytes(bench.floor_bytes).to_string();
    for part in ["pipeline:text_encoder", "(locked)", &effective] {
        let said = pressure.iter().any(|line| line.contains(part));
        Claim::PressureIsSaidOnce.holds(said, || format!("`{part}` is not in the warning: {lines:?}"))?;
    }
    Ok(())
}
