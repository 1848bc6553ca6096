//! A tree of nodes as a serde data format: wrong values and unknown fields are noted where they stand, and reading goes on.

use std::cell::RefCell;
use std::fmt;

use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::findings::Findings;
use crate::node::{Key, Node, Place, Value};
use crate::problem::{nearest, suggestion};
use crate::raw::published;

/// Why a value could not be taken. By the time it leaves a [`Reader`] it has been noted.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The findings have it.
    Noted,
    /// A field is not there.
    Missing(&'static str),
    /// Anything else.
    Because { message: String, help: Option<String> },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Noted => f.write_str("noted"),
            Self::Missing(field) => write!(f, "`{field}` is missing"),
            Self::Because { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for Refusal {}

impl de::Error for Refusal {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Because { message: message.to_string(), help: None }
    }

    fn invalid_type(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::Because { message: format!("expected {expected}, found {found}"), help: None }
    }

    fn invalid_value(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::Because { message: format!("{found} is not {expected}"), help: None }
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::Because { message: format!("`{variant}` is not known here"), help: suggestion(variant, expected) }
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing(field)
    }
}

/// A value that may be wrong without the rest of the file being lost: its mistakes are noted, and nothing is here.
#[derive(Debug)]
pub(crate) struct Tried<T>(pub(crate) Option<T>);

impl<'de, T: de::Deserialize<'de>> de::Deserialize<'de> for Tried<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(T::deserialize(deserializer).ok()))
    }
}

impl<T: schemars::JsonSchema> schemars::JsonSchema for Tried<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        generator.subschema_for::<T>()
    }
}

/// A node as a deserializer.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    node: &'a Node,
    place: Place,
    field: String,
    findings: &'a Findings<'a>,
    /// The word under `kind`, where that was read already: the mapping's other entries are those of this kind.
    kind: Option<&'a str>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(node: &'a Node, findings: &'a Findings<'a>) -> Self {
        Self { node, place: node.place, field: String::new(), findings, kind: None }
    }

    fn entry(&self, key: &'a Key, node: &'a Node) -> Self {
        let dot = if self.field.is_empty() { "" } else { "." };
        let field = format!("{}{dot}{}", self.field, key.name);
        let block = matches!(node.value, Value::Map(_) | Value::List(_) | Value::Null);
        let place = if block { key.place } else { node.place };
        Self { node, place, field, findings: self.findings, kind: None }
    }

    fn item(&self, index: usize, node: &'a Node) -> Self {
        let place = match &node.value {
            Value::Map(entries) => entries.first().map_or(node.place, |(key, _)| key.place),
            _ => node.place,
        };
        Self { node, place, field: format!("{}[{index}]", self.field), findings: self.findings, kind: None }
    }

    /// Notes a refusal that nobody noted yet, here.
    fn noted<T>(&self, result: Result<T, Refusal>) -> Result<T, Refusal> {
        result.map_err(|refusal| {
            match refusal {
                Refusal::Noted => {}
                Refusal::Missing(field) => {
                    self.findings.add(self.place, self.field.clone(), format!("`{field}` is missing"), None);
                }
                Refusal::Because { message, help } => {
                    self.findings.add(self.place, self.field.clone(), message, help);
                }
            }
            Refusal::Noted
        })
    }

    fn visit<V: Visitor<'a>>(&self, visitor: V) -> Result<V::Value, Refusal> {
        let result = match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Unsigned(value) => visitor.visit_u64(*value),
            Value::Signed(value) => visitor.visit_i64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(value) => visitor.visit_borrowed_str(value),
            Value::List(items) => visitor.visit_seq(Items { reader: self, items, next: 0 }),
            Value::Map(entries) => visitor.visit_map(Entries::new(self, entries, None)),
        };
        self.noted(result)
    }

    fn refuse<T>(&self, expected: &str) -> Result<T, Refusal> {
        let message = format!("expected {expected}, found {}", self.node.value.kind());
        self.noted(Err(Refusal::Because { message, help: None }))
    }
}

