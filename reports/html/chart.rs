//! Measured points with the lines over them, as a drawing in the page itself.

use std::fmt::Write as _;

use headroom_base::bytes::grouped;
use headroom_base::{Bytes, KIB, MIB};

use super::escape::Escaped;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 40.0;

/// Something measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dot {
    pub(super) units: u64,
    pub(super) bytes: u64,
    /// Why it does not count; none for a dot that does.
    pub(super) excluded: Option<String>,
    pub(super) label: String,
}

/// What one drawing shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) subtitle: String,
    pub(super) dots: Vec<Dot>,
    /// The user's fit at the left and right end, as (units, bytes).
    pub(super) user: Vec<(u64, u64)>,
    /// The shipped fit, likewise.
    pub(super) built_in: Vec<(u64, u64)>,
}

/// Where a value stands on the paper.
struct Scale {
    largest: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn at(&self, value: u64) -> f64 {
        self.from + (self.to - self.from) * value as f64 / self.largest
    }
}

impl Chart {
    /// The drawing; nothing where there is nothing to draw.
    pub(super) fn to_html(&self) -> String {
        if self.dots.is_empty() {
            return String::new();
        }
        let ends = self.user.iter().chain(&self.built_in);
        let points = || self.dots.iter().map(|dot| (dot.units, dot.bytes)).chain(ends.clone().copied());
        let most_units = points().map(|(units, _)| units).max().unwrap_or(1).max(1);
        let most_bytes = points().map(|(_, bytes)| bytes).max().unwrap_or(1).max(1);
        let (unit_ticks, byte_ticks) = (ticks(most_units, 1), ticks(most_bytes, byte_step(most_bytes)));
        let x = Scale { largest: most_units as f64 * 1.04, from: LEFT, to: WIDTH - RIGHT };
        let top_tick = byte_ticks.last().copied().unwrap_or(1).max(most_bytes);
        let y = Scale { largest: top_tick as f64 * 1.02, from: HEIGHT - BOTTOM, to: TOP };
        let name = Escaped(format!("{}: {}", self.title, self.subtitle));
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{name}\">\n");
        axes(&mut svg, &x, &y, &unit_ticks, &byte_ticks);
        line(&mut svg, &x, &y, &self.built_in, "shipped");
        line(&mut svg, &x, &y, &self.user, "user");
        for dot in &self.dots {
            draw(&mut svg, &x, &y, dot);
        }
        self.key(&mut svg);
        svg.push_str("</svg>");
        format!(
            "<figure><figcaption><strong>{}</strong><br><span class=\"muted\">{}</span></figcaption>{svg}</figure>\n",
            Escaped(&self.title),
            Escaped(&self.subtitle)
        )
    }

    fn key(&self, svg: &mut String) {
        let mut at = LEFT + 6.0;
        let mut word = |svg: &mut String, class: &str, text: &str| {
            let _ = writeln!(svg, "<text class=\"{class}\" x=\"{at:.1}\" y=\"14\">{text}</text>");
            at += 7.0 * text.chars().count() as f64;
        };
        if self.dots.iter().any(|dot| dot.excluded.is_none()) {
            word(svg, "", "● measured");
        }
        if self.dots.iter().any(|dot| dot.excluded.is_some()) {
            word(svg, "", "○ does not count");
        }
        if !self.user.is_empty() {
            word(svg, "user-key", "— user fit");
        }
        if !self.built_in.is_empty() {
            word(svg, "shipped-key", "– – built-in");
        }
    }
}

fn axes(svg: &mut String, x: &Scale, y: &Scale, unit_ticks: &[u64], byte_ticks: &[u64]) {
    for tick in byte_ticks {
        let at = y.at(*tick);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            Bytes(*tick)
        );
    }
    for tick in unit_ticks {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x.at(*tick),
            HEIGHT - BOTTOM + 16.0,
            short(*tick)
        );
    }
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let _ = writeln!(
        svg,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{right:.1}\" y1=\"{bottom:.1}\" y2=\"{bottom:.1}\"/>\
         <line class=\"axis\" x1=\"{LEFT}\" x2=\"{LEFT}\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>\
         <text x=\"{right:.1}\" y=\"{:.1}\" text-anchor=\"end\">cost units</text>",
        HEIGHT - 6.0
    );
}

