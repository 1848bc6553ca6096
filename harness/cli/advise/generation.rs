//! `advise` without an operation: what a whole generation needs, by the steps of its family's pipeline.

use std::fmt;

use headroom_base::{AllocatorKind, Bytes, Case};
use headroom_family::{Family, Model};
use headroom_runners::programs::PredictionError;
use serde::Serialize;

use super::super::error::CliError;
use super::super::terminal::Terminal;
use super::{BOUND, OUTSIDE, UNKNOWN, context_bytes, fits_word, models_of};
use crate::advise::{LeastCard, Question, advise as ask, weights_pieces};
use crate::bench::{simulated_environment, weights_bytes};
use crate::pricing::execution_of;
use crate::replay::NamedSetting;

/// What is said of every generation.
const WHOLE_MODELS: &str = "Least card: enough for every step to complete, slower: by retries, which give back what is cached. \
                            Context and whole models are in it; a cache that loads models in part does with less.";

/// What the sign before a row's figure means, where a step has no program.
const AT_LEAST: &str = ">: this at the least; of the steps without a program, context and weights alone are counted.";

/// What a generation needs where its models are kept on the card in one way.
#[derive(Serialize)]
struct Need {
    /// The least card on which every step completes, retries allowed. An upper bound where the setting's figures are; where
    /// `is_at_least`, what is certainly needed.
    least_capacity_bytes: u64,
    /// The step that needs it.
    step: String,
    /// Whether some step has no program: context and weights alone are counted of it, and it needs more than that.
    is_at_least: bool,
    /// Whether the card that was asked about is large enough; none where none was, where it is smaller than an upper bound
    /// alone, and where a step without a program may need more than is left.
    fits: Option<bool>,
}

/// What a generation needs under one setting.
#[derive(Serialize)]
struct Setting {
    allocator: AllocatorKind,
    environment: String,
    /// Whether the figures are upper bounds; never where some step has no program, since they hold from below there.
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

/// A step of the pipeline as far as it decides what is needed: equal ones need the same.
#[derive(PartialEq, Eq)]
struct Step<'a> {
    case: Case,
    model: &'a str,
    /// Other models that are locked with it, in the family's order.
    with: Vec<&'a str>,
}

impl fmt::Display for Step<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of {}", self.case, self.model)?;
        match self.with.is_empty() {
            true => Ok(()),
            false => write!(formatter, " with {}", self.with.join(" and ")),
        }
    }
}

/// The least cards of one step, in the order of [`AllocatorKind::ALL`].
struct StepNeeds<'a> {
    step: Step<'a>,
    /// Without one, context and weights alone are in its figures.
    has_program: bool,
    all_resident: Vec<LeastCard>,
    one_at_a_time: Vec<LeastCard>,
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
    let (models, unused) = models_of(family);
    let mut needs: Vec<StepNeeds<'_>> = Vec::new();
    for step in steps(family) {
        if needs.iter().all(|known| known.step != step) {
            needs.push(needs_of(family, step, &models)?);
        }
    }
    if !needs.iter().any(|step| step.has_program) {
        let name = &family.name;
        return Err(CliError::Value(format!(
            "the pipeline of `{name}` has no step with a program: name an --operation"
        )));
    }
    let unknown = needs.iter().filter(|step| !step.has_program).map(|step| {
        format!("{} has no program: its models' weights alone are counted, and it needs more than that", step.step)
    });
    let left_out = unused.iter().map(|model| {
        let (key, weights) = (&model.key, Bytes(weights_bytes(model)));
        format!("no step of the pipeline uses model `{key}`: the {weights} that it weighs are in none of these figures")
    });
    let answer = Answer {
        family: &family.name,
        memory_bytes,
        weights_bytes: models.iter().map(|model| weights_bytes(model)).sum(),
        context_bytes: context_bytes(family),
        settings: settings(&needs, memory_bytes),
        notes: unknown.chain(left_out).collect(),
    };
    if is_json {
        terminal.json(&answer)?
    } else {
        print(&answer, terminal)?
    }
    Ok(())
}

/// The steps of a family's pipeline.
fn steps(family: &Family) -> impl Iterator<Item = Step<'_>> {
    family.pipeline.iter().map(|step| {
        let is_beside = |key: &&str| *key != step.model && step.with.iter().any(|locked| locked == key);
        let with = family.models.iter().map(|model| model.key.as_str()).filter(is_beside).collect();
        Step { case: step.case, model: &step.model, with }
    })
}

