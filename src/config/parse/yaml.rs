//! YAML 1.2. Tags but `!!str`, and merge keys, which YAML 1.2 does not have, are mistakes.
//!
//! The values are made of the parser's events rather than by recursion: a hostile text takes as little of a thread's stack as
//! another one, and its aliases are counted as they are expanded.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle, Tag, options};

use super::{
    MAX_DEPTH, MAX_EXPANDED, integer,
    node::{Entry, Misfit, Node, Value},
    syntax, too_deep, too_large,
};

/// The most values, with aliases expanded: the largest file without aliases has half as many.
const MAX_VALUES: usize = 1 << 20;

pub(super) fn read(text: &str) -> Result<Node, Misfit> {
    let options = options! {
        flow_nesting_limit: MAX_DEPTH,
        block_scalar_eof_without_line_feed: true,
        emit_comments: false,
    };
    let mut tree = Tree {
        root: None,
        open: Vec::new(),
        anchors: HashMap::new(),
        bounds: Bounds::default(),
    };
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| {
            let at = error.marker().byte_offset().unwrap_or(0);
            syntax(&error.kind().to_string(), "YAML", at)
        })?;
        tree.add_event(event, span.start.byte_offset().unwrap_or(0))?;
    }
    match tree.root {
        Some(root) if !matches!(root.value, Value::Null) => Ok(root),
        // An empty text of YAML, as of TOML, is an empty table.
        _ => Ok(Node {
            value: Value::Table(Vec::new()),
            at: 0,
        }),
    }
}

/// The values so far.
struct Tree {
    root: Option<Node>,
    /// The arrays and tables whose ends were not read.
    open: Vec<Open>,
    /// The values with anchors whose ends were read, by the anchors' numbers.
    anchors: HashMap<usize, Node>,
    bounds: Bounds,
}

struct Open {
    node: Node,
    anchor: Option<usize>,
    /// The key of a table whose value follows, and where it begins.
    key: Option<(String, usize)>,
}

impl Tree {
    fn add_event(&mut self, event: Event<'_>, at: usize) -> Result<(), Misfit> {
        let is_string = |tag: &Tag| tag.is_yaml_core_schema_tag("str");
        if !event.tag().is_none_or(is_string) {
            return Err(Misfit::new("a tag", "a value without a tag").at_byte(at));
        }
        let anchor = event.anchor_id();
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                Err(Misfit::new("a second document", "one document").at_byte(at))
            }
            Event::Scalar(text, style, _, tag) => {
                self.bounds.count(text.len(), at)?;
                let is_plain = style == ScalarStyle::Plain && tag.is_none() && !self.is_at_key();
                let value = is_plain.then(|| plain(&text)).flatten();
                let value = value.unwrap_or_else(|| Value::Text(text.into_owned()));
                self.add(Node { value, at }, anchor)
            }
            Event::SequenceStart(..) => self.open(Value::Array(Vec::new()), at, anchor),
            Event::MappingStart(..) => self.open(Value::Table(Vec::new()), at, anchor),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(open) => self.add(open.node, open.anchor),
                None => Ok(()),
            },
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor) else {
                    let found = "an alias within what it stands for";
                    return Err(Misfit::new(found, "an alias of what ended before it").at_byte(at));
                };
                let node = self.bounds.copy(node, self.open.len(), at)?;
                self.add(node, None)
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, value: Value, at: usize, anchor: Option<usize>) -> Result<(), Misfit> {
        self.bounds.count(0, at)?;
        self.bounds.check_depth(self.open.len(), at)?;
        self.open.push(Open {
            node: Node { value, at },
            anchor,
            key: None,
        });
        Ok(())
    }

    /// Adds a value to the array or the table that it is in, as a key or a value.
    fn add(&mut self, node: Node, anchor: Option<usize>) -> Result<(), Misfit> {
        if let Some(anchor) = anchor {
            let copy = self.bounds.copy(&node, self.open.len(), node.at)?;
            self.anchors.insert(anchor, copy);
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match (&mut open.node.value, open.key.take()) {
            (Value::Table(entries), Some((key, key_at))) => {
                entries.push(Entry { key, key_at, node });
            }
            (Value::Array(nodes), _) => nodes.push(node),
            _ => match node.value {
                Value::Text(text) => open.key = Some((text, node.at)),
                _ => return Err(Misfit::new("a key that is no text", "text").at_byte(node.at)),
            },
        }
        Ok(())
    }

    fn is_at_key(&self) -> bool {
        let is_at_key =
            |open: &Open| open.key.is_none() && matches!(open.node.value, Value::Table(_));
        self.open.last().is_some_and(is_at_key)
    }
}

