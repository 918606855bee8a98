//! The values of a document's text, in their order, with their positions.
//!
//! A document is parsed into a tree, and deserialized from it: so each mistake has its path and position, and the others are
//! found after the first.

use std::collections::HashMap;

use super::error::Position;

#[cfg(any(feature = "config-json", feature = "config-yaml"))]
mod any;
mod bounds;
mod de;
mod parse;
pub(crate) mod path;
mod read;
mod toml;
#[cfg(feature = "config-yaml")]
mod yaml;

use self::path::{Path, Segment};
pub(crate) use self::{parse::parse, read::read};

/// A value and where it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) position: Option<Position>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    #[cfg_attr(
        not(any(feature = "config-json", feature = "config-yaml")),
        allow(dead_code, reason = "TOML has none")
    )]
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    String(String),
    /// A date or time of TOML, which no field takes.
    Date,
    Array(Vec<Node>),
    Table(Vec<Entry>),
    /// Was a mistake, which is already known.
    Removed,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) key_position: Option<Position>,
    pub(crate) node: Node,
}

impl Node {
    pub(crate) fn new(value: Value, position: Option<Position>) -> Self {
        Self { value, position }
    }

    /// The value at a path.
    fn get(&self, path: &[Segment]) -> Option<&Self> {
        let Some((first, rest)) = path.split_first() else {
            return Some(self);
        };
        let child = match (first, &self.value) {
            (Segment::Key(key), Value::Table(entries)) => {
                let mut entries = entries.iter();
                entries
                    .find(|entry| entry.key == *key)
                    .map(|entry| &entry.node)
            }
            (Segment::Index(index), Value::Array(nodes)) => nodes.get(*index),
            _ => None,
        };
        child?.get(rest)
    }

    fn get_mut(&mut self, path: &[Segment]) -> Option<&mut Self> {
        let Some((first, rest)) = path.split_first() else {
            return Some(self);
        };
        let child = match (first, &mut self.value) {
            (Segment::Key(key), Value::Table(entries)) => {
                let mut entries = entries.iter_mut();
                let found = entries.find(|entry| entry.key == *key);
                found.map(|entry| &mut entry.node)
            }
            (Segment::Index(index), Value::Array(nodes)) => nodes.get_mut(*index),
            _ => None,
        };
        child?.get_mut(rest)
    }
}

/// The positions of a tree's values.
#[derive(Default)]
pub(crate) struct Positions {
    position: Option<Position>,
    keys: HashMap<String, Self>,
    elements: Vec<Self>,
}

impl Positions {
    /// Those of a value and what it contains. Without a position of its own, there are none.
    pub(crate) fn of(node: &Node) -> Self {
        let mut positions = Self {
            position: node.position,
            ..Self::default()
        };
        match &node.value {
            _ if node.position.is_none() => {}
            Value::Table(entries) => {
                let of = |entry: &Entry| (entry.key.clone(), Self::of(&entry.node));
                positions.keys = entries.iter().map(of).collect();
            }
            Value::Array(nodes) => positions.elements = nodes.iter().map(Self::of).collect(),
            _ => {}
        }
        positions
    }

    /// The position of the value at a path, or of what would contain it.
    pub(crate) fn nearest(&self, path: &Path) -> Option<Position> {
        let mut nearest = self;
        for segment in path.segments() {
            let child = match segment {
                Segment::Key(key) => nearest.keys.get(key),
                Segment::Index(index) => nearest.elements.get(*index),
            };
            match child {
                Some(child) => nearest = child,
                None => break,
            }
        }
        nearest.position
    }
}
