//! Runs a scripted scenario of a family file on the real cache, and compares every figure it states.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use headroom_base::{Backend, Budget, Bytes, DeviceClass, Measurement, SignedBytes, budget};
use headroom_device::Settings;
use headroom_device::cache::{
    Cache, CacheError, CacheSettings, Event, LockedModel, ModelKey, ModelSpec, Observer, PieceSpec,
};
use headroom_device::device::{Device, DeviceId, DeviceParts, Holding};
use headroom_device::driver::{CardSettings, SimulatedCard};
use headroom_device::probe::{HookError, Scope};
use headroom_family::{Action, ExpectedWarning, ExpectedWindow, Scenario, ScenarioError, ScenarioModel, ScenarioStep};

use super::{CheckError, Claim, Evidence};

/// What a measured lock of a scenario asks beyond its estimate: nothing, so that every byte is in the file.
const NO_ALLOWANCE: u64 = 0;

/// Runs a scenario from beginning to end.
///
/// # Errors
/// The first expectation that is not met, with the line of the file.
pub fn scenario(scenario: &Scenario) -> Result<Evidence, CheckError> {
    let mut stage = Stage::new(scenario)?;
    let mut seen = 0;
    for step in &scenario.steps {
        stage.run(step).map_err(|error| at(step, &error))?;
        seen += 1;
    }
    stage.neighbour_untouched()?;
    Ok(Evidence { seen, ..Evidence::default() })
}

fn at(step: &ScenarioStep, error: &CheckError) -> CheckError {
    let text = format!("line {}: {error}", step.line);
    match error {
        CheckError::Broken { claim, .. } => CheckError::Broken { claim: *claim, text },
        _ => CheckError::violated(text),
    }
}

#[derive(Default)]
struct Watcher {
    events: Mutex<Vec<Event>>,
}

impl Observer for Watcher {
    fn event(&self, event: &Event) -> Result<(), HookError> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event.clone());
        Ok(())
    }
}

/// A scenario under way.
struct Stage<'a> {
    scenario: &'a Scenario,
    card: SimulatedCard,
    cache: Cache,
    watcher: Arc<Watcher>,
    /// An idle card of the same process. Its device lives as long as the scenario, so that a query could hit it.
    neighbour: Option<(SimulatedCard, Device)>,
    neighbour_calls: u64,
    blocks: HashMap<&'a str, Holding>,
    locks: HashMap<&'a str, Vec<LockedModel>>,
    /// The scope of every measured lock.
    scope: Scope,
    /// What the last unlock measured.
    closed: Option<Measurement>,
}

impl<'a> Stage<'a> {
    fn new(scenario: &'a Scenario) -> Result<Self, CheckError> {
        let device = &scenario.device;
        let card = SimulatedCard::new(CardSettings {
            context_bytes: device.context_bytes,
            others_bytes: device.outside_bytes,
            spill_to_host: device.spill,
            most_allocation_bytes: device.largest_allocation_bytes,
            ..CardSettings::new(device.total_bytes)
        });
        let parts = |card: &SimulatedCard, name: &str| {
            let class = DeviceClass::new("simulated", card.settings().total_bytes, Backend::Cuda);
            let settings = Settings::of_kind(device.allocator);
            DeviceParts::over_driver(DeviceId::new(name), class, card.driver(), settings, true).build()
        };
        let neighbour = device.idle_neighbour_bytes.map(|bytes| {
            let idle = SimulatedCard::new(CardSettings::new(bytes));
            let device = parts(&idle, "neighbour");
            (idle, device)
        });
        let settings =
            CacheSettings { floor_bytes: device.floor_bytes, cap: device.cap, wait_for_room: Duration::ZERO };
        let cache = Cache::new(parts(&card, "scenario"), settings);
        for model in &scenario.models {
            cache.add(spec(model))?;
        }
        let watcher = Arc::new(Watcher::default());
        cache.observe(Arc::clone(&watcher) as Arc<dyn Observer>);
        let neighbour_calls = neighbour.as_ref().map_or(0, |(card, _)| card.total_calls());
        let (blocks, locks) = (HashMap::new(), HashMap::new());
        let (scope, closed) = (Scope::new(NO_ALLOWANCE), None);
        Ok(Self { scenario, card, cache, watcher, neighbour, neighbour_calls, blocks, locks, scope, closed })
    }

    fn neighbour_untouched(&self) -> Result<(), CheckError> {
        let calls = self.neighbour.as_ref().map_or(0, |(card, _)| card.total_calls());
        Claim::NoOtherDeviceIsAsked.holds(calls == self.neighbour_calls, || {
            format!("the idle neighbour's driver was called {} times", calls - self.neighbour_calls)
        })
    }

