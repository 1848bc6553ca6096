//! A replay as one page that needs nothing else: memory over time, a bar for each setting, and what was stranded.

use std::fmt::Write;

use headroom_base::Bytes;
use headroom_reports::snapshot::Moment;

use super::snapshot::{Explained, SegmentShown, SettingRow};

/// Columns of the timeline: more events than these share one, which shows the largest of them.
const COLUMNS: usize = 900;
/// Height of the timeline in pixels.
const HEIGHT: f64 = 260.0;
/// Segments listed: those with the most stranded memory.
const SEGMENTS: usize = 20;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;\
background:#fff}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{text-align:left;\
padding:.25rem .6rem;border-bottom:1px solid #d8dee4}.n{text-align:right}code{font-size:13px}svg{width:100%;height:auto}\
.reserved{fill:#c9d7ea}.allocated{fill:#3b6ea8}.bar{fill:#3b6ea8}.least{fill:#1b1f24}.memory{stroke:#c0392b;\
stroke-dasharray:4 3}text{font:12px system-ui,sans-serif;fill:#1b1f24}@media(prefers-color-scheme:dark){body{color:#e6e9ee;\
background:#14171b}th,td{border-color:#30363d}.reserved{fill:#35475e}.allocated,.bar{fill:#7fb0e6}.least{fill:#e6e9ee}\
text{fill:#e6e9ee}}";

/// The page of a snapshot's device. `name` is what the file is called.
pub fn page(name: &str, explained: &Explained, timeline: &[Moment], memory_bytes: Option<u64>) -> String {
    let name = escaped(name);
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Replay of {name}</title><style>{STYLE}</style></head><body>\
         <h1>Replay of {name}</h1><p>Device {}, {} events: {} allocated and {} reserved at the peak.</p>",
        explained.device,
        explained.events,
        Bytes(explained.peaks.allocated_bytes),
        Bytes(explained.peaks.reserved_bytes)
    );
    if !explained.warnings.is_empty() {
        page.push_str("<ul>");
        for warning in &explained.warnings {
            let _ = write!(page, "<li>{}</li>", escaped(warning));
        }
        page.push_str("</ul>");
    }
    page.push_str("<h2>As recorded</h2>");
    page.push_str(&timeline_svg(timeline));
    page.push_str("<h2>Under other settings</h2>");
    page.push_str(&settings_svg(&explained.settings, memory_bytes));
    page.push_str(&settings_table(&explained.settings));
    let stranded = &explained.stranded;
    let _ = write!(
        page,
        "<h2>Stranded at the end</h2><p>Of {} reserved, {} were used, {} would have gone back, and {} could not.</p>",
        Bytes(stranded.reserved_bytes),
        Bytes(stranded.used_bytes),
        Bytes(stranded.releasable_bytes),
        Bytes(stranded.stranded_bytes)
    );
    page.push_str(&stranded_table(&stranded.segments));
    page.push_str("</body></html>\n");
    page
}

/// Reserved behind allocated memory, over the events.
fn timeline_svg(timeline: &[Moment]) -> String {
    let most = timeline.iter().map(|moment| moment.reserved_bytes.max(moment.allocated_bytes)).max().unwrap_or(0);
    if most == 0 {
        return "<p>No event was recorded.</p>".to_owned();
    }
    let per_column = timeline.len().div_ceil(COLUMNS).max(1);
    let columns = timeline.len().div_ceil(per_column);
    let width = columns as f64;
    let area = |class: &str, of: fn(&Moment) -> u64| {
        let mut path = format!("<path class=\"{class}\" d=\"M0 {HEIGHT}");
        for (column, moments) in timeline.chunks(per_column).enumerate() {
            let bytes = moments.iter().map(of).max().unwrap_or(0);
            let top = HEIGHT - HEIGHT * bytes as f64 / most as f64;
            let _ = write!(path, "L{column} {top:.1}H{}", column + 1);
        }
        let _ = write!(path, "V{HEIGHT}Z\"/>");
        path
    };
    format!(
        "<svg viewBox=\"0 -18 {width} {}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"reserved and allocated \
         memory over {} events, at most {}\">{}{}</svg><p>Reserved (pale) and allocated (dark) over {} events; the top \
         is {}.</p>",
        HEIGHT + 20.0,
        timeline.len().saturating_sub(1),
        Bytes(most),
        area("reserved", |moment| moment.reserved_bytes),
        area("allocated", |moment| moment.allocated_bytes),
        timeline.len().saturating_sub(1),
        Bytes(most)
    )
}

/// A bar of reserved memory for each setting, with a mark at the least that does and a line at the memory asked about.
fn settings_svg(rows: &[SettingRow], memory_bytes: Option<u64>) -> String {
    let figures = rows.iter().flat_map(|row| [Some(row.answer.reserved_peak_bytes), row.answer.least_capacity_bytes]);
    let most = figures.flatten().chain(memory_bytes).max().unwrap_or(0).max(1) as f64;
    let x = |bytes: u64| 260.0 + 620.0 * bytes as f64 / most;
    let height = 26 * rows.len() + 8;
    let mut svg =
        format!("<svg viewBox=\"0 0 900 {height}\" role=\"img\" aria-label=\"reserved memory under each setting\">");
    for (index, row) in rows.iter().enumerate() {
        let top = 26 * index + 4;
        let _ = write!(
            svg,
            "<text x=\"0\" y=\"{}\">{}</text><rect class=\"bar\" x=\"260\" y=\"{top}\" width=\"{:.1}\" height=\"18\"/>",
            top + 14,
            escaped(&row.answer.setting),
            x(row.answer.reserved_peak_bytes) - 260.0
        );
        if let Some(least) = row.answer.least_capacity_bytes {
            let _ = write!(
                svg,
                "<rect class=\"least\" x=\"{:.1}\" y=\"{}\" width=\"2\" height=\"22\"/>",
                x(least),
                top - 2
            );
        }
    }
    if let Some(memory) = memory_bytes {
        let _ = write!(svg, "<line class=\"memory\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"0\" y2=\"{height}\"/>", x(memory));
    }
    svg.push_str("</svg><p>Bars: reserved at the peak. Marks: the least memory on which everything is served.</p>");
    svg
}

fn settings_table(rows: &[SettingRow]) -> String {
    let mut table = "<table><tr><th>setting</th><th class=\"n\">reserved peak</th><th class=\"n\">least memory</th>\
                     <th>runs out</th><th>environment</th></tr>"
        .to_owned();
    for SettingRow { answer, as_recorded } in rows {
        let bound = if answer.is_bound { "≤ " } else { "" };
        let least = answer.least_capacity_bytes.map_or_else(|| "none".to_owned(), |least| Bytes(least).to_string());
        let runs_out = answer.runs_out.map_or("", |runs_out| if runs_out { "yes" } else { "no" });
        let _ = write!(
            table,
            "<tr><td>{}{}</td><td class=\"n\">{bound}{}</td><td class=\"n\">{bound}{least}</td><td>{runs_out}</td>\
             <td><code>{}</code></td></tr>",
            escaped(&answer.setting),
            if *as_recorded { " (recorded)" } else { "" },
            Bytes(answer.reserved_peak_bytes),
            escaped(&answer.environment)
        );
    }
    table.push_str("</table><p>≤: the driver's pool has no public policy; its figures are upper bounds.</p>");
    table
}

fn stranded_table(segments: &[SegmentShown]) -> String {
    if segments.is_empty() {
        return String::new();
    }
    let mut table = "<table><tr><th class=\"n\">stranded</th><th class=\"n\">of segment</th><th class=\"n\">largest \
                     free</th><th>pinned by</th></tr>"
        .to_owned();
    for segment in segments.iter().take(SEGMENTS) {
        let _ = write!(
            table,
            "<tr><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
            Bytes(segment.stranded_bytes),
            Bytes(segment.total_bytes),
            Bytes(segment.largest_free_bytes),
            escaped(&segment.pinned_by())
        );
    }
    table.push_str("</table>");
    if let Some(more) = segments.len().checked_sub(SEGMENTS).filter(|more| *more > 0) {
        let _ = write!(table, "<p>{more} more segments.</p>");
    }
    table
}

/// Text as it stands in a page: names of files and functions come from elsewhere.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}
