//! Wrong decisions graded on a card: which check saw each of them.

use std::fmt::Write as _;

use headroom_base::Origin;
use headroom_reports::Report;

use super::kept;

/// What a report of graded mutants is called after the beginning that all kept files share.
const NAMED: &str = "-mutants-";

/// Each family whose wrong decisions were graded on a card, with the report of it.
fn graded() -> Vec<(String, Report)> {
    let named = kept::names().into_iter().filter_map(|name| {
        let family = name.strip_suffix(".json")?.split_once(NAMED)?.1.to_owned();
        Some((family, kept::report(&name)))
    });
    let mut graded: Vec<_> = named.collect();
    graded.sort_by(|(left, _), (right, _)| left.cmp(right));
    graded
}

/// The kill matrix: one row a decision, one column a family.
pub(crate) fn matrix() -> String {
    let graded = graded();
    if graded.is_empty() {
        return "None was kept yet.\n".to_owned();
    }
    let mut text = String::new();
    for (family, report) in &graded {
        let mutants = report.mutants.as_ref().expect("what was graded");
        let notes = report.trials.iter().flat_map(|trial| &trial.notes).count();
        let commit = report.provenance[0].commit.as_deref().unwrap_or("unknown");
        let verdict = mutants.verdict();
        let _ = writeln!(text, "- {family}, `{commit}`: {verdict}; {notes} cannot be seen on a card and were not run");
    }
    let mut rows: Vec<&str> = Vec::new();
    for (_, report) in &graded {
        let grades = report.mutants.iter().flat_map(|mutants| &mutants.grades).map(|grade| grade.name.as_str());
        rows.extend(grades);
    }
    rows.sort_unstable();
    rows.dedup();
    let families: Vec<&str> = graded.iter().map(|(family, _)| family.as_str()).collect();
    let _ = writeln!(text, "\n| wrong decision | {} |\n|---|{}", families.join(" | "), "---|".repeat(families.len()));
    for name in rows {
        let seen = graded.iter().map(|(_, report)| {
            let grade = report.mutants.iter().flat_map(|mutants| &mutants.grades).find(|grade| grade.name == name);
            grade.map_or_else(String::new, |grade| {
                grade.killed_by.iter().map(|trial| check(trial)).collect::<Vec<_>>().join(", ")
            })
        });
        let _ = writeln!(text, "| {name} | {} |", seen.collect::<Vec<_>>().join(" | "));
    }
    text
}

/// How many were graded and how many of them were seen, in one sentence.
pub(crate) fn sentence() -> String {
    let graded = graded();
    let of_family = graded.iter().map(|(family, report)| {
        let grades = report.mutants.iter().flat_map(|mutants| &mutants.grades);
        format!(
            "{} of {} by those of {family}",
            grades.clone().filter(|grade| !grade.killed_by.is_empty()).count(),
            grades.count()
        )
    });
    let of_families = of_family.collect::<Vec<_>>().join(", ");
    format!(
        "Of the named wrong decisions that checks reach and can see on a card, these were seen there: {of_families}. "
    )
}

/// A trial's check, without its family and its card.
fn check(trial: &str) -> &str {
    trial.rsplit("::").next().unwrap_or(trial)
}

#[test]
fn every_wrong_decision_that_was_graded_on_a_card_was_seen_there() {
    for (family, report) in graded() {
        let [from] = &*report.provenance else { panic!("{family}: of several reports") };
        assert!(from.commit.is_some() && from.arguments.iter().any(|argument| argument == "mutants"), "{family}");
        assert!(report.devices.iter().all(|device| !device.simulated && device.uuid_hash.is_some()), "{family}");
        assert!(report.windows.iter().all(|record| record.window.origin == Origin::Measured), "{family}");
        let mutants = report.mutants.as_ref().unwrap_or_else(|| panic!("{family}: nothing was graded"));
        assert!(mutants.grades.len() > 60, "{family}: {}", mutants.verdict());
        let survivors: Vec<_> = mutants.survivors().map(|grade| &grade.name).collect();
        assert!(survivors.is_empty(), "{family}: {survivors:?}");
    }
}
