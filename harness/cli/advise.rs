//! `advise`: what each allocator setting needs for one operation, and whether a card is large enough.

mod generation;

use headroom_base::{AllocatorKind, Bytes, Case, DType, MIB, Operation, Tiling};
use headroom_family::{Family, Model, PipelineStep};
use headroom_runners::programs;
use serde::Serialize;

use super::args::AdviseArgs;
use super::chosen::Chosen;
use super::error::CliError;
use super::exit::Exit;
use super::terminal::Terminal;
use crate::advise::{Advice, Question, SettingAdvice, advise as ask, weights_pieces};
use crate::bench::weights_bytes;
use crate::catalogue::Catalogue;
use crate::replay::OLDER_VARIABLE_NOTE;

/// Reckoned for a context where the family names no device.
const USUAL_CONTEXT_BYTES: u64 = 524 * MIB;

/// What no least card has in it.
const OUTSIDE: &str = "What cuDNN and cuBLAS take outside the allocator is not in it: 80 MiB on an H200, and 166 MiB in \
                       PyTorch's first operation there.";

/// What the sign before a figure means.
const BOUND: &str = "≤: the driver's pool has no public policy; its figures are upper bounds.";

/// What `unknown` means under a bound.
const UNKNOWN: &str =
    "unknown: the card is smaller than the bound, and has room for context, weights and the allocated peak.";

/// Tiles that are tried where nothing fits untiled, the largest first.
const TILES: [u32; 3] = [1024, 512, 256];

#[derive(Serialize)]
struct Answer<'a> {
    family: &'a str,
    model: &'a str,
    case: Case,
    memory_bytes: Option<u64>,
    /// The setting in use now, if it was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_use: Option<AllocatorKind>,
    #[serde(flatten)]
    advice: Advice,
    /// The largest tile with which a card fits that is too small without.
    #[serde(skip_serializing_if = "Option::is_none")]
    tile_that_fits: Option<u32>,
    /// What the other models weigh that the family's pipeline uses, of which nothing is in these figures.
    others_weights_bytes: u64,
    /// The batch with which the family's pipeline runs the operation on the model, where that is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pipeline_batch: Option<u32>,
    /// What a reader should know of the two.
    notes: Vec<String>,
}

impl Answer<'_> {
    /// Says what of a whole generation is not in the figures.
    fn note_what_is_left_out(&mut self, chosen: &Chosen<'_>) {
        let Chosen { family, model, case, .. } = chosen;
        let (used, _) = models_of(family);
        let others: Vec<_> = used.iter().filter(|other| other.key != model.key).collect();
        self.others_weights_bytes = others.iter().map(|other| weights_bytes(other)).sum();
        if !others.is_empty() {
            let is_part = others.len() < used.len();
            self.notes.push(format!(
                "this is for model `{}` alone; the others that the family's pipeline uses weigh {}, which a card has to hold \
                 too where they stay on it: `headroom advise --family {}` answers for the whole{}",
                model.key,
                Bytes(self.others_weights_bytes),
                family.name,
                if is_part { "" } else { ", of which this model is no part" }
            ));
        }
        let is_same = |step: &&PipelineStep| step.model == model.key && step.case.operation == case.operation;
        let batches = || family.pipeline.iter().filter(is_same).map(|step| step.case.batch);
        if !batches().any(|batch| batch == case.batch) {
            self.pipeline_batch = batches().max();
        }
        self.notes.extend(self.pipeline_batch.map(|batch| {
            format!(
                "this is for batch {}, and the family's own pipeline runs {} with batch {batch}: --batch {batch}",
                case.batch, case.operation
            )
        }));
    }
}

/// The models that the family's pipeline runs or locks, and those that it does not; each in the family's order.
fn models_of(family: &Family) -> (Vec<&Model>, Vec<&Model>) {
    let is_used =
        |model: &&Model| family.pipeline.iter().any(|step| step.model == model.key || step.with.contains(&model.key));
    family.models.iter().partition(is_used)
}