fn line(svg: &mut String, x: &Scale, y: &Scale, ends: &[(u64, u64)], class: &str) {
    let [(from, low), (to, high)] = ends else { return };
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
        x.at(*from),
        y.at(*low),
        x.at(*to),
        y.at(*high)
    );
}

fn draw(svg: &mut String, x: &Scale, y: &Scale, dot: &Dot) {
    let class = if dot.excluded.is_none() { "counted" } else { "uncounted" };
    let why = dot.excluded.as_ref().map_or_else(String::new, |reason| format!(", does not count: {reason}"));
    let _ = writeln!(
        svg,
        "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{}</title></circle>",
        x.at(dot.units),
        y.at(dot.bytes),
        Escaped(format!("{}: {}{why}", dot.label, Bytes(dot.bytes)))
    );
}

/// At most five steps of 1, 2 or 5 times a power of ten of `unit`, from 0 on.
fn ticks(largest: u64, unit: u64) -> Vec<u64> {
    let mut step = unit;
    for factor in [2, 5, 10].into_iter().cycle() {
        let decade = step_decade(step, unit);
        if largest / step <= 5 {
            break;
        }
        step = decade.saturating_mul(factor);
    }
    (0..=largest / step).map(|number| number * step).collect()
}

/// The power of ten of `unit` at or below a step.
fn step_decade(step: u64, unit: u64) -> u64 {
    let mut decade = unit;
    while decade.saturating_mul(10) <= step {
        decade *= 10;
    }
    decade
}

fn byte_step(largest: u64) -> u64 {
    match largest {
        0..MIB => KIB,
        MIB..10_737_418_240 => MIB,
        _ => headroom_base::GIB,
    }
}

/// `2 M` for two million units.
fn short(units: u64) -> String {
    match units {
        0..10_000 => grouped(units),
        10_000..10_000_000 => format!("{} k", grouped(units / 1_000)),
        _ => format!("{} M", grouped(units / 1_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_few_and_within_the_range() {
        let cases = [(7, 1), (1_000, 1), (4_718_592, 1), (9_586 * MIB, MIB), (20 * headroom_base::GIB, MIB), (1, 1)];
        for (largest, unit) in cases {
            let ticks = ticks(largest, unit);
            assert!((1..=6).contains(&ticks.len()), "{largest}: {ticks:?}");
            assert!(ticks.iter().all(|tick| tick % unit == 0 && *tick <= largest), "{largest}: {ticks:?}");
        }
        assert_eq!(ticks(9_586 * MIB, MIB), [0, 2_000, 4_000, 6_000, 8_000].map(|mib| mib * MIB));
    }

    #[test]
    fn every_dot_and_line_lies_on_the_paper() {
        let dot = |units, bytes| Dot { units, bytes, excluded: None, label: "512x512".into() };
        let chart = Chart {
            title: "line".into(),
            subtitle: "card".into(),
            dots: vec![dot(10, 5 * MIB), dot(1_000, 90 * MIB)],
            user: vec![(10, 6 * MIB), (1_000, 91 * MIB)],
            built_in: vec![(10, 60 * MIB), (1_000, 191 * MIB)],
        };
        let html = chart.to_html();
        let numbers = |attribute: &str| -> Vec<f64> {
            let opening = format!(" {attribute}=\"");
            html.split(&opening).skip(1).filter_map(|rest| rest.split('"').next()?.parse().ok()).collect()
        };
        for (attribute, most) in
            [("cx", WIDTH), ("x1", WIDTH), ("x2", WIDTH), ("cy", HEIGHT), ("y1", HEIGHT), ("y2", HEIGHT)]
        {
            let found = numbers(attribute);
            assert!(!found.is_empty() && found.iter().all(|at| (0.0..=most).contains(at)), "{attribute} {found:?}");
        }
        assert_eq!(numbers("cx").len(), 2);
        // More bytes are further up.
        assert!(numbers("cy")[0] > numbers("cy")[1]);
    }
}
