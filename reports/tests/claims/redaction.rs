//! What is taken out of a report for a person's sake leaves its identities alone, whatever the person is called.

use std::collections::BTreeSet;

use headroom_base::{InvalidReason, Validity};
use headroom_calibration::{AttemptState, Counted, Uncounted};
use headroom_reports::format::parse_report;
use headroom_reports::output::to_json;
use headroom_reports::{MutantGrade, MutantReport, Redaction, Report, read_report};

use crate::recorded::data;

crate::claims![
    no_word_of_a_report_is_an_account_that_changes_its_identities,
    every_text_that_people_or_failures_wrote_is_redacted,
];

/// A report of a run on a card.
fn report() -> Report {
    let mut report = read_report(&data("evidence/2026-11-30-h200-cuda-taesd.json")).expect("a kept report");
    // Some of each is enough: every word is tried.
    report.windows.truncate(6);
    report.families.truncate(1);
    report.mutants =
        Some(MutantReport { grades: vec![MutantGrade { name: "native".into(), ..MutantGrade::default() }] });
    report
}

/// The report with every free text replaced by the same word: what is left is what nobody may change.
fn identities(report: &Report) -> Report {
    let mut report = report.clone();
    report.provenance.iter_mut().for_each(|from| from.arguments = vec!["text".into(); from.arguments.len()]);
    report.attempts.iter_mut().for_each(|record| record.note = None);
    for record in &mut report.windows {
        record.excluded_reason = None;
        record.note = None;
    }
    for trial in &mut report.trials {
        trial.message = None;
        trial.notes = Vec::new();
    }
    report
}

fn no_word_of_a_report_is_an_account_that_changes_its_identities() {
    let report = report();
    let text = to_json(&report).unwrap();
    let words = |separator: fn(char) -> bool| text.split(separator).filter(|word| word.len() > 2);
    let mut vocabulary: BTreeSet<&str> = words(|c| !c.is_alphanumeric()).collect();
    vocabulary.extend(words(|c| !c.is_alphanumeric() && !"_-.".contains(c)));
    vocabulary.retain(|word| word.contains(char::is_alphabetic));
    for ordinary in ["user", "cuda", "native", "text", "full", "passed", "taesd", "headroom", "fp16", "reserved"] {
        vocabulary.insert(ordinary);
    }
    assert!(vocabulary.len() > 200, "{vocabulary:?}");
    let expected = identities(&report);
    for word in vocabulary {
        let redacted = Redaction { names: vec![word.to_owned()], ..Redaction::default() }.report(&report);
        assert!(identities(&redacted) == expected, "an account called {word} changes what the report says");
        let text = to_json(&redacted).unwrap();
        let read =
            parse_report(std::path::Path::new("r.json"), &text).unwrap_or_else(|error| panic!("{word}: {error}"));
        assert!(read == redacted, "{word}");
    }
}

fn every_text_that_people_or_failures_wrote_is_redacted() {
    const NAME: &str = "lovelace";
    let said = || format!("by {NAME} in /home/{NAME}/x");
    let mut report = report();
    report.provenance[0].arguments = vec![said()];
    report.provenance[0].withdrawn = Some(said());
    report.attempts[0].note = Some(said());
    report.attempts[0].attempt.state = AttemptState::Failed { message: said() };
    let failed = InvalidReason::OperationFailed { message: said() };
    report.windows[0].window.measurement.validity = Validity::Invalid(failed.clone());
    report.windows[0].judge(Counted::Excluded(Uncounted::Invalid { why: failed }));
    report.windows[1].judge(Counted::Excluded(Uncounted::AttemptFailed { message: said() }));
    report.windows[1].note = Some(said());
    report.trials[0].message = Some(said());
    report.trials[0].notes = vec![said()];
    report.mutants =
        Some(MutantReport { grades: vec![MutantGrade { failed_otherwise: vec![said()], ..MutantGrade::default() }] });
    let redacted = Redaction { names: vec![NAME.into()], ..Redaction::default() }.report(&report);
    let text = to_json(&redacted).unwrap();
    assert!(!text.contains(NAME) && !text.contains("/home"), "{text}");
    assert_eq!(redacted.trials[0].message.as_deref(), Some("by <redacted> in <path>/x"));
}
