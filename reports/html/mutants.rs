//! The kill matrix: wrong decisions against the checks that pass them, and what each would do to the world.

use std::fmt::Write as _;

use crate::report::{MutantGrade, MutantReport};

use super::escape::Escaped;
use super::table::{Cell, Column, table};

/// The section of a report.
pub(super) fn section(report: &MutantReport) -> String {
    let mut html = format!("<h2>Mutants</h2>\n<p>{}.</p>\n", Escaped(report.verdict()));
    let mut grades: Vec<&MutantGrade> = report.grades.iter().collect();
    grades.sort_by_key(|grade| (!grade.killed_by.is_empty(), &grade.name));
    html.push_str(&words(&grades));
    report.survivors().for_each(|grade| html.push_str(&survivor(grade)));
    html.push_str(&matrix(&grades));
    html
}

fn words(grades: &[&MutantGrade]) -> String {
    let columns = [
        Column::Words("Outcome"),
        Column::Words("Mutant"),
        Column::Long("What would go wrong"),
        Column::Long("What it breaks"),
        Column::Number("Killed by"),
        Column::Number("Reached by"),
        Column::Number("Milliseconds"),
        Column::Words("Where it stands"),
    ];
    let rows = grades.iter().map(|grade| {
        let killed = !grade.killed_by.is_empty();
        let outcome = if killed { Cell::marked("killed", "good") } else { Cell::marked("survived", "bad") };
        [
            outcome,
            Cell::from(&grade.name),
            Cell::from(&grade.harm),
            Cell::from(grade.claims.join(", ")),
            Cell::from(grade.killed_by.len()),
            Cell::from(grade.reached_by.len()),
            Cell::from(grade.milliseconds),
            Cell::from(&grade.place),
        ]
    });
    table(columns, rows)
}

/// What the checks that should have seen a survivor said, for whoever makes one of them see it.
fn survivor(grade: &MutantGrade) -> String {
    let mut html = format!("<h3>{} survived</h3>\n", Escaped(&grade.name));
    let reached = grade.reached_by.join(", ");
    let _ = writeln!(html, "<p>It should have been seen by: {}</p>", Escaped(reached));
    for other in &grade.failed_otherwise {
        let _ = writeln!(html, "<p class=\"muted\">failed for another reason: {}</p>", Escaped(other));
    }
    html
}

/// A row for each wrong decision, a column for each check that killed one.
fn matrix(grades: &[&MutantGrade]) -> String {
    let mut checks: Vec<&str> = grades.iter().flat_map(|grade| &grade.killed_by).map(String::as_str).collect();
    checks.sort_unstable();
    checks.dedup();
    if checks.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<details><summary>Kill matrix: ● saw it, ○ passed the decision and did not see it</summary>\n<div \
         class=\"scroll\"><table class=\"matrix\"><thead><tr><th scope=\"col\">Mutant</th>",
    );
    for check in &checks {
        let _ = write!(html, "<th scope=\"col\"><span>{}</span></th>", Escaped(check));
    }
    html.push_str("</tr></thead><tbody>\n");
    for grade in grades {
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", Escaped(&grade.name));
        for check in &checks {
            let is_in = |names: &[String]| names.iter().any(|name| name == check);
            html.push_str(match (is_in(&grade.killed_by), is_in(&grade.reached_by)) {
                (true, _) => "<td class=\"good\">●</td>",
                (false, true) => "<td class=\"muted\">○</td>",
                (false, false) => "<td></td>",
            });
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div></details>\n");
    html
}
