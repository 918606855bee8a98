//! JSON: each value is a part of the text, by which its position is known.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{
    MAX_DEPTH,
    node::{Entry, Misfit, Node, Value},
    syntax, too_deep,
};

pub(super) fn read(text: &str) -> Result<Node, Misfit> {
    let whitespace = [' ', '\t', '\n', '\r'];
    node(text, text.trim_matches(whitespace), 0)
}

/// The value of a part of the text, within `depth` arrays and tables.
fn node(text: &str, part: &str, depth: usize) -> Result<Node, Misfit> {
    let at = part.as_ptr().addr() - text.as_ptr().addr();
    let child = |raw: &RawValue| node(text, raw.get(), depth + 1);
    let value = match part.as_bytes().first() {
        Some(b'[' | b'{') if depth == MAX_DEPTH => return Err(too_deep(at)),
        Some(b'[') => {
            let nodes: Vec<&RawValue> = parse(text, part, at)?;
            Value::Array(nodes.into_iter().map(child).collect::<Result<_, _>>()?)
        }
        Some(b'{') => {
            let Fields(fields) = parse(text, part, at)?;
            let entries = fields.into_iter().map(|(key, value)| {
                let key_at = key.get().as_ptr().addr() - text.as_ptr().addr();
                Ok(Entry {
                    key: parse(text, key.get(), key_at)?,
                    key_at,
                    node: child(value)?,
                })
            });
            Value::Table(entries.collect::<Result<_, _>>()?)
        }
        _ => match parse(text, part, at)? {
            serde_json::Value::Bool(bool) => Value::Bool(bool),
            serde_json::Value::String(text) => Value::Text(text),
            serde_json::Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(unsigned), _) => Value::Unsigned(unsigned),
                (_, Some(signed)) => Value::Signed(signed),
                _ => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            _ => Value::Null,
        },
    };
    Ok(Node { value, at })
}

fn parse<'a, T: Deserialize<'a>>(text: &str, part: &'a str, at: usize) -> Result<T, Misfit> {
    serde_json::from_str(part).map_err(|error| {
        // Its position is within the part.
        let lines = part.split_inclusive('\n').map(str::len);
        let before: usize = lines.take(error.line().saturating_sub(1)).sum();
        let at = at + before + error.column().saturating_sub(1);
        syntax(&error.to_string(), "JSON", at.min(text.len()))
    })
}

/// The keys and values of a table, in their order.
struct Fields<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Fields(fields))
    }
}
