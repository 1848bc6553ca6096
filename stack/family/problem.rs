//! What is wrong with a family file, said so that its author can put it right.

use std::fmt;
use std::path::PathBuf;

use crate::node::Place;

/// One mistake in one file. Its `Display` is the whole message with the line and a caret under the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, as it was named to the parser.
    pub file: String,
    /// Its line, from 1.
    pub line: usize,
    /// Its column in characters, from 1.
    pub column: usize,
    /// Which field: `calibration[0].sizes[2]`; empty for the file as a whole.
    pub field: String,
    /// What is wrong, with the value.
    pub message: String,
    /// What to do about it, where that is known.
    pub help: Option<String>,
    /// The line of the file that it stands on.
    pub(crate) source_line: String,
    /// How many characters the caret underlines.
    pub(crate) length: usize,
}

impl Problem {
    pub(crate) fn new(
        file: &str,
        text: &str,
        place: Place,
        field: String,
        message: String,
        help: Option<String>,
    ) -> Self {
        let source_line = text.lines().nth(place.line - 1).unwrap_or_default().to_owned();
        let (file, line, column, length) = (file.to_owned(), place.line, place.column, place.length);
        Self { file, line, column, field, message, help, source_line, length }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, field, message, .. } = self;
        write!(f, "{file}:{line}:{column}: ")?;
        if !field.is_empty() {
            write!(f, "{field}: ")?;
        }
        f.write_str(message)?;
        let number = line.to_string();
        // A tab would have another width in the caret's line; a control character would act on the terminal.
        let shown = self.source_line.replace(char::is_control, " ");
        let width = shown.chars().count();
        let carets = self.length.min(width.saturating_sub(column - 1)).max(1);
        write!(f, "\n{number:>5} | {shown}\n      | {}{}", " ".repeat(column - 1), "^".repeat(carets))?;
        if let Some(help) = &self.help {
            write!(f, " {help}")?;
        }
        Ok(())
    }
}

/// Why there is no [`Family`](crate::Family).
#[derive(Debug, thiserror::Error)]
pub enum FamilyError {
    /// A file or folder could not be read.
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A folder holds no family file.
    #[error("{} holds no family: put a file named FAMILY.yaml there", folder.display())]
    NoFamily {
        /// Which.
        folder: PathBuf,
    },
    /// One or more files have mistakes; all that were found.
    #[error("{}", listed(problems))]
    Invalid {
        /// The mistakes, by file, line and column.
        problems: Vec<Problem>,
    },
}

impl FamilyError {
    /// The mistakes, where that is what is wrong.
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Invalid { problems } => problems,
            Self::Unreadable { .. } | Self::NoFamily { .. } => &[],
        }
    }
}

fn listed(problems: &[Problem]) -> String {
    let mut lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    if let [first, _, ..] = problems {
        let files = problems.iter().filter(|problem| problem.file != first.file).count();
        let place = if files == 0 { format!(" in {}", first.file) } else { String::new() };
        lines.push(format!("{} mistakes{place}", problems.len()));
    }
    lines.join("\n")
}

/// The known word that is written most like `word`, if one is near enough to have been meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&lower, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= name.chars().count().max(word.chars().count()) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// "did you mean", where a known word is near, and the known words otherwise.
pub(crate) fn suggestion(word: &str, known: &[&str]) -> Option<String> {
    let synonym = headroom_base::name_here(word).filter(|name| known.contains(name));
    match synonym.or_else(|| nearest(word, known.iter().copied())) {
        Some(name) => Some(format!("did you mean `{name}`?")),
        None if known.is_empty() => None,
        None => Some(format!("known: {}", known.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_near_enough_to_have_been_meant() {
        let known = ["width", "height", "frames", "operations"];
        let cases =
            [("widht", Some("width")), ("Height", Some("height")), ("operation", Some("operations")), ("tokens", None)];
        for (word, expected) in cases {
            assert_eq!(nearest(word, known), expected, "{word}");
        }
    }

    #[test]
    fn the_caret_stands_under_the_value() {
        let place = Place { line: 2, column: 11, length: 4 };
        let text = "devices:\n  memory: many\n";
        let problem = Problem::new("a.yaml", text, place, "memory".into(), "wrong".into(), Some("write 12GiB".into()));
        let expected = "a.yaml:2:11: memory: wrong\n    2 |   memory: many\n      |           ^^^^ write 12GiB";
        assert_eq!(problem.to_string(), expected);
    }

    #[test]
    fn a_caret_beyond_the_end_of_a_line_is_one_character() {
        let problem = Problem::new("a.yaml", "", Place::START, String::new(), "empty".into(), None);
        assert_eq!(problem.to_string(), "a.yaml:1:1: empty\n    1 | \n      | ^");
    }
}
