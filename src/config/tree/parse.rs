//! From text to a tree.

use std::fmt;
use toml::{Spanned, de::DeTable, de::DeValue};

#[cfg(any(feature = "config-json", feature = "config-yaml"))]
use super::any::without_duplicates;
use super::{Entry, Node, Value};
use crate::config::{
    Format,
    error::{Mistake, Position},
};

/// The most errors of syntax that are reported: those after the first may follow from it.
const MAX_SYNTAX_ERRORS: usize = 5;

/// Parses text. Its mistakes are those of syntax, and keys that a table has twice.
pub(crate) fn parse(text: &str, format: Format) -> Result<Node, Vec<Mistake>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match format {
        Format::Toml => from_toml(text),
        #[cfg(feature = "config-yaml")]
        Format::Yaml => {
            let node = yaml_serde::from_str(text).map_err(|error| {
                let location = error.location();
                let position = location.map(|at| position(at.line(), at.column()));
                vec![syntax(&error, "YAML", position)]
            })?;
            without_duplicates(node)
        }
        #[cfg(feature = "config-json")]
        Format::Json => {
            let node = serde_json::from_str(text).map_err(|error| {
                let position = Some(position(error.line(), error.column().max(1)));
                vec![syntax(&error, "JSON", position)]
            })?;
            without_duplicates(node)
        }
    }
}

fn position(line: usize, column: usize) -> Position {
    Position { line, column }
}

/// An error of syntax. Its text does not repeat the line, which may hold a secret.
fn syntax(error: &dyn fmt::Display, language: &str, position: Option<Position>) -> Mistake {
    let error = error.to_string();
    // The position is in front of the message.
    let error = error.split(" at line ").next().unwrap_or_default();
    Mistake::new(
        "",
        format!("invalid syntax: {error}"),
        format!("valid {language}"),
    )
    .at(position)
}

fn from_toml(text: &str) -> Result<Node, Vec<Mistake>> {
    let lines = Lines::new(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let mut mistakes: Vec<Mistake> = Vec::new();
        for error in errors {
            let position = error.span().map(|span| lines.position(span.start));
            let line = |position: Option<Position>| position.map(|position| position.line);
            if mistakes
                .iter()
                .all(|known| line(known.position()) != line(position))
            {
                mistakes.push(syntax(&error.message(), "TOML", position));
            }
        }
        mistakes.truncate(MAX_SYNTAX_ERRORS);
        return Err(mistakes);
    }
    let span = table.span();
    let value = DeValue::Table(table.into_inner());
    Ok(lines.node(&Spanned::new(span, value)))
}

/// Where the lines of a text begin.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = [0].into_iter().chain(ends.map(|(at, _)| at + 1));
        Self {
            text,
            starts: starts.collect(),
        }
    }

    fn position(&self, offset: usize) -> Position {
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self
            .starts
            .get(line.saturating_sub(1))
            .copied()
            .unwrap_or(0);
        let before = self.text.get(start..offset).unwrap_or_default();
        position(line, before.chars().count() + 1)
    }

    fn node(&self, spanned: &Spanned<DeValue<'_>>) -> Node {
        let value = match spanned.get_ref() {
            DeValue::String(text) => Value::String(text.clone().into_owned()),
            DeValue::Integer(integer) => {
                let (text, radix) = (integer.as_str(), integer.radix());
                let unsigned = u64::from_str_radix(text, radix).map(Value::Unsigned);
                let signed = || i64::from_str_radix(text, radix).map(Value::Signed);
                let float = |_| Value::Float(text.parse().unwrap_or(f64::INFINITY));
                unsigned.or_else(|_| signed()).unwrap_or_else(float)
            }
            DeValue::Float(float) => Value::Float(float.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(bool) => Value::Bool(*bool),
            DeValue::Datetime(_) => Value::Date,
            DeValue::Array(nodes) => {
                Value::Array(nodes.iter().map(|node| self.node(node)).collect())
            }
            DeValue::Table(table) => {
                let mut entries: Vec<_> = table.iter().collect();
                entries.sort_by_key(|(key, _)| key.span().start);
                let entry = |(key, node): (&Spanned<_>, _)| Entry {
                    key: String::clone(&std::borrow::Cow::into_owned(Clone::clone(key.get_ref()))),
                    key_position: Some(self.position(key.span().start)),
                    node: self.node(node),
                };
                Value::Table(entries.into_iter().map(entry).collect())
            }
        };
        Node::new(value, Some(self.position(spanned.span().start)))
    }
}
