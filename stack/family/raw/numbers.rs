//! Numbers of an architecture as published configuration files write them, and what is missing or at odds among them.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

/// One number for every level, or one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PerLevel {
    /// The same everywhere.
    Same(u32),
    /// One per level.
    Each(Vec<u32>),
}

impl PerLevel {
    /// One for each of `levels`.
    pub(crate) fn each(&self, levels: usize) -> Vec<u32> {
        match self {
            Self::Same(number) => vec![*number; levels],
            Self::Each(numbers) => numbers.clone(),
        }
    }
}

struct PerLevelVisitor;

impl<'de> Visitor<'de> for PerLevelVisitor {
    type Value = PerLevel;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number or a list of them")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<PerLevel, E> {
        u32::try_from(number).map(PerLevel::Same).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<PerLevel, A::Error> {
        let mut numbers = Vec::new();
        while let Some(number) = items.next_element::<u32>()? {
            numbers.push(number);
        }
        Ok(PerLevel::Each(numbers))
    }
}

impl<'de> Deserialize<'de> for PerLevel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PerLevelVisitor)
    }
}

impl JsonSchema for PerLevel {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PerLevel".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "array", "items": { "type": "integer", "minimum": 0 } }],
        })
    }
}

/// A field that may say that there is none: `null` is an answer, and to leave it out is not.
pub(crate) fn stated<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<u32>>, D::Error> {
    Option::<u32>::deserialize(deserializer).map(Some)
}

/// Something wrong with the numbers of one architecture.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// The field it is about; the architecture as a whole where it is not there.
    pub(crate) field: &'static str,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
    /// Whether the field is not there.
    pub(crate) is_missing: bool,
}

/// What is wrong with the numbers of one architecture.
#[derive(Debug, Default)]
pub(crate) struct Mistakes(pub(crate) Vec<Mistake>);

impl Mistakes {
    /// The number, which no rule gives where it is left out. `published` says what others have.
    pub(crate) fn needed<T: Clone + Default>(&mut self, field: &'static str, value: &Option<T>, published: &str) -> T {
        value.clone().unwrap_or_else(|| {
            self.missing(field, published.to_owned());
            T::default()
        })
    }

    pub(crate) fn missing(&mut self, field: &'static str, help: String) {
        self.0.push(Mistake { field, message: format!("`{field}` is missing"), help: Some(help), is_missing: true });
    }

    pub(crate) fn wrong(&mut self, field: &'static str, message: String) {
        self.0.push(Mistake { field, message, help: None, is_missing: false });
    }

    /// The one value of several names for the same thing, of which all that are given must agree.
    pub(crate) fn agreed<T: Clone + PartialEq>(&mut self, names: &[(&'static str, &Option<T>)]) -> Option<T> {
        let mut given = names.iter().filter_map(|(field, value)| Some((*field, value.as_ref()?)));
        let (first, value) = given.next()?;
        for (field, _) in given.filter(|(_, other)| *other != value) {
            self.wrong(field, format!("another number than `{first}`, and both are one: there is no program for two"));
        }
        Some(value.clone())
    }
}