impl<'de> Deserializer<'de> for Reader<'de> {
    type Error = Refusal;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        self.visit(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match &self.node.value {
            Value::Text(_) => self.visit(visitor),
            Value::Unsigned(_) | Value::Signed(_) | Value::Float(_) | Value::Bool(_) => {
                let message = format!("expected a text, found {}", self.node.value.kind());
                self.noted(Err(Refusal::Because { message, help: Some("write it in quotes".to_owned()) }))
            }
            _ => self.refuse("a text"),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        if matches!(self.node.value, Value::List(_)) { self.visit(visitor) } else { self.refuse("a list") }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        if matches!(self.node.value, Value::Map(_)) { self.visit(visitor) } else { self.refuse("a mapping") }
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.node.value {
            Value::Unsigned(number) if u32::try_from(number).is_ok() => self.visit(visitor),
            _ => self.refuse("a whole number"),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        if matches!(self.node.value, Value::Bool(_)) { self.visit(visitor) } else { self.refuse("`true` or `false`") }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Refusal> {
        let here = self.clone();
        here.noted(visitor.visit_newtype_struct(self))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        let Value::Map(entries) = &self.node.value else { return self.refuse("a mapping") };
        let meant = RefCell::new(Vec::new());
        let result = visitor.visit_map(Entries::new(&self, entries, Some((fields, &meant))));
        match result {
            // The misspelt field was reported already; that its right spelling is missing is no second mistake.
            Err(Refusal::Missing(field)) if meant.borrow().contains(&field) => Err(Refusal::Noted),
            other => self.noted(other),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        match &self.node.value {
            Value::Text(name) => self.noted(visitor.visit_enum(name.as_str().into_deserializer())),
            Value::Map(_) => {
                let Some((key, tag)) = self.node.entry("kind") else {
                    let help = Some(format!("known kinds: {}", variants.join(", ")));
                    return self.noted(Err(Refusal::Because { message: "`kind` is missing".to_owned(), help }));
                };
                let name = self.entry(key, tag);
                let Value::Text(word) = &tag.value else { return name.refuse("a kind") };
                if !variants.contains(&word.as_str()) {
                    return name.noted(Err(de::Error::unknown_variant(word, variants)));
                }
                let here = self.clone();
                here.noted(visitor.visit_enum(Tagged { word, rest: Self { kind: Some(word), ..self } }))
            }
            _ => self.refuse(if variants.len() > 1 { "one of the known words" } else { "a word" }),
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u64 u128 f32 f64 char str bytes byte_buf
        unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

struct Items<'r, 'a> {
    reader: &'r Reader<'a>,
    items: &'a [Node],
    next: usize,
}

impl<'de> SeqAccess<'de> for Items<'_, 'de> {
    type Error = Refusal;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Refusal> {
        let Some(node) = self.items.get(self.next) else { return Ok(None) };
        let item = self.reader.item(self.next, node);
        self.next += 1;
        item.noted(seed.deserialize(item.clone())).map(Some)
    }
}

/// What a struct accepts, and which of its fields misspelt keys were taken to mean.
type Known<'r> = (&'static [&'static str], &'r RefCell<Vec<&'static str>>);

struct Entries<'r, 'a> {
    reader: &'r Reader<'a>,
    entries: &'a [(Key, Node)],
    next: usize,
    known: Option<Known<'r>>,
}

impl<'r, 'a> Entries<'r, 'a> {
    fn new(reader: &'r Reader<'a>, entries: &'a [(Key, Node)], known: Option<Known<'r>>) -> Self {
        Self { reader, entries, next: 0, known }
    }

    /// Whether the next entry is to be handed on; if not, it has been noted.
    fn is_wanted(&self, key: &'a Key) -> bool {
        let reader = self.reader;
        if let Some((first, _)) = self.entries[..self.next].iter().find(|(earlier, _)| earlier.name == key.name) {
            let message = format!("`{}` stands twice in one mapping", key.name);
            let help = Some(format!("it stands on line {} already", first.place.line));
            reader.findings.add(key.place, reader.field.clone(), message, help);
            return false;
        }
        if reader.kind.is_some() && key.name == "kind" {
            return false;
        }
        let Some((fields, meant)) = self.known else { return true };
        if fields.contains(&key.name.as_str()) {
            return true;
        }
        if self.is_published(key) {
            return false;
        }
        let unused = fields.iter().copied().filter(|field| !self.entries.iter().any(|(key, _)| key.name == *field));
        let near = nearest(&key.name, unused);
        if let Some(field) = near.and_then(|near| fields.iter().copied().find(|field| *field == near)) {
            meant.borrow_mut().push(field);
        }
        let help = near.map_or_else(|| suggestion(&key.name, fields), |near| Some(format!("did you mean `{near}`?")));
        let dot = if reader.field.is_empty() { "" } else { "." };
        let field = format!("{}{dot}{}", reader.field, key.name);
        reader.findings.add(key.place, field, format!("unknown field `{}`", key.name), help);
        false
    }

    /// Whether the next entry is one that published configurations have beside the numbers. A value of it for which there
    /// is no program is noted.
    fn is_published(&self, key: &'a Key) -> bool {
        let reader = self.reader;
        let answer = reader.kind.and_then(|kind| published::keys(kind).find(|(name, _)| *name == key.name));
        let Some((name, answer)) = answer else { return false };
        let (_, node) = &self.entries[self.next];
        if let Some(message) = answer.refusal(name, &node.value) {
            let here = reader.entry(key, node);
            reader.findings.add(here.place, here.field, message, Some(BY_SIZE.to_owned()));
        }
        true
    }
}

/// The way out where there is no program for a model.
const BY_SIZE: &str = "describe such a model by its size: `weights: { pieces: 40, bytes: 12GiB }`";

impl<'de> MapAccess<'de> for Entries<'_, 'de> {
    type Error = Refusal;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Refusal> {
        while let Some((key, _)) = self.entries.get(self.next) {
            if self.is_wanted(key) {
                return seed.deserialize(key.name.as_str().into_deserializer()).map(Some);
            }
            self.next += 1;
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Refusal> {
        let (key, node) = &self.entries[self.next];
        self.next += 1;
        let entry = self.reader.entry(key, node);
        entry.noted(seed.deserialize(entry.clone()))
    }
}

/// A mapping whose `kind` names the variant and whose other entries are the variant's fields.
struct Tagged<'a> {
    word: &'a str,
    rest: Reader<'a>,
}

impl<'de> EnumAccess<'de> for Tagged<'de> {
    type Error = Refusal;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), Refusal> {
        let word = seed.deserialize(self.word.into_deserializer())?;
        Ok((word, self))
    }
}

impl<'de> VariantAccess<'de> for Tagged<'de> {
    type Error = Refusal;

    fn unit_variant(self) -> Result<(), Refusal> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Refusal> {
        seed.deserialize(self.rest)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Refusal> {
        self.rest.visit(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Refusal> {
        self.rest.deserialize_struct("", fields, visitor)
    }
}
