//! The values of a document's text, with their positions, and the deserializer of them: one for all formats, so that each reads
//! the same types in the same way and has the same mistakes.

use std::{collections::HashSet, fmt, iter::Enumerate, slice};

use serde::{
    Deserializer,
    de::{
        self, DeserializeSeed, Error as _, Expected, IntoDeserializer, MapAccess, SeqAccess,
        Unexpected, Visitor, value::MapAccessDeserializer,
    },
    forward_to_deserialize_any,
};

use crate::config::{
    names::edits,
    path::{Path, Segment},
    secret::SECRET,
};

/// A value, and the byte of the text at which it begins.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) at: usize,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    #[cfg_attr(
        not(any(feature = "config-json", feature = "config-yaml")),
        allow(dead_code, reason = "TOML has none")
    )]
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    /// A date or time of TOML, which no field takes.
    Date,
    Array(Vec<Node>),
    /// The entries in the order of the text.
    Table(Vec<Entry>),
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_at: usize,
    pub(super) node: Node,
}

impl Node {
    /// The byte at which the value at a path begins, or what would contain it.
    pub(super) fn nearest(&self, path: &Path) -> usize {
        let mut nearest = self;
        for segment in path.segments() {
            let child = match (segment, &nearest.value) {
                (Segment::Key(key), Value::Table(entries)) => {
                    let entry = entries.iter().find(|entry| entry.key == *key);
                    entry.map(|entry| &entry.node)
                }
                (Segment::Index(index), Value::Array(nodes)) => nodes.get(*index),
                _ => None,
            };
            let Some(child) = child else { break };
            nearest = child;
        }
        nearest.at
    }

    /// What kind of value it is.
    fn form(&self) -> &'static str {
        match &self.value {
            Value::Null => "nothing",
            Value::Bool(true) => "true",
            Value::Bool(false) => "false",
            Value::Unsigned(_) | Value::Signed(_) | Value::Float(_) => "a number",
            Value::Text(_) => "text",
            Value::Date => "a date",
            Value::Array(_) => "an array",
            Value::Table(_) => "a table",
        }
    }

    fn unexpected(&self) -> Unexpected<'_> {
        match &self.value {
            Value::Unsigned(number) => Unexpected::Unsigned(*number),
            Value::Signed(number) => Unexpected::Signed(*number),
            Value::Float(number) => Unexpected::Float(*number),
            Value::Text(text) => Unexpected::Str(text),
            _ => Unexpected::Other(self.form()),
        }
    }
}

/// A mistake in a text, such as a value that is not what a field takes.
#[derive(Debug)]
pub(super) struct Misfit {
    pub(super) path: Path,
    /// The byte at which the value begins and its form, or those of what would contain it, once they are known.
    value: Option<(usize, &'static str)>,
    /// Whether the mistake is in the last key of the path.
    is_key: bool,
    pub(super) found: String,
    pub(super) expected: String,
}

impl Misfit {
    pub(super) fn new(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            path: Path::default(),
            value: None,
            is_key: false,
            found: found.into(),
            expected: expected.into(),
        }
    }

    /// The byte of the text at which it is.
    pub(super) fn at(&self) -> usize {
        self.value.map_or(0, |(at, _)| at)
    }

    /// The misfit of the text at a byte.
    pub(super) fn at_byte(mut self, at: usize) -> Self {
        self.value = Some((at, "text"));
        self
    }

    /// The misfit in a value, unless it is known to be in one within.
    pub(super) fn of(mut self, node: &Node) -> Self {
        self.value.get_or_insert((node.at, node.form()));
        self
    }

    /// The misfit in the key of an entry.
    fn of_key(mut self, entry: &Entry) -> Self {
        self.value = Some((entry.key_at, "a table"));
        self.is_key = true;
        self.within(Segment::Key(entry.key.clone()))
    }

    /// The misfit, in a value within that of `segment`.
    fn within(mut self, segment: Segment) -> Self {
        self.path.prepend(segment);
        self
    }

    /// The misfit of a secret: without values, and without keys that a secret doesn't have, which may be the secret.
    fn without_values(mut self) -> Self {
        if self.is_key {
            self.path.pop();
            self.is_key = false;
            self.found = "a table with an unknown field".to_owned();
        } else if let Some((_, form)) = self.value {
            self.found = form.to_owned();
        }
        self
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "found {}; expected {}", self.found, self.expected)
    }
}

impl std::error::Error for Misfit {}

