//! `mutants`: every wrong decision that is compiled in, the checks that saw it, and the report with the kill matrix.

use std::path::Path;

use super::args::MutantsArgs;
use super::error::CliError;
use super::exit::Exit;
use super::terminal::Terminal;

/// Without the feature there is no wrong decision in the program.
///
/// # Errors
/// Always; the text says how to build with them.
#[cfg(not(feature = "mutants"))]
pub(super) fn mutants(_: &MutantsArgs, _: Option<&Path>, _: &mut Terminal<'_>) -> Result<Exit, CliError> {
    let how = "this build holds no wrong decisions; build with them: cargo run --features mutants -- mutants";
    Err(CliError::Unavailable(how.to_owned()))
}

/// Grades wrong decisions, prints the kill matrix and writes the report. The last line is
/// `N graded, K killed, S survived`.
///
/// # Errors
/// For a name that no decision has, and when the report cannot be written. A survivor is a result, not an error.
#[cfg(feature = "mutants")]
pub(super) fn mutants(
    args: &MutantsArgs,
    families: Option<&Path>,
    terminal: &mut Terminal<'_>,
) -> Result<Exit, CliError> {
    use crate::mutants::{GradedThere, GradingError, grade, grade_on};

    let started = std::time::Instant::now();
    let world = std::sync::Arc::new(crate::world::World::load(families)?);
    let folder = headroom_reports::OutputFolder::open(&args.output)?;
    let there = args.device.as_deref().map(|name| on_a_gpu(&world, name, &args.family)).transpose()?;
    let mut graded = 0;
    let on_graded = &mut |grade: &headroom_reports::MutantGrade, of: usize| {
        graded += 1;
        // On a GPU it takes minutes: whoever reads a log wants to see that it goes on.
        if terminal.is_interactive() || there.is_some() {
            terminal.remark(format!("{graded}/{of} {} {} ms", grade.name, grade.milliseconds));
        }
    };
    let outcome = match &there {
        Some((families, turn)) => {
            let card = turn.open().ok_or_else(|| CliError::Unavailable("the GPU is not open".to_owned()))?;
            grade_on(&world, (families, card), &args.names, on_graded)
        }
        None => grade(&world, &args.names, on_graded).map(|report| GradedThere { report, not_seen: Vec::new() }),
    };
    let GradedThere { report, not_seen } = match outcome {
        Ok(graded) => graded,
        Err(error @ GradingError::UnknownName { .. }) => return Err(CliError::Value(error.to_string())),
        Err(error) => {
            terminal.remark(error.to_string());
            return Ok(Exit::CheckFailed);
        }
    };
    print(&report, &not_seen, terminal)?;
    let mut written = headroom_reports::Report::new(crate::run::provenance(arguments_of(args)));
    let (verdict, survived) = (report.verdict(), report.survivors().next().is_some());
    written.mutants = Some(report);
    if let Some(card) = there.as_ref().and_then(|(_, turn)| turn.open()) {
        let place = crate::bench::Place::from(&**card);
        written.devices.push(place.record());
        written.trials.push(headroom_reports::Check {
            family: args.family.join(","),
            device: place.name().to_owned(),
            check: "mutants".to_owned(),
            outcome: if survived { headroom_reports::Outcome::Failed } else { headroom_reports::Outcome::Passed },
            message: survived.then(|| verdict.clone()),
            notes: not_seen,
            seconds: started.elapsed().as_secs_f64(),
        });
    }
    let files = folder.write_report(&written, &super::run::redaction())?;
    let names = files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    terminal.line(format!("\nReport: {names}"))?;
    terminal.line(verdict)?;
    Ok(if survived { Exit::CheckFailed } else { Exit::Success })
}

/// The matrix, what survived, and what cannot be seen where it was graded.
#[cfg(feature = "mutants")]
fn print(
    report: &headroom_reports::MutantReport,
    not_seen: &[String],
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    let rows: Vec<Vec<String>> = report.grades.iter().map(row).collect();
    terminal.table(&["mutant", "outcome", ">ms", ">saw it", ">passed it", "seen by"], &rows)?;
    report.survivors().try_for_each(|grade| terminal.line(survivor(grade)))?;
    if !not_seen.is_empty() {
        terminal.line(format!("\n{} are passed there and cannot be seen there:", not_seen.len()))?;
        not_seen.iter().try_for_each(|text| terminal.line(format!("  {text}")))?;
    }
    Ok(())
}

#[cfg(feature = "mutants")]
fn arguments_of(args: &MutantsArgs) -> Vec<String> {
    let names = args.names.iter().map(|name| format!("--name={name}"));
    let device = args.device.iter().map(|name| format!("--device={name}"));
    let families = args.family.iter().map(|name| format!("--family={name}"));
    std::iter::once("mutants".to_owned()).chain(names).chain(device).chain(families).collect()
}

/// The families of these names, by position, and a turn on the GPU.
#[cfg(feature = "mutants")]
fn on_a_gpu(
    world: &crate::world::World,
    name: &str,
    families: &[String],
) -> Result<(Vec<usize>, crate::gpu::Turn), CliError> {
    if !super::place::is_gpu(name) {
        return Err(CliError::Value(format!(
            "`--device {name}`: wrong decisions are graded on `gpu`, or without --device"
        )));
    }
    let mut found = Vec::new();
    for family in families {
        world.catalogue.family(family)?;
        found.extend(world.catalogue.families().iter().position(|known| known.name == *family));
    }
    Ok((found, super::place::turn_on(&world.gpus, name, "the mutation checks")?))
}

#[cfg(feature = "mutants")]
fn row(grade: &headroom_reports::MutantGrade) -> Vec<String> {
    let outcome = if grade.killed_by.is_empty() { "SURVIVED" } else { "killed" };
    vec![
        grade.name.clone(),
        outcome.to_owned(),
        grade.milliseconds.to_string(),
        grade.killed_by.len().to_string(),
        grade.reached_by.len().to_string(),
        grade.killed_by.join("\n"),
    ]
}

/// A survivor with what it breaks and the checks that should have seen it.
#[cfg(feature = "mutants")]
fn survivor(grade: &headroom_reports::MutantGrade) -> String {
    let mut text = format!("\n{} survived ({}): {}", grade.name, grade.place, grade.harm);
    text.push_str(&format!("\n  it breaks {}; should have been seen by {}", grade.claims.join(", "), {
        grade.reached_by.join(", ")
    }));
    for other in &grade.failed_otherwise {
        text.push_str(&format!("\n  failed for another reason: {other}"));
    }
    text
}
