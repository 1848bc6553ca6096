//! `ship`: builds the shipped coefficients from reports, says what that changes, and compares or writes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use headroom_calibration::{Shipped, ShippedError};
use headroom_reports::output::write_whole;
use headroom_reports::ship::{
    Built, LineId, NotShipped, Rules, build, changes, gone, is_file_name, outdated, refusals,
};
use headroom_reports::{OutputError, Report, read_report};
use serde::Serialize;

use super::args::{HERE, ShipArgs};
use super::error::CliError;
use super::exit::Exit;
use super::terminal::Terminal;
use crate::catalogue::Catalogue;
use crate::pricing::estimator_versions;
use crate::recorded::{recorded_windows, shipped_inputs};

/// Where the shipped files stand below the repository's root.
const FOLDER: &str = "stack/calibration/shipped";

/// What building came to, for a program to read.
#[derive(Serialize)]
struct Answer {
    /// Whether the files in the repository say what the inputs say.
    up_to_date: bool,
    /// Files that do not.
    outdated: Vec<String>,
    /// What is different, by line and device.
    changes: Vec<String>,
    /// Changes that need --accept.
    refusals: Vec<String>,
    /// Files that were written.
    written: Vec<String>,
    /// Files that were removed: nothing is built for their backend and allocator any more.
    removed: Vec<String>,
    /// Files that could not be read and count as absent, each with the reason.
    unreadable: Vec<String>,
    /// Windows that are behind no line, by reason.
    left_out: Vec<LeftOut>,
    /// Lines that have windows and no coefficients.
    not_shipped: Vec<String>,
    /// Machines whose windows lie far from the others'.
    outliers: Vec<String>,
    lines: usize,
    windows: usize,
    devices: Vec<String>,
}

#[derive(Serialize)]
struct LeftOut {
    /// What it has in common with others.
    kind: String,
    reason: String,
    windows: usize,
}

/// Builds, compares and, unless told otherwise, writes.
///
/// # Errors
/// When an input or a standing file cannot be used, or a file cannot be written. Nothing is written then.
pub(super) fn ship(args: &ShipArgs, catalogue: &Catalogue, terminal: &mut Terminal<'_>) -> Result<Exit, CliError> {
    let (reports, kept_apart) = inputs(args, catalogue)?;
    let built = build(&reports, &Rules::new(estimator_versions(catalogue.families())))?;
    let folder = args.repository.join(FOLDER);
    let texts = standing_texts(&folder)?;
    let (standing, unreadable) = parsed(&folder, &texts, args.accept)?;
    let mut answer = Answer { unreadable, ..answer(&built, &standing, &texts) };
    if kept_apart > 0 {
        let reason = "kept apart, to try the lines on";
        answer.left_out.push(LeftOut { kind: reason.to_owned(), reason: reason.to_owned(), windows: kept_apart });
    }
    let exit = if args.check {
        answer.refusals.clear();
        if answer.up_to_date { Exit::Success } else { Exit::CheckFailed }
    } else {
        answer.refusals = if args.accept {
            Vec::new()
        } else {
            refusals(&standing, &built.files, args.limit_percent).iter().map(ToString::to_string).collect()
        };
        if answer.refusals.is_empty() {
            answer.written = write(&built, &folder, &answer.outdated)?;
            answer.removed = remove(gone(&built.files, &texts), &folder)?;
            Exit::Success
        } else {
            Exit::Refused
        }
    };
    if args.json {
        terminal.json(&answer)?
    } else {
        print(&answer, args, terminal)?
    }
    Ok(exit)
}

/// The reports that are named, recordings (`.jsonl`) among them, or what the repository keeps.
/// How many windows of the latter are kept apart.
fn inputs(args: &ShipArgs, catalogue: &Catalogue) -> Result<(Vec<Report>, usize), CliError> {
    if args.reports.is_empty() {
        let inputs = shipped_inputs(catalogue, &args.repository)?;
        return Ok((vec![inputs.report], inputs.kept_apart));
    }
    let named: Result<_, _> = args.reports.iter().map(|path| input(path, catalogue)).collect();
    Ok((named?, 0))
}

fn input(path: &Path, catalogue: &Catalogue) -> Result<Report, CliError> {
    if path.extension().is_none_or(|end| end != "jsonl") {
        return Ok(read_report(path)?);
    }
    let text =
        std::fs::read_to_string(path).map_err(|source| CliError::Unreadable { path: path.to_owned(), source })?;
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    Ok(recorded_windows(catalogue, &name, &text)?)
}

/// The standing files' names and texts, in order. What is no text is read as one that is broken.
fn standing_texts(folder: &Path) -> Result<Vec<(String, String)>, CliError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| CliError::Unreadable { path, source }
    };
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable(folder))? {
        let path = entry.map_err(unreadable(folder))?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(is_file_name) {
            paths.push(path);
        }
    }
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let bytes = std::fs::read(path).map_err(unreadable(path))?;
            Ok((name, String::from_utf8_lossy(&bytes).into_owned()))
        })
        .collect()
}