/// Says what each setting needs, for a model whose weights were loaded in the element type that it runs in, or lie in a
/// file; or without an operation, for the whole of a generation.
///
/// # Errors
/// For names that are not known, a case that has no program, or when nothing can be printed.
pub(super) fn advise(args: &AdviseArgs, catalogue: &Catalogue, terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    let memory_bytes = args.memory.map(|bytes| bytes.0);
    let Some(operation) = args.operation else {
        generation::advise(catalogue.family(&args.family)?, memory_bytes, args.json, terminal)?;
        return Ok(Exit::Success);
    };
    let chosen = Chosen::named((&args.family, operation, args.dtype), &args.sized, catalogue)?;
    let advice = advice_for(&chosen, chosen.case, memory_bytes)?;
    let is_too_small = memory_bytes.is_some() && !fits_any(&advice);
    let tile_that_fits = is_too_small.then(|| tile_that_fits(&chosen, memory_bytes)).flatten();
    let (family, model) = (chosen.family.name.as_str(), chosen.model.key.as_str());
    let in_use = args.allocator;
    let case = chosen.case;
    let (others_weights_bytes, pipeline_batch, notes) = (0, None, Vec::new());
    let mut answer = Answer {
        family,
        model,
        case,
        memory_bytes,
        in_use,
        advice,
        tile_that_fits,
        others_weights_bytes,
        pipeline_batch,
        notes,
    };
    answer.note_what_is_left_out(&chosen);
    if args.json {
        terminal.json(&answer)?
    } else {
        print(&answer, &chosen, terminal)?
    }
    Ok(Exit::Success)
}

fn advice_for(chosen: &Chosen<'_>, case: Case, memory_bytes: Option<u64>) -> Result<Advice, CliError> {
    let model = chosen.model;
    let architecture = model.architecture().ok_or_else(|| {
        let key = &model.key;
        CliError::Value(format!(
            "model `{key}` is known by its size alone, so it has no program: give it an architecture"
        ))
    })?;
    // A file is loaded as it is; other weights are taken in the element type that is run.
    let (execution, own) = match model.safetensors {
        Some(_) => (chosen.execution(AllocatorKind::Native), weights_pieces(model)),
        None => (chosen.execution_of_its_own(), programs::weights(architecture, case.dtype)),
    };
    let question = Question {
        architecture,
        case,
        execution,
        own,
        beside: Vec::new(),
        context_bytes: context_bytes(chosen.family),
        memory_bytes,
    };
    ask(&question).map_err(|error| CliError::Value(error.to_string()))
}

/// Whether some setting fits for sure.
fn fits_any(advice: &Advice) -> bool {
    advice.settings.iter().any(|setting| setting.fits == Some(true))
}

/// The element type that the weights are in where the operation begins.
fn loaded_in(chosen: &Chosen<'_>) -> DType {
    if chosen.model.safetensors.is_some() { chosen.model.dtype } else { chosen.case.dtype }
}

/// What is reckoned for the context on a family's cards.
fn context_bytes(family: &Family) -> u64 {
    family.devices.iter().map(|device| device.context_bytes).max().unwrap_or(USUAL_CONTEXT_BYTES)
}

/// The largest tile with which some setting fits; none for what is tiled already, and for what cannot be.
fn tile_that_fits(chosen: &Chosen<'_>, memory_bytes: Option<u64>) -> Option<u32> {
    let case = chosen.case;
    let is_vae = matches!(case.operation, Operation::VaeDecode | Operation::VaeEncode);
    if case.tiling.is_some() || !is_vae {
        return None;
    }
    TILES.into_iter().find(|&tile_pixels| {
        let tiled = case.with_tiling(Tiling { tile_pixels, overlap_percent: 25 });
        let advice = advice_for(chosen, tiled, memory_bytes);
        advice.is_ok_and(|advice| fits_any(&advice))
    })
}

fn print(answer: &Answer<'_>, chosen: &Chosen<'_>, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let Advice { settings, least, weights_bytes, workspaces_bytes, context_bytes } = &answer.advice;
    terminal.line(format!("{}, predicted from its program:", chosen.name()))?;
    let was_asked = answer.memory_bytes.is_some();
    let rows: Vec<_> = settings.iter().map(|setting| row(setting, was_asked)).collect();
    let header = ["setting", ">allocated peak", ">reserved peak", ">least card", "fits", "environment"];
    terminal.table(&header, &rows)?;
    for note in &answer.notes {
        terminal.line(note)?;
    }
    terminal.line(format!(
        "Peaks are beyond weights, inputs and libraries' workspaces; the least card has them in it ({} in {}, and {}), \
         and {} for the context. {OUTSIDE}",
        Bytes(*weights_bytes),
        loaded_in(chosen),
        Bytes(*workspaces_bytes),
        Bytes(*context_bytes)
    ))?;
    terminal.line(BOUND)?;
    let is_unknown = was_asked && settings.iter().any(|setting| setting.fits.is_none());
    if is_unknown {
        terminal.line(UNKNOWN)?;
    }
    for line in meanings(&answer.advice) {
        terminal.line(line)?;
    }
    for line in answer.advice.choice().iter().flat_map(|choice| choice.lines("least card")) {
        terminal.line(line)?;
    }
    let best = settings.iter().find(|setting| setting.allocator == *least);
    let used = settings.iter().find(|setting| Some(setting.allocator) == answer.in_use);
    if let (Some(used), Some(best)) = (used, best) {
        terminal.line(change(used, best))?;
    }
    if let Some(memory) = answer.memory_bytes {
        let tiles = match answer.tile_that_fits {
            Some(tile) => format!(" Tile by tile it fits: --option tile={tile}."),
            None => String::new(),
        };
        if !fits_any(&answer.advice) {
            let fits = if is_unknown { "is sure to fit" } else { "fits" };
            terminal.line(format!("No setting {fits} {}.{tiles}", Bytes(memory)))?;
        }
    }
    terminal.line(OLDER_VARIABLE_NOTE)?;
    Ok(())
}

