//! The command in a build that holds wrong decisions.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use headroom_reports::{Check, MutantGrade, Outcome, OutputFolder, Provenance, Redaction, Report};

use crate::bench::Place;
use crate::cli::annotations::annotate;
use crate::cli::args::MutantsArgs;
use crate::cli::error::CliError;
use crate::cli::exit::Exit;
use crate::cli::place::{is_gpu, recorded_name, turn_on};
use crate::cli::redaction::redaction;
use crate::cli::terminal::Terminal;
use crate::gpu::{OpenGpu, Turn};
use crate::mutants::{GradedThere, GradingError, are_names, grade, grade_on, graded_there};
use crate::run::provenance;
use crate::world::World;

/// Grades wrong decisions, prints the kill matrix and writes the report. The last line is
/// `N graded, K killed, S survived`. A report that says it was stopped takes the place of an earlier one first. On a GPU,
/// where it takes minutes, the report is written after each grade: one that was stopped says how far it came.
///
/// # Errors
/// For a name that no decision has, and when the report cannot be written. A survivor is a result, not an error.
pub(in crate::cli) fn mutants(
    args: &MutantsArgs,
    families: Option<&Path>,
    terminal: &mut Terminal<'_>,
) -> Result<Exit, CliError> {
    let (world, there) = prepared(args, families).inspect_err(|_| terminal.remark_nothing_ran(&args.output))?;
    let folder = OutputFolder::open(&args.output)?;
    let redaction = redaction(world.catalogue.families(), families, &args.output);
    let from = provenance(arguments_of(args));
    // What stands there from an earlier run says nothing of this one.
    folder.write_report(&Report::new(Provenance { stopped: true, ..from.clone() }), &redaction)?;
    let outcome = match &there {
        Some((families, turn)) => {
            let card = turn.open().ok_or_else(|| CliError::Unavailable("the GPU is not open".to_owned()))?;
            let output = (&folder, &redaction);
            let mut so_far = SoFar { args, from: &from, card, output, started: Instant::now(), grades: Vec::new() };
            let mut unwritten = None;
            let graded = grade_on(&world, (families, card), &args.names, &mut |grade, of| {
                so_far.grades.push(grade.clone());
                let number = so_far.grades.len();
                terminal.remark(format!("{number}/{of} {} {} ms", grade.name, grade.milliseconds));
                if let Err(error) = so_far.write(of) {
                    unwritten.get_or_insert(error);
                }
            });
            match unwritten {
                Some(error) => return Err(error),
                None => graded,
            }
        }
        None => grade_simulated(&world, args, terminal),
    };
    let graded = match outcome {
        Ok(graded) => graded,
        Err(error @ (GradingError::UnknownName { .. } | GradingError::NotReachedThere { .. })) => {
            return Err(CliError::Value(error.to_string()));
        }
        Err(error) => {
            terminal.remark(error.to_string());
            return Ok(Exit::CheckFailed);
        }
    };
    print(&graded, terminal)?;
    let (verdict, survived) = (graded.report.verdict(), graded.report.survivors().next().is_some());
    let mut written = Report::new(from);
    written.mutants = Some(graded.report);
    if there.is_none() {
        folder.write_report(&written, &redaction)?;
    }
    annotate(&written, false, terminal)?;
    terminal.line(format!("\nReport: {}", args.output.join("report.json").display()))?;
    terminal.line(verdict)?;
    Ok(if survived { Exit::CheckFailed } else { Exit::Success })
}

/// Families by position, and the turn on the card that their checks run on.
type OnAGpu = (Vec<usize>, Turn);

/// Everything that can be refused before anything is graded: names that nothing has, and a GPU that is not there.
fn prepared(args: &MutantsArgs, families: Option<&Path>) -> Result<(Arc<World>, Option<OnAGpu>), CliError> {
    are_names(&args.names).map_err(|error| CliError::Value(error.to_string()))?;
    let world = Arc::new(World::load(families)?);
    let there = args.device.as_deref().map(|name| on_a_gpu(&world, name, &args.family)).transpose()?;
    Ok((world, there))
}

fn grade_simulated(
    world: &Arc<World>,
    args: &MutantsArgs,
    terminal: &mut Terminal<'_>,
) -> Result<GradedThere, GradingError> {
    let mut graded = 0;
    let report = grade(world, &args.names, &mut |grade, of| {
        graded += 1;
        if terminal.is_interactive() {
            terminal.remark(format!("{graded}/{of} {}", grade.name));
        }
    })?;
    Ok(GradedThere { report, not_seen: Vec::new() })
}

/// What was graded on a GPU until now.
struct SoFar<'a> {
    args: &'a MutantsArgs,
    from: &'a Provenance,
    card: &'a OpenGpu,
    output: (&'a OutputFolder, &'a Redaction),
    started: Instant,
    grades: Vec<MutantGrade>,
}

