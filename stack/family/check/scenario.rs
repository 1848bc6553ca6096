//! Scripted scenarios: every step does one thing, and every block and model it names exists at that point.

use std::collections::BTreeSet;

use headroom_base::{AllocatorKind, Cap, DEFAULT_DEVICE_WORKING_BYTES};

use crate::check::Checker;
use crate::check::models::is_key;
use crate::findings::{Step, at};
use crate::problem::suggestion;
use crate::raw::scenario::{RawExpectation, RawScenario, RawScenarioDevice, RawScenarioModel, RawScenarioStep};
use crate::reader::Tried;
use crate::scenario::{Action, Expectation, ExpectedWarning, Scenario, ScenarioDevice, ScenarioModel, ScenarioStep};
use crate::words::MEASURED_CONTEXT_BYTES;

const ACTIONS: &str = "allocate, free, empty_cache, run, lock, unlock, drop, set_outside";

/// Checks the scenario with a number.
pub(crate) fn scenario(checker: &Checker<'_>, index: usize, raw: RawScenario) -> Option<Scenario> {
    let models_are_whole = !checker.is_misspelt_in_item("regressions", index, "models");
    let mut script =
        Script { checker, index, models: Vec::new(), live: BTreeSet::new(), models_are_whole, is_whole: true };
    if raw.name.is_empty() || raw.name.contains("::") || raw.name.contains(char::is_whitespace) {
        let help = Some("write words joined by underscores".to_owned());
        checker.wrong(at!["regressions", index, "name"], format!("`{}` is no name of a trial", raw.name), help);
    }
    let device = device(checker, index, &raw.device);
    for (position, Tried(model)) in raw.models.into_iter().enumerate() {
        match model {
            Some(model) => script.model(position, model),
            None => script.models_are_whole = false,
        }
    }
    if raw.steps.is_empty() {
        checker.wrong(at!["regressions", index, "steps"], "the scenario has no steps: it could not fail", None);
    }
    let mut steps = Vec::new();
    let mut looked_at = false;
    for (position, Tried(step)) in raw.steps.into_iter().enumerate() {
        let Some(step) = step else {
            script.is_whole = false;
            continue;
        };
        looked_at |= step.expect.is_some();
        steps.extend(script.step(position, step));
    }
    if !looked_at && script.is_whole {
        checker.wrong(
            at!["regressions", index, "steps"],
            "no step expects anything: the scenario could not fail",
            None,
        );
    }
    let (name, about, source) = (raw.name, raw.about, raw.source);
    Some(Scenario { name, about, source, device, models: script.models, steps })
}

fn device(checker: &Checker<'_>, index: usize, raw: &RawScenarioDevice) -> ScenarioDevice {
    let outside_bytes = raw.outside.map_or(0, |bytes| bytes.0);
    let context_bytes = raw.context.map_or(MEASURED_CONTEXT_BYTES, |bytes| bytes.0);
    if outside_bytes.saturating_add(context_bytes) > raw.total.0 {
        let message = "context and other processes take more than the device has";
        checker.wrong(at!["regressions", index, "device", "total"], message, None);
    }
    ScenarioDevice {
        total_bytes: raw.total.0,
        outside_bytes,
        context_bytes,
        allocator: raw.allocator.unwrap_or(AllocatorKind::Native),
        floor_bytes: raw.floor.map_or(DEFAULT_DEVICE_WORKING_BYTES, |bytes| bytes.0),
        cap: raw.cap.map_or(Cap::Unlimited, |bytes| Cap::Bytes(bytes.0)),
        spill: raw.spill,
        largest_allocation_bytes: raw.largest_allocation.map(|bytes| bytes.0),
        idle_neighbour_bytes: raw.idle_neighbour.map(|bytes| bytes.0),
    }
}

/// A scenario while its steps are read.
struct Script<'c, 'a> {
    checker: &'c Checker<'a>,
    index: usize,
    models: Vec<ScenarioModel>,
    live: BTreeSet<String>,
    /// Whether every model could be read: keys are looked up only then.
    models_are_whole: bool,
    /// Whether every step so far could be read: blocks are looked up only then.
    is_whole: bool,
}