    fn budget(&self, working_bytes: Option<u64>) -> Result<Budget, CheckError> {
        let figures = self.cache.device().figures().map_err(|error| CheckError::violated(error.to_string()))?;
        let device = &self.scenario.device;
        Ok(budget(&figures, working_bytes, device.floor_bytes, device.cap))
    }

    fn counters(&self) -> Result<headroom_device::Counters, CheckError> {
        self.cache.device().counters().map_err(|error| CheckError::violated(error.to_string()))
    }

    fn run(&mut self, step: &'a ScenarioStep) -> Result<(), CheckError> {
        let working = match &step.action {
            Action::Lock { working_bytes, .. } => *working_bytes,
            _ => None,
        };
        let before = self.budget(working)?;
        let retries_before = self.counters()?.num_alloc_retries;
        self.watcher.events.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let outcome = self.act(&step.action)?;
        let expect = &step.expect;
        Claim::ScenarioOutcome.holds(outcome == expect.error, || {
            format!("the step ended with {outcome:?}, expected {:?} (`None` is success)", expect.error)
        })?;
        let events = std::mem::take(&mut *self.watcher.events.lock().unwrap_or_else(PoisonError::into_inner));
        compare_events(step, &events)?;
        same(Claim::ScenarioBudget, "budget before", expect.budget_before_bytes, before.budget_bytes, SignedBytes)?;
        let after = self.budget(working)?;
        same(Claim::ScenarioBudget, "budget after", expect.budget_after_bytes, after.budget_bytes, SignedBytes)?;
        same(Claim::ScenarioBudget, "credit", expect.credit_bytes, after.credit_bytes, Bytes)?;
        let counters = self.counters()?;
        same(Claim::ScenarioCounters, "allocated", expect.allocated_bytes, counters.allocated.current, Bytes)?;
        same(Claim::ScenarioCounters, "reserved", expect.reserved_bytes, counters.reserved.current, Bytes)?;
        same(Claim::ScenarioCounters, "driver-free", expect.driver_free_bytes, self.card.free_bytes(), Bytes)?;
        let retries = counters.num_alloc_retries - retries_before;
        same(Claim::ScenarioCounters, "retries", expect.retries, retries, |count| count)?;
        self.compare_window(step)?;
        for (key, resident) in &expect.resident {
            let view = self.cache.model(&ModelKey::from(key.as_str()));
            let (held, total) = view.map_or((0, 0), |view| (view.resident_bytes, view.total_bytes));
            Claim::ScenarioResidency.holds(resident.is(held, total), || {
                format!("{} of {} of `{key}` are on the device, expected {resident:?}", Bytes(held), Bytes(total))
            })?;
        }
        Ok(())
    }

    /// The window that closed last, where the step says something of it.
    fn compare_window(&self, step: &ScenarioStep) -> Result<(), CheckError> {
        let closed = self.closed.as_ref();
        if let Some(expected) = step.expect.window {
            let found = ExpectedWindow::of(closed);
            Claim::ScenarioWindow
                .holds(found == expected, || format!("the window is {found:?}, expected {expected:?}"))?;
        }
        let demand_bytes = closed.map_or(0, |window| window.demand_bytes);
        same(Claim::ScenarioWindow, "the window's demand", step.expect.demand_bytes, demand_bytes, Bytes)
    }

    /// Does what the step says; a failure that a scenario can expect is an answer, any other an error.
    fn act(&mut self, action: &'a Action) -> Result<Option<ScenarioError>, CheckError> {
        match action {
            Action::Allocate { blocks, bytes } => {
                for name in blocks {
                    match self.cache.device().allocate(*bytes) {
                        Ok(holding) => drop(self.blocks.insert(name, holding)),
                        Err(error) if error.is_out_of_memory() => return Ok(Some(ScenarioError::OutOfMemory)),
                        Err(error) => return Err(CheckError::violated(error.to_string())),
                    }
                }
                Ok(None)
            }
            Action::Free { blocks } => {
                for name in blocks {
                    let holding = self.blocks.remove(name.as_str());
                    let holding = holding.ok_or_else(|| CheckError::violated(format!("no block `{name}` is held")))?;
                    self.free(holding)?;
                }
                Ok(None)
            }
            Action::EmptyCache => {
                self.cache.device().empty_cache().map_err(|error| CheckError::violated(error.to_string()))?;
                Ok(None)
            }
            Action::Run { blocks, bytes } => self.run_blocks(*blocks, *bytes),
            Action::Lock { model, working_bytes, measured } => self.lock(model, *working_bytes, *measured),
            Action::Unlock { model } => {
                let lock = self.locks.get_mut(model.as_str()).and_then(Vec::pop);
                let lock = lock.ok_or_else(|| CheckError::violated(format!("`{model}` is not locked")))?;
                self.closed = lock.unlock().measurement;
                Ok(None)
            }
            Action::Drop { model } => match self.cache.drop_model(&ModelKey::from(model.as_str())) {
                Ok(_) => Ok(None),
                Err(CacheError::UnknownModel { .. }) => Ok(Some(ScenarioError::UnknownModel)),
                Err(error) => Err(error.into()),
            },
            Action::SetOutside { bytes } => {
                self.card.set_others_bytes(*bytes);
                Ok(None)
            }
            Action::Observe => Ok(None),
            other => Err(CheckError::violated(format!("no way to do {other:?}"))),
        }
    }