impl SoFar<'_> {
    /// Writes the report of so many grades of all.
    fn write(&self, all: usize) -> Result<(), CliError> {
        let GradedThere { report, not_seen } = graded_there(self.grades.clone());
        let place = Place::from(self.card);
        let (done, survived) = (self.grades.len(), report.survivors().next().is_some());
        let message = if done < all {
            Some(format!("stopped after {done} of {all}: {}", report.verdict()))
        } else {
            survived.then(|| report.verdict())
        };
        let mut written = Report::new(Provenance { stopped: done < all, ..self.from.clone() });
        written.devices.push(place.record());
        written.trials.push(Check {
            family: self.args.family.join(","),
            device: place.name().to_owned(),
            check: "mutants".to_owned(),
            outcome: if message.is_some() { Outcome::Failed } else { Outcome::Passed },
            message,
            notes: not_seen,
            seconds: self.started.elapsed().as_secs_f64(),
            report_id: None,
        });
        written.mutants = Some(report);
        let (folder, redaction) = self.output;
        folder.write_report(&written, redaction)?;
        Ok(())
    }
}

/// The matrix, what survived, and what cannot be seen where it was graded.
fn print(GradedThere { report, not_seen }: &GradedThere, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let rows: Vec<Vec<String>> = report.grades.iter().map(row).collect();
    terminal.table(&["mutant", "outcome", ">ms", ">saw it", ">passed it", "seen by"], &rows)?;
    report.survivors().try_for_each(|grade| terminal.line(survivor(grade)))?;
    if !not_seen.is_empty() {
        terminal.line(format!("\n{} are passed there and cannot be seen there:", not_seen.len()))?;
        not_seen.iter().try_for_each(|text| terminal.line(format!("  {text}")))?;
    }
    Ok(())
}

fn arguments_of(args: &MutantsArgs) -> Vec<String> {
    let names = args.names.iter().map(|name| format!("--name={name}"));
    let device = args.device.iter().map(|name| format!("--device={}", recorded_name(name)));
    let families = args.family.iter().map(|name| format!("--family={name}"));
    std::iter::once("mutants".to_owned()).chain(names).chain(device).chain(families).collect()
}

/// The families of these names, by position, and a turn on the GPU.
fn on_a_gpu(world: &World, name: &str, families: &[String]) -> Result<OnAGpu, CliError> {
    if !is_gpu(name) {
        return Err(CliError::Value(format!(
            "`--device {name}`: wrong decisions are graded on `gpu`, or without --device"
        )));
    }
    let mut found = Vec::new();
    for family in families {
        let family = world.catalogue.family(family)?;
        found.extend(world.catalogue.families().iter().position(|known| known.name == family.name));
    }
    Ok((found, turn_on(&world.gpus, name, "the mutation checks")?))
}

fn row(grade: &MutantGrade) -> Vec<String> {
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
fn survivor(grade: &MutantGrade) -> String {
    let mut text = format!("\n{} survived ({}): {}", grade.name, grade.place, grade.harm);
    text.push_str(&format!("\n  it breaks {}; should have been seen by {}", grade.claims.join(", "), {
        grade.reached_by.join(", ")
    }));
    for other in &grade.failed_otherwise {
        text.push_str(&format!("\n  failed for another reason: {other}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::PoisonError;

    use super::*;
    use crate::mutants::CHOOSING;

    const EARLIER: &str = "{ \"of\": \"an earlier run\" }";

    /// What the command came to, what it remarked, and the report that stands in its output afterwards.
    fn ran(name: &str, families: Option<&Path>) -> (Result<Exit, CliError>, String, String) {
        let _choosing = CHOOSING.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        std::fs::write(&path, EARLIER).unwrap();
        let args = MutantsArgs {
            names: vec![name.to_owned()],
            device: None,
            family: Vec::new(),
            output: folder.path().to_owned(),
        };
        let (mut results, mut remarks) = (Vec::new(), Vec::new());
        let ended = mutants(&args, families, &mut Terminal::new(&mut results, &mut remarks, false));
        (ended, String::from_utf8(remarks).unwrap(), std::fs::read_to_string(&path).unwrap())
    }

    #[test]
    fn a_name_that_no_decision_has_leaves_an_earlier_report_and_says_so() {
        let (ended, remarks, report) = ran("no_such_name", None);
        assert!(matches!(ended, Err(CliError::Value(text)) if text.contains("no wrong decision is named")));
        assert!(remarks.contains("Nothing ran: what stands in"), "{remarks}");
        assert_eq!(report, EARLIER);
    }

    #[test]
    fn a_grading_that_ends_before_its_first_grade_leaves_no_earlier_report() {
        let families = tempfile::tempdir().unwrap();
        let regressions = include_str!("../../../families/regressions.yaml");
        std::fs::write(families.path().join("regressions.yaml"), regressions).unwrap();
        let (ended, remarks, report) = ran("nothing_seen_passes", Some(families.path()));
        assert!(matches!(ended, Ok(Exit::CheckFailed)), "{ended:?} {remarks}");
        let report: Report = serde_json::from_str(&report).unwrap();
        assert!(report.is_stopped() && report.mutants.is_none());
    }
}
