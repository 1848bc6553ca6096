//! `merge`: reports of several machines as one, the same one in whatever order they are named.

use std::path::Path;

use headroom_reports::{OutputFolder, Redaction, merge::merge as merged, read_report};

use super::annotations::annotate;
use super::args::MergeArgs;
use super::error::CliError;
use super::exit::Exit;
use super::terminal::Terminal;
use super::totals::{exit_of, print_totals};

/// Merges reports into a folder, and ends as one run of all their trials would.
///
/// # Errors
/// When a report cannot be used, two of one name differ, the folder holds one of them, or it cannot be written.
pub(super) fn merge(args: &MergeArgs, terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    let mut reports = Vec::new();
    for path in &args.reports {
        reports.push(read_report(path)?);
        if is_same_file(path, &args.output.join("report.json")) {
            return Err(CliError::Value(format!(
                "{} would be overwritten by the merged report: choose another --output",
                path.display()
            )));
        }
    }
    let report = merged(&reports)?;
    let written = OutputFolder::open(&args.output)?.write_report(&report, &Redaction::default())?;
    terminal.line(format!(
        "{} windows of {} attempts on {} devices, from {} reports ({})",
        report.windows.len(),
        report.attempts.len(),
        report.devices.len(),
        report.provenance.len(),
        report.provenance.iter().map(|from| from.report_id.as_str()).collect::<Vec<_>>().join(", ")
    ))?;
    terminal.line(format!(
        "Report: {}",
        written.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    ))?;
    print_totals(&report, terminal)?;
    for from in report.provenance.iter().filter(|from| from.stopped) {
        let (id, arguments) = (&from.report_id, from.arguments.join(" "));
        terminal.line(format!(
            "{id} was stopped: run it again (headroom {arguments}) and merge the new report in its place"
        ))?;
    }
    annotate(&report, false, terminal)?;
    Ok(exit_of(&report))
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}
