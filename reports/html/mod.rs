//! A report as one page that needs nothing else: no scripts, no fonts, no files beside it.

mod axes;
mod chart;
mod escape;
mod families;
mod mutants;
mod replay;
mod table;

pub use replay::{Replay, ReplayRow, replay_page};

use std::fmt::Write as _;

use headroom_base::Bytes;

use crate::report::{Check, Outcome, Report, WindowRecord};
use escape::Escaped;
use table::{Cell, Column, table};

/// The page of a report.
pub fn to_html(report: &Report) -> String {
    let verdict = report.headline();
    let mark = if report.holds() { "good" } else { "bad" };
    let mut body = format!("<h1>headroom: <span class=\"{mark}\">{verdict}</span></h1>\n");
    body.push_str(&origin(report));
    body.push_str(&trials(report));
    body.push_str(&report.mutants.as_ref().map(mutants::section).unwrap_or_default());
    body.push_str(&families::sections(report));
    body.push_str(&windows(&report.windows));
    body.push_str(&attempts(report));
    page(&format!("headroom: {verdict}"), &body)
}

/// A page around a body that is markup already.
fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n<style>\n{}</style></head>\n<body>\n{body}\
         </body></html>\n",
        Escaped(title),
        include_str!("style.css")
    )
}

fn origin(report: &Report) -> String {
    let mut html = String::new();
    for from in &report.provenance {
        let commit = from.commit.as_ref().map_or_else(String::new, |commit| format!(", commit {commit}"));
        let _ = write!(
            html,
            "<p class=\"muted\">Report <code>{}</code> of {} by headroom {}{} ({}), arguments <code>{}</code>",
            Escaped(&from.report_id),
            Escaped(&from.created),
            Escaped(&from.tool_version),
            Escaped(commit),
            from.trust,
            Escaped(from.arguments.join(" "))
        );
        if from.stopped {
            html.push_str(" <strong class=\"bad\">stopped before its end</strong>");
        }
        if let Some(why) = &from.withdrawn {
            let _ = write!(html, " <strong class=\"bad\">withdrawn: {}</strong>", Escaped(why));
        }
        html.push_str("</p>\n");
    }
    if report.devices.is_empty() {
        return html;
    }
    html.push_str("<h3>Devices</h3>\n");
    let columns = [Column::Words("Device"), Column::Words("Driver"), Column::Words("Kind"), Column::Words("UUID hash")];
    let rows = report.devices.iter().map(|device| {
        let kind = if device.simulated { "simulated" } else { "hardware" };
        let hash = Cell::or_unknown(device.uuid_hash.as_ref());
        [Cell::from(&device.class), Cell::from(&device.driver), Cell::from(kind), hash]
    });
    html.push_str(&table(columns, rows));
    html
}

fn trials(report: &Report) -> String {
    let trials = &report.trials;
    if trials.is_empty() {
        return String::new();
    }
    let mut html = format!("<h2>Trials</h2>\n<p>{} trials: {}.</p>\n", trials.len(), report.counts().join(", "));
    let mut ordered: Vec<&Check> = trials.iter().collect();
    ordered.sort_by(|left, right| left.outcome.cmp(&right.outcome).then_with(|| left.name().cmp(&right.name())));
    let (passed, others): (Vec<&Check>, Vec<&Check>) =
        ordered.into_iter().partition(|trial| trial.outcome == Outcome::Passed);
    if !others.is_empty() {
        html.push_str(&trial_table(&others));
    }
    if !passed.is_empty() {
        let _ =
            write!(html, "<details><summary>{} passed</summary>\n{}</details>\n", passed.len(), trial_table(&passed));
    }
    html
}

fn trial_table(trials: &[&Check]) -> String {
    let columns = [
        Column::Words("Outcome"),
        Column::Words("Family"),
        Column::Words("Device"),
        Column::Words("Check"),
        Column::Number("Seconds"),
        Column::Long("Message"),
    ];
    let rows = trials.iter().map(|trial| {
        let mark = match trial.outcome {
            Outcome::Failed => "bad",
            Outcome::Busy => "warn",
            Outcome::NotRun | Outcome::Ignored => "muted",
            Outcome::Passed => "good",
        };
        [
            Cell::marked(trial.outcome.name(), mark),
            Cell::from(&trial.family),
            Cell::from(&trial.device),
            Cell::from(&trial.check),
            Cell::from(format!("{:.2}", trial.seconds)),
            Cell::from(said(trial)),
        ]
    });
    table(columns, rows)
}

/// The message and the notes, a line each.
fn said(trial: &Check) -> String {
    let notes = trial.notes.iter().map(|note| format!("note: {note}"));
    trial.message.iter().cloned().chain(notes).collect::<Vec<_>>().join("\n")
}

fn windows(windows: &[WindowRecord]) -> String {
    if windows.is_empty() {
        return String::new();
    }
    let counted = windows.iter().filter(|record| record.counting.counts()).count();
    let mut html = format!("<h2>Windows</h2>\n<p>{} windows, {counted} of them count.</p>\n", windows.len());
    let columns = [
        Column::Words("Model"),
        Column::Words("Case"),
        Column::Words("Device"),
        Column::Words("Allocator"),
        Column::Number("Demand"),
        Column::Number("Allocated"),
        Column::Number("Reserved"),
        Column::Number("Driver"),
        Column::Long("Counts"),
    ];
    let rows = windows.iter().map(|record| {
        let (window, deltas) = (&record.window, &record.window.measurement.deltas);
        [
            Cell::from(&window.model),
            Cell::from(window.case),
            Cell::from(&window.device),
            Cell::from(window.environment.hard.allocator),
            Cell::from(Bytes(window.measurement.demand_bytes)),
            Cell::from(Bytes(deltas.allocated_peak_bytes)),
            Cell::from(Bytes(deltas.reserved_peak_bytes)),
            Cell::or_unknown(deltas.driver_bytes.known().map(Bytes)),
            match &record.excluded_reason {
                None => Cell::marked("yes", "good"),
                Some(reason) => Cell::marked(format!("no: {reason}"), "muted"),
            },
        ]
    });
    let _ = write!(html, "<details><summary>All windows</summary>\n{}</details>\n", table(columns, rows));
    html
}

fn attempts(report: &Report) -> String {
    if report.attempts.is_empty() {
        return String::new();
    }
    let columns = [
        Column::Long("Attempt"),
        Column::Words("Model"),
        Column::Words("Device"),
        Column::Long("Outcome"),
        Column::Long("Note"),
    ];
    let rows = report.attempts.iter().map(|record| {
        let attempt = &record.attempt;
        [
            Cell::from(&attempt.id),
            Cell::from(&attempt.model),
            Cell::from(&attempt.device),
            Cell::from(attempt.outcome()),
            Cell::from(record.note.as_deref().unwrap_or("")),
        ]
    });
    let table = table(columns, rows);
    format!("<details><summary>{} attempts</summary>\n{table}</details>\n", report.attempts.len())
}
