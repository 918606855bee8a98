//! TOML.

use std::collections::HashMap;

use serde::de::DeserializeOwned;
use toml::{
    Spanned,
    de::{DeTable, DeValue, Deserializer, Error},
};

use super::{MAX_DEPTH, Mistake, Place, Places, Position, Problem, syntax, too_deep};

pub(super) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, Mistake> {
    let position = |error: &Error| Some(position(text, error.span()?.start));
    let (table, errors) = DeTable::parse_recoverable(text);
    // The parser has a bound of its own.
    if let Some(error) = errors
        .iter()
        .find(|error| error.message().contains("recur"))
    {
        discard(table.into_inner());
        return Err(too_deep(position(error)));
    }
    if let Some(at) = too_deep_value(table.get_ref()) {
        discard(table.into_inner());
        return Err(too_deep(Some(self::position(text, at))));
    }
    if let Some(error) = errors.first() {
        return Err(syntax("TOML", error.message(), position(error)));
    }
    serde_path_to_error::deserialize(Deserializer::from(table)).map_err(|error| {
        let (path, error) = (error.path(), error.inner());
        problem(error.message()).mistake(path, position(error))
    })
}

/// Where a value is that is within too many arrays and tables.
fn too_deep_value(root: &DeTable<'_>) -> Option<usize> {
    let mut values: Vec<_> = root.values().map(|value| (value, 1)).collect();
    while let Some((value, depth)) = values.pop() {
        let children: Vec<_> = match value.get_ref() {
            DeValue::Array(array) => array.iter().collect(),
            DeValue::Table(table) => table.values().collect(),
            _ => continue,
        };
        if depth == MAX_DEPTH {
            return Some(value.span().start);
        }
        values.extend(children.into_iter().map(|child| (child, depth + 1)));
    }
    None
}

/// Drops a table that may be so deep that dropping it by recursion would overflow the stack.
fn discard(table: DeTable<'_>) {
    let mut values = vec![DeValue::Table(table)];
    while let Some(value) = values.pop() {
        match value {
            DeValue::Array(array) => values.extend(array.into_iter().map(Spanned::into_inner)),
            DeValue::Table(table) => {
                values.extend(table.into_iter().map(|(_, value)| value.into_inner()));
            }
            _ => {}
        }
    }
}

/// The problem of a message, which serde has made.
fn problem(message: &str) -> Problem<'_> {
    let (what, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    let found = what.strip_prefix("invalid type: ");
    if let Some(found) = found.or_else(|| what.strip_prefix("invalid value: ")) {
        return Problem::Value(found.to_owned(), expected);
    }
    // The parser's own words.
    if let Some((expected, found)) = message
        .strip_prefix("expected ")
        .and_then(|rest| rest.split_once(", found "))
    {
        return Problem::Value(format!("a {found}"), expected);
    }
    let known = || expected.split('`').skip(1).step_by(2).collect();
    match what.split_once(" `") {
        Some(("unknown field", name)) => Problem::UnknownField(name.trim_end_matches('`'), known()),
        Some(("unknown variant", name)) => {
            Problem::UnknownVariant(name.trim_end_matches('`'), known())
        }
        Some(("missing field", name)) => Problem::MissingField(name.trim_end_matches('`')),
        _ => Problem::Value("a value that is not valid".to_owned(), message),
    }
}

/// The places of all values.
pub(super) fn places(text: &str) -> Option<Places> {
    let table = DeTable::parse(text).ok()?;
    Some(places_in_table(0, table.get_ref()))
}

fn places_in_table(at: usize, table: &DeTable<'_>) -> Places {
    let fields = table.iter();
    let fields = fields.map(|(key, value)| (key.get_ref().to_string(), places_in(value)));
    Places {
        place: Place::Byte(at),
        fields: fields.collect(),
        elements: Vec::new(),
    }
}

fn places_in(value: &Spanned<DeValue<'_>>) -> Places {
    let at = value.span().start;
    let elements = match value.get_ref() {
        DeValue::Table(table) => return places_in_table(at, table),
        DeValue::Array(array) => array.iter().map(places_in).collect(),
        _ => Vec::new(),
    };
    Places {
        place: Place::Byte(at),
        fields: HashMap::new(),
        elements,
    }
}

/// The line and the column of a byte of the text.
pub(super) fn position(text: &str, at: usize) -> Position {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    Position {
        line: before.matches('\n').count() + 1,
        column: line.chars().count() + 1,
    }
}
