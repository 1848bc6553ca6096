//! From what a file says to a family: every name is looked up, every number tried, every mistake noted.

mod cases;
mod devices;
mod models;
mod scenario;
mod weights_file;

use std::path::Path;

use crate::family::{CalibrationSpec, Family};
use crate::findings::{Findings, Step, at};
use crate::node::{Key, Node, Value};
use crate::parse::Recordings;
use crate::problem::{nearest, suggestion};
use crate::raw::{RawFamily, RawModel, Section};
use crate::reader::Tried;

use cases::CaseChecker;

/// The names that a section declares.
pub(crate) struct Declared<'a> {
    pub(crate) names: Vec<&'a str>,
    /// Whether all of the section could be read. Otherwise a name that is not here may be in the rest of it, and that
    /// it is not known is no mistake of its own.
    pub(crate) is_whole: bool,
}

/// The way out where a family has only models of which the size alone is known.
const NOTHING_TO_CALIBRATE: &str = "no model has an `architecture`, and only such a model can be calibrated: describe one of them, or \
     add another that has one, such as the VAE";

/// What is looked up while a file is checked.
#[derive(Clone, Copy)]
pub(crate) struct Checker<'a> {
    pub(crate) root: &'a Node,
    pub(crate) findings: &'a Findings<'a>,
    pub(crate) recordings: Recordings<'a>,
    /// The folder of the file, which its own paths start from; none for a text that is in no file.
    pub(crate) folder: Option<&'a Path>,
}

impl<'a> Checker<'a> {
    pub(crate) fn wrong(&self, path: &[Step<'_>], message: impl Into<String>, help: Option<String>) {
        self.findings.add_at(self.root, path, message, help);
    }

    /// Whether a key of the file, noted as unknown, was probably meant to be this section.
    fn is_misspelt(&self, section: &str) -> bool {
        is_misspelt_in(self.root, section)
    }

    /// The same for a field of an item of a section.
    fn is_misspelt_in_item(&self, section: &str, index: usize, field: &str) -> bool {
        self.items(section).and_then(|items| items.get(index)).is_some_and(|item| is_misspelt_in(item, field))
    }

    /// The same for a field of a model's architecture.
    fn is_misspelt_in_architecture(&self, index: usize, field: &str) -> bool {
        let item = self.items("models").and_then(|items| items.get(index));
        item.and_then(|item| item.entry("architecture")).is_some_and(|(_, node)| is_misspelt_in(node, field))
    }

    /// What a model's architecture says.
    fn architecture_entries(&self, index: usize) -> &'a [(Key, Node)] {
        let item = self.items("models").and_then(|items| items.get(index));
        match item.and_then(|item| item.entry("architecture")) {
            Some((_, Node { value: Value::Map(entries), .. })) => entries,
            _ => &[],
        }
    }

    /// The line that a way ends on.
    pub(crate) fn line_of(&self, path: &[Step<'_>]) -> usize {
        crate::findings::place_of(self.root, path).line
    }

    /// The texts under `field` in every item of a section, those of items with mistakes too: what may be named.
    pub(crate) fn declared(&self, section: &str, field: &str) -> Declared<'a> {
        let Some(items) = self.items(section) else { return self.nothing_declared(section) };
        let texts = items.iter().filter_map(|item| match item.entry(field) {
            Some((_, Node { value: Value::Text(text), .. })) => Some(text.as_str()),
            _ => None,
        });
        let names: Vec<&str> = texts.collect();
        let is_whole = names.len() == items.len();
        Declared { names, is_whole }
    }

