//! The paper charts are drawn on: its size, its scales, round ticks and the two axes.

use std::fmt::Write as _;

use headroom_base::bytes::grouped;
use headroom_base::{Bytes, GIB, KIB, MIB};

pub(super) const WIDTH: f64 = 560.0;
pub(super) const HEIGHT: f64 = 300.0;
pub(super) const LEFT: f64 = 78.0;
pub(super) const RIGHT: f64 = 14.0;
pub(super) const TOP: f64 = 26.0;
pub(super) const BOTTOM: f64 = 40.0;

/// A number of things across, a number of bytes up, both from 0.
pub(super) struct Paper {
    across: Scale,
    up: Scale,
    across_ticks: Vec<u64>,
    byte_ticks: Vec<u64>,
}

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

impl Paper {
    /// Paper on which these largest values have room.
    pub(super) fn new(most_across: u64, most_bytes: u64) -> Self {
        let (most_across, most_bytes) = (most_across.max(1), most_bytes.max(1));
        Self {
            across: Scale { largest: most_across as f64 * 1.04, from: LEFT, to: WIDTH - RIGHT },
            up: Scale { largest: most_bytes as f64 * 1.04, from: HEIGHT - BOTTOM, to: TOP },
            across_ticks: ticks(most_across, 1),
            byte_ticks: ticks(most_bytes, byte_step(most_bytes)),
        }
    }

    pub(super) fn x(&self, value: u64) -> f64 {
        self.across.at(value)
    }

    pub(super) fn y(&self, bytes: u64) -> f64 {
        self.up.at(bytes)
    }

    /// Grid, ticks and axes; `across` says what is counted across; where it is empty, nothing is.
    pub(super) fn axes(&self, svg: &mut String, across: &str) {
        for tick in &self.byte_ticks {
            let at = self.y(*tick);
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
        for tick in self.across_ticks.iter().filter(|_| !across.is_empty()) {
            let (x, y) = (self.x(*tick), HEIGHT - BOTTOM + 16.0);
            let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>", short(*tick));
        }
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{right:.1}\" y1=\"{bottom:.1}\" y2=\"{bottom:.1}\"/>\
             <line class=\"axis\" x1=\"{LEFT}\" x2=\"{LEFT}\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>\
             <text x=\"{right:.1}\" y=\"{:.1}\" text-anchor=\"end\">{across}</text>",
            HEIGHT - 6.0
        );
    }
}

/// The words above a chart that say what its marks are, one after the other: (class, text).
pub(super) fn key(svg: &mut String, words: &[(&str, &str)]) {
    let mut at = LEFT + 6.0;
    for (class, text) in words {
        let _ = writeln!(svg, "<text class=\"{class}\" x=\"{at:.1}\" y=\"14\">{text}</text>");
        // Wide enough for any font: 6.6 a letter at 11 points.
        at += 6.6 * text.chars().count() as f64 + 16.0;
    }
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

/// Ticks are round in the unit that figures of this size are printed in.
fn byte_step(largest: u64) -> u64 {
    match largest {
        0..MIB => KIB,
        largest if largest < 10 * GIB => MIB,
        _ => GIB,
    }
}

/// `2 M` for two million units.
fn short(units: u64) -> String {
    if units >= 1_000_000 && units.is_multiple_of(1_000_000) {
        format!("{} M", grouped(units / 1_000_000))
    } else if units >= 10_000 {
        format!("{} k", grouped(units / 1_000))
    } else {
        grouped(units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_few_and_within_the_range() {
        let cases = [(7, 1), (1_000, 1), (4_718_592, 1), (9_586 * MIB, MIB), (20 * GIB, MIB), (1, 1)];
        for (largest, unit) in cases {
            let ticks = ticks(largest, unit);
            assert!((1..=6).contains(&ticks.len()), "{largest}: {ticks:?}");
            assert!(ticks.iter().all(|tick| tick % unit == 0 && *tick <= largest), "{largest}: {ticks:?}");
        }
        assert_eq!(ticks(9_586 * MIB, MIB), [0, 2_000, 4_000, 6_000, 8_000].map(|mib| mib * MIB));
    }

    #[test]
    fn a_short_number_loses_no_digit_that_counts() {
        let cases = [(0, "0"), (9_999, "9,999"), (500_000, "500 k"), (1_500_000, "1,500 k"), (4_000_000, "4 M")];
        for (units, text) in cases {
            assert_eq!(short(units), text);
        }
    }
}
