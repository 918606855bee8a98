//! From text to a value of any type that serde reads, and to the positions of mistakes.

use std::sync::OnceLock;

use serde::de::DeserializeOwned;

use self::node::{Misfit, Node, Value};
use super::{
    Format,
    error::{LoadError, Mistake, Position},
    path::Path,
};

#[cfg(feature = "config-json")]
mod json;
mod node;
mod toml;
#[cfg(feature = "config-yaml")]
mod yaml;

/// The most arrays and tables that a value is within.
const MAX_DEPTH: usize = 64;

/// The most bytes of texts that a document has once YAML's aliases are replaced by what they stand for: four times the largest
/// file.
const MAX_EXPANDED: usize = 4 << 20;

/// Reads a value from the text of a file, or from another text.
///
/// # Errors
///
/// The first mistake: of syntax, a bound that the text exceeds, or a value that the type does not take.
pub(super) fn parse<T: DeserializeOwned>(
    text: &str,
    format: Format,
    file: Option<&std::path::Path>,
) -> Result<T, LoadError> {
    let text = without_mark(text);
    let root = read(text, format);
    let value = root.and_then(|root| T::deserialize(&root).map_err(|misfit| misfit.of(&root)));
    value.map_err(|misfit| {
        let position = position(text, misfit.at());
        let mistake = Mistake::new(&misfit.path, misfit.found, misfit.expected);
        LoadError::new(file, vec![mistake.at(Some(position))])
    })
}

/// A text that was read, by which mistakes that are found later have positions.
#[derive(Default)]
pub(super) struct Source {
    text: String,
    /// `None` without a text.
    format: Option<Format>,
    /// What the text says, once a mistake was found.
    root: OnceLock<Option<Node>>,
}

impl Source {
    pub(super) fn new(text: &str, format: Format) -> Self {
        Self {
            text: text.to_owned(),
            format: Some(format),
            root: OnceLock::new(),
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The position of the value at a path, or of what would contain it.
    pub(super) fn position(&self, path: &Path) -> Option<Position> {
        let text = without_mark(&self.text);
        let root = self.root.get_or_init(|| read(text, self.format?).ok());
        Some(position(text, root.as_ref()?.nearest(path)))
    }
}

/// The text without a byte-order mark.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn read(text: &str, format: Format) -> Result<Node, Misfit> {
    if text.len() > MAX_EXPANDED {
        return Err(too_large(0));
    }
    match format {
        Format::Toml => toml::read(text),
        #[cfg(feature = "config-yaml")]
        Format::Yaml => yaml::read(text),
        #[cfg(feature = "config-json")]
        Format::Json => json::read(text),
    }
}

/// The line and the column, in characters, of a byte of the text.
fn position(text: &str, at: usize) -> Position {
    let before = (0..=at).rev().find_map(|at| text.get(..at));
    let before = before.unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    Position {
        line: before.matches('\n').count() + 1,
        column: line.chars().count() + 1,
    }
}

/// A whole number, if it has at most 64 bits.
fn integer(text: &str, radix: u32) -> Option<Value> {
    let signed = || i64::from_str_radix(text, radix).ok().map(Value::Signed);
    let unsigned = u64::from_str_radix(text, radix).ok();
    unsigned.map(Value::Unsigned).or_else(signed)
}

/// A mistake of syntax. A parser's message does not repeat the text, which may hold a secret.
fn syntax(message: &str, language: &str, at: usize) -> Misfit {
    if message.contains("recurs") {
        return too_deep(at);
    }
    // serde_json has the position in its message.
    let message = message.split(" at line ").next().unwrap_or_default();
    let found = format!("invalid syntax: {message}");
    Misfit::new(found, format!("valid {language}")).at_byte(at)
}

fn too_deep(at: usize) -> Misfit {
    let found = format!("arrays and tables within each other, more than {MAX_DEPTH} levels");
    Misfit::new(found, format!("at most {MAX_DEPTH} levels")).at_byte(at)
}

fn too_large(at: usize) -> Misfit {
    let found = "more than 4 MiB of text or 2^20 values, with aliases expanded";
    Misfit::new(found, "a smaller document").at_byte(at)
}
