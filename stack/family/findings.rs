//! The mistakes of one file, gathered while it is read and then while it is checked.

use std::cell::RefCell;
use std::fmt::Write;

use crate::node::{Node, Place, Value};
use crate::problem::Problem;

/// A step on the way from a file's root to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

impl<'a> From<&'a str> for Step<'a> {
    fn from(name: &'a str) -> Self {
        Self::Key(name)
    }
}

impl From<usize> for Step<'_> {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// The way to a value: `at!["calibration", 0, "sizes", 2]`.
macro_rules! at {
    [$($step:expr),* $(,)?] => { &[$($crate::findings::Step::from($step)),*][..] };
}
pub(crate) use at;

/// Writes a way as people read it: `calibration[0].sizes[2]`.
pub(crate) fn field_name(path: &[Step<'_>]) -> String {
    let mut name = String::new();
    for step in path {
        let written = match step {
            Step::Key(key) if name.is_empty() => write!(name, "{key}"),
            Step::Key(key) => write!(name, ".{key}"),
            Step::Index(index) => write!(name, "[{index}]"),
        };
        written.expect("writing to a String does not fail");
    }
    name
}

/// Gathers the mistakes of one file.
pub(crate) struct Findings<'t> {
    file: &'t str,
    text: &'t str,
    problems: RefCell<Vec<Problem>>,
}

impl<'t> Findings<'t> {
    pub(crate) const fn new(file: &'t str, text: &'t str) -> Self {
        Self { file, text, problems: RefCell::new(Vec::new()) }
    }

    /// Notes a mistake at a place.
    pub(crate) fn add(&self, place: Place, field: String, message: impl Into<String>, help: Option<String>) {
        let problem = Problem::new(self.file, self.text, place, field, message.into(), help);
        self.problems.borrow_mut().push(problem);
    }

    /// Notes a mistake at the end of a way through the tree.
    pub(crate) fn add_at(&self, root: &Node, path: &[Step<'_>], message: impl Into<String>, help: Option<String>) {
        self.add(place_of(root, path), field_name(path), message, help);
    }

    /// Whether nothing was wrong so far.
    pub(crate) fn is_empty(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    /// Whether something was wrong in a field or below it, named as people read it.
    pub(crate) fn any_within(&self, field: &str) -> bool {
        self.problems.borrow().iter().any(|problem| {
            let rest = problem.field.strip_prefix(field);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }

    /// Everything that was wrong, in the order of the file.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| (problem.line, problem.column));
        problems.dedup();
        problems
    }
}

/// The place of the value a way ends at: its own where it is one line, its key's where it is a list or a
/// mapping, and as far as the way goes where there is no such value.
pub(crate) fn place_of(root: &Node, path: &[Step<'_>]) -> Place {
    let (mut node, mut place) = (root, root.place);
    for step in path {
        match (step, &node.value) {
            (Step::Key(name), Value::Map(_)) => match node.entry(name) {
                Some((key, value)) => {
                    let block = matches!(value.value, Value::Map(_) | Value::List(_) | Value::Null);
                    (node, place) = (value, if block { key.place } else { value.place });
                }
                None => return place,
            },
            (Step::Index(index), Value::List(items)) => match items.get(*index) {
                Some(item) => (node, place) = (item, first_place(item)),
                None => return place,
            },
            _ => return place,
        }
    }
    place
}

/// An item of a list that is a mapping is pointed at by its first key.
fn first_place(item: &Node) -> Place {
    match &item.value {
        Value::Map(entries) => entries.first().map_or(item.place, |(key, _)| key.place),
        _ => item.place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_ends_at_the_value_or_as_far_as_it_goes() {
        let root = Node::parse("a: 1\nb:\n  - c: x\n    d: [1, 2]\n").unwrap();
        let cases: [(&[Step<'_>], &str, (usize, usize)); 5] = [
            (at!["a"], "a", (1, 4)),
            (at!["b"], "b", (2, 1)),
            (at!["b", 0, "c"], "b[0].c", (3, 8)),
            (at!["b", 0, "d", 1], "b[0].d[1]", (4, 12)),
            (at!["b", 0, "e"], "b[0].e", (3, 5)),
        ];
        for (path, name, place) in cases {
            let found = place_of(&root, path);
            assert_eq!((field_name(path).as_str(), (found.line, found.column)), (name, place));
        }
    }
}
