//! `check` and `schema`: for the author of a family file.

use std::path::Path;

use headroom_base::Bytes;
use headroom_family::{Family, Recordings, json_schema};
use headroom_reports::folder_of;

use super::args::CheckArgs;
use super::error::CliError;
use super::exit::Exit;
use super::terminal::Terminal;
use crate::bench::weights_bytes;
use crate::catalogue::{Catalogue, CatalogueError};
use crate::recorded::recording_names;

/// Checks a family file, or every one of a folder.
///
/// # Errors
/// With every mistake of every file.
pub(super) fn check(args: &CheckArgs, terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    let families = if args.file.is_dir() {
        Catalogue::load(Some(&args.file))?.families().to_vec()
    } else {
        let family = Family::load(&args.file, Recordings::Named(&recording_names()))?;
        claimed_once(&family, &args.file)?;
        vec![family]
    };
    for family in families {
        let weights: u64 = family.models.iter().map(weights_bytes).sum();
        terminal.line(format!(
            "`{}` is in order: {} ({} of weights), {}, {}, {}, {}",
            family.name,
            counted(family.models.len(), "model"),
            Bytes(weights),
            counted(family.pipeline.len(), "pipeline step"),
            counted(family.calibration.lines.len(), "calibration line"),
            counted(family.devices.len(), "device"),
            counted(family.regressions.len(), "regression"),
        ))?;
    }
    Ok(Exit::Success)
}

/// Whether no other family of the file's folder claims a recording that this one does. Other mistakes of theirs are told
/// when they are checked.
fn claimed_once(family: &Family, file: &Path) -> Result<(), CatalogueError> {
    let is_its = |model: &str| model.split_once(':').is_some_and(|(name, _)| name == family.name);
    let is_about_it = |error: &CatalogueError| match error {
        CatalogueError::RecordedTwice { first, second, .. } => is_its(first) || is_its(second),
        _ => false,
    };
    match Catalogue::load(Some(folder_of(file))) {
        Err(error) if is_about_it(&error) => Err(error),
        _ => Ok(()),
    }
}

/// `1 model`, `2 models`.
fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Prints the JSON Schema of family files.
///
/// # Errors
/// When it cannot be printed.
pub(super) fn schema(terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    terminal.line(json_schema().trim_end())?;
    Ok(Exit::Success)
}
