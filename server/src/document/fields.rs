//! Fields of a map, read with a mistake for each that is unknown or of the wrong type.

use super::{
    mistake::{Position, Report, quoted},
    yaml::{Entry, Node, Plain, Value},
};

/// The longest domain, key, value or name, in bytes.
const MAX_TEXT_BYTES: usize = 1_024;

/// The fields of a map.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    entries: &'a [Entry],
    /// Where the map is.
    pub(super) position: Position,
}

impl<'a> Fields<'a> {
    /// The fields of `node`. A mistake if it is no map (`what` says which one was expected); another for each key that is not `known`, or
    /// no text.
    pub(super) fn of(
        node: &'a Node,
        what: &str,
        known: &[&str],
        report: &mut Report,
    ) -> Option<Self> {
        let Value::Map(entries) = &node.value else {
            let found = node.describe();
            report.add(
                Some(node.position),
                format!("{found}; expected a map: {what}"),
            );
            return None;
        };
        for entry in entries {
            let (key, at) = (quoted(&entry.key.text), Some(entry.position));
            if entry.key.plain().is_some() {
                report.add(at, format!("the key {key} is no text; expected a text"));
            } else if !known.contains(&&*entry.key.text) {
                let known = known.join(", ");
                report.add(at, format!("unknown key {key}; expected one of {known}"));
            }
        }
        Some(Self {
            entries,
            position: node.position,
        })
    }

    /// The entry of a key whose value is not null.
    pub(super) fn entry(&self, key: &str) -> Option<&'a Entry> {
        let mut entries = self.entries.iter();
        entries.find(|entry| entry.key.text == key && !entry.node.is_null())
    }

    /// Where a key is, or the map if it has none.
    pub(super) fn position_of(&self, key: &str) -> Option<Position> {
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| entry.key.text == key);
        Some(entry.map_or(self.position, |entry| entry.position))
    }

    /// A scalar's text as it is written: that of numbers too.
    pub(super) fn text(&self, key: &str, report: &mut Report) -> Option<&'a str> {
        let entry = self.entry(key)?;
        text_of(&entry.node, key, report)
    }

    /// A boolean; false if there is none.
    pub(super) fn bool(&self, key: &str, report: &mut Report) -> bool {
        let Some(entry) = self.entry(key) else {
            return false;
        };
        if let Value::Scalar(scalar) = &entry.node.value
            && let Some(Plain::Bool(bool)) = scalar.plain()
        {
            return bool;
        }
        wrong(key, &entry.node, "true or false", report);
        false
    }

    /// The values of a list; empty if there is none.
    pub(super) fn list(&self, key: &str, report: &mut Report) -> &'a [Node] {
        let Some(entry) = self.entry(key) else {
            return &[];
        };
        match &entry.node.value {
            Value::List(nodes) => nodes,
            _ => {
                wrong(key, &entry.node, "a list", report);
                &[]
            }
        }
    }
}

/// The text of a scalar.
pub(super) fn text_of<'a>(node: &'a Node, key: &str, report: &mut Report) -> Option<&'a str> {
    match &node.value {
        Value::Scalar(scalar) if scalar.text.len() <= MAX_TEXT_BYTES => Some(&scalar.text),
        Value::Scalar(_) => {
            let expected = format!("at most {MAX_TEXT_BYTES} bytes");
            wrong(key, node, &expected, report);
            None
        }
        _ => {
            wrong(key, node, "a text", report);
            None
        }
    }
}

/// Reports a value that is not what its key needs.
pub(super) fn wrong(key: &str, node: &Node, expected: &str, report: &mut Report) {
    let found = node.describe();
    report.add(
        Some(node.position),
        format!("{key}: {found}; expected {expected}"),
    );
}
