//! From text to a value of any type that serde reads.

use std::collections::HashMap;

use serde::de::DeserializeOwned;
use serde_path_to_error::Segment as PathSegment;

use super::{
    Format,
    error::{Mistake, Position},
    names::edits,
    path::{Path, Segment},
};

mod toml;
#[cfg(any(feature = "config-json", feature = "config-yaml"))]
mod yaml;

/// The most arrays and tables that a value is within.
const MAX_DEPTH: usize = 64;

/// The fields whose values may be secrets, so that no mistake shows them, and the tables of such fields.
const SECRET_FIELDS: [&str; 12] = [
    "url",
    "cluster",
    "urls",
    "server_url",
    "hash_key",
    "root_certificates",
    "client_certificate",
    "client_key",
    "keys",
    "bearer",
    "sentinel",
    "tls",
];

/// Reads a value from a text. The mistake is the first one: of syntax, a bound that the text exceeds, or a value that the type does
/// not take.
pub(super) fn parse<T: DeserializeOwned>(text: &str, format: Format) -> Result<T, Mistake> {
    let value = match format {
        Format::Toml => toml::parse(text),
        #[cfg(feature = "config-yaml")]
        Format::Yaml => yaml::parse(text, "YAML"),
        #[cfg(feature = "config-json")]
        Format::Json => {
            check_json(text)?;
            // It is YAML 1.2, whose reader has positions.
            yaml::parse(text, "JSON")
        }
    };
    value.map_err(|mut mistake| {
        // Parsers don't say where some of their bounds are exceeded.
        mistake.locate(Position { line: 1, column: 1 });
        mistake
    })
}

/// Sets the positions of mistakes that were found in what was read from a text: those of their values, or of what would contain them.
pub(super) fn locate(text: &str, format: Format, mistakes: &mut [Mistake]) {
    let places = match format {
        Format::Toml => toml::places(text),
        #[cfg(feature = "config-yaml")]
        Format::Yaml => yaml::places(text),
        #[cfg(feature = "config-json")]
        Format::Json => yaml::places(text),
    };
    if let Some(places) = places {
        for mistake in mistakes {
            let position = match places.nearest(mistake.segments()) {
                Place::Byte(at) => toml::position(text, at),
                Place::Position(position) => position,
            };
            mistake.locate(position);
        }
    }
}

/// Where a value and the values in it are.
struct Places {
    place: Place,
    fields: HashMap<String, Self>,
    elements: Vec<Self>,
}

#[derive(Clone, Copy)]
enum Place {
    /// A byte of the text.
    Byte(usize),
    #[cfg_attr(
        not(any(feature = "config-json", feature = "config-yaml")),
        allow(dead_code, reason = "those of TOML are bytes")
    )]
    Position(Position),
}

impl Places {
    fn nearest(&self, path: &Path) -> Place {
        let mut nearest = self;
        for segment in path.segments() {
            let child = match segment {
                Segment::Key(key) => nearest.fields.get(key),
                Segment::Index(index) => nearest.elements.get(*index),
            };
            let Some(child) = child else { break };
            nearest = child;
        }
        nearest.place
    }
}

