//! From the text of a file to trees of values, each with its position.
//!
//! Scalars keep their text: the value of a descriptor's entry is `1.10`, not the number.

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};

use super::mistake::{Position, quoted};

/// The largest file, in bytes.
pub(super) const MAX_BYTES: usize = 4 << 20;

/// The most lists and maps that a value is within, once aliases are replaced by what they stand for.
pub(super) const MAX_DEPTH: usize = 64;

/// The most values of a file, keys among them, once aliases are replaced.
const MAX_VALUES: usize = 1 << 20;

/// The most bytes of texts of a file, once aliases are replaced.
const MAX_TEXT_BYTES: usize = 2 * MAX_BYTES;

/// A value and where it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) position: Position,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    /// In the order of the text.
    Map(Vec<Entry>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scalar {
    pub(super) text: String,
    /// Without quotes: its text may stand for a number, a boolean or null.
    pub(super) is_plain: bool,
}

/// A key of a map and its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) key: Scalar,
    pub(super) position: Position,
    pub(super) node: Node,
}

/// What a plain scalar stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Plain {
    Null,
    Bool(bool),
    Unsigned(u64),
    Negative(i64),
    Float(f64),
}

/// An error of syntax, or a bound that is exceeded.
pub(super) type SyntaxError = (Option<Position>, String);

impl Scalar {
    /// What the text stands for if it is not a string, by the rules of YAML 1.1, which the reference server has.
    pub(super) fn plain(&self) -> Option<Plain> {
        if !self.is_plain {
            return None;
        }
        Some(match &*self.text {
            "" | "~" | "null" | "Null" | "NULL" => Plain::Null,
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
                Plain::Bool(true)
            }
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off"
            | "OFF" => Plain::Bool(false),
            ".nan" | ".NaN" | ".NAN" => Plain::Float(f64::NAN),
            ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Plain::Float(f64::INFINITY),
            "-.inf" | "-.Inf" | "-.INF" => Plain::Float(f64::NEG_INFINITY),
            text => return number(text),
        })
    }
}

impl Node {
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.plain() == Some(Plain::Null))
    }

    /// What it is, for a mistake.
    pub(super) fn describe(&self) -> String {
        match &self.value {
            Value::Scalar(_) if self.is_null() => "nothing".to_owned(),
            Value::Scalar(scalar) => quoted(&scalar.text),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }
}

/// The number that a text stands for: decimal, `0x`, `0b`, `0o` or `0`, with `_` between digits; or a decimal fraction.
fn number(text: &str) -> Option<Plain> {
    let (is_negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if !rest.starts_with(|char: char| char.is_ascii_digit() || char == '.') {
        return None;
    }
    let digits = rest.replace('_', "");
    let (digits, radix) = match digits.get(..2) {
        Some("0x") => (digits.get(2..)?, 16),
        Some("0b") => (digits.get(2..)?, 2),
        Some("0o") => (digits.get(2..)?, 8),
        Some(_) if digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            (&*digits, 8)
        }
        _ => (&*digits, 10),
    };
    if let (Ok(number), true) = (
        u64::from_str_radix(digits, radix),
        digits.starts_with(|char: char| char.is_ascii_alphanumeric()),
    ) {
        return if is_negative {
            Some(Plain::Negative(0i64.checked_sub_unsigned(number)?))
        } else {
            Some(Plain::Unsigned(number))
        };
    }
    let is_decimal = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    let float: f64 = digits.parse().ok().filter(|_| is_decimal)?;
    Some(Plain::Float(if is_negative { -float } else { float }))
}

/// Parses the documents of a file's text, without those that are empty.
pub(super) fn parse(text: &str) -> Result<Vec<Node>, SyntaxError> {
    if text.len() > MAX_BYTES {
        return Err((None, too_large()));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder::default();
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| {
            let message = format!("invalid YAML: {}", error.info());
            (Some(position(error.marker())), message)
        })?;
        builder
            .add(event, span)
            .map_err(|(position, message)| (Some(position), message))?;
    }
    builder.documents.retain(|document| !document.is_null());
    Ok(builder.documents)
}

