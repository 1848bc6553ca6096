//! What a report says as workflow commands, which GitHub shows beside the step that printed them.

use headroom_reports::{Check, Outcome, Report, STOPPED};

use super::terminal::Terminal;
use crate::variables::{says_yes, value_of};

/// Prints what failed as errors, and a run that was stopped and mutants that survived as warnings, where GitHub runs this
/// program; nothing elsewhere. `beside_json` keeps the result's own stream for the result: both are looked at.
///
/// # Errors
/// When the result's stream cannot be written to.
pub(super) fn annotate(report: &Report, beside_json: bool, terminal: &mut Terminal<'_>) -> std::io::Result<()> {
    if !says_yes(value_of("GITHUB_ACTIONS").as_deref()) {
        return Ok(());
    }
    for line in annotations(report) {
        if beside_json {
            terminal.remark(line);
        } else {
            terminal.line(line)?;
        }
    }
    Ok(())
}

fn annotations(report: &Report) -> Vec<String> {
    let failed =
        report.trials.iter().filter(|trial| trial.outcome == Outcome::Failed).map(|trial: &Check| {
            command("error", &trial.name(), trial.message.as_deref().unwrap_or("it does not hold"))
        });
    let stopped = report.provenance.iter().filter(|from| from.stopped).map(|from| {
        let why = report.why_stopped(from);
        let text = format!("{}: {why}; trials that had not ended stand in it as not run", from.report_id);
        command("warning", STOPPED, &text)
    });
    let grades = report.mutants.iter().flat_map(|mutants| mutants.survivors());
    let survived = grades.map(|grade| command("warning", &format!("{} survived", grade.name), &grade.harm));
    failed.chain(stopped).chain(survived).collect()
}

fn command(kind: &str, title: &str, message: &str) -> String {
    let message = escaped(message);
    let title = escaped(title).replace(':', "%3A").replace(',', "%2C");
    format!("::{kind} title={title}::{message}")
}

/// A command ends with its line; `%` begins what stands for another character.
fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use headroom_reports::{MutantGrade, MutantReport};

    use super::*;
    use crate::run::provenance;

    fn trial(check: &str, outcome: Outcome, message: Option<&str>) -> Check {
        Check {
            family: "sdxl".into(),
            device: "12gib".into(),
            check: check.into(),
            outcome,
            message: message.map(str::to_owned),
            notes: Vec::new(),
            seconds: 0.0,
            report_id: None,
        }
    }

    #[test]
    fn what_failed_is_an_error_of_one_line_and_nothing_in_it_ends_the_command() {
        let mut report = Report::new(provenance(Vec::new()));
        report.trials = vec![
            trial("a,b", Outcome::Failed, Some("5 % over: a\r\nb::c")),
            trial("plan", Outcome::Passed, None),
            trial("gpu", Outcome::Ignored, Some("no GPU")),
            trial("lease", Outcome::Busy, Some("held")),
        ];
        let expected = ["::error title=sdxl%3A%3A12gib%3A%3Aa%2Cb::5 %25 over: a%0D%0Ab::c"];
        assert_eq!(annotations(&report), expected);
    }

    #[test]
    fn a_stopped_run_and_a_survivor_are_warnings() {
        let mut report = Report::new(provenance(Vec::new()));
        report.provenance[0].stopped = true;
        let survivor = MutantGrade { name: "m".into(), harm: "it goes wrong".into(), ..MutantGrade::default() };
        let killed = MutantGrade { name: "k".into(), killed_by: vec!["a check".into()], ..MutantGrade::default() };
        report.mutants = Some(MutantReport { grades: vec![survivor, killed] });
        let [stopped, survived] = &annotations(&report)[..] else { panic!("{:?}", annotations(&report)) };
        assert!(stopped.starts_with("::warning title=the run was stopped before its end::headroom-"), "{stopped}");
        assert_eq!(survived, "::warning title=m survived::it goes wrong");
    }
}
