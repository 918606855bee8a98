//! A deserializer of trees, whose errors have the path of the value.

use std::fmt;

use serde::{
    Deserializer,
    de::{
        self, DeserializeSeed, EnumAccess, Error as _, Expected, IntoDeserializer, MapAccess,
        SeqAccess, Unexpected, VariantAccess, Visitor, value::MapAccessDeserializer,
    },
    forward_to_deserialize_any,
};

use super::{Entry, Node, Path, Value, path::Segment};
use crate::config::{names::edits, secret::SECRET};

/// A value that is not what a field takes.
#[derive(Debug)]
pub(crate) struct ReadError {
    pub(super) path: Path,
    pub(super) found: String,
    pub(super) expected: String,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Value,
    UnknownField,
    /// A field of the table at the path.
    MissingField(&'static str),
}

impl ReadError {
    fn new(found: impl Into<String>, expected: impl Into<String>, kind: Kind) -> Self {
        Self {
            path: Path::default(),
            found: found.into(),
            expected: expected.into(),
            kind,
        }
    }

    /// The error, of a value within that of `segment`.
    fn within(mut self, segment: Segment) -> Self {
        self.path.prepend(segment);
        self
    }

    /// The error of a secret: without values, and without names of fields that a secret doesn't have, which may be the secret.
    fn without_values_of(mut self, secret: &Node) -> Self {
        match self.kind {
            Kind::Value => {
                let node = secret.get(self.path.segments());
                self.found = node.map_or("nothing", Node::form).to_owned();
            }
            Kind::UnknownField => {
                self.path = self.path.parent().unwrap_or_default();
                self.found = "a table with an unknown field".to_owned();
                self.kind = Kind::Value;
            }
            Kind::MissingField(_) => {}
        }
        self
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "found {}; expected {}", self.found, self.expected)
    }
}

impl std::error::Error for ReadError {}

impl de::Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(
            "a value that is not valid",
            message.to_string(),
            Kind::Value,
        )
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
        Self::new(describe(found), expected, Kind::Value)
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn invalid_length(length: usize, expected: &dyn Expected) -> Self {
        Self::new(
            format!("{length} values"),
            expected.to_string(),
            Kind::Value,
        )
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let expected = match expected {
            [] => "nothing".to_owned(),
            [one] => format!("{one:?}"),
            several => one_of(several, |name| format!("{name:?}")),
        };
        Self::new(format!("{variant:?}"), expected, Kind::Value)
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let near = expected.iter().map(|name| (edits(field, name), name)).min();
        let expected = match near {
            Some((0..=2, near)) => format!("{near}, or another field"),
            _ => one_of(expected, |name| (*name).to_owned()),
        };
        Self::new("an unknown field", expected, Kind::UnknownField)
    }

    fn missing_field(field: &'static str) -> Self {
        let expected = format!("{field}, which is required");
        Self::new("nothing", expected, Kind::MissingField(field))
    }
}

fn one_of(names: &[&str], show: impl Fn(&&str) -> String) -> String {
    let names: Vec<_> = names.iter().map(show).collect();
    format!("one of {}", names.join(", "))
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

impl Node {
    /// What kind of value it is.
    fn form(&self) -> &'static str {
        match &self.value {
            Value::Null => "nothing",
            Value::Bool(true) => "true",
            Value::Bool(false) => "false",
            Value::Unsigned(_) | Value::Signed(_) | Value::Float(_) => "a number",
            Value::String(_) => "text",
            Value::Date => "a date",
            Value::Array(_) => "an array",
            Value::Table(_) => "a table",
            Value::Removed => "a mistake",
        }
    }

    fn unexpected(&self) -> Unexpected<'_> {
        match &self.value {
            Value::Null => Unexpected::Unit,
            Value::Bool(bool) => Unexpected::Bool(*bool),
            Value::Unsigned(number) => Unexpected::Unsigned(*number),
            Value::Signed(number) => Unexpected::Signed(*number),
            Value::Float(number) => Unexpected::Float(*number),
            Value::String(text) => Unexpected::Str(text),
            Value::Date => Unexpected::Other("a date"),
            Value::Array(_) => Unexpected::Seq,
            Value::Table(_) => Unexpected::Map,
            Value::Removed => Unexpected::Other("a mistake"),
        }
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(bool) => visitor.visit_bool(*bool),
            Value::Unsigned(number) => visitor.visit_u64(*number),
            Value::Signed(number) => visitor.visit_i64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::String(text) => visitor.visit_str(text),
            Value::Date | Value::Removed => {
                Err(ReadError::invalid_type(self.unexpected(), &visitor))
            }
            Value::Array(nodes) => visitor.visit_seq(Elements { nodes, next: 0 }),
            Value::Table(entries) => visitor.visit_map(Fields {
                entries,
                value: None,
            }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let value = visitor.visit_newtype_struct(self);
        match name {
            SECRET => value.map_err(|error| error.without_values_of(self)),
            _ => value,
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match &self.value {
            Value::Table(_) => self.deserialize_any(visitor),
            // A value in place of a table may be a secret of one of its fields.
            _ => Err(ReadError::new(self.form(), "a table", Kind::Value)),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match &self.value {
            Value::String(text) => visitor.visit_enum(Variant(text)),
            Value::Table(entries) if entries.len() == 1 => {
                let fields = Fields {
                    entries,
                    value: None,
                };
                visitor.visit_enum(MapAccessDeserializer::new(fields))
            }
            _ => {
                let expected = one_of(variants, |name| format!("{name:?}"));
                Err(ReadError::invalid_type(
                    self.unexpected(),
                    &expected.as_str(),
                ))
            }
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// A variant without fields.
struct Variant<'de>(&'de str);

impl<'de> EnumAccess<'de> for Variant<'de> {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), ReadError> {
        let name = seed.deserialize(self.0.into_deserializer())?;
        Ok((name, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'de> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(
        self,
        _seed: T,
    ) -> Result<T::Value, ReadError> {
        Err(ReadError::invalid_type(Unexpected::Str(self.0), &"a table"))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        Err(ReadError::invalid_type(Unexpected::Str(self.0), &visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        Err(ReadError::invalid_type(Unexpected::Str(self.0), &visitor))
    }
}

struct Elements<'de> {
    nodes: &'de [Node],
    next: usize,
}

impl<'de> SeqAccess<'de> for Elements<'de> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ReadError> {
        while let Some(node) = self.nodes.get(self.next) {
            let index = self.next;
            self.next += 1;
            if node.value != Value::Removed {
                let element = seed.deserialize(node);
                return element
                    .map(Some)
                    .map_err(|error| error.within(Segment::Index(index)));
            }
        }
        Ok(None)
    }
}

struct Fields<'de> {
    entries: &'de [Entry],
    value: Option<&'de Entry>,
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ReadError> {
        while let Some((entry, rest)) = self.entries.split_first() {
            self.entries = rest;
            if entry.node.value != Value::Removed {
                self.value = Some(entry);
                let key = seed.deserialize(entry.key.as_str().into_deserializer());
                return key
                    .map(Some)
                    .map_err(|error: ReadError| error.within(Segment::Key(entry.key.clone())));
            }
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        let entry = self
            .value
            .take()
            .ok_or_else(|| ReadError::custom("a key"))?;
        let value = seed.deserialize(&entry.node);
        value.map_err(|error| error.within(Segment::Key(entry.key.clone())))
    }
}
