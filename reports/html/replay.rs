//! A replay as one page: what was held over time, what other settings would have reserved, and what is stranded.

use std::fmt::Write as _;

use headroom_base::Bytes;

use super::axes::{BOTTOM, HEIGHT, LEFT, Paper, RIGHT, WIDTH, key};
use super::chart::figure;
use super::escape::Escaped;
use super::table::{Cell, Column, table};
use crate::snapshot::{Moment, Stranded, StrandedSegment};

/// More points than this are no wider than the lines they are drawn with.
const MOST_POINTS: usize = 1_000;

/// Stranded segments beyond this are summed up in one sentence.
const MOST_SEGMENTS: usize = 50;

/// What one setting would have done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayRow {
    /// What people call the setting.
    pub name: String,
    /// The line that sets it.
    pub environment: String,
    /// The most handed out at once.
    pub allocated_peak_bytes: u64,
    /// The most taken from the driver.
    pub reserved_peak_bytes: u64,
    /// The least memory on which all requests are served; none where they never are.
    pub least_capacity_bytes: Option<u64>,
    /// Whether the memory that was asked about is too little; none where none was.
    pub runs_out: Option<bool>,
    /// Whether the figures are upper bounds.
    pub is_bound: bool,
}

/// What the page is made of.
#[derive(Clone, Copy, Debug)]
pub struct Replay<'a> {
    /// What was replayed.
    pub title: &'a str,
    /// What cannot be taken at its word.
    pub warnings: &'a [String],
    /// What was held before the first event and after each.
    pub moments: &'a [Moment],
    /// The settings.
    pub rows: &'a [ReplayRow],
    /// The memory that was asked about.
    pub memory_bytes: Option<u64>,
    /// What was stranded at the end.
    pub stranded: Option<&'a Stranded>,
}

/// The page.
pub fn replay_page(replay: &Replay<'_>) -> String {
    let mut body = format!("<h1>{}</h1>\n", Escaped(replay.title));
    for warning in replay.warnings {
        let _ = writeln!(body, "<p class=\"warn\">{}</p>", Escaped(warning));
    }
    body.push_str("<div class=\"charts\">\n");
    body.push_str(&timeline(replay.moments));
    body.push_str(&bars(replay));
    body.push_str("</div>\n");
    body.push_str(&settings(replay.rows));
    if let Some(stranded) = replay.stranded {
        body.push_str(&stranding(stranded));
    }
    super::page(replay.title, &body)
}

fn timeline(moments: &[Moment]) -> String {
    if moments.len() < 2 {
        return String::new();
    }
    let most = moments.iter().map(|moment| moment.reserved_bytes.max(moment.allocated_bytes)).max().unwrap_or(1);
    let paper = Paper::new(moments.len() as u64 - 1, most);
    let mut svg = String::new();
    paper.axes(&mut svg, "events");
    curve(&mut svg, &paper, moments, "shipped", |moment| moment.reserved_bytes);
    curve(&mut svg, &paper, moments, "user", |moment| moment.allocated_bytes);
    key(&mut svg, &[("user-key", "— allocated"), ("shipped-key", "– – reserved")]);
    figure("Held over time", "as recorded", &svg)
}

/// A curve that keeps every peak: of the events that fall on one point the largest is drawn.
fn curve(svg: &mut String, paper: &Paper, moments: &[Moment], class: &str, bytes: fn(&Moment) -> u64) {
    let per_point = moments.len().div_ceil(MOST_POINTS);
    let _ = write!(svg, "<polyline class=\"{class}\" points=\"");
    for (number, chunk) in moments.chunks(per_point).enumerate() {
        let largest = chunk.iter().map(bytes).max().unwrap_or(0);
        let _ = write!(svg, "{:.1},{:.1} ", paper.x((number * per_point) as u64), paper.y(largest));
    }
    svg.push_str("\"/>\n");
}

