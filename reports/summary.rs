//! A report as Markdown that fits the summary of a CI step: verdict, failures, then a table per family.

use std::fmt::Write as _;

use headroom_base::Bytes;

use crate::family_summary::{EstimateRecord, FamilySummary, Tally};
use crate::report::{Check, Outcome, Report};

/// GitHub refuses a step summary above 1 MiB; other jobs of the step need room too.
pub const LARGEST_SUMMARY_BYTES: usize = 512 << 10;

/// A message is cut here; `report.json` has all of it.
const LONGEST_MESSAGE_CHARS: usize = 400;

/// The text, never longer than [`LARGEST_SUMMARY_BYTES`]: what does not fit is left out from the end, and said.
pub fn to_markdown(report: &Report) -> String {
    let mut sections = vec![verdict(report)];
    sections.extend(failures(report));
    sections.extend(mutants(report));
    sections.extend(report.families.iter().map(family));
    sections.extend(notes(report));
    within(sections, LARGEST_SUMMARY_BYTES)
}

fn within(sections: Vec<String>, largest_bytes: usize) -> String {
    let total = sections.len();
    let mut text = String::new();
    for (index, section) in sections.into_iter().enumerate() {
        let note = format!("\n_{} more sections did not fit here; `report.json` has them._\n", total - index);
        if text.len() + section.len() + note.len() > largest_bytes {
            text.push_str(&note);
            break;
        }
        text.push_str(&section);
    }
    text
}

fn verdict(report: &Report) -> String {
    let mut text = format!("# headroom: {}\n\n", report.headline());
    let _ = writeln!(text, "{} trials: {}.", report.trials.len(), report.counts().join(", "));
    if let Some(why) = report.first_message(Outcome::NotRun) {
        let _ = writeln!(text, "Not run: {}.", cell(why));
    }
    let counted = report.windows.iter().filter(|record| record.counting.counts()).count();
    let _ = writeln!(text, "{} windows, {counted} of them count.", report.windows.len());
    for from in &report.provenance {
        let commit = from.commit.as_deref().map_or(String::new(), |commit| format!(", commit `{commit}`"));
        let withdrawn = from.withdrawn.as_deref().map_or(String::new(), |why| format!(", withdrawn: {}", cell(why)));
        let stopped = if from.stopped { ", stopped before its end" } else { "" };
        let _ = writeln!(
            text,
            "Report `{}` of {} by headroom {}{commit} ({}{stopped}{withdrawn}).",
            cell(&from.report_id),
            cell(&from.created),
            cell(&from.tool_version),
            from.trust
        );
    }
    text
}

fn failures(report: &Report) -> Vec<String> {
    let mut sections = Vec::new();
    for (outcome, title) in [(Outcome::Failed, "Failed"), (Outcome::Busy, "Device busy")] {
        let trials: Vec<&Check> = report.trials.iter().filter(|trial| trial.outcome == outcome).collect();
        if trials.is_empty() {
            continue;
        }
        sections.push(format!("\n## {title} ({})\n\n| trial | why |\n|---|---|\n", trials.len()));
        // One section a row, so that a long list is cut between rows.
        sections.extend(trials.into_iter().map(|trial| {
            format!("| `{}` | {} |\n", cell(&trial.name()), cell(trial.message.as_deref().unwrap_or("no message")))
        }));
    }
    sections
}

fn notes(report: &Report) -> Vec<String> {
    let with_notes = report.trials.iter().flat_map(|trial| trial.notes.iter().map(move |note| (trial, note)));
    let mut lines: Vec<String> =
        with_notes.map(|(trial, note)| format!("- `{}`: {}\n", cell(&trial.name()), cell(note))).collect();
    if !lines.is_empty() {
        lines.insert(0, "\n## Notes\n\n".to_owned());
    }
    lines
}

fn mutants(report: &Report) -> Option<String> {
    let mutants = report.mutants.as_ref()?;
    let mut text = format!("\n## Mutants\n\n{}\n", mutants.verdict());
    for grade in mutants.survivors() {
        let _ = writeln!(
            text,
            "\n- `{}` survived ({}); should have been seen by: {}",
            cell(&grade.name),
            cell(&grade.harm),
            cell(&if grade.reached_by.is_empty() { "no check reaches it".into() } else { grade.reached_by.join(", ") })
        );
    }
    Some(text)
}

fn family(summary: &FamilySummary) -> String {
    let simulated = if summary.simulated { " (simulated)" } else { "" };
    let mut text = format!("\n## {} on {}{simulated}\n\n", cell(&summary.family), cell(&summary.device));
    let coverage = summary.coverage();
    let _ = writeln!(
        text,
        "Covered by their reservation: {} simulated, {} recorded. Largest reservation over demand: {}.\n",
        share(coverage.simulated),
        share(coverage.recorded),
        summary.largest_reserved_permille().map_or("unknown".into(), ratio),
    );
    if summary.estimates.is_empty() {
        text.push_str("No estimates.\n");
        return text;
    }
    text.push_str("| operation | dtype | size | allocator | demand | reserved | over | source |\n");
    text.push_str("|---|---|---|---|---:|---:|---:|---|\n");
    for estimate in &summary.estimates {
        text.push_str(&row(estimate));
    }
    text
}

fn row(estimate: &EstimateRecord) -> String {
    let reserved = estimate.estimate.reservation_bytes;
    let short = estimate.demand_bytes.is_some_and(|demand| demand > reserved);
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} |\n",
        estimate.case.operation,
        estimate.case.dtype,
        estimate.case.size_label(),
        estimate.environment.hard.allocator,
        estimate.demand_bytes.map_or("unknown".into(), |bytes| Bytes(bytes).to_string()),
        Bytes(reserved),
        match (short, estimate.reserved_permille()) {
            (true, _) => "**too little**".into(),
            (false, Some(permille)) => ratio(permille),
            (false, None) => "unknown".into(),
        },
        estimate.estimate.source.name(),
    )
}

/// `1.234×`.
pub(crate) fn ratio(permille: u64) -> String {
    format!("{}.{:03}×", permille / 1000, permille % 1000)
}

/// `3 of 4`, or that there were none.
pub(crate) fn share(tally: Tally) -> String {
    if tally.of == 0 { "none looked at".into() } else { format!("{} of {}", tally.covered, tally.of) }
}

/// Text inside a table cell: one line, no markup of its own, cut where it is very long.
fn cell(text: &str) -> String {
    let mut out = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == LONGEST_MESSAGE_CHARS {
            out.push('…');
            break;
        }
        match c {
            '\n' | '\r' | '\t' => out.push(' '),
            '|' | '*' | '_' | '[' | ']' | '#' | '~' => out.extend(['\\', c]),
            '`' => out.push('\''),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_left_out_from_the_end_and_said() {
        let sections = vec!["first\n".to_owned(), "x".repeat(200), "last\n".to_owned()];
        let text = within(sections, 150);
        assert!(text.starts_with("first\n") && text.contains("2 more sections"), "{text}");
        assert!(text.len() <= 150 && !text.contains("last"));
    }

    #[test]
    fn text_from_outside_cannot_break_a_table_or_bring_markup() {
        assert_eq!(cell("a|b\nc <img> `x` *y*"), "a\\|b c &lt;img&gt; 'x' \\*y\\*");
        assert_eq!(cell(&"y".repeat(1_000)).chars().count(), LONGEST_MESSAGE_CHARS + 1);
    }
}