    /// The names of the items of a section that could be read, where the names do not stand in the file as they are.
    pub(crate) fn declared_as<'n>(&self, section: &str, names: Vec<&'n str>) -> Declared<'n> {
        let is_whole = match self.items(section) {
            Some(items) => names.len() == items.len(),
            None => self.nothing_declared(section).is_whole,
        };
        Declared { names, is_whole }
    }

    fn items(&self, section: &str) -> Option<&'a [Node]> {
        match self.root.entry(section) {
            Some((_, Node { value: Value::List(items), .. })) => Some(items),
            _ => None,
        }
    }

    /// What is declared by a section that is no list: nothing if it is not there, and nobody knows what otherwise.
    fn nothing_declared(&self, section: &str) -> Declared<'a> {
        let is_whole = self.root.entry(section).is_none() && !self.is_misspelt(section);
        Declared { names: Vec::new(), is_whole }
    }

    /// Notes a name that nothing has.
    pub(crate) fn known(&self, path: &[Step<'_>], kind: &str, name: &str, declared: &Declared<'_>) -> bool {
        let is_known = declared.names.contains(&name);
        if !is_known && declared.is_whole {
            let message = format!("there is no {kind} `{name}` in this family");
            self.wrong(path, message, suggestion(name, &declared.names));
        }
        is_known
    }

    /// Notes a name that something earlier has.
    fn unique(&self, path: &[Step<'_>], kind: &str, name: &str, earlier: impl IntoIterator<Item = &'a str>) {
        if earlier.into_iter().any(|other| other == name) {
            self.wrong(path, format!("a second {kind} is named `{name}`"), None);
        }
    }
}

fn is_misspelt_in(node: &Node, field: &str) -> bool {
    let Value::Map(entries) = &node.value else { return false };
    node.entry(field).is_none() && entries.iter().any(|(key, _)| nearest(&key.name, [field]).is_some())
}

/// Checks everything; the result is a family if nothing was noted.
pub(crate) fn family(raw: RawFamily, checker: Checker<'_>) -> Family {
    if !is_name(&raw.name) {
        let help = Some("write lower case letters, digits and dashes".to_owned());
        checker.wrong(at!["name"], format!("`{}` is no name of a family", raw.name), help);
    }
    if raw.description.trim().is_empty() {
        checker.wrong(at!["description"], "the description is empty", None);
    }
    not_empty(&checker, &raw);
    let models = models::models(&checker, raw.models);
    let cases = CaseChecker::new(checker, &models);
    let pipeline = cases.pipeline(raw.pipeline);
    let calibration = CalibrationSpec { lines: cases.calibration(raw.calibration) };
    let devices = devices::devices(&checker, raw.devices);
    let checks = devices::checks(&checker, &cases, raw.checks.unwrap_or_default(), &devices);
    let regressions = present(raw.regressions)
        .filter_map(|(index, raw)| scenario::scenario(&checker, index, raw))
        .collect::<Vec<_>>();
    let scenarios = checker.declared("regressions", "name").names;
    for (index, name) in scenarios.iter().enumerate() {
        let earlier = scenarios.iter().copied().take(index);
        checker.unique(at!["regressions", index, "name"], "scenario", name, earlier);
    }
    let (name, description) = (raw.name, raw.description);
    Family { name, description, models, pipeline, calibration, devices, checks, regressions }
}

/// The items of a section that could be read, with their numbers.
pub(crate) fn present<T>(section: Section<T>) -> impl Iterator<Item = (usize, T)> {
    let items = section.0.unwrap_or_default();
    items.into_iter().enumerate().filter_map(|(index, Tried(item))| Some((index, item?)))
}

/// Whether a name can stand in a trial's name, in a file name and on a command line.
pub(crate) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !name.is_empty() && name.bytes().all(|byte| plain(byte) || byte == b'-') && name.bytes().next().is_some_and(plain)
}

fn not_empty(checker: &Checker<'_>, raw: &RawFamily) {
    let is_empty = |section: &str| match checker.root.entry(section) {
        Some((_, Node { value: Value::List(items), .. })) => items.is_empty(),
        Some(_) => false,
        None => true,
    };
    let needed = ["pipeline", "calibration", "devices"];
    if is_empty("models") && !checker.is_misspelt("models") {
        if is_empty("regressions") && !checker.is_misspelt("regressions") {
            checker.wrong(
                &[],
                format!("`{}` has neither models nor regressions: nothing could be checked", raw.name),
                None,
            );
        }
        for section in needed.into_iter().filter(|section| !is_empty(section)) {
            checker.wrong(at![section], format!("a family without models has no {section}"), None);
        }
        return;
    }
    let read = |model: &RawModel| model.architecture.is_none() && model.weights.is_some();
    let models = raw.models.0.iter().flatten();
    let sizes_alone =
        models.clone().count() > 0 && models.map(|Tried(model)| model).all(|model| model.as_ref().is_some_and(read));
    for section in needed.into_iter().filter(|section| is_empty(section) && !checker.is_misspelt(section)) {
        let cannot_be_filled = section == "calibration" && sizes_alone;
        let help = cannot_be_filled.then(|| NOTHING_TO_CALIBRATE.to_owned());
        checker.wrong(at![section], format!("`{section}` is missing: a family with models needs it"), help);
    }
}