/// A bar a setting, with the memory that was asked about across them.
fn bars(replay: &Replay<'_>) -> String {
    let rows = replay.rows;
    if rows.is_empty() {
        return String::new();
    }
    let most = rows.iter().map(|row| row.reserved_peak_bytes).chain(replay.memory_bytes).max().unwrap_or(1);
    let paper = Paper::new(0, most);
    let mut svg = String::new();
    paper.axes(&mut svg, "");
    let slot = (WIDTH - LEFT - RIGHT) / rows.len() as f64;
    for (number, row) in rows.iter().enumerate() {
        let (x, top) = (LEFT + slot * (number as f64 + 0.15), paper.y(row.reserved_peak_bytes));
        let class = if row.runs_out == Some(true) { "bar-bad" } else { "bar" };
        let label = Escaped(format!("{}: {}", row.name, Bytes(row.reserved_peak_bytes)));
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{label}</title>\
             </rect><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            slot * 0.7,
            HEIGHT - BOTTOM - top,
            x + slot * 0.35,
            HEIGHT - BOTTOM + 30.0,
            number + 1
        );
    }
    if let Some(memory) = replay.memory_bytes {
        let y = paper.y(memory);
        let right = WIDTH - RIGHT;
        let _ = writeln!(svg, "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>");
        key(&mut svg, &[("", "■ reserved at the peak"), ("limit-key", "— the memory asked about")]);
    } else {
        key(&mut svg, &[("", "■ reserved at the peak")]);
    }
    figure("Under other settings", "numbered as in the table", &svg)
}

fn settings(rows: &[ReplayRow]) -> String {
    let columns = [
        Column::Number("#"),
        Column::Words("Setting"),
        Column::Number("Allocated"),
        Column::Number("Reserved"),
        Column::Number("Least memory"),
        Column::Words("Runs out"),
        Column::Long("Environment"),
    ];
    let bounded =
        |bytes: u64, bound: bool| if bound { format!("≤ {}", Bytes(bytes)) } else { Bytes(bytes).to_string() };
    let cells = rows.iter().enumerate().map(|(number, row)| {
        [
            Cell::from(number + 1),
            Cell::from(&row.name),
            Cell::from(Bytes(row.allocated_peak_bytes)),
            Cell::from(bounded(row.reserved_peak_bytes, row.is_bound)),
            match row.least_capacity_bytes {
                Some(bytes) => Cell::from(bounded(bytes, row.is_bound)),
                None => Cell::marked("never fits", "bad"),
            },
            match row.runs_out {
                Some(true) => Cell::marked("yes", "bad"),
                Some(false) => Cell::marked("no", "good"),
                None => Cell::marked("not asked", "muted"),
            },
            Cell::from(&row.environment),
        ]
    });
    format!("<h2>Settings</h2>\n{}", table(columns, cells))
}

fn stranding(stranded: &Stranded) -> String {
    let mut html = format!(
        "<h2>Stranded</h2>\n<p>Of {} reserved {} were used, {} could be given back, and {} were stranded in {} segments.</p>\n",
        Bytes(stranded.reserved_bytes),
        Bytes(stranded.used_bytes),
        Bytes(stranded.releasable_bytes),
        Bytes(stranded.stranded_bytes),
        stranded.segments.len()
    );
    if stranded.segments.is_empty() {
        return html;
    }
    let columns = [
        Column::Words("Segment"),
        Column::Words("Pool"),
        Column::Number("Size"),
        Column::Number("Stranded"),
        Column::Number("Largest piece"),
        Column::Number("Pins"),
        Column::Long("Smallest pins"),
    ];
    html.push_str(&table(columns, stranded.segments.iter().take(MOST_SEGMENTS).map(segment)));
    if stranded.segments.len() > MOST_SEGMENTS {
        let _ = writeln!(html, "<p class=\"muted\">{} more with less.</p>", stranded.segments.len() - MOST_SEGMENTS);
    }
    html
}

fn segment(segment: &StrandedSegment) -> [Cell; 7] {
    let pool = match (segment.small, segment.expandable) {
        (true, false) => "small",
        (false, false) => "large",
        (true, true) => "small, growing",
        (false, true) => "large, growing",
    };
    let pins = segment.pins.iter().take(3).map(|pin| {
        let by = pin.frame.as_ref().map_or_else(String::new, |f| format!(" by {} ({}:{})", f.function, f.file, f.line));
        format!("{}{by}", Bytes(pin.size_bytes))
    });
    [
        Cell::from(format!("{:#x}", segment.address)),
        Cell::from(pool),
        Cell::from(Bytes(segment.total_bytes)),
        Cell::from(Bytes(segment.stranded_bytes)),
        Cell::from(Bytes(segment.largest_free_bytes)),
        Cell::from(segment.pins.len()),
        Cell::from(pins.collect::<Vec<_>>().join("\n")),
    ]
}