/// What was read so far, with a copy for each anchor and each alias.
#[derive(Default)]
struct Bounds {
    values: usize,
    bytes: usize,
}

impl Bounds {
    /// Counts a value, or the key of one.
    fn count(&mut self, bytes: usize, at: usize) -> Result<(), Misfit> {
        self.values += 1;
        self.bytes += bytes;
        if self.values > MAX_VALUES || self.bytes > MAX_EXPANDED {
            return Err(too_large(at));
        }
        Ok(())
    }

    /// Whether there may be an array or a table within `depth` others.
    fn check_depth(&self, depth: usize, at: usize) -> Result<(), Misfit> {
        if depth == MAX_DEPTH {
            return Err(too_deep(at));
        }
        Ok(())
    }

    /// A copy of a value, for a place within `depth` arrays and tables.
    fn copy(&mut self, node: &Node, depth: usize, at: usize) -> Result<Node, Misfit> {
        let value = match &node.value {
            Value::Array(nodes) => {
                self.check_depth(depth, at)?;
                let nodes = nodes.iter().map(|node| self.copy(node, depth + 1, at));
                Value::Array(nodes.collect::<Result<_, _>>()?)
            }
            Value::Table(entries) => {
                self.check_depth(depth, at)?;
                let entries = entries.iter().map(|entry| {
                    self.count(entry.key.len(), at)?;
                    Ok(Entry {
                        key: entry.key.clone(),
                        key_at: entry.key_at,
                        node: self.copy(&entry.node, depth + 1, at)?,
                    })
                });
                Value::Table(entries.collect::<Result<_, _>>()?)
            }
            Value::Text(text) => {
                self.count(text.len(), at)?;
                return Ok(node.clone());
            }
            _ => node.value.clone(),
        };
        self.count(0, at)?;
        Ok(Node { value, at: node.at })
    }
}

/// What plain text stands for by the core schema, unless it is text. Binary numbers, which the schema does not have, are numbers
/// too.
fn plain(text: &str) -> Option<Value> {
    Some(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Value::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Value::Float(f64::NEG_INFINITY),
        _ => return number(text),
    })
}

fn number(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let prefixes = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter();
    let mut prefixed =
        prefixes.filter_map(|(prefix, radix)| Some((unsigned.strip_prefix(prefix)?, radix)));
    let (digits, radix) = prefixed.next().unwrap_or((unsigned, 10));
    let is_padded = digits.starts_with('0') && digits.len() > 1;
    let is_text = |c: char| !(c.is_ascii_digit() || ".eE+-".contains(c));
    // Rust would read a second sign, zeros in front, and words such as `inf`.
    if digits.starts_with(['+', '-'])
        || radix == 10 && digits.contains(is_text)
        || radix == 10 && is_padded && digits.bytes().all(|byte| byte.is_ascii_digit())
    {
        return None;
    }
    let sign = if text.starts_with('-') { "-" } else { "" };
    let number = format!("{sign}{digits}");
    let float = || number.parse().ok().filter(|_| radix == 10);
    integer(&number, radix).or_else(|| float().map(Value::Float))
}