/// What a change from the setting in use to the best brings.
fn change(used: &SettingAdvice, best: &SettingAdvice) -> String {
    if used.allocator == best.allocator {
        return format!("{} is in use already.", used.allocator);
    }
    match used.least_capacity_bytes.checked_sub(best.least_capacity_bytes) {
        Some(saved) => format!("That is {} less than {} needs, which is in use.", Bytes(saved), used.allocator),
        // Of a tie the best may need a little more.
        None => format!(
            "{}, which is in use, does with a card smaller by {}.",
            used.allocator,
            Bytes(best.least_capacity_bytes - used.least_capacity_bytes)
        ),
    }
}

/// What each column is for, and why figures may look as if they contradicted each other.
fn meanings(advice: &Advice) -> Vec<String> {
    let mut lines = vec![
        "Reserved peak: what is taken where there is room. Where it must never retry, reserve the larger of this peak and of \
         what `headroom estimate` says, beside weights and context: this peak, as measured where it was, with a margin."
            .to_owned(),
        "Least card: enough to complete, slower: by retries, which give back what is cached.".to_owned(),
    ];
    let settings = &advice.settings;
    lines.extend(settings.iter().filter_map(|setting| beyond_the_sum(setting, advice)));
    for setting in settings.iter().filter(|setting| setting.allocated_peak_bytes > setting.reserved_peak_bytes) {
        lines.push(format!(
            "{} reserves less than it allocates: {} were free in what the weights and libraries had taken already.",
            setting.allocator,
            Bytes(setting.room_before_bytes)
        ));
    }
    lines
}

/// Why a bound's least card is larger than the peak with what is there before it.
fn beyond_the_sum(setting: &SettingAdvice, advice: &Advice) -> Option<String> {
    let before_bytes = advice.context_bytes + advice.weights_bytes + advice.workspaces_bytes;
    if !setting.is_bound || setting.least_capacity_bytes <= before_bytes + setting.reserved_peak_bytes {
        return None;
    }
    let (pool, first) = (setting.allocator, setting.first_reserved_peak_bytes);
    Some(if first > setting.reserved_peak_bytes {
        format!(
            "{pool}'s least card holds all that the first run may reserve, ≤ {}: in that run libraries take the {} that \
             they keep, and the bound counts on no retry.",
            Bytes(first),
            Bytes(advice.workspaces_bytes)
        )
    } else {
        let room = Bytes(setting.room_before_bytes);
        format!(
            "{pool}'s least card has {room} more in it: the pool takes its memory in steps and keeps the rest of each."
        )
    })
}

/// Whether it fits the card that was asked about, if one was.
fn fits_word(fits: Option<bool>, was_asked: bool) -> &'static str {
    match fits {
        Some(true) => "yes",
        Some(false) => "no",
        None if was_asked => "unknown",
        None => "",
    }
}

fn row(setting: &SettingAdvice, was_asked: bool) -> Vec<String> {
    let bound = if setting.is_bound { "≤ " } else { "" };
    let fits = match setting.fits {
        Some(true) if setting.retries.is_some_and(|retries| retries > 0) => "yes, by retries",
        fits => fits_word(fits, was_asked),
    };
    vec![
        setting.allocator.to_string(),
        Bytes(setting.allocated_peak_bytes).to_string(),
        format!("{bound}{}", Bytes(setting.reserved_peak_bytes)),
        format!("{bound}{}", Bytes(setting.least_capacity_bytes)),
        fits.to_owned(),
        setting.environment.clone(),
    ]
}