/// What is wrong with a text, in the words of serde.
enum Problem<'a> {
    /// A value of another type, or one that is not valid, as found and expected.
    Value(String, &'a str),
    UnknownField(&'a str, Vec<&'a str>),
    UnknownVariant(&'a str, Vec<&'a str>),
    MissingField(&'a str),
}

impl Problem<'_> {
    /// The mistake in the value at a path.
    fn mistake(self, path: &serde_path_to_error::Path, position: Option<Position>) -> Mistake {
        let mut path = path_of(path);
        let problem = match self {
            Self::Value(found, expected) => Self::Value(described(&found), expected),
            other => other,
        };
        let is_secret = |path: &Path| {
            let is_field = |segment: &Segment| matches!(segment, Segment::Key(key) if SECRET_FIELDS.contains(&&**key));
            let segments = path.segments();
            segments.iter().any(is_field)
                || matches!(segments, [Segment::Key(key), Segment::Index(_), ..] if key == "store")
        };
        let (found, expected) = match problem {
            // A value in place of a table may be a secret of one of its fields.
            Self::Value(found, expected) if is_secret(&path) || plain(expected) == "a table" => {
                (form(&found), plain(expected).to_owned())
            }
            Self::Value(found, expected) => (found, plain(expected).to_owned()),
            // A secret that is written as a key.
            Self::UnknownField(..) if path.parent().is_some_and(|parent| is_secret(&parent)) => {
                path = path.parent().unwrap_or_default();
                ("an unknown field".to_owned(), "file".to_owned())
            }
            Self::UnknownField(field, known) => {
                ("an unknown field".to_owned(), near(field, &known))
            }
            Self::UnknownVariant(variant, known) => (format!("{variant:?}"), near(variant, &known)),
            Self::MissingField(field) => {
                path = path.key(field);
                ("nothing".to_owned(), format!("{field}, which is required"))
            }
        };
        Mistake::new(&path, found, expected).at(position)
    }
}

/// What serde found, such as ``integer `5` ``.
fn described(found: &str) -> String {
    match found {
        "sequence" => "an array".to_owned(),
        "map" => "a table".to_owned(),
        _ => match found.split_once(' ') {
            Some(("string", text)) => text.to_owned(),
            _ => found.split('`').nth(1).unwrap_or(found).to_owned(),
        },
    }
}

/// What kind of value was found.
fn form(found: &str) -> String {
    match found.chars().next() {
        Some('"') => "text".to_owned(),
        Some(c) if c.is_ascii_digit() || "+-.".contains(c) => "a number".to_owned(),
        _ if found.starts_with("a") => found.to_owned(),
        _ => "another value".to_owned(),
    }
}

/// What is expected, without the words of Rust.
fn plain(expected: &str) -> &str {
    match expected {
        "a boolean" => "true or false",
        "a string" | "string scalar" => "text",
        "a sequence" | "sequence start" => "an array",
        "a map" | "mapping start" => "a table",
        "u8" | "u32" | "u64" | "usize" | "a nonzero usize" => "a whole number",
        expected if expected.starts_with("struct ") => "a table",
        expected => expected,
    }
}

/// The nearest name, and the others.
fn near(name: &str, known: &[&str]) -> String {
    let list = known.join(", ");
    let nearest = known.iter().map(|known| (edits(name, known), known)).min();
    match nearest {
        Some((_, nearest)) if known.len() == 1 => (*nearest).to_owned(),
        Some((0..=2, nearest)) => format!("{nearest}, or another of {list}"),
        _ => format!("one of {list}"),
    }
}

fn path_of(path: &serde_path_to_error::Path) -> Path {
    let segments = path.iter();
    segments.fold(Path::default(), |path, segment| match segment {
        PathSegment::Seq { index } => path.index(*index),
        PathSegment::Map { key } => path.key(key),
        PathSegment::Enum { variant } => path.key(variant),
        PathSegment::Unknown => path,
    })
}

/// An error of syntax, which YAML may not be.
#[cfg(feature = "config-json")]
fn check_json(text: &str) -> Result<(), Mistake> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(text) else {
        return Ok(());
    };
    let line = text.split('\n').nth(error.line().saturating_sub(1));
    let before = line.and_then(|line| line.get(..error.column().saturating_sub(1)));
    let position = Some(Position {
        line: error.line().max(1),
        column: before.map_or(1, |before| before.chars().count() + 1),
    });
    let message = error.to_string();
    match message.split(" at line ").next().unwrap_or_default() {
        message if message.contains("recursion") => Err(too_deep(position)),
        message => Err(syntax("JSON", message, position)),
    }
}

fn too_deep(position: Option<Position>) -> Mistake {
    let found = format!("arrays and tables within each other, more than {MAX_DEPTH} levels");
    Mistake::of_whole(found, format!("at most {MAX_DEPTH} levels")).at(position)
}

fn syntax(language: &str, message: &str, position: Option<Position>) -> Mistake {
    let found = format!("invalid syntax: {message}");
    Mistake::of_whole(found, format!("valid {language}")).at(position)
}