/// What a step needs beside all of the pipeline's models, and beside those alone that it locks.
fn needs_of<'a>(family: &Family, step: Step<'a>, models: &[&Model]) -> Result<StepNeeds<'a>, CliError> {
    let others = || models.iter().copied().filter(|other| other.key != step.model);
    let beside_all: Vec<&Model> = others().collect();
    let beside_locked: Vec<&Model> = others().filter(|other| step.with.contains(&other.key.as_str())).collect();
    let all_resident = least_cards(family, &step, &beside_all)?;
    let one_at_a_time = least_cards(family, &step, &beside_locked)?;
    let has_program = all_resident.is_some() && one_at_a_time.is_some();
    let weights_alone = |beside: &[&Model]| {
        let own = family.model(step.model).into_iter();
        let weights: u64 = own.chain(beside.iter().copied()).map(weights_bytes).sum();
        let bytes = context_bytes(family) + weights;
        vec![LeastCard { bytes, certain_bytes: bytes }; AllocatorKind::ALL.len()]
    };
    Ok(StepNeeds {
        has_program,
        all_resident: all_resident.unwrap_or_else(|| weights_alone(&beside_all)),
        one_at_a_time: one_at_a_time.unwrap_or_else(|| weights_alone(&beside_locked)),
        step,
    })
}

/// The least card for a step under every setting, beside other models; none where it has no program.
fn least_cards(family: &Family, step: &Step<'_>, beside: &[&Model]) -> Result<Option<Vec<LeastCard>>, CliError> {
    let Some(model) = family.model(step.model) else { return Ok(None) };
    let Some(architecture) = model.architecture() else { return Ok(None) };
    // Nothing of an execution depends on the allocator.
    let hard = simulated_environment(AllocatorKind::Native).hard;
    let question = Question {
        architecture,
        case: step.case,
        execution: execution_of(model, &step.case, &hard),
        own: weights_pieces(model),
        beside: beside.iter().copied().flat_map(weights_pieces).collect(),
        context_bytes: context_bytes(family),
        memory_bytes: None,
    };
    match ask(&question) {
        Ok(advice) => Ok(Some(advice.settings.iter().map(|setting| advice.least_card(setting)).collect())),
        Err(PredictionError::Unsupported(_)) => Ok(None),
        Err(error) => Err(CliError::Value(format!("{step}: {error}"))),
    }
}

/// The largest needs of all steps under every setting.
fn settings(needs: &[StepNeeds<'_>], memory_bytes: Option<u64>) -> Vec<Setting> {
    let is_known = needs.iter().all(|step| step.has_program);
    let largest = |least: &dyn Fn(&StepNeeds<'_>) -> Option<LeastCard>| {
        let of_steps = || needs.iter().filter_map(|step| Some((&step.step, least(step)?)));
        let (surest, LeastCard { certain_bytes, .. }) = of_steps().max_by_key(|(_, least)| least.certain_bytes)?;
        let (largest, LeastCard { bytes, .. }) = of_steps().max_by_key(|(_, least)| least.bytes)?;
        // With a step of which the most is not known, no figure holds from above.
        let (step, least_capacity_bytes) = if is_known { (largest, bytes) } else { (surest, certain_bytes) };
        let fits = memory_bytes.and_then(|memory| LeastCard { bytes, certain_bytes }.fits(memory));
        let fits = fits.filter(|&fits| is_known || !fits);
        Some(Need { least_capacity_bytes, step: step.to_string(), is_at_least: !is_known, fits })
    };
    let kinds = AllocatorKind::ALL.into_iter().enumerate();
    kinds
        .filter_map(|(index, kind)| {
            let named = NamedSetting::of_kind(kind);
            Some(Setting {
                allocator: kind,
                environment: named.environment(),
                is_bound: named.is_bound() && is_known,
                all_resident: largest(&|step| step.all_resident.get(index).copied())?,
                one_at_a_time: largest(&|step| step.one_at_a_time.get(index).copied())?,
            })
        })
        .collect()
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
    let needs = || answer.settings.iter().flat_map(|setting| [&setting.all_resident, &setting.one_at_a_time]);
    let is_at_least = needs().any(|need| need.is_at_least);
    if is_at_least {
        terminal.line(AT_LEAST)?;
    }
    if answer.settings.iter().any(|setting| setting.is_bound) {
        terminal.line(BOUND)?;
    }
    // With steps without a program it is what these may need that is not known.
    if was_asked && !is_at_least && needs().any(|need| need.fits.is_none()) {
        terminal.line(UNKNOWN)?;
    }
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
    vec![
        way.to_owned(),
        setting.allocator.to_string(),
        format!("{bound}{}", Bytes(need.least_capacity_bytes)),
        fits_word(need.fits, was_asked).to_owned(),
        need.step.clone(),
        setting.environment.clone(),
    ]
}