/// The message for a file that is too large.
pub(super) fn too_large() -> String {
    format!("the file is too large; expected at most {MAX_BYTES} bytes")
}

fn position(marker: &Marker) -> Position {
    Position {
        line: marker.line(),
        column: marker.col() + 1,
    }
}

/// Builds trees of the parser's events.
#[derive(Default)]
struct Builder {
    documents: Vec<Node>,
    /// The lists and maps that have begun, the innermost last.
    open: Vec<Open>,
    anchors: HashMap<usize, Anchored>,
    size: Size,
}

/// A list or map that has begun.
struct Open {
    content: Content,
    position: Position,
    anchor: usize,
    /// The size of all that was before it.
    size_before: Size,
    /// The most lists and maps within each other in it, itself included.
    height: usize,
}

enum Content {
    List(Vec<Node>),
    Map {
        entries: Vec<Entry>,
        /// The key whose value comes next.
        key: Option<(Scalar, Position)>,
    },
}

/// What an alias stands for.
struct Anchored {
    node: Node,
    size: Size,
    height: usize,
}

/// A number of values and of bytes of their texts.
#[derive(Clone, Copy, Default)]
struct Size {
    values: usize,
    bytes: usize,
}

impl Builder {
    /// Adds an event. An error has its position.
    fn add(&mut self, event: Event<'_>, span: Span) -> Result<(), (Position, String)> {
        let position = position(&span.start);
        if let Event::SequenceEnd | Event::MappingEnd = event {
            return self.end(position);
        }
        let added = self.begin(event, position);
        added.map_err(|message| (position, message))
    }

    /// Ends the innermost list or map.
    fn end(&mut self, position: Position) -> Result<(), (Position, String)> {
        let Some(open) = self.open.pop() else {
            return Err((position, "an end without a beginning".to_owned()));
        };
        let value = match open.content {
            Content::List(nodes) => Value::List(nodes),
            Content::Map { entries, .. } => Value::Map(merged(entries)?),
        };
        let node = Node {
            value,
            position: open.position,
        };
        let closed = self.close(node, open.anchor, open.size_before, open.height);
        closed.map_err(|message| (open.position, message))
    }

    fn begin(&mut self, event: Event<'_>, position: Position) -> Result<(), String> {
        match event {
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => {
                // An alias stands for a value of its own document.
                self.anchors.clear();
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let size_before = self.size;
                self.size.grow(Size {
                    values: 1,
                    bytes: text.len(),
                })?;
                let is_string = has_string_tag(tag.as_deref())?;
                let scalar = Scalar {
                    text: text.into_owned(),
                    is_plain: style == ScalarStyle::Plain && !is_string,
                };
                let value = Value::Scalar(scalar);
                self.close(Node { value, position }, anchor, size_before, 0)
            }
            Event::SequenceStart(anchor, tag) => {
                has_string_tag(tag.as_deref())?;
                self.open(Content::List(Vec::new()), position, anchor)
            }
            Event::MappingStart(anchor, tag) => {
                has_string_tag(tag.as_deref())?;
                let entries = Vec::new();
                self.open(Content::Map { entries, key: None }, position, anchor)
            }
            Event::Alias(anchor) => {
                let Some(anchored) = self.anchors.get(&anchor) else {
                    return Err("an alias of a value that has not ended, or is in another document; expected an anchor before it".to_owned());
                };
                let (size, height) = (anchored.size, anchored.height);
                check_depth(self.open.len() + height)?;
                // Before it is copied.
                let size_before = self.size;
                self.size.grow(size)?;
                let node = anchored.node.clone();
                self.close(node, 0, size_before, height)
            }
        }
    }

