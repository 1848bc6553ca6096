//! `advise` without an operation: what a whole generation needs, by the steps of its family's pipeline.

use headroom_base::{AllocatorKind, Bytes};
use headroom_device::cache::WeightsSource;
use headroom_family::{Family, Model, PipelineStep};
use headroom_runners::model_spec;
use headroom_runners::programs::{Piece, PredictionError};
use serde::Serialize;

use super::super::error::CliError;
use super::super::terminal::Terminal;
use super::{BOUND, OUTSIDE, context_bytes};
use crate::advise::{Question, advise as ask};
use crate::bench::{simulated_environment, weights_bytes};
use crate::pricing::execution_of;
use crate::replay::NamedSetting;

/// What is said of every generation.
const WHOLE_MODELS: &str = "Least card: enough for every step to complete, slower: by retries, which give back what is cached. \
                            Context and whole models are in it; a cache that loads models in part does with less.";

/// What a generation needs where its models are kept on the card in one way.
#[derive(Serialize)]
struct Need {
    /// The least card on which every step completes, retries allowed. An upper bound where the setting's figures are.
    least_capacity_bytes: u64,
    /// The step that needs it.
    step: String,
    /// Whether that step has no program and needs more: context and weights alone are in the figure.
    is_at_least: bool,
    /// Whether the card that was asked about is large enough; none where none was, and where a step without a program may
    /// need more than is left.
    fits: Option<bool>,
}

/// What a generation needs under one setting.
#[derive(Serialize)]
struct Setting {
    allocator: AllocatorKind,
    environment: String,
    /// Whether the figures are upper bounds.
    is_bound: bool,
    /// Every model of the pipeline stays on the card.
    all_resident: Need,
    /// A step has its own models there alone.
    one_at_a_time: Need,
}

#[derive(Serialize)]
struct Answer<'a> {
    family: &'a str,
    memory_bytes: Option<u64>,
    /// The weights of the pipeline's models together.
    weights_bytes: u64,
    context_bytes: u64,
    settings: Vec<Setting>,
    notes: Vec<String>,
}

/// The least cards of one step, in the order of [`AllocatorKind::ALL`].
struct StepNeeds {
    name: String,
    /// Without one, context and weights alone are in its figures.
    has_program: bool,
    all_resident: Vec<u64>,
    one_at_a_time: Vec<u64>,
}

/// Says what a family's generation needs under each setting.
///
/// # Errors
/// For a family whose pipeline has no step with a program, or one that exceeds every card, and when nothing can be printed.
pub(super) fn advise(
    family: &Family,
    memory_bytes: Option<u64>,
    is_json: bool,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    let models = models_of(family);
    let mut needs: Vec<StepNeeds> = Vec::new();
    for step in &family.pipeline {
        let name = format!("{} of {}", step.case, step.model);
        if needs.iter().all(|known| known.name != name) {
            needs.push(needs_of(family, step, &models, name)?);
        }
    }
    if !needs.iter().any(|step| step.has_program) {
        let name = &family.name;
        return Err(CliError::Value(format!(
            "the pipeline of `{name}` has no step with a program: name an --operation"
        )));
    }
    let unknown = needs.iter().filter(|step| !step.has_program).map(|step| {
        format!("{} has no program: its models' weights alone are counted, and it needs more than that", step.name)
    });
    let answer = Answer {
        family: &family.name,
        memory_bytes,
        weights_bytes: models.iter().map(|model| weights_bytes(model)).sum(),
        context_bytes: context_bytes(family),
        settings: settings(&needs, memory_bytes),
        notes: unknown.collect(),
    };
    if is_json {
        terminal.json(&answer)?
    } else {
        print(&answer, terminal)?
    }
    Ok(())
}

/// The models that the pipeline runs or locks, in the family's order.
fn models_of(family: &Family) -> Vec<&Model> {
    let is_used =
        |model: &&Model| family.pipeline.iter().any(|step| step.model == model.key || step.with.contains(&model.key));
    family.models.iter().filter(is_used).collect()
}

/// What a step needs beside all of the pipeline's models, and beside those alone that it locks.
fn needs_of(family: &Family, step: &PipelineStep, models: &[&Model], name: String) -> Result<StepNeeds, CliError> {
    let locked = |other: &&&Model| step.with.contains(&other.key);
    let others = || models.iter().filter(|other| other.key != step.model);
    let beside_all: Vec<&Model> = others().copied().collect();
    let beside_locked: Vec<&Model> = others().filter(locked).copied().collect();
    let all_resident = least_cards(family, step, &beside_all)?;
    let one_at_a_time = least_cards(family, step, &beside_locked)?;
    let has_program = all_resident.is_some() && one_at_a_time.is_some();
    let weights_alone = |beside: &[&Model]| {
        let own = family.model(&step.model).into_iter();
        let weights: u64 = own.chain(beside.iter().copied()).map(weights_bytes).sum();
        vec![context_bytes(family) + weights; AllocatorKind::ALL.len()]
    };
    Ok(StepNeeds {
        name,
        has_program,
        all_resident: all_resident.unwrap_or_else(|| weights_alone(&beside_all)),
        one_at_a_time: one_at_a_time.unwrap_or_else(|| weights_alone(&beside_locked)),
    })
}

