//! A YAML text as a tree in which every key and value knows where it stands.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_yaml::{DuplicateKeyPolicy, MergeKeyPolicy, Spanned};

/// The largest family file that is read. The largest shipped one is a tenth of it.
pub(crate) const MOST_FILE_BYTES: usize = 1 << 20;
const MOST_DEPTH: usize = 24;
const MOST_NODES: usize = 50_000;

/// Where something stands in a file, from 1; the column and length count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) length: usize,
}

impl Place {
    /// The first character of a file: where a problem stands that has no better place.
    pub(crate) const START: Self = Self { line: 1, column: 1, length: 1 };

    fn of(location: &serde_yaml::Location) -> Self {
        let at_least_one = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).max(1);
        Self {
            line: at_least_one(location.line()),
            column: at_least_one(location.column()),
            length: at_least_one(location.span().len()),
        }
    }
}

/// A value with its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) place: Place,
}

/// A key of a mapping with its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) place: Place,
}

/// What a node holds. Repeated keys are kept, so that they can be reported together with everything else.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

impl Value {
    /// What it is, for people.
    pub(crate) fn kind(&self) -> String {
        match self {
            Self::Null => "nothing".to_owned(),
            Self::Bool(value) => format!("`{value}`"),
            Self::Unsigned(value) => format!("the number `{value}`"),
            Self::Signed(value) => format!("the number `{value}`"),
            // With its point: `23.0` would be shown as the whole number that was expected.
            Self::Float(value) => format!("the number `{value:?}`"),
            Self::Text(value) => format!("the text `{}`", shortened(value)),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a mapping".to_owned(),
        }
    }
}

impl Value {
    /// A text or a mapping as messages quote it in a line.
    pub(crate) fn plain(&self) -> String {
        match self {
            Self::Text(value) => shortened(value),
            other => other.kind(),
        }
    }
}

/// A text as messages quote it: its first line, and no more of it than is needed to find it.
fn shortened(text: &str) -> String {
    const MOST_CHARACTERS: usize = 60;
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= MOST_CHARACTERS && line.len() == text.len() {
        return line.to_owned();
    }
    line.chars().take(MOST_CHARACTERS).chain(['…']).collect()
}

/// Why a text is no YAML, or more of it than is read.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) place: Place,
    pub(crate) message: String,
}

impl Node {
    /// Reads one document. Depth, size and aliases are bounded, whatever the text.
    pub(crate) fn parse(text: &str) -> Result<Self, Unreadable> {
        if text.len() > MOST_FILE_BYTES {
            let message = format!("the file has {} bytes; a family has at most {MOST_FILE_BYTES}", text.len());
            return Err(Unreadable { place: Place::START, message });
        }
        let mut options = serde_yaml::Options::default();
        options.duplicate_keys = DuplicateKeyPolicy::PassThrough;
        options.merge_keys = MergeKeyPolicy::Error;
        options.strict_booleans = true;
        options.with_snippet = false;
        if let Some(budget) = &mut options.budget {
            budget.max_depth = MOST_DEPTH;
            budget.flow_nesting_limit = MOST_DEPTH;
            budget.max_nodes = MOST_NODES;
            budget.max_events = 2 * MOST_NODES;
            budget.max_documents = 1;
        }
        serde_yaml::from_str_with_options::<Self>(text, options).map_err(|error| Unreadable {
            place: error.location().as_ref().map_or(Place::START, Place::of),
            message: plain_message(&error),
        })
    }

    /// The entry of a mapping, the first one where the key is repeated.
    pub(crate) fn entry(&self, name: &str) -> Option<&(Key, Self)> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(key, _)| key.name == name),
            _ => None,
        }
    }
}

/// The parser's message without the position, which is printed in one form for every problem.
fn plain_message(error: &serde_yaml::Error) -> String {
    match error.without_snippet() {
        serde_yaml::Error::AliasError { error, .. } => return plain_message(error),
        serde_yaml::Error::Budget { breach, .. } => return too_much(breach),
        serde_yaml::Error::MergeKeyNotAllowed { .. } => return "merge keys (`<<`) are not read".to_owned(),
        serde_yaml::Error::MultipleDocuments { .. } => {
            return "a file holds one family, not several documents".to_owned();
        }
        _ => {}
    }
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    let end = first.rfind(" at line ").or_else(|| first.rfind(" (line ")).unwrap_or(first.len());
    first[..end].trim_end_matches([':', ',', ' ']).to_owned()
}

fn too_much(breach: &serde_yaml::budget::BudgetBreach) -> String {
    use serde_yaml::budget::BudgetBreach;
    match breach {
        BudgetBreach::Depth { .. } => format!("more than {MOST_DEPTH} levels inside each other"),
        BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. } => {
            format!("more than {MOST_NODES} values, those that aliases repeat included")
        }
        BudgetBreach::Documents { .. } => "a file holds one family, not several documents".to_owned(),
        _ => "more of it than any family needs".to_owned(),
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { place: Place::of(&spanned.referenced), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(u64::try_from(value).map_or(Value::Signed(value), Value::Unsigned))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = items.next_element::<Node>()? {
            list.push(node);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            let place = Place::of(&key.referenced);
            map.push((Key { name: key.value, place }, entries.next_value::<Node>()?));
        }
        Ok(Value::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_and_value_knows_its_place() {
        let root = Node::parse("a: 1\nb:\n  - { c: x, c: y }\n").unwrap();
        let (key, list) = root.entry("b").unwrap();
        assert_eq!((key.place.line, key.place.column), (2, 1));
        let Value::List(items) = &list.value else { panic!("{list:?}") };
        let Value::Map(entries) = &items[0].value else { panic!("{items:?}") };
        let places: Vec<_> = entries.iter().map(|(key, value)| (key.place.column, value.place.column)).collect();
        assert_eq!(places, [(7, 10), (13, 16)]);
        assert_eq!(
            entries[1].1,
            Node { value: Value::Text("y".into()), place: Place { line: 3, column: 16, length: 1 } }
        );
    }

    #[test]
    fn depth_and_aliases_are_bounded() {
        let deep = format!("a: {}{}", "[".repeat(2_000), "]".repeat(2_000));
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let below = format!("*a{}, ", level - 1).repeat(10);
            bomb.push_str(&format!("a{level}: &a{level} [{below}]\n"));
        }
        for text in [deep, bomb, "x".repeat(MOST_FILE_BYTES + 1)] {
            assert!(Node::parse(&text).is_err());
        }
    }

    #[test]
    fn no_text_makes_it_panic() {
        for text in [
            "",
            "\t",
            "a:\n\tb: 1",
            "{",
            "[",
            "- a\nb",
            "a: *x",
            "? [a]: b",
            "--- a\n--- b",
            "\u{feff}a: 1",
            "\0",
            "<<: 1",
        ] {
            let _ = Node::parse(text);
        }
    }
}
