//! A text without its white space, so that lines may be wrapped anywhere, within a word or a number too; and where
//! figures stand in it.

use super::OtherProcess;
use super::figure::{Figure, Printed};

/// Units as they are printed, with the binary one each of them means.
const UNITS: [(&str, &str); 8] = [
    ("bytes", "B"),
    ("KiB", "KiB"),
    ("MiB", "MiB"),
    ("GiB", "GiB"),
    ("KB", "KiB"),
    ("MB", "MiB"),
    ("GB", "GiB"),
    ("B", "B"),
];

/// A text without white space; a line break that JSON wrote as two letters is white space too, and so is a colour that
/// a console wrote between words (an escape, a bracket, and all up to a letter).
pub(super) fn squeezed(text: &str) -> String {
    let unescaped = text.replace("\\n", " ").replace("\\r", " ").replace("\\t", " ");
    let mut parts = unescaped.split("\u{1b}[");
    let mut squeezed: String = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|letter: char| letter.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        squeezed.push_str(&part[end..]);
    }
    squeezed.retain(|letter| !letter.is_whitespace());
    squeezed
}

/// Where a figure stands; the words are without white space.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// Right after these words.
    After(&'static str),
    /// Right before these words.
    Before(&'static str),
}

/// Finds figures in a squeezed message.
pub(super) struct Figures<'a> {
    text: &'a str,
    /// Figures that no device can have, as they were printed.
    pub(super) nonsense: Vec<String>,
    /// Whether a figure was printed in decimal units.
    pub(super) decimal_units: bool,
}

impl<'a> Figures<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, nonsense: Vec::new(), decimal_units: false }
    }

    /// The figure at the first of these places that has one; none where it is nonsense.
    pub(super) fn first(&mut self, ways: &[Way]) -> Option<Figure> {
        ways.iter().find_map(|way| self.find(*way)).flatten()
    }

    fn find(&mut self, way: Way) -> Option<Option<Figure>> {
        let text = self.text;
        match way {
            Way::After(words) => {
                let mut places = text.match_indices(words);
                places.find_map(|(at, _)| self.opening(&text[at + words.len()..]))
            }
            Way::Before(words) => text.match_indices(words).find_map(|(at, _)| self.closing(&text[..at])),
        }
    }

    /// The figure that a text begins with.
    fn opening(&mut self, text: &str) -> Option<Option<Figure>> {
        let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
        let (number, rest) = text.split_at(end);
        let unit = UNITS.into_iter().find(|(printed, _)| rest.starts_with(printed))?;
        self.figure(number, unit)
    }

    /// The figure that a text ends with.
    fn closing(&mut self, text: &str) -> Option<Option<Figure>> {
        let unit = UNITS.into_iter().find(|(printed, _)| text.ends_with(printed))?;
        let before = text.strip_suffix(unit.0)?;
        let words = before.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
        // A full stop in front of a number ends the sentence before.
        let mut parts = before[words.len()..].rsplitn(3, '.');
        let (last, whole) = (parts.next()?, parts.next().unwrap_or_default());
        match whole {
            "" => self.figure(last, unit),
            _ => self.figure(&format!("{whole}.{last}"), unit),
        }
    }

    fn figure(&mut self, number: &str, (printed, binary): (&str, &str)) -> Option<Option<Figure>> {
        let read = Figure::read(number, binary)?;
        self.decimal_units |= matches!(printed, "KB" | "MB" | "GB");
        match read {
            Printed::Size(figure) => Some(Some(figure)),
            Printed::Nonsense => {
                let figure = format!("{number} {printed}");
                if !self.nonsense.contains(&figure) {
                    self.nonsense.push(figure);
                }
                Some(None)
            }
        }
    }

    /// `Process 123 has 1.00 GiB memory in use`, as often as it stands there.
    pub(super) fn others(&mut self) -> Vec<OtherProcess> {
        let text = self.text;
        let mut others = Vec::new();
        for (at, opening) in text.match_indices("Process") {
            let rest = &text[at + opening.len()..];
            let Some((pid, rest)) = rest.split_once("has") else { continue };
            let (Ok(pid), Some(held)) = (pid.parse(), self.opening(rest)) else { continue };
            others.push(OtherProcess { pid, held });
        }
        others
    }

    /// The device's number: `GPU 0`, or `device 0` of the stream-ordered pool.
    pub(super) fn device(&self) -> Option<u32> {
        ["GPU", "Allocationondevice"].into_iter().find_map(|opening| {
            self.text.match_indices(opening).find_map(|(at, _)| {
                let rest = &self.text[at + opening.len()..];
                let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
                rest[..digits].parse().ok()
            })
        })
    }
}