/// The least card for a step under every setting, beside other models; none where it has no program.
fn least_cards(family: &Family, step: &PipelineStep, beside: &[&Model]) -> Result<Option<Vec<u64>>, CliError> {
    let Some(model) = family.model(&step.model) else { return Ok(None) };
    let Some(architecture) = model.architecture() else { return Ok(None) };
    // Nothing of an execution depends on the allocator.
    let hard = simulated_environment(AllocatorKind::Native).hard;
    let question = Question {
        architecture,
        case: step.case,
        execution: execution_of(model, &step.case, &hard),
        beside: beside.iter().copied().flat_map(weights_pieces).collect(),
        context_bytes: context_bytes(family),
        memory_bytes: None,
    };
    match ask(&question) {
        Ok(advice) => Ok(Some(advice.settings.iter().map(|setting| setting.least_capacity_bytes).collect())),
        Err(PredictionError::Unsupported(_)) => Ok(None),
        Err(error) => Err(CliError::Value(format!("{} of {}: {error}", step.case, step.model))),
    }
}

/// The largest needs of all steps under every setting.
fn settings(needs: &[StepNeeds], memory_bytes: Option<u64>) -> Vec<Setting> {
    let is_known = needs.iter().all(|step| step.has_program);
    let largest = |least: &dyn Fn(&StepNeeds) -> Option<u64>| {
        let of_steps = needs.iter().filter_map(|step| Some((step, least(step)?)));
        let (step, least_capacity_bytes) = of_steps.max_by_key(|(_, bytes)| *bytes)?;
        let fits = memory_bytes.and_then(|memory| match least_capacity_bytes <= memory {
            true if !is_known => None,
            fits => Some(fits),
        });
        Some(Need { least_capacity_bytes, step: step.name.clone(), is_at_least: !step.has_program, fits })
    };
    let kinds = AllocatorKind::ALL.into_iter().enumerate();
    kinds
        .filter_map(|(index, kind)| {
            let named = NamedSetting::of_kind(kind);
            Some(Setting {
                allocator: kind,
                environment: named.environment(),
                is_bound: named.is_bound(),
                all_resident: largest(&|step| step.all_resident.get(index).copied())?,
                one_at_a_time: largest(&|step| step.one_at_a_time.get(index).copied())?,
            })
        })
        .collect()
}

/// The weights of a model as they are loaded; those of a file as one piece.
fn weights_pieces(model: &Model) -> Vec<Piece> {
    let piece = |name: String, bytes| Piece { name, bytes, floating: true };
    match model_spec(model).weights {
        WeightsSource::Synthetic(pieces) => pieces.into_iter().map(|held| piece(held.name, held.bytes)).collect(),
        WeightsSource::Safetensors { .. } => vec![piece(model.key.clone(), weights_bytes(model))],
    }
}

fn print(answer: &Answer<'_>, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    terminal.line(format!(
        "A generation of {}, predicted from the programs of its pipeline's steps, each begun afresh; its models weigh {}, \
         and {} are reckoned for the context:",
        answer.family,
        Bytes(answer.weights_bytes),
        Bytes(answer.context_bytes)
    ))?;
    let was_asked = answer.memory_bytes.is_some();
    let together = answer.settings.iter().map(|it| row("all on the card", it, &it.all_resident, was_asked));
    let apart = answer.settings.iter().map(|it| row("one at a time", it, &it.one_at_a_time, was_asked));
    let rows: Vec<_> = together.chain(apart).collect();
    terminal.table(&["models", "setting", ">least card", "fits", "by", "environment"], &rows)?;
    terminal.line(format!("{WHOLE_MODELS} {OUTSIDE}"))?;
    terminal.line(BOUND)?;
    for note in &answer.notes {
        terminal.line(note)?;
    }
    Ok(())
}

fn row(way: &str, setting: &Setting, need: &Need, was_asked: bool) -> Vec<String> {
    let bound = match (need.is_at_least, setting.is_bound) {
        (true, _) => "> ",
        (false, true) => "≤ ",
        (false, false) => "",
    };
    let fits = match need.fits {
        Some(true) => "yes",
        Some(false) => "no",
        None if was_asked => "unknown",
        None => "",
    };
    vec![
        way.to_owned(),
        setting.allocator.to_string(),
        format!("{bound}{}", Bytes(need.least_capacity_bytes)),
        fits.to_owned(),
        need.step.clone(),
        setting.environment.clone(),
    ]
}
