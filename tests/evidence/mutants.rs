//! Wrong decisions graded on a card: which check saw each of them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

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
    let mut text = String::from("Decisions that none of a family's checks comes by there are not listed.\n\n");
    let mut rows = BTreeSet::new();
    for (family, report) in &graded {
        let mutants = report.mutants.as_ref().expect("what was graded");
        let _ = writeln!(
            text,
            "- {family}, `{}`: {}. Passed by its checks, and not seen there nor to be:",
            commit(report),
            mutants.verdict()
        );
        for note in report.trials.iter().flat_map(|trial| &trial.notes) {
            let _ = writeln!(text, "  - {note}");
        }
        rows.extend(mutants.grades.iter().map(|grade| grade.name.as_str()));
    }
    let families: Vec<&str> = graded.iter().map(|(family, _)| family.as_str()).collect();
    let _ = writeln!(text, "\n| wrong decision | {} |\n|---|{}", families.join(" | "), "---|".repeat(families.len()));
    for name in rows {
        let seen = graded.iter().map(|(_, report)| {
            let grade = report.mutants.iter().flat_map(|mutants| &mutants.grades).find(|grade| grade.name == name);
            let checks = grade.into_iter().flat_map(|grade| &grade.killed_by).map(|trial| check(trial));
            checks.collect::<Vec<_>>().join(", ")
        });
        let _ = writeln!(text, "| {name} | {} |", seen.collect::<Vec<_>>().join(" | "));
    }
    text
}

/// How many were graded and how many of them were seen, in one sentence.
pub(crate) fn sentence() -> String {
    let of_family = graded().into_iter().map(|(family, report)| {
        let grades = report.mutants.iter().flat_map(|mutants| &mutants.grades);
        let (all, seen) = (grades.clone().count(), grades.filter(|grade| !grade.killed_by.is_empty()).count());
        let unseen = report.trials.iter().flat_map(|trial| &trial.notes).count();
        let commit = commit(&report);
        format!("{seen} of {all} by those of {family} (`{commit}`; {unseen} more are passed there and cannot be seen)")
    });
    let of_families = of_family.collect::<Vec<_>>().join(", ");
    format!(
        "Of the named wrong decisions that a family's checks come by on a card and can see there, these were seen: \
         {of_families}. {}",
        later()
    )
}

/// What a later grading did not see, and why.
fn later() -> String {
    let report = kept::report(kept::GRADED_LATER);
    let mutants = report.mutants.as_ref().expect("what was graded");
    let survivors: Vec<_> = mutants.survivors().map(|grade| format!("`{}`", grade.name)).collect();
    format!(
        "A later grading of taesd on another card (`{}`): {}. {} went unseen because one check takes a page or two away from \
         a card and two roundings to a page could give them back, so that it depended on the card whether anything lacked. It \
         has been mended, and sees both on posing cards of such sizes; no card has graded it since. ",
        commit(&report),
        mutants.verdict(),
        survivors.join(" and ")
    )
}

fn commit(report: &Report) -> &str {
    report.provenance[0].commit.as_deref().unwrap_or("unknown")
}

/// A trial's check, without its family and its card.
fn check(trial: &str) -> &str {
    trial.rsplit("::").next().unwrap_or(trial)
}

/// Which ones the text says.
#[test]
fn a_later_grading_saw_all_but_what_one_mended_check_is_to_see() {
    let (report, earlier) = (kept::report(kept::GRADED_LATER), graded());
    let mutants = report.mutants.as_ref().unwrap();
    let survivors: BTreeSet<&str> = mutants.survivors().map(|grade| grade.name.as_str()).collect();
    assert_eq!(survivors, BTreeSet::from(["plan_with_partly_resident_sizes", "plan_without_the_measuring_allowance"]));
    let (_, taesd) = earlier.iter().find(|(family, _)| family == "taesd").unwrap();
    let seen_before = taesd.mutants.iter().flat_map(|mutants| &mutants.grades);
    for grade in seen_before.filter(|grade| survivors.contains(grade.name.as_str())) {
        let by: Vec<_> = grade.killed_by.iter().map(|trial| check(trial)).collect();
        assert_eq!(by, ["plans/a_planned_size_never_costs_its_model_the_card"], "{}", grade.name);
    }
    assert!(mutants.grades.len() > 60 && report.devices.iter().all(|device| !device.simulated));
}

#[test]
fn the_whole_gradings_of_two_families_saw_every_wrong_decision() {
    let graded = graded();
    assert_eq!(graded.iter().map(|(family, _)| family.as_str()).collect::<Vec<_>>(), ["taesd", "text-encoders"]);
    for (family, report) in graded {
        let [from] = &*report.provenance else { panic!("{family}: of several reports") };
        assert!(from.commit.is_some() && from.arguments.iter().any(|argument| argument == "mutants"), "{family}");
        assert!(report.devices.iter().all(|device| !device.simulated && device.uuid_hash.is_some()), "{family}");
        let mutants = report.mutants.as_ref().unwrap_or_else(|| panic!("{family}: nothing was graded"));
        assert!(mutants.grades.len() > 60, "{family}: {}", mutants.verdict());
        let survivors: Vec<_> = mutants.survivors().map(|grade| &grade.name).collect();
        assert!(survivors.is_empty(), "{family}: {survivors:?}");
    }
}
