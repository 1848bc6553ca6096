//! `advise`: what each allocator setting needs for one operation, and whether a card is large enough.

use headroom_base::{AllocatorKind, Bytes, Case, MIB, Operation, Tiling};
use serde::Serialize;

use super::args::AdviseArgs;
use super::chosen::Chosen;
use super::error::CliError;
use super::exit::Exit;
use super::terminal::Terminal;
use crate::advise::{Advice, Question, SettingAdvice, advise as ask};
use crate::catalogue::Catalogue;
use crate::replay::OLDER_VARIABLE_NOTE;

/// Reckoned for a context where the family names no device.
const USUAL_CONTEXT_BYTES: u64 = 524 * MIB;

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
}

/// Says what each setting needs, for a model whose weights were loaded in the element type that it runs in.
///
/// # Errors
/// For names that are not known, a case that has no program, or when nothing can be printed.
pub(super) fn advise(args: &AdviseArgs, catalogue: &Catalogue, terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    let chosen = Chosen::of(&args.case, catalogue)?;
    let memory_bytes = args.memory.map(|bytes| bytes.0);
    let advice = advice_for(&chosen, chosen.case, memory_bytes)?;
    let nothing_fits = advice.settings.iter().all(|setting| setting.fits == Some(false));
    let tile_that_fits = nothing_fits.then(|| tile_that_fits(&chosen, memory_bytes)).flatten();
    let (family, model) = (chosen.family.name.as_str(), chosen.model.key.as_str());
    let in_use = args.allocator;
    let answer = Answer { family, model, case: chosen.case, memory_bytes, in_use, advice, tile_that_fits };
    if args.case.json {
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
    let context_bytes = chosen.family.devices.iter().map(|device| device.context_bytes).max();
    let question = Question {
        architecture,
        case,
        execution: chosen.execution_of_its_own(),
        context_bytes: context_bytes.unwrap_or(USUAL_CONTEXT_BYTES),
        memory_bytes,
    };
    ask(&question).map_err(|error| CliError::Value(error.to_string()))
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
        advice.is_ok_and(|advice| advice.settings.iter().any(|setting| setting.fits == Some(true)))
    })
}

fn print(answer: &Answer<'_>, chosen: &Chosen<'_>, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let Advice { settings, least, weights_bytes, context_bytes } = &answer.advice;
    terminal.line(format!("{}, predicted from its program:", chosen.name()))?;
    let rows: Vec<_> = settings.iter().map(row).collect();
    let header = ["setting", ">allocated peak", ">reserved peak", ">least card", "fits", "environment"];
    terminal.table(&header, &rows)?;
    terminal.line(format!(
        "Peaks are beyond weights and inputs; the least card has {} of them (in {}) and {} for the context in it.",
        Bytes(*weights_bytes),
        answer.case.dtype,
        Bytes(*context_bytes)
    ))?;
    terminal.line("≤: the driver's pool has no public policy; its figures are upper bounds.")?;
    let best = settings.iter().find(|setting| setting.allocator == *least);
    if let Some(setting) = best {
        let bound = if setting.is_bound { "at most " } else { "" };
        terminal.line(format!(
            "{least} needs the smallest card: {bound}{}. Set {}",
            Bytes(setting.least_capacity_bytes),
            setting.environment
        ))?;
    }
    let used = settings.iter().find(|setting| Some(setting.allocator) == answer.in_use);
    if let (Some(used), Some(best)) = (used, best) {
        let saved = used.least_capacity_bytes.saturating_sub(best.least_capacity_bytes);
        terminal.line(format!("That is {} less than {} needs, which is in use.", Bytes(saved), used.allocator))?;
    }
    if let Some(memory) = answer.memory_bytes {
        let any = settings.iter().any(|setting| setting.fits == Some(true));
        let tiles = match answer.tile_that_fits {
            Some(tile) => format!(" Tile by tile it fits: --option tile={tile}."),
            None => String::new(),
        };
        if !any {
            terminal.line(format!("No setting fits {}.{tiles}", Bytes(memory)))?;
        }
    }
    terminal.line(OLDER_VARIABLE_NOTE)?;
    Ok(())
}

fn row(setting: &SettingAdvice) -> Vec<String> {
    let bound = if setting.is_bound { "≤ " } else { "" };
    let fits = match setting.fits {
        Some(true) => "yes",
        Some(false) => "no",
        None => "",
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