/// What the standing files say. One that is broken counts as absent where that was accepted, and is named; one of another
/// format is somebody's work and stays.
fn parsed(folder: &Path, texts: &[(String, String)], accept: bool) -> Result<(Vec<Shipped>, Vec<String>), CliError> {
    let (mut standing, mut unreadable) = (Vec::new(), Vec::new());
    for (name, text) in texts {
        match Shipped::parse(text) {
            Ok(shipped) => standing.push(shipped),
            Err(ShippedError::Unreadable { source }) if accept => unreadable.push(format!("{name}: {source}")),
            Err(source) => return Err(CliError::Shipped { path: folder.join(name), source }),
        }
    }
    Ok((standing, unreadable))
}

fn answer(built: &Built, standing: &[Shipped], texts: &[(String, String)]) -> Answer {
    let lines = || built.files.iter().flat_map(|file| &file.lines);
    let devices: BTreeSet<String> =
        lines().flat_map(|line| &line.sources).map(|source| source.device.to_string()).collect();
    let outdated = outdated(&built.files, texts);
    Answer {
        up_to_date: outdated.is_empty(),
        outdated,
        changes: changes(standing, &built.files).iter().map(ToString::to_string).collect(),
        refusals: Vec::new(),
        written: Vec::new(),
        removed: Vec::new(),
        unreadable: Vec::new(),
        left_out: built
            .left_out
            .iter()
            .map(|(reason, windows)| LeftOut { kind: reason.kind(), reason: reason.to_string(), windows: *windows })
            .collect(),
        not_shipped: built.not_shipped.iter().map(not_shipped_text).collect(),
        outliers: built.outliers.iter().map(ToString::to_string).collect(),
        lines: lines().count(),
        windows: lines().map(|line| line.windows).sum(),
        devices: devices.into_iter().collect(),
    }
}

fn not_shipped_text(not_shipped: &NotShipped) -> String {
    let NotShipped { line, environment, error } = not_shipped;
    let id = LineId { line: line.clone(), environment: environment.clone() };
    format!("{id}: {error}")
}

/// Windows left out, by the kind of reason: the numbers of each are for programs.
fn by_kind(left_out: &[LeftOut]) -> BTreeMap<&str, usize> {
    let mut kinds = BTreeMap::new();
    for LeftOut { kind, windows, .. } in left_out {
        *kinds.entry(kind.as_str()).or_default() += windows;
    }
    kinds
}

/// Writes the files that differ, each whole or not at all.
fn write(built: &Built, folder: &Path, outdated: &[String]) -> Result<Vec<String>, CliError> {
    let mut written = Vec::new();
    for file in &built.files {
        let name = Shipped::file_name(file.backend, file.allocator);
        if outdated.contains(&name) {
            write_whole(&folder.join(&name), file.to_json().as_bytes())?;
            written.push(name);
        }
    }
    Ok(written)
}

/// Removes files of which nothing is left to ship.
fn remove(names: Vec<String>, folder: &Path) -> Result<Vec<String>, CliError> {
    for name in &names {
        let path = folder.join(name);
        std::fs::remove_file(&path).map_err(|source| OutputError::Io { path, source })?;
    }
    Ok(names)
}

/// The command that writes what was compared: of the same inputs, and there.
fn writing(args: &ShipArgs) -> String {
    let mut words = vec!["headroom ship".to_owned()];
    words.extend(args.reports.iter().map(|path| as_a_word(path)));
    if args.repository != Path::new(HERE) {
        words.push(format!("--repository {}", as_a_word(&args.repository)));
    }
    words.join(" ")
}

/// A path as a shell reads it.
fn as_a_word(path: &Path) -> String {
    let shown = path.display().to_string();
    if shown.contains(char::is_whitespace) { format!("'{shown}'") } else { shown }
}

fn print(answer: &Answer, args: &ShipArgs, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let Answer { lines, windows, devices, .. } = answer;
    terminal.line(format!("{lines} lines from {windows} windows of {}", devices.join(", ")))?;
    for (reason, windows) in by_kind(&answer.left_out) {
        terminal.line(format!("  {windows} windows left out: {reason}"))?;
    }
    for (title, texts) in [("not shipped", &answer.not_shipped), ("stands apart", &answer.outliers)] {
        for text in texts {
            terminal.line(format!("  {title}: {text}"))?;
        }
    }
    for text in &answer.unreadable {
        terminal.line(format!("  broken, counts as absent, so that nothing is known of what is lost: {text}"))?;
    }
    for change in &answer.changes {
        terminal.line(format!("  {change}"))?;
    }
    for refusal in &answer.refusals {
        terminal.remark(format!("refused: {refusal}"));
    }
    let outdated = answer.outdated.join(", ");
    let verdict = match (args.check, answer.up_to_date, answer.refusals.is_empty()) {
        (_, true, _) => "The shipped data is up to date.".to_owned(),
        (true, false, _) => {
            format!("The shipped data is out of date: {outdated}. Run `{}` to write it.", writing(args))
        }
        (false, false, true) => {
            let done = [("Written", &answer.written), ("Removed", &answer.removed)];
            let done = done.into_iter().filter(|(_, names)| !names.is_empty());
            done.map(|(what, names)| format!("{what}: {}.", names.join(", "))).collect::<Vec<_>>().join(" ")
        }
        (false, false, false) => format!("Nothing was written; {outdated} would change."),
    };
    terminal.line(verdict)?;
    Ok(())
}
