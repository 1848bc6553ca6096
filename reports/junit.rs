//! A report as JUnit XML: one suite per family and device, one case per check.

use std::time::Duration;

use quick_junit::{NonSuccessKind, SerializeError, TestCase, TestCaseStatus, TestSuite};

use crate::report::{Check, Outcome, Provenance, Report};

/// The XML of all trials. A device that was busy is an error, not a failure: nothing is known to be wrong. So is a run
/// that was stopped: one error stands for all trials of it that had not ended, first in the file.
///
/// # Errors
/// When the XML writer fails.
pub fn to_xml(report: &Report) -> Result<String, SerializeError> {
    let mut xml = quick_junit::Report::new("headroom");
    let stopped: Vec<TestCase> =
        report.provenance.iter().filter(|from| from.stopped).map(|from| stopped(from, report)).collect();
    if !stopped.is_empty() {
        let mut suite = TestSuite::new("the run");
        suite.add_test_cases(stopped);
        xml.add_test_suite(suite);
    }
    for trials in by_suite(&report.trials) {
        let first = trials[0];
        let mut suite = TestSuite::new(format!("{}::{}", first.family, first.device));
        suite.set_time(trials.iter().map(|trial| duration(trial.seconds)).sum());
        suite.add_test_cases(trials.into_iter().map(case));
        xml.add_test_suite(suite);
    }
    xml.set_time(report.trials.iter().map(|trial| duration(trial.seconds)).sum());
    xml.to_string()
}

fn by_suite(trials: &[Check]) -> Vec<Vec<&Check>> {
    let mut suites: Vec<Vec<&Check>> = Vec::new();
    for trial in trials {
        let same = |suite: &&mut Vec<&Check>| suite[0].family == trial.family && suite[0].device == trial.device;
        match suites.iter_mut().find(same) {
            Some(suite) => suite.push(trial),
            None => suites.push(vec![trial]),
        }
    }
    suites
}

fn stopped(from: &Provenance, report: &Report) -> TestCase {
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
    status.set_message(format!("report {}: {}", from.report_id, report.why_stopped(from)));
    let mut case = TestCase::new("came to its end", status);
    case.set_classname("the run");
    case
}

fn case(trial: &Check) -> TestCase {
    let mut status = match trial.outcome {
        Outcome::Passed => TestCaseStatus::success(),
        Outcome::Ignored | Outcome::NotRun => TestCaseStatus::skipped(),
        Outcome::Failed => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Outcome::Busy => TestCaseStatus::non_success(NonSuccessKind::Error),
    };
    if let (Some(message), false) = (&trial.message, trial.outcome == Outcome::Passed) {
        status.set_message(message.lines().next().unwrap_or_default());
        status.set_description(message.as_str());
    }
    let mut case = TestCase::new(trial.check.as_str(), status);
    case.set_classname(format!("{}::{}", trial.family, trial.device));
    case.set_time(duration(trial.seconds));
    if !trial.notes.is_empty() {
        case.set_system_out(trial.notes.join("\n"));
    }
    case
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
