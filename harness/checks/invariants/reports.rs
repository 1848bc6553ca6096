//! Reports on their way: refused where they cannot be understood, replaced whole, and about no person.

use std::io::Read as _;
use std::path::Path;

use headroom_reports::format::parse_report;
use headroom_reports::merge::merge;
use headroom_reports::output::{to_json, write_whole};
use headroom_reports::{OutputFolder, ReadReportError, Redaction, Report};

use super::shipping::{of_machine, recorded, said};
use crate::checks::{CheckError, Claim};
use crate::world::World;

super::general![
    a_report_of_a_newer_format_is_refused,
    a_report_is_replaced_whole,
    a_written_report_names_no_person_and_no_folder,
    what_was_withdrawn_stays_withdrawn_beside_an_old_copy,
    attempts_of_two_machines_stay_two,
];

fn a_report_of_a_newer_format_is_refused(world: &World) -> Result<(), CheckError> {
    let mut newer = Report::new(recorded(world)?.provenance[0].clone());
    newer.format.readable_by = u32::MAX;
    let outcome = parse_report(Path::new("newer.json"), &to_json(&newer).map_err(said)?);
    let refused = matches!(outcome, Err(ReadReportError::Newer { .. }));
    Claim::NewerReportIsRefused.holds(refused, || "a report of a newer format was read".to_owned())
}

/// Whoever has the file open goes on reading the old one: the name is moved to a new file, never rewritten.
fn a_report_is_replaced_whole(_: &World) -> Result<(), CheckError> {
    let folder = super::stores::folder()?;
    let path = folder.path().join("report.json");
    write_whole(&path, b"the old report").map_err(said)?;
    let mut reader = std::fs::File::open(&path).map_err(said)?;
    write_whole(&path, b"new").map_err(said)?;
    let mut seen = String::new();
    reader.read_to_string(&mut seen).map_err(said)?;
    Claim::ReportIsReplacedWhole.equal("what a reader sees", seen.as_str(), "the old report")
}

fn a_written_report_names_no_person_and_no_folder(world: &World) -> Result<(), CheckError> {
    let mut report = Report::new(recorded(world)?.provenance[0].clone());
    report.provenance[0].arguments = vec!["--output=/home/lovelace/headroom/out".to_owned()];
    let folder = super::stores::folder()?;
    let output = OutputFolder::open(folder.path()).map_err(said)?;
    let names = vec!["lovelace".to_owned()];
    let redaction = Redaction { root: Some("/home/lovelace/headroom".into()), names, ..Redaction::default() };
    for file in output.write_report(&report, &redaction).map_err(said)? {
        let text = std::fs::read_to_string(&file).map_err(said)?;
        let named = text.contains("lovelace") || text.contains("/home/");
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Claim::ReportNamesNobody.holds(!named, || format!("{name} names a person or a folder"))?;
    }
    Ok(())
}

fn what_was_withdrawn_stays_withdrawn_beside_an_old_copy(world: &World) -> Result<(), CheckError> {
    let report = recorded(world)?.clone();
    let mut withdrawn = report.clone();
    withdrawn.provenance[0].withdrawn = Some("wrong driver".to_owned());
    for copies in [[report.clone(), withdrawn.clone()], [withdrawn, report]] {
        let merged = merge(&copies).map_err(said)?;
        let reason = merged.provenance[0].withdrawn.clone();
        Claim::WithdrawnStaysWithdrawn.equal("withdrawn because", reason, Some("wrong driver".to_owned()))?;
    }
    Ok(())
}

fn attempts_of_two_machines_stay_two(world: &World) -> Result<(), CheckError> {
    let here = recorded(world)?;
    let other = of_machine(here, "another machine", "another card", 1_000);
    let merged = merge(&[here.clone(), other]);
    let attempts = merged.as_ref().map(|merged| merged.attempts.len()).unwrap_or(0);
    let expected = 2 * here.attempts.len();
    Claim::AttemptsOfTwoMachinesStayApart.equal("attempts of two machines", attempts, expected)
}
