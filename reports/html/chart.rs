//! Measured points with the lines over them, as a drawing in the page itself.

use std::fmt::Write as _;

use headroom_base::Bytes;

use super::axes::{HEIGHT, Paper, WIDTH, key};
use super::escape::Escaped;

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

/// A drawing with its caption.
pub(super) fn figure(title: &str, subtitle: &str, svg: &str) -> String {
    let (title, subtitle) = (Escaped(title), Escaped(subtitle));
    let view = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}: {subtitle}\">");
    format!(
        "<figure><figcaption><strong>{title}</strong><br><span class=\"muted\">{subtitle}</span></figcaption>\n{view}\n\
         {svg}</svg></figure>\n"
    )
}

impl Chart {
    /// The drawing; nothing where there is nothing to draw.
    pub(super) fn to_html(&self) -> String {
        if self.dots.is_empty() {
            return String::new();
        }
        let ends = self.user.iter().chain(&self.built_in).copied();
        let points: Vec<(u64, u64)> = self.dots.iter().map(|dot| (dot.units, dot.bytes)).chain(ends).collect();
        let most = |of: fn(&(u64, u64)) -> u64| points.iter().map(of).max().unwrap_or(1);
        let paper = Paper::new(most(|point| point.0), most(|point| point.1));
        let mut svg = String::new();
        paper.axes(&mut svg, "cost units");
        line(&mut svg, &paper, &self.built_in, "shipped");
        line(&mut svg, &paper, &self.user, "user");
        for dot in &self.dots {
            draw(&mut svg, &paper, dot);
        }
        key(&mut svg, &self.words());
        figure(&self.title, &self.subtitle, &svg)
    }

    fn words(&self) -> Vec<(&'static str, &'static str)> {
        let counted = self.dots.iter().any(|dot| dot.excluded.is_none());
        let uncounted = self.dots.iter().any(|dot| dot.excluded.is_some());
        [
            (counted, ("", "● measured")),
            (uncounted, ("", "○ does not count")),
            (!self.user.is_empty(), ("user-key", "— user fit")),
            (!self.built_in.is_empty(), ("shipped-key", "– – built-in")),
        ]
        .into_iter()
        .filter_map(|(shown, word)| shown.then_some(word))
        .collect()
    }
}

fn line(svg: &mut String, paper: &Paper, ends: &[(u64, u64)], class: &str) {
    let [(from, low), (to, high)] = ends else { return };
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
        paper.x(*from),
        paper.y(*low),
        paper.x(*to),
        paper.y(*high)
    );
}

fn draw(svg: &mut String, paper: &Paper, dot: &Dot) {
    let class = if dot.excluded.is_none() { "counted" } else { "uncounted" };
    let why = dot.excluded.as_ref().map_or_else(String::new, |reason| format!(", does not count: {reason}"));
    let _ = writeln!(
        svg,
        "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{}</title></circle>",
        paper.x(dot.units),
        paper.y(dot.bytes),
        Escaped(format!("{}: {}{why}", dot.label, Bytes(dot.bytes)))
    );
}

#[cfg(test)]
mod tests {
    use headroom_base::MIB;

    use super::*;

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
