//! From a text, a file or a folder to families, with every mistake of every file said at once.

use std::path::Path;

use serde::Deserialize;

use crate::check::{self, Checker};
use crate::family::Family;
use crate::files::{NamedFile, Source, family_files, mistakes_of_all, mistakes_of_one};
use crate::findings::Findings;
use crate::node::{Node, Place, Value};
use crate::problem::{FamilyError, Problem};
use crate::raw::RawFamily;
use crate::reader::Reader;

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// What `recorded_as` may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recordings<'a> {
    /// Anything: the recording is named elsewhere, or is yet to be made.
    Any,
    /// These names.
    Named(&'a [&'a str]),
}

impl Family {
    /// Reads a family from a text; `file_name` is what messages call it.
    ///
    /// # Errors
    /// [`FamilyError::Invalid`] with every mistake that was found, in the order of the file.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, FamilyError> {
        Self::parse_with((text, file_name), Recordings::Any, None)
    }

    /// `folder` is where the file lies, if the text is that of a file.
    fn parse_with(
        (text, file_name): (&str, &str),
        recordings: Recordings<'_>,
        folder: Option<&Path>,
    ) -> Result<Self, FamilyError> {
        let findings = Findings::new(file_name, text);
        let family = read(text, &findings, recordings, folder);
        match family {
            Some(family) if findings.is_empty() => Ok(family),
            _ => Err(FamilyError::Invalid { problems: findings.into_problems() }),
        }
    }

    /// Reads a family from a file. Messages call it as `path` does.
    ///
    /// That the file is not called by the family's name is a mistake too, and so is another file of its folder whose
    /// family has that name: the folder could not be used.
    ///
    /// # Errors
    /// [`FamilyError::Unreadable`], or as [`Family::parse`].
    pub fn load(path: &Path, recordings: Recordings<'_>) -> Result<Self, FamilyError> {
        let own = Source::read(path)?;
        let siblings = Source::beside(path);
        let others = siblings.iter().filter_map(Source::named).collect();
        let misnamed = own.named().map(|own| mistakes_of_one(own, others)).unwrap_or_default();
        let result = Self::parse_with((&own.text, &own.file), recordings, path.parent());
        let mut families = gather([result], misnamed)?;
        Ok(families.swap_remove(0))
    }

    /// Reads every `*.yaml` and `*.yml` of a folder, in the order of their names.
    ///
    /// # Errors
    /// [`FamilyError::NoFamily`] for a folder without one, otherwise the mistakes of all files together.
    pub fn load_dir(folder: &Path, recordings: Recordings<'_>) -> Result<Vec<Self>, FamilyError> {
        let unreadable = |source| FamilyError::Unreadable { path: folder.to_owned(), source };
        let paths = family_files(folder).map_err(unreadable)?;
        if paths.is_empty() {
            return Err(FamilyError::NoFamily { folder: folder.to_owned() });
        }
        let (mut sources, mut problems) = (Vec::new(), Vec::new());
        for path in &paths {
            match Source::read(path) {
                Ok(source) => sources.push(source),
                Err(FamilyError::Invalid { problems: found }) => problems.extend(found),
                Err(other) => return Err(other),
            }
        }
        let named: Vec<NamedFile<'_>> = sources.iter().filter_map(Source::named).collect();
        problems.extend(mistakes_of_all(&named));
        let parsed = sources.iter().map(|own| Self::parse_with((&own.text, &own.file), recordings, Some(folder)));
        gather(parsed, problems)
    }

    /// The families that are compiled in: the `families/` folder of the source.
    ///
    /// # Errors
    /// As [`Family::load_dir`]; a test keeps the shipped ones free of mistakes.
    pub fn embedded() -> Result<Vec<Self>, FamilyError> {
        let named: Vec<NamedFile<'_>> = EMBEDDED.iter().filter_map(|(file, text)| NamedFile::of(file, text)).collect();
        gather(EMBEDDED.iter().map(|(file, text)| Self::parse(text, file)), mistakes_of_all(&named))
    }
}

/// The file names and texts of the compiled-in families, in the order of their names.
pub fn embedded_texts() -> &'static [(&'static str, &'static str)] {
    EMBEDDED
}

/// All families, or all mistakes, in the order of the files.
fn gather(
    results: impl IntoIterator<Item = Result<Family, FamilyError>>,
    mut problems: Vec<Problem>,
) -> Result<Vec<Family>, FamilyError> {
    let mut families = Vec::new();
    for result in results {
        match result {
            Ok(family) => families.push(family),
            Err(FamilyError::Invalid { problems: found }) => problems.extend(found),
            Err(other) => return Err(other),
        }
    }
    if problems.is_empty() {
        return Ok(families);
    }
    problems.sort_by(|one, other| (&one.file, one.line, one.column).cmp(&(&other.file, other.line, other.column)));
    Err(FamilyError::Invalid { problems })
}

fn read(text: &str, findings: &Findings<'_>, recordings: Recordings<'_>, folder: Option<&Path>) -> Option<Family> {
    let root = match Node::parse(text) {
        Ok(root) => root,
        Err(unreadable) => {
            let message = format!("not readable as YAML: {}", unreadable.message);
            match tab_near(text, unreadable.place.line) {
                Some(tab) => {
                    let help = "YAML indents with spaces, never with tabs".to_owned();
                    findings.add(tab, String::new(), message, Some(help));
                }
                None => {
                    findings.add(unreadable.place, String::new(), message, open_bracket(text, unreadable.place.line))
                }
            }
            return None;
        }
    };
    if root.value == Value::Null {
        let help = Some("a family begins with `name:` and `description:`".to_owned());
        findings.add(root.place, String::new(), "the file is empty", help);
        return None;
    }
    let raw = RawFamily::deserialize(Reader::new(&root, findings)).ok()?;
    Some(check::family(raw, Checker { root: &root, findings, recordings, folder }))
}

/// The first tab that indents, of the line that is no YAML or one beside it: the reader stops before it or after.
fn tab_near(text: &str, line: usize) -> Option<Place> {
    let lines = text.lines().enumerate().skip(line.saturating_sub(2)).take(3);
    lines.into_iter().find_map(|(number, line)| {
        let indent = line.chars().take_while(|character| character.is_whitespace()).collect::<Vec<_>>();
        let column = indent.iter().position(|character| *character == '\t')?;
        Some(Place { line: number + 1, column: column + 1, length: 1 })
    })
}

/// What people most often did where the text is no YAML.
fn open_bracket(text: &str, line: usize) -> Option<String> {
    let mut open: Vec<(char, usize)> = Vec::new();
    for (number, line) in text.lines().take(line - 1).enumerate() {
        for character in line.split(" #").next().unwrap_or_default().chars() {
            match character {
                '[' | '{' => open.push((character, number + 1)),
                ']' | '}' => drop(open.pop()),
                _ => {}
            }
        }
    }
    open.last().map(|(bracket, line)| format!("the `{bracket}` on line {line} is not closed"))
}
