//! `check` and `schema`: for the author of a family file.

use headroom_base::Bytes;
use headroom_family::{Family, json_schema};

use super::args::CheckArgs;
use super::error::CliError;
use super::exit::Exit;
use super::terminal::Terminal;
use crate::bench::weights_bytes;

/// Checks a family file, or every one of a folder.
///
/// # Errors
/// With every mistake of every file.
pub(super) fn check(args: &CheckArgs, terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    let families = if args.file.is_dir() { Family::load_dir(&args.file)? } else { vec![Family::load(&args.file)?] };
    for family in families {
        let weights: u64 = family.models.iter().map(weights_bytes).sum();
        terminal.line(format!(
            "`{}` is in order: {} models ({} of weights), {} pipeline steps, {} calibration lines, {} devices, {} regressions",
            family.name,
            family.models.len(),
            Bytes(weights),
            family.pipeline.len(),
            family.calibration.lines.len(),
            family.devices.len(),
            family.regressions.len(),
        ))?;
    }
    Ok(Exit::Success)
}

/// Prints the JSON Schema of family files.
///
/// # Errors
/// When it cannot be printed.
pub(super) fn schema(terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    terminal.line(json_schema().trim_end())?;
    Ok(Exit::Success)
}
