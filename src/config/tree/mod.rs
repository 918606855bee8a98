//! The values of a document's text, in their order, with their positions.
//!
//! A document is parsed into a tree, and deserialized from it: so each mistake has its path and position, and the others are
//! found after the first.

use std::collections::HashMap;

use serde::de::DeserializeOwned;

use self::{
    de::{Kind, ReadError},
    path::{Path, Segment},
};
use super::error::{MAX_MISTAKES, Mistake, Position};

#[cfg(any(feature = "config-json", feature = "config-yaml"))]
mod any;
mod bounds;
mod de;
mod parse;
pub(crate) mod path;
mod toml;
#[cfg(feature = "config-yaml")]
mod yaml;

pub(crate) use self::parse::parse;

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

/// Deserializes a tree. After a mistake its value is removed and the rest is read again, so that all mistakes are found. The
/// value is that of the rest.
pub(crate) fn read<T: DeserializeOwned>(mut root: Node) -> (Option<T>, Vec<Mistake>) {
    let mut mistakes = Vec::new();
    loop {
        match T::deserialize(&root) {
            Ok(value) => return (Some(value), mistakes),
            Err(error) => {
                let removed = error.path.clone();
                mistakes.extend(mistake(error, &root));
                let done = mistakes.len() >= MAX_MISTAKES;
                match root.get_mut(removed.segments()) {
                    // The root itself can't be removed.
                    Some(node) if !removed.segments().is_empty() && !done => {
                        node.value = Value::Removed;
                    }
                    _ => return (None, mistakes),
                }
            }
        }
    }
}

/// The mistake of an error, unless it follows from another one.
fn mistake(error: ReadError, root: &Node) -> Option<Mistake> {
    let ReadError {
        path,
        found,
        expected,
        kind,
    } = error;
    let node = root.get(path.segments());
    let position = node.and_then(|node| node.position);
    match kind {
        Kind::Value => Some(Mistake::new(&path, found, expected).at(position)),
        Kind::UnknownField => {
            let key_position = key_position(root, &path);
            Some(Mistake::new(&path, found, expected).at(key_position.or(position)))
        }
        Kind::MissingField(field) => {
            let removed = matches!(
                node.and_then(|node| node.get(Path::default().key(field).segments())),
                Some(Node {
                    value: Value::Removed,
                    ..
                })
            );
            (!removed).then(|| Mistake::new(path.key(field), "nothing", expected).at(position))
        }
    }
}

fn key_position(root: &Node, path: &Path) -> Option<crate::config::error::Position> {
    let parent = path.parent()?;
    let Value::Table(entries) = &root.get(parent.segments())?.value else {
        return None;
    };
    let mut entries = entries.iter();
    let entry = entries.find(|entry| parent.key(&entry.key) == *path)?;
    entry.key_position
}
