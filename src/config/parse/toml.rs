//! TOML.

use ::toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    MAX_DEPTH, integer,
    node::{Entry, Misfit, Node, Value},
    syntax, too_deep,
};

pub(super) fn read(text: &str) -> Result<Node, Misfit> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let span = table.span();
    let root = Spanned::new(span, DeValue::Table(table.into_inner()));
    // A table of dotted keys may be so deep, also one with errors, that neither may be dropped by recursion.
    let node = node(&root, 0);
    let mut values = vec![root.into_inner()];
    while let Some(value) = values.pop() {
        match value {
            DeValue::Array(array) => values.extend(array.into_iter().map(Spanned::into_inner)),
            DeValue::Table(table) => {
                values.extend(table.into_iter().map(|(_, value)| value.into_inner()));
            }
            _ => {}
        }
    }
    let node = node?;
    match errors.first() {
        None => Ok(node),
        Some(error) => {
            let at = error.span().map_or(0, |span| span.start);
            Err(syntax(error.message(), "TOML", at))
        }
    }
}

/// A value within `depth` arrays and tables.
fn node(spanned: &Spanned<DeValue<'_>>, depth: usize) -> Result<Node, Misfit> {
    let at = spanned.span().start;
    let value = spanned.get_ref();
    if depth == MAX_DEPTH && (value.is_array() || value.is_table()) {
        return Err(too_deep(at));
    }
    let value = match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => {
            let float = || Value::Float(number.as_str().parse().unwrap_or(f64::INFINITY));
            integer(number.as_str(), number.radix()).unwrap_or_else(float)
        }
        DeValue::Float(float) => Value::Float(float.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(bool) => Value::Bool(*bool),
        DeValue::Datetime(_) => Value::Date,
        DeValue::Array(nodes) => {
            let nodes = nodes.iter().map(|value| node(value, depth + 1));
            Value::Array(nodes.collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => {
            let entries = table.iter().map(|(key, value)| {
                Ok(Entry {
                    key: key.get_ref().to_string(),
                    key_at: key.span().start,
                    node: node(value, depth + 1)?,
                })
            });
            let mut entries = entries.collect::<Result<Vec<_>, Misfit>>()?;
            entries.sort_by_key(|entry| entry.key_at);
            Value::Table(entries)
        }
    };
    Ok(Node { value, at })
}
