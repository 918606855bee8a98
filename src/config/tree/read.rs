//! From a tree to a value, with all mistakes.

use serde::de::DeserializeOwned;

use super::{
    Node, Path, Value,
    de::{Kind, ReadError},
};
use crate::config::error::{MAX_MISTAKES, Mistake};

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