impl de::Error for Misfit {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new("a value that is not valid", message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = expected.to_string();
        let expected = match &*expected {
            "a boolean" => "true or false",
            "a string" => "text",
            "a sequence" => "an array",
            "a map" => "a table",
            "u8" | "u32" | "u64" | "usize" => "a whole number",
            expected => expected,
        };
        Self::new(describe(found), expected)
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn invalid_length(length: usize, expected: &dyn Expected) -> Self {
        Self::new(format!("{length} values"), expected.to_string())
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::new(format!("{variant:?}"), one_of_variants(expected))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let list = expected.join(", ");
        let near = expected.iter().map(|name| (edits(field, name), name)).min();
        let expected = match near {
            Some((_, name)) if expected.len() == 1 => (*name).to_owned(),
            Some((0..=2, near)) => format!("{near}, or another of {list}"),
            _ => format!("one of {list}"),
        };
        Self::new("an unknown field", expected)
    }

    fn missing_field(field: &'static str) -> Self {
        let missing = Self::new("nothing", format!("{field}, which is required"));
        missing.within(Segment::Key(field.to_owned()))
    }
}

fn one_of_variants(names: &[&str]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
    match &*names {
        [one] => one.clone(),
        several => format!("one of {}", several.join(", ")),
    }
}

fn describe(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Str(text) => format!("{text:?}"),
        Unexpected::Bool(bool) => bool.to_string(),
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Signed(number) => number.to_string(),
        Unexpected::Float(number) => format!("{number:?}"),
        Unexpected::Unit | Unexpected::Option => "nothing".to_owned(),
        Unexpected::Seq => "an array".to_owned(),
        Unexpected::Map => "a table".to_owned(),
        Unexpected::Other(text) => text.to_owned(),
        other => other.to_string(),
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Misfit;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(bool) => visitor.visit_bool(*bool),
            Value::Unsigned(number) => visitor.visit_u64(*number),
            Value::Signed(number) => visitor.visit_i64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Text(text) => visitor.visit_str(text),
            Value::Date => Err(Misfit::invalid_type(self.unexpected(), &visitor)),
            Value::Array(nodes) => visitor.visit_seq(Elements(nodes.iter().enumerate())),
            Value::Table(entries) => visitor.visit_map(Fields::of(entries)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match &self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        let value = visitor.visit_newtype_struct(self);
        match name {
            SECRET => value.map_err(|misfit| misfit.of(self).without_values()),
            _ => value,
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        match &self.value {
            Value::Table(_) => self.deserialize_any(visitor),
            // A value in place of a table may be a secret of one of its fields.
            _ => Err(Misfit::new(self.form(), "a table")),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        match &self.value {
            Value::Text(text) => visitor.visit_enum(text.as_str().into_deserializer()),
            Value::Table(entries) if entries.len() == 1 => {
                visitor.visit_enum(MapAccessDeserializer::new(Fields::of(entries)))
            }
            _ => Err(Misfit::invalid_type(
                self.unexpected(),
                &&*one_of_variants(variants),
            )),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

struct Elements<'de>(Enumerate<slice::Iter<'de, Node>>);

impl<'de> SeqAccess<'de> for Elements<'de> {
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Misfit> {
        let Some((index, node)) = self.0.next() else {
            return Ok(None);
        };
        let element = seed.deserialize(node).map(Some);
        element.map_err(|misfit| misfit.of(node).within(Segment::Index(index)))
    }
}

struct Fields<'de> {
    entries: slice::Iter<'de, Entry>,
    /// The entry whose key was read last.
    last: Option<&'de Entry>,
    keys: HashSet<&'de str>,
}

impl<'de> Fields<'de> {
    fn of(entries: &'de [Entry]) -> Self {
        Self {
            entries: entries.iter(),
            last: None,
            keys: HashSet::new(),
        }
    }
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Misfit;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Misfit> {
        let Some(entry) = self.entries.next() else {
            return Ok(None);
        };
        self.last = Some(entry);
        if !self.keys.insert(&entry.key) {
            return Err(Misfit::new("it a second time", "each key once").of_key(entry));
        }
        let key = seed.deserialize(entry.key.as_str().into_deserializer());
        key.map(Some).map_err(|misfit: Misfit| misfit.of_key(entry))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Misfit> {
        let entry = self.last.take().ok_or_else(|| Misfit::custom("a key"))?;
        let value = seed.deserialize(&entry.node);
        value.map_err(|misfit| {
            let misfit = misfit.of(&entry.node);
            misfit.within(Segment::Key(entry.key.clone()))
        })
    }
}
