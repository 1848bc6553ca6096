//! From a text, a file or a folder to families, with every mistake of every file said at once.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::check;
use crate::family::Family;
use crate::findings::Findings;
use crate::node::{Node, Value};
use crate::problem::{FamilyError, Problem};
use crate::raw::RawFamily;
use crate::reader::Reader;

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

impl Family {
    /// Reads a family from a text; `file_name` is what messages call it.
    ///
    /// # Errors
    /// [`FamilyError::Invalid`] with every mistake that was found, in the order of the file.
    pub fn parse(text: &str, file_name: &str) -> Result<Self, FamilyError> {
        let findings = Findings::new(file_name, text);
        let family = read(text, &findings);
        match family {
            Some(family) if findings.is_empty() => Ok(family),
            _ => Err(FamilyError::Invalid { problems: findings.into_problems() }),
        }
    }

    /// Reads a family from a file. Messages call it as `path` does.
    ///
    /// # Errors
    /// [`FamilyError::Unreadable`], or as [`Family::parse`].
    pub fn load(path: &Path) -> Result<Self, FamilyError> {
        let unreadable = |source| FamilyError::Unreadable { path: path.to_owned(), source };
        let bytes = std::fs::read(path).map_err(unreadable)?;
        let name = path.display().to_string();
        match String::from_utf8(bytes) {
            Ok(text) => Self::parse(&text, &name),
            Err(error) => Err(not_utf8(&name, &error)),
        }
    }

    /// Reads every `*.yaml` and `*.yml` of a folder, in the order of their names.
    ///
    /// # Errors
    /// [`FamilyError::NoFamily`] for a folder without one, otherwise the mistakes of all files together.
    pub fn load_dir(folder: &Path) -> Result<Vec<Self>, FamilyError> {
        let unreadable = |source| FamilyError::Unreadable { path: folder.to_owned(), source };
        let mut paths: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.extension().is_some_and(|end| end == "yaml" || end == "yml") {
                paths.push(path);
            }
        }
        paths.sort();
        if paths.is_empty() {
            return Err(FamilyError::NoFamily { folder: folder.to_owned() });
        }
        gather(paths.iter().map(|path| (path.display().to_string(), Self::load(path))))
    }

    /// The families that are compiled in: the `families/` folder of the source.
    ///
    /// # Errors
    /// As [`Family::load_dir`]; a test keeps the shipped ones free of mistakes.
    pub fn embedded() -> Result<Vec<Self>, FamilyError> {
        gather(EMBEDDED.iter().map(|(name, text)| ((*name).to_owned(), Self::parse(text, name))))
    }
}

/// The file names and texts of the compiled-in families, in the order of their names.
pub fn embedded_texts() -> &'static [(&'static str, &'static str)] {
    EMBEDDED
}

/// All families, or all mistakes; a name that two files use is one.
fn gather(results: impl Iterator<Item = (String, Result<Family, FamilyError>)>) -> Result<Vec<Family>, FamilyError> {
    let mut families: Vec<(String, Family)> = Vec::new();
    let mut problems = Vec::new();
    for (file, result) in results {
        match result {
            Ok(family) => {
                if let Some((other, _)) = families.iter().find(|(_, earlier)| earlier.name == family.name) {
                    let message = format!("`{}` is the name of the family in {other} too", family.name);
                    problems.push(Problem::new(&file, "", crate::node::Place::START, "name".to_owned(), message, None));
                }
                families.push((file, family));
            }
            Err(FamilyError::Invalid { problems: found }) => problems.extend(found),
            Err(other) => return Err(other),
        }
    }
    if problems.is_empty() {
        Ok(families.into_iter().map(|(_, family)| family).collect())
    } else {
        Err(FamilyError::Invalid { problems })
    }
}

fn read(text: &str, findings: &Findings<'_>) -> Option<Family> {
    let root = match Node::parse(text) {
        Ok(root) => root,
        Err(unreadable) => {
            let help = help_for(text, unreadable.place.line);
            findings.add(
                unreadable.place,
                String::new(),
                format!("not readable as YAML: {}", unreadable.message),
                help,
            );
            return None;
        }
    };
    if root.value == Value::Null {
        let help = Some("a family begins with `name:` and `description:`".to_owned());
        findings.add(root.place, String::new(), "the file is empty", help);
        return None;
    }
    let raw = RawFamily::deserialize(Reader::new(&root, findings)).ok()?;
    Some(check::family(raw, &root, findings))
}

/// What people most often did where the text is no YAML.
fn help_for(text: &str, line: usize) -> Option<String> {
    let indent = |line: &'_ str| line.len() - line.trim_start().len();
    let here = text.lines().nth(line.saturating_sub(1))?;
    let before = text.lines().nth(line.saturating_sub(2)).unwrap_or_default();
    if [here, before].into_iter().any(|line| line[..indent(line)].contains('\t')) {
        return Some("YAML indents with spaces, never with tabs".to_owned());
    }
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

fn not_utf8(file: &str, error: &std::string::FromUtf8Error) -> FamilyError {
    let valid = error.utf8_error().valid_up_to();
    let text = String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned();
    let line = text.lines().count().max(1);
    let column = text.lines().last().map_or(0, |line| line.chars().count()) + 1;
    let place = crate::node::Place { line, column, length: 1 };
    let message = format!("byte {valid} is not UTF-8: a family file is a plain text");
    FamilyError::Invalid { problems: vec![Problem::new(file, &text, place, String::new(), message, None)] }
}
