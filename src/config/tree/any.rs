//! From a format without positions, YAML or JSON, to a tree.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::{
    Entry, Node, Path, Value,
    bounds::{Bounds, Exceeded},
    path::Segment,
};
use crate::config::error::{MAX_MISTAKES, Mistake};

/// The tree, or the keys that its tables have twice.
pub(super) fn without_duplicates(mut node: Node) -> Result<Node, Vec<Mistake>> {
    let mut mistakes = Vec::new();
    if node.value == Value::Null {
        // An empty text of YAML, as of TOML, is an empty table.
        node.value = Value::Table(Vec::new());
    }
    find_duplicates(&node, &mut Path::default(), &mut mistakes);
    if mistakes.is_empty() {
        Ok(node)
    } else {
        Err(mistakes)
    }
}

fn find_duplicates(node: &Node, path: &mut Path, mistakes: &mut Vec<Mistake>) {
    match &node.value {
        Value::Table(entries) => {
            let mut keys = std::collections::HashSet::new();
            for entry in entries {
                path.push(Segment::Key(entry.key.clone()));
                if !keys.insert(&entry.key) && mistakes.len() < MAX_MISTAKES {
                    mistakes.push(Mistake::new(&path, "it a second time", "each key once"));
                }
                find_duplicates(&entry.node, path, mistakes);
                path.pop();
            }
        }
        Value::Array(nodes) => {
            for (index, node) in nodes.iter().enumerate() {
                path.push(Segment::Index(index));
                find_duplicates(node, path, mistakes);
                path.pop();
            }
        }
        _ => {}
    }
}

/// Reads a value at a level of arrays and tables.
#[derive(Clone, Copy)]
pub(super) struct NodeSeed<'a> {
    bounds: &'a Bounds,
    level: usize,
}

impl<'a> NodeSeed<'a> {
    pub(super) fn new(bounds: &'a Bounds) -> Self {
        Self { bounds, level: 0 }
    }

    fn within<E: serde::de::Error>(self) -> Result<Self, E> {
        let level = self.bounds.level_within(self.level);
        let level = level.map_err(stopped)?;
        Ok(Self { level, ..self })
    }
}

/// Ends the reading. The bounds have the mistake.
fn stopped<E: serde::de::Error>(_: Exceeded) -> E {
    E::custom("a bound is exceeded")
}

impl<'de> DeserializeSeed<'de> for NodeSeed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        self.bounds.count_value().map_err(stopped)?;
        let value = deserializer.deserialize_any(self)?;
        Ok(Node::new(value, None))
    }
}

/// A key of a table: YAML's may be numbers.
fn key_text<E: serde::de::Error>(node: Node) -> Result<String, E> {
    match node.value {
        Value::String(text) => Ok(text),
        Value::Bool(bool) => Ok(bool.to_string()),
        Value::Unsigned(number) => Ok(number.to_string()),
        Value::Signed(number) => Ok(number.to_string()),
        _ => Err(E::custom("a key that is no text")),
    }
}

impl<'de> Visitor<'de> for NodeSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value without a tag")
    }

    fn visit_bool<E>(self, bool: bool) -> Result<Value, E> {
        Ok(Value::Bool(bool))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Unsigned(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(u64::try_from(number).map_or(Value::Signed(number), Value::Unsigned))
    }

    // A number beyond 64 bits, which no field takes. The visitor's error would show it, and it may be a secret.
    fn visit_u128<E>(self, number: u128) -> Result<Value, E> {
        Ok(Value::Float(number as f64))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Value, E> {
        Ok(Value::Float(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        self.bounds.count_bytes(text.len()).map_err(stopped)?;
        Ok(Value::String(text.to_owned()))
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let element = self.within()?;
        let mut nodes = Vec::new();
        while let Some(node) = seq.next_element_seed(element)? {
            nodes.push(node);
        }
        Ok(Value::Array(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let element = self.within()?;
        let mut entries = Vec::new();
        while let Some(key) = map.next_key_seed(element)? {
            let key =
                key_text(key).map_err(|error: serde::de::value::Error| A::Error::custom(error))?;
            let node = map.next_value_seed(element)?;
            entries.push(Entry {
                key,
                key_position: None,
                node,
            });
        }
        Ok(Value::Table(entries))
    }
}
