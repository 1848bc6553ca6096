//! What a report came to, of one run or of several merged: what did not pass, the totals, and the exit code.

use std::io;

use headroom_reports::{Outcome, Report};

use super::exit::Exit;
use super::terminal::Terminal;

/// Prints every trial that failed or found its device busy, then how many trials ended how.
///
/// # Errors
/// When the result's stream cannot be written to.
pub(super) fn print_totals(report: &Report, terminal: &mut Terminal<'_>) -> io::Result<()> {
    for trial in report.trials.iter().filter(|trial| matches!(trial.outcome, Outcome::Failed | Outcome::Busy)) {
        let message = trial.message.as_deref().unwrap_or_default();
        terminal.line(format!("\n{} {}: {message}", trial.outcome.name(), trial.name()))?;
    }
    let counts: Vec<String> = report.counts().into_iter().rev().collect();
    let reasons: Vec<&str> =
        [Outcome::NotRun, Outcome::Ignored].into_iter().filter_map(|outcome| report.first_message(outcome)).collect();
    let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
    terminal.line(format!("\n{} trials: {}{reasons}", report.trials.len(), counts.join(", ")))?;
    if report.only_ignored() || report.is_stopped() {
        terminal.line(format!("{}.", report.headline()))?;
    }
    Ok(())
}

/// The exit code. A run that was stopped has looked at less than it was to: whoever goes by the code must not take that
/// for success. Where nothing can be run nothing has failed: `HEADROOM_REQUIRE_GPU` is there for who needs more.
pub(super) fn exit_of(report: &Report) -> Exit {
    match (report.holds(), report.count(Outcome::Busy)) {
        (false, _) => Exit::CheckFailed,
        (true, 0) => Exit::Success,
        (true, _) => Exit::Busy,
    }
}

#[cfg(test)]
mod tests {
    use headroom_reports::{Check, MutantGrade, MutantReport};

    use super::*;
    use crate::run::provenance;

    #[test]
    fn only_a_whole_report_of_which_nothing_failed_or_was_busy_is_a_success() {
        use Outcome::{Busy, Failed, Ignored, NotRun, Passed};
        let cases: [(&[Outcome], bool, Exit); 7] = [
            (&[], false, Exit::Success),
            (&[Passed, Ignored], false, Exit::Success),
            (&[Ignored], false, Exit::Success),
            (&[Passed, Busy], false, Exit::Busy),
            (&[Failed, Busy], false, Exit::CheckFailed),
            (&[Passed, NotRun], true, Exit::CheckFailed),
            (&[Busy, NotRun], true, Exit::CheckFailed),
        ];
        for (outcomes, stopped, expected) in cases {
            let mut report = Report::new(provenance(Vec::new()));
            report.provenance[0].stopped = stopped;
            report.trials = outcomes.iter().map(|outcome| trial(*outcome)).collect();
            assert_eq!(exit_of(&report), expected, "{outcomes:?}");
            report.mutants = Some(MutantReport { grades: vec![MutantGrade::default()] });
            assert_eq!(exit_of(&report), Exit::CheckFailed, "a survivor beside {outcomes:?}");
        }
    }

    fn trial(outcome: Outcome) -> Check {
        Check {
            family: "sdxl".into(),
            device: "12gib".into(),
            check: "plan".into(),
            outcome,
            message: None,
            notes: Vec::new(),
            seconds: 0.0,
            report_id: None,
        }
    }
}