impl Script<'_, '_> {
    fn wrong(&self, rest: &[Step<'_>], message: impl Into<String>, help: Option<String>) {
        let mut path = at!["regressions", self.index].to_vec();
        path.extend_from_slice(rest);
        self.checker.wrong(&path, message, help);
    }

    fn model(&mut self, position: usize, raw: RawScenarioModel) {
        let path = at!["models", position, "key"];
        if !is_key(&raw.key) {
            self.wrong(path, format!("`{}` is no key of a model", raw.key), None);
        }
        if self.models.iter().any(|model| model.key == raw.key) {
            self.wrong(path, format!("a second model has the key `{}`", raw.key), None);
        }
        if raw.pieces == 0 || raw.piece.0 == 0 {
            self.wrong(path, "a model has at least one piece of at least one byte", None);
        }
        if raw.required_pieces > raw.pieces {
            let message = format!("{} of {} pieces cannot be required", raw.required_pieces, raw.pieces);
            self.wrong(at!["models", position, "required_pieces"], message, None);
        }
        self.models.push(ScenarioModel {
            key: raw.key,
            pieces: raw.pieces,
            piece_bytes: raw.piece.0,
            required_pieces: raw.required_pieces,
            partial_loading: raw.partial_loading,
        });
    }

    /// Notes a model that the scenario does not have.
    fn known(&self, path: &[Step<'_>], key: &str) {
        let keys: Vec<&str> = self.models.iter().map(|model| model.key.as_str()).collect();
        if self.models_are_whole && !keys.contains(&key) {
            let message = format!("the scenario has no model `{key}`");
            self.wrong(path, message, suggestion(key, &keys));
        }
    }

    fn step(&mut self, position: usize, raw: RawScenarioStep) -> Option<ScenarioStep> {
        let line = self.checker.line_of(at!["regressions", self.index, "steps", position]);
        let expect = self.expectation(position, raw.expect.unwrap_or_default());
        let mut actions = Vec::new();
        if let Some(allocate) = raw.allocate {
            for (number, block) in allocate.blocks.iter().enumerate() {
                if !self.live.insert(block.clone()) {
                    let path = at!["steps", position, "allocate", "blocks", number];
                    self.wrong(path, format!("the block `{block}` is allocated already"), None);
                }
            }
            actions.push(Action::Allocate { blocks: allocate.blocks, bytes: allocate.bytes.0 });
        }
        if let Some(blocks) = raw.free {
            for (number, block) in blocks.iter().enumerate() {
                if !self.live.remove(block) && self.is_whole {
                    let known: Vec<&str> = self.live.iter().map(String::as_str).collect();
                    let message = format!("no block `{block}` is allocated here");
                    self.wrong(at!["steps", position, "free", number], message, suggestion(block, &known));
                }
            }
            actions.push(Action::Free { blocks });
        }
        actions.extend(raw.empty_cache.map(|_| Action::EmptyCache));
        actions.extend(raw.run.map(|run| Action::Run { blocks: run.blocks.max(1), bytes: run.bytes.0 }));
        if let Some(lock) = raw.lock {
            self.known(at!["steps", position, "lock", "model"], &lock.model);
            let working_bytes = lock.working.map(|bytes| bytes.0);
            actions.push(Action::Lock { model: lock.model, working_bytes, measured: lock.measured });
        }
        if let Some(model) = raw.unlock {
            self.known(at!["steps", position, "unlock"], &model);
            actions.push(Action::Unlock { model });
        }
        if let Some(model) = raw.drop {
            self.known(at!["steps", position, "drop"], &model);
            actions.push(Action::Drop { model });
        }
        actions.extend(raw.set_outside.map(|bytes| Action::SetOutside { bytes: bytes.0 }));
        if actions.len() > 1 {
            self.wrong(at!["steps", position], format!("a step does one thing of {ACTIONS}"), None);
        }
        Some(ScenarioStep { action: actions.pop().unwrap_or(Action::Observe), expect, line })
    }

    fn expectation(&self, position: usize, raw: RawExpectation) -> Expectation {
        let path = |field| [Step::Key("steps"), Step::Index(position), Step::Key("expect"), Step::Key(field)];
        for key in raw.resident.keys() {
            self.known(&path("resident"), key);
        }
        for key in raw.offloaded.iter().flatten().map(|(key, _)| key) {
            self.known(&path("offloaded"), key);
        }
        for key in raw.warnings.iter().flatten().flat_map(|warning| &warning.names) {
            self.known(&path("warnings"), key);
        }
        let warning = |raw: crate::raw::scenario::RawWarning| {
            let mut names = raw.names;
            names.sort();
            ExpectedWarning { names, working_bytes: raw.working.0 }
        };
        Expectation {
            error: raw.error,
            offloaded_bytes: raw
                .offloaded
                .map(|models| models.into_iter().map(|(key, bytes)| (key, bytes.0)).collect()),
            resident: raw.resident,
            budget_before_bytes: raw.budget_before.map(|bytes| bytes.0),
            budget_after_bytes: raw.budget_after.map(|bytes| bytes.0),
            credit_bytes: raw.credit.map(|bytes| bytes.0),
            allocated_bytes: raw.allocated.map(|bytes| bytes.0),
            reserved_bytes: raw.reserved.map(|bytes| bytes.0),
            driver_free_bytes: raw.driver_free.map(|bytes| bytes.0),
            retries: raw.retries,
            warnings: raw.warnings.map(|warnings| warnings.into_iter().map(warning).collect()),
            beyond_device: raw.beyond_device,
            window: raw.window,
            demand_bytes: raw.demand.map(|bytes| bytes.0),
        }
    }
}
