//! From what a file says to a family: every name is looked up, every number tried, every mistake noted.

mod cases;
mod devices;
mod models;
mod scenario;

use crate::family::{CalibrationSpec, Family};
use crate::findings::{Findings, Step, at};
use crate::node::{Node, Value};
use crate::problem::{nearest, suggestion};
use crate::raw::{RawFamily, Section};
use crate::reader::Tried;

use cases::CaseChecker;

/// What is looked up while a file is checked.
#[derive(Clone, Copy)]
pub(crate) struct Checker<'a> {
    pub(crate) root: &'a Node,
    pub(crate) findings: &'a Findings<'a>,
}

impl<'a> Checker<'a> {
    pub(crate) fn wrong(&self, path: &[Step<'_>], message: impl Into<String>, help: Option<String>) {
        self.findings.add_at(self.root, path, message, help);
    }

    /// Whether a key of the file, noted as unknown, was probably meant to be this section.
    fn is_misspelt(&self, section: &str) -> bool {
        let Value::Map(entries) = &self.root.value else { return false };
        entries.iter().any(|(key, _)| key.name != section && nearest(&key.name, [section]).is_some())
    }

    /// The line that a way ends on.
    pub(crate) fn line_of(&self, path: &[Step<'_>]) -> usize {
        crate::findings::place_of(self.root, path).line
    }

    /// The texts under `field` in every item of a section, those of items with mistakes too: what may be named.
    pub(crate) fn declared(&self, section: &str, field: &str) -> Vec<&'a str> {
        let Some((_, Node { value: Value::List(items), .. })) = self.root.entry(section) else { return Vec::new() };
        let texts = items.iter().filter_map(|item| match item.entry(field) {
            Some((_, Node { value: Value::Text(text), .. })) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Notes a name that nothing has.
    pub(crate) fn known(&self, path: &[Step<'_>], kind: &str, name: &str, known: &[&str]) -> bool {
        let is_known = known.contains(&name);
        if !is_known {
            self.wrong(path, format!("there is no {kind} `{name}` in this family"), suggestion(name, known));
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

/// Checks everything; the result is a family if nothing was noted.
pub(crate) fn family(raw: RawFamily, root: &Node, findings: &Findings<'_>) -> Family {
    let checker = Checker { root, findings };
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
    for (index, name) in checker.declared("regressions", "name").iter().enumerate() {
        let earlier = checker.declared("regressions", "name").into_iter().take(index);
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
fn is_name(name: &str) -> bool {
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
    for section in needed.into_iter().filter(|section| is_empty(section) && !checker.is_misspelt(section)) {
        checker.wrong(at![section], format!("`{section}` is missing: a family with models needs it"), None);
    }
}