    fn open(&mut self, content: Content, position: Position, anchor: usize) -> Result<(), String> {
        check_depth(self.open.len() + 1)?;
        let size_before = self.size;
        self.size.grow(Size {
            values: 1,
            bytes: 0,
        })?;
        self.open.push(Open {
            content,
            position,
            anchor,
            size_before,
            height: 1,
        });
        Ok(())
    }

    /// Puts a complete value where it belongs.
    fn close(
        &mut self,
        node: Node,
        anchor: usize,
        size_before: Size,
        height: usize,
    ) -> Result<(), String> {
        if anchor != 0 {
            let size = Size {
                values: self.size.values.saturating_sub(size_before.values),
                bytes: self.size.bytes.saturating_sub(size_before.bytes),
            };
            // A copy, which counts.
            self.size.grow(size)?;
            let node = node.clone();
            self.anchors.insert(anchor, Anchored { node, size, height });
        }
        let Some(open) = self.open.last_mut() else {
            self.documents.push(node);
            return Ok(());
        };
        open.height = open.height.max(height + 1);
        match &mut open.content {
            Content::List(nodes) => nodes.push(node),
            Content::Map { entries, key } => match key.take() {
                Some((key, position)) => entries.push(Entry {
                    key,
                    position,
                    node,
                }),
                None => {
                    let Value::Scalar(scalar) = node.value else {
                        return Err("a list or a map as key; expected a text".to_owned());
                    };
                    *key = Some((scalar, node.position));
                }
            },
        }
        Ok(())
    }
}

impl Size {
    fn grow(&mut self, by: Self) -> Result<(), String> {
        self.values = self.values.saturating_add(by.values);
        self.bytes = self.bytes.saturating_add(by.bytes);
        if self.values > MAX_VALUES || self.bytes > MAX_TEXT_BYTES {
            Err(format!(
                "too many values with aliases expanded; expected at most {MAX_VALUES} values and {MAX_TEXT_BYTES} bytes of text"
            ))
        } else {
            Ok(())
        }
    }
}

fn check_depth(depth: usize) -> Result<(), String> {
    if depth > MAX_DEPTH {
        Err(format!(
            "too many lists and maps within each other; expected at most {MAX_DEPTH} levels"
        ))
    } else {
        Ok(())
    }
}

/// Whether a tag makes a string of what would be a number. Other tags of values that JSON has change nothing.
fn has_string_tag(tag: Option<&Tag>) -> Result<bool, String> {
    let Some(tag) = tag else {
        return Ok(false);
    };
    match (tag.is_yaml_core_schema(), &*tag.suffix) {
        (true, "str") => Ok(true),
        (true, "bool" | "float" | "int" | "map" | "null" | "seq") => Ok(false),
        _ => Err(format!(
            "the tag {}; expected a value without a tag",
            quoted(&tag.to_string())
        )),
    }
}

/// The entries of a map with those of the maps that its key `<<` merges into it: its own come first, and win. An error has the
/// position of a key.
fn merged(mut entries: Vec<Entry>) -> Result<Vec<Entry>, (Position, String)> {
    let is_merge = |entry: &mut Entry| entry.key.is_plain && entry.key.text == "<<";
    let merges: Vec<Entry> = entries.extract_if(.., is_merge).collect();
    let mut keys = HashSet::new();
    for entry in &entries {
        if !keys.insert(entry.key.text.clone()) {
            let key = quoted(&entry.key.text);
            let message = format!("the key {key} for a second time; expected each key once");
            return Err((entry.position, message));
        }
    }
    for merge in merges {
        let maps = match merge.node.value {
            Value::List(maps) => maps,
            _ => vec![merge.node],
        };
        for map in maps {
            let Value::Map(inherited) = map.value else {
                let message = "the key << of no map; expected a map or a list of maps";
                return Err((merge.position, message.to_owned()));
            };
            let inherited = inherited.into_iter();
            entries.extend(inherited.filter(|entry| keys.insert(entry.key.text.clone())));
        }
    }
    Ok(entries)
}
