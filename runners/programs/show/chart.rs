//! A program as a page of its own: live bytes over events, the peak marked, and what lives there.

use std::fmt::Write as _;

use headroom_base::Bytes;

use super::super::program::{Program, Run, Step};
use super::at_peak;

/// Size of the chart in its own units.
const WIDTH: usize = 1200;
const HEIGHT: usize = 360;
/// Columns it is drawn in: each shows the most of the events that fall into it.
const COLUMNS: usize = 600;
/// Lines of the scale.
const SCALE_LINES: u64 = 4;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--fill:#4c78a8;--mark:#d1495b;--line:#8884}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--paper:#15181c;--fill:#7aa6d6;--mark:#ff7b89}}\
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:var(--ink);background:var(--paper)}\
svg{width:100%;height:auto;overflow:visible}.area{fill:var(--fill)}.hit{fill:transparent}.hit:hover{fill:var(--line)}\
.peak{stroke:var(--mark);fill:var(--mark)}.scale{stroke:var(--line)}text{fill:var(--ink);font-size:12px}\
table{border-collapse:collapse;margin-top:1.5rem}caption{text-align:left;font-weight:600;padding:.2rem .8rem}td,th{padding:.2rem .8rem;text-align:left;border-bottom:1px solid var(--line)}\
td:first-child,th:first-child{text-align:right;font-variant-numeric:tabular-nums}";

/// One column of the chart.
struct Column {
    /// The event of its most live bytes.
    at: usize,
    bytes: u64,
}

/// A self-contained page with the chart of a program: hovering tells the layer and what lives.
pub fn html(title: &str, program: &Program, run: Run) -> String {
    let live = program.live_bytes(run);
    let mut page = String::new();
    let title = escape(title);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style>\n<h1>{title}</h1>\n"
    );
    let Some((peak_at, peak_bytes)) = program.peak(run) else {
        page.push_str("<p>Nothing is allocated.</p></html>\n");
        return page;
    };
    let _ = writeln!(
        page,
        "<p>{} events, peak {} at event {peak_at}{}.</p>",
        live.len(),
        Bytes(peak_bytes),
        place(program, peak_at).map_or(String::new(), |place| format!(", in <code>{}</code>", escape(&place)))
    );
    draw(&mut page, program, &live, (peak_at, peak_bytes));
    page.push_str("<table><caption>Live at the peak</caption><tr><th>size<th>role<th>since event<th>made by</tr>\n");
    for tensor in at_peak(program, run) {
        let _ = writeln!(
            page,
            "<tr><td>{}<td>{}<td>{}<td>{}</tr>",
            Bytes(tensor.bytes),
            tensor.role.name(),
            tensor.since,
            escape(&tensor.label.to_string())
        );
    }
    page.push_str("</table></html>\n");
    page
}

fn draw(page: &mut String, program: &Program, live: &[u64], (peak_at, peak_bytes): (usize, u64)) {
    let columns = columns(live);
    let across = |column: usize| column * WIDTH / columns.len().max(1);
    let down = |bytes: u64| HEIGHT - scaled(bytes, peak_bytes);
    let _ = write!(
        page,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 -20 {WIDTH} {}\" role=\"img\" aria-label=\"live bytes over events\">",
        HEIGHT + 40
    );
    for line in 1..=SCALE_LINES {
        let bytes = peak_bytes / SCALE_LINES * line;
        let y = down(bytes);
        let _ = write!(page, "<line class=\"scale\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{y}\" y2=\"{y}\"/>");
        let _ = write!(page, "<text x=\"4\" y=\"{}\">{}</text>", y.saturating_sub(4), Bytes(bytes));
    }
    let _ = write!(page, "<path class=\"area\" d=\"M0 {HEIGHT}");
    for (index, column) in columns.iter().enumerate() {
        let (left, right, y) = (across(index), across(index + 1), down(column.bytes));
        let _ = write!(page, "L{left} {y}L{right} {y}");
    }
    let _ = write!(page, "L{WIDTH} {HEIGHT}Z\"/>");
    let x = peak_at * WIDTH / live.len().max(1);
    let _ = write!(page, "<circle class=\"peak\" cx=\"{x}\" cy=\"0\" r=\"4\"/>");
    for (index, column) in columns.iter().enumerate() {
        let (left, right) = (across(index), across(index + 1));
        let place = place(program, column.at).unwrap_or_default();
        let _ = write!(
            page,
            "<rect class=\"hit\" x=\"{left}\" y=\"0\" width=\"{}\" height=\"{HEIGHT}\"><title>event {}: {} live, {}</title></rect>",
            (right - left).max(1),
            column.at,
            Bytes(column.bytes),
            escape(&place)
        );
    }
    page.push_str("</svg>\n");
}

fn scaled(bytes: u64, peak_bytes: u64) -> usize {
    let height = u128::from(bytes) * HEIGHT as u128 / u128::from(peak_bytes.max(1));
    usize::try_from(height).unwrap_or(HEIGHT)
}

fn columns(live: &[u64]) -> Vec<Column> {
    let count = live.len().min(COLUMNS);
    (0..count)
        .filter_map(|column| {
            let (from, to) = (column * live.len() / count, (column + 1) * live.len() / count);
            let most = (from..to).max_by_key(|at| (live[*at], std::cmp::Reverse(*at)))?;
            Some(Column { at: most, bytes: live[most] })
        })
        .collect()
}

/// What made the last tensor at or before an event.
fn place(program: &Program, at: usize) -> Option<String> {
    program.steps[..=at].iter().rev().find_map(|step| match step {
        Step::Allocate { label, .. } => Some(label.to_string()),
        Step::Free { .. } => None,
    })
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
