//! The files of a folder of families, and whether each is called by the name of its family and no two are.

use std::io;
use std::path::{Path, PathBuf};

use crate::check::is_name;
use crate::node::{MOST_FILE_BYTES, Node, Place, Value};
use crate::problem::{FamilyError, Problem};

/// A family file as it was read.
pub(crate) struct Source {
    /// As messages call it.
    pub(crate) file: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn read(path: &Path) -> Result<Self, FamilyError> {
        let unreadable = |source| FamilyError::Unreadable { path: path.to_owned(), source };
        let bytes = std::fs::read(path).map_err(unreadable)?;
        let file = path.display().to_string();
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self { file, text }),
            Err(error) => Err(not_utf8(&file, &error)),
        }
    }

    /// The other family files of a file's folder. One that cannot be read says nothing of this one.
    pub(crate) fn beside(path: &Path) -> Vec<Self> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let others = family_files(folder).unwrap_or_default().into_iter().filter(|other| other != path);
        let small = |path: &PathBuf| path.metadata().is_ok_and(|about| about.len() <= MOST_FILE_BYTES as u64);
        others.filter(small).filter_map(|other| Self::read(&other).ok()).collect()
    }

    pub(crate) fn named(&self) -> Option<NamedFile<'_>> {
        NamedFile::of(&self.file, &self.text)
    }
}

/// The files of a folder that hold families, in the order of their names.
pub(crate) fn family_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    // The folder of a bare file name.
    let listed = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(listed)? {
        let path = folder.join(entry?.file_name());
        if is_of_a_family(&path) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_of_a_family(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "yaml" || end == "yml")
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

/// A file, and the name that its family has by it.
pub(crate) struct NamedFile<'a> {
    file: &'a str,
    text: &'a str,
    /// What the file is called, without folder and ending.
    stem: &'a str,
    name: String,
    place: Place,
}

impl<'a> NamedFile<'a> {
    /// None where no name can be compared: a text that is no family (its own mistakes are told), or in a file that a
    /// folder of families would not hold.
    pub(crate) fn of(file: &'a str, text: &'a str) -> Option<Self> {
        let path = Path::new(file);
        let stem = path.file_stem()?.to_str().filter(|_| is_of_a_family(path))?;
        let root = Node::parse(text).ok()?;
        let (_, value) = root.entry("name")?;
        let Value::Text(name) = &value.value else { return None };
        // Other programs' files have a name as well.
        root.entry("description")?;
        Some(Self { file, text, stem, name: name.clone(), place: value.place }).filter(|_| is_name(name))
    }

    fn is_misnamed(&self) -> bool {
        self.stem != self.name
    }

    /// What is wrong with this name beside those of the other files. Of two files with one name, the one that is called
    /// by it is in order.
    fn mistake(&self, others: &[Self]) -> Option<Problem> {
        let same = others.iter().filter(|other| other.file != self.file && other.name == self.name);
        let taken = same.clone().find(|other| self.is_misnamed() || !other.is_misnamed());
        let can_be_the_name = is_name(self.stem) && others.iter().all(|other| other.name != self.stem);
        let write = format!("write `name: {}`", self.stem);
        let (message, help) = match taken {
            Some(other) => {
                let message = format!("`{}` is the name of the family in {} too", self.name, other.file);
                let other_name = match (self.is_misnamed(), can_be_the_name) {
                    (false, _) => "leave one of the two files out".to_owned(),
                    (true, true) => format!("{write}, as this file is called"),
                    (true, false) => "give this one another name, and its file the same".to_owned(),
                };
                (message, other_name)
            }
            None if self.is_misnamed() => {
                let rename = format!("rename the file to {}.yaml", self.name);
                let help = if can_be_the_name { format!("{write}, or {rename}") } else { rename };
                (format!("`{}` is not what the file is called", self.name), help)
            }
            None => return None,
        };
        Some(Problem::new(self.file, self.text, self.place, "name".to_owned(), message, Some(help)))
    }
}

/// The mistakes in the names of a folder's files.
pub(crate) fn mistakes_of_all(files: &[NamedFile<'_>]) -> Vec<Problem> {
    files.iter().filter_map(|file| file.mistake(files)).collect()
}

/// Those of them that have to do with one file: its own, and that another has its name.
pub(crate) fn mistakes_of_one<'a>(own: NamedFile<'a>, mut others: Vec<NamedFile<'a>>) -> Vec<Problem> {
    let (file, name) = (own.file, own.name.clone());
    others.push(own);
    let of_it = |other: &&NamedFile<'_>| other.file == file || other.name == name;
    others.iter().filter(of_it).filter_map(|other| other.mistake(&others)).collect()
}