    fn free(&self, holding: Holding) -> Result<(), CheckError> {
        self.cache.device().free(holding).map_err(|error| CheckError::violated(error.to_string()))
    }

    fn run_blocks(&self, blocks: u32, bytes: u64) -> Result<Option<ScenarioError>, CheckError> {
        let mut held = Vec::new();
        let mut outcome = Ok(None);
        for _ in 0..blocks {
            match self.cache.device().allocate(bytes) {
                Ok(holding) => held.push(holding),
                Err(error) => {
                    let expected = error.is_out_of_memory();
                    self.locks.values().flatten().for_each(LockedModel::out_of_memory);
                    outcome = if expected {
                        Ok(Some(ScenarioError::OutOfMemory))
                    } else {
                        Err(CheckError::violated(error.to_string()))
                    };
                    break;
                }
            }
        }
        for holding in held {
            self.free(holding)?;
        }
        outcome
    }

    fn lock(
        &mut self,
        model: &'a str,
        working_bytes: Option<u64>,
        measured: bool,
    ) -> Result<Option<ScenarioError>, CheckError> {
        let entered = measured.then(|| self.scope.enter());
        let outcome = self.cache.lock(&ModelKey::from(model), working_bytes);
        drop(entered);
        match outcome {
            Ok(locked) => {
                self.locks.entry(model).or_default().push(locked);
                Ok(None)
            }
            Err(CacheError::UnknownModel { .. }) => Ok(Some(ScenarioError::UnknownModel)),
            Err(error) if error.is_out_of_memory() => Ok(Some(ScenarioError::OutOfMemory)),
            Err(error) => Err(error.into()),
        }
    }
}

fn compare_events(step: &ScenarioStep, events: &[Event]) -> Result<(), CheckError> {
    let expect = &step.expect;
    let mut offloaded: BTreeMap<String, u64> = BTreeMap::new();
    let mut warnings = Vec::new();
    let mut beyond = false;
    for event in events {
        match event {
            Event::Offloaded { key, bytes, .. } => *offloaded.entry(key.to_string()).or_default() += bytes,
            Event::Pressure(pressure) => {
                let mut names: Vec<String> = pressure.resident.iter().map(|model| model.key.to_string()).collect();
                names.sort();
                warnings.push((names, pressure.working_bytes));
            }
            Event::BeyondDevice(_) => beyond = true,
            _ => {}
        }
    }
    if let Some(expected) = &expect.offloaded_bytes {
        Claim::ScenarioMoves
            .holds(*expected == offloaded, || format!("moved off: {offloaded:?}, expected {expected:?}"))?;
    }
    if let Some(expected) = &expect.warnings {
        let expected: Vec<_> = expected.iter().map(warned).collect();
        Claim::ScenarioWarnings
            .holds(expected == warnings, || format!("warned: {warnings:?}, expected {expected:?}"))?;
    }
    if let Some(expected) = expect.beyond_device {
        Claim::ScenarioWarnings
            .holds(expected == beyond, || format!("reported as beyond the device: {beyond}, expected {expected}"))?;
    }
    Ok(())
}

fn warned(warning: &ExpectedWarning) -> (Vec<String>, u64) {
    (warning.names.clone(), warning.working_bytes)
}

fn same<T: PartialEq + Copy, S: std::fmt::Display>(
    claim: Claim,
    name: &str,
    expected: Option<T>,
    found: T,
    show: impl Fn(T) -> S,
) -> Result<(), CheckError> {
    match expected {
        Some(expected) if expected != found => {
            claim.holds(false, || format!("{name} is {}, expected {}", show(found), show(expected)))
        }
        _ => Ok(()),
    }
}

fn spec(model: &ScenarioModel) -> ModelSpec {
    let piece = |index| {
        let name = format!("piece.{index}");
        let required = index < model.required_pieces;
        PieceSpec { name, bytes: model.piece_bytes, required }
    };
    let spec = ModelSpec::synthetic(model.key.as_str(), (0..model.pieces).map(piece));
    if model.partial_loading { spec } else { spec.whole() }
}
