//! From text to a tree.

use std::fmt;

#[cfg(any(feature = "config-json", feature = "config-yaml"))]
use serde::de::DeserializeSeed;
use toml::{Spanned, de::DeTable, de::DeValue};

#[cfg(any(feature = "config-json", feature = "config-yaml"))]
use super::any::{NodeSeed, without_duplicates};
use super::{
    Entry, Node, Value,
    bounds::{Bounds, Exceeded, MAX_EXPANDED},
};
use crate::config::{
    Format,
    error::{Mistake, Position},
};

/// The most errors of syntax that are reported: those after the first may follow from it.
const MAX_SYNTAX_ERRORS: usize = 5;

/// Parses text. Its mistakes are those of syntax, keys that a table has twice, and more than the [bounds](super::bounds).
pub(crate) fn parse(text: &str, format: Format) -> Result<Node, Vec<Mistake>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.len() > MAX_EXPANDED {
        return Err(vec![Exceeded::Size.mistake(None)]);
    }
    let bounds = Bounds::new();
    match format {
        Format::Toml => from_toml(text, &bounds),
        #[cfg(feature = "config-yaml")]
        Format::Yaml => {
            if let Some(position) = super::yaml::excess(text) {
                return Err(vec![Exceeded::Depth.mistake(Some(position))]);
            }
            let seed = NodeSeed::new(&bounds);
            let node = seed.deserialize(yaml_serde::Deserializer::from_str(text));
            let node = node.map_err(|error| {
                let location = error.location();
                let position = location.map(|at| position(at.line(), at.column()));
                vec![match bounds.exceeded() {
                    Some(exceeded) => exceeded.mistake(position),
                    None => syntax(&error, "YAML", position),
                }]
            })?;
            without_duplicates(node)
        }
        #[cfg(feature = "config-json")]
        Format::Json => {
            let mut json = serde_json::Deserializer::from_str(text);
            let node = NodeSeed::new(&bounds).deserialize(&mut json);
            let node = node.and_then(|node| json.end().map(|()| node));
            let node = node.map_err(|error| {
                let position = Some(position(error.line(), error.column().max(1)));
                vec![match bounds.exceeded() {
                    Some(exceeded) => exceeded.mistake(position),
                    None => syntax(&error, "JSON", position),
                }]
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

fn from_toml(text: &str, bounds: &Bounds) -> Result<Node, Vec<Mistake>> {
    let lines = Lines::new(text);
    if let Some(at) = super::toml::excess(text) {
        return Err(vec![Exceeded::Depth.mistake(Some(lines.position(at)))]);
    }
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
            if mistakes.len() == MAX_SYNTAX_ERRORS {
                break;
            }
        }
        return Err(mistakes);
    }
    let span = table.span();
    let value = DeValue::Table(table.into_inner());
    let node = lines.node(&Spanned::new(span, value), 0, bounds);
    node.map_err(|(exceeded, position)| vec![exceeded.mistake(Some(position))])
}

/// The bytes between two offsets at which [`Lines`] knows the number of characters.
const BLOCK_BYTES: usize = 64;

/// Where the lines of a text begin, and how many characters are before each block of it: a line may be the whole text.
struct Lines<'a> {
    text: &'a [u8],
    starts: Vec<usize>,
    chars_before: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        let text = text.as_bytes();
        let ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let starts = [0].into_iter().chain(ends.map(|(at, _)| at + 1));
        let mut before = 0;
        let chars_before = text.chunks(BLOCK_BYTES).map(|block| {
            let after = before + chars(block);
            std::mem::replace(&mut before, after)
        });
        Self {
            text,
            starts: starts.collect(),
            chars_before: chars_before.collect(),
        }
    }

    fn position(&self, offset: usize) -> Position {
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self.starts.get(line.saturating_sub(1));
        let before = self.chars_before(offset);
        let before_line = self.chars_before(start.copied().unwrap_or(0));
        position(line, before.saturating_sub(before_line) + 1)
    }

    /// How many characters begin before an offset.
    fn chars_before(&self, offset: usize) -> usize {
        let offset = offset.min(self.text.len());
        let block = offset / BLOCK_BYTES;
        let rest = self.text.get(block * BLOCK_BYTES..offset);
        let Some(before) = self.chars_before.get(block) else {
            // The end of a text of whole blocks.
            let last = self.text.chunks(BLOCK_BYTES).next_back();
            return self.chars_before.last().unwrap_or(&0) + last.map_or(0, chars);
        };
        before + rest.map_or(0, chars)
    }

    /// The value at a level of arrays and tables.
    fn node(
        &self,
        spanned: &Spanned<DeValue<'_>>,
        level: usize,
        bounds: &Bounds,
    ) -> Result<Node, (Exceeded, Position)> {
        let position = self.position(spanned.span().start);
        let within = || {
            let within = bounds.level_within(level);
            within.map_err(|exceeded| (exceeded, position))
        };
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
                let level = within()?;
                let nodes = nodes.iter().map(|node| self.node(node, level, bounds));
                Value::Array(nodes.collect::<Result<_, _>>()?)
            }
            DeValue::Table(table) => {
                let level = within()?;
                let mut entries: Vec<_> = table.iter().collect();
                entries.sort_by_key(|(key, _)| key.span().start);
                let entry = |(key, node): (&Spanned<_>, _)| {
                    Ok(Entry {
                        key: String::clone(&std::borrow::Cow::into_owned(Clone::clone(
                            key.get_ref(),
                        ))),
                        key_position: Some(self.position(key.span().start)),
                        node: self.node(node, level, bounds)?,
                    })
                };
                let entries = entries.into_iter().map(entry);
                Value::Table(entries.collect::<Result<_, _>>()?)
            }
        };
        Ok(Node::new(value, Some(position)))
    }
}

/// How many characters begin in a part of a text.
fn chars(bytes: &[u8]) -> usize {
    let begins = |byte: &&u8| **byte & 0xC0 != 0x80;
    bytes.iter().filter(begins).count()
}
