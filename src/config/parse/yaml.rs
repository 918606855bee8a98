//! YAML 1.2, and JSON, which is a part of it.

use std::{collections::HashMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{
    Error, Location, Options, Spanned, alias_limits, budget, budget::BudgetBreach, options,
};

use super::{MAX_DEPTH, Mistake, Place, Places, Position, Problem, syntax, too_deep};

/// The most bytes of texts that a document has once aliases are replaced by what they stand for: four times the largest file.
const MAX_TEXT_BYTES: usize = 4 << 20;

/// The most values that it has then: as many as the largest file without aliases.
const MAX_VALUES: usize = 1 << 19;

/// The most values, and ends of arrays and tables, that aliases stand for: merge keys keep all of theirs in memory.
const MAX_OF_ALIASES: usize = 1 << 18;

/// Reads a value from a text in `language`.
pub(super) fn parse<T: DeserializeOwned>(text: &str, language: &str) -> Result<T, Mistake> {
    // Syntax and bounds first: the values are read only as far as they fit.
    let is_valid = serde_saphyr::from_str_with_options::<IgnoredAny>(text, bounds());
    is_valid.map_err(|error| mistake(&error, None, text, language))?;
    let mut path = None;
    let value = serde_saphyr::with_deserializer_from_str_with_options(text, bounds(), |value| {
        serde_path_to_error::deserialize(value).map_err(|error| {
            path = Some(error.path().clone());
            error.into_inner()
        })
    });
    value.map_err(|error| mistake(&error, path.as_ref(), text, language))
}

fn bounds() -> Options {
    options! {
        budget: budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_VALUES,
            max_total_scalar_bytes: MAX_TEXT_BYTES,
            // An array or a table begins and ends.
            max_events: 2 * MAX_VALUES,
            max_recorded_anchor_events: MAX_VALUES,
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: alias_limits! { max_total_replayed_events: MAX_OF_ALIASES },
        reject_unsupported_tags: true,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        with_snippet: false,
    }
}

fn mistake(
    error: &Error,
    path: Option<&serde_path_to_error::Path>,
    text: &str,
    language: &str,
) -> Mistake {
    let location = error
        .location()
        .filter(|location| *location != Location::UNKNOWN);
    let position = location.map(position);
    let problem = match error {
        Error::AliasError { error, .. } => {
            let mistake = mistake(error, path, text, language);
            if mistake.path().is_empty() {
                return mistake;
            }
            // What it stands for may be a secret in another place.
            let (path, expected) = (mistake.segments(), mistake.expected());
            return Mistake::new(path, "an alias of another value", expected).at(position);
        }
        Error::Budget {
            breach: BudgetBreach::Depth { .. },
            ..
        } => return too_deep(position),
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. } => {
            let found =
                "more than 4 MiB of text or 2^19 values with aliases expanded, or 2^18 by aliases";
            return Mistake::of_whole(found, "a smaller document").at(position);
        }
        Error::SerdeInvalidType {
            unexpected,
            expected,
            ..
        }
        | Error::SerdeInvalidValue {
            unexpected,
            expected,
            ..
        } => Problem::Value(unexpected.clone(), expected),
        Error::Unexpected { expected, .. } => Problem::Value(found_at(text, position), expected),
        Error::InvalidBooleanStrict { .. } => Problem::Value(found_at(text, position), "a boolean"),
        Error::InvalidScalar { ty, .. } => Problem::Value(found_at(text, position), ty),
        Error::SerdeUnknownField {
            field, expected, ..
        } => Problem::UnknownField(field, expected.clone()),
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => Problem::UnknownVariant(variant, expected.clone()),
        Error::SerdeMissingField { field, .. } => Problem::MissingField(field),
        Error::DuplicateMappingKey { .. } => {
            return Mistake::of_whole("a key a second time", "each key once").at(position);
        }
        Error::UnsupportedTag { .. } => {
            return Mistake::of_whole("a tag", "a value without a tag").at(position);
        }
        Error::MultipleDocuments { .. } => {
            return Mistake::of_whole("a second document", "one document").at(position);
        }
        Error::ExternalMessage { msg, .. } if msg.contains("recursion") => {
            return too_deep(position);
        }
        Error::ExternalMessage { msg, .. } => return syntax(language, msg, position),
        // Its text may be a secret.
        _ => return syntax(language, "a value that can't be read", position),
    };
    match path {
        Some(path) => problem.mistake(path, position),
        None => syntax(language, "a value that can't be read", position),
    }
}

fn position(location: Location) -> Position {
    let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Position {
        line: number(location.line()),
        column: number(location.column()),
    }
}

/// What stands at a position, up to where a value ends.
fn found_at(text: &str, position: Option<Position>) -> String {
    let line = position.and_then(|position| {
        let line = text.lines().nth(position.line - 1)?;
        let (start, _) = line.char_indices().nth(position.column - 1)?;
        line.get(start..)
    });
    let line = line.unwrap_or_default();
    match line.chars().next() {
        Some('[' | '-') if !line.starts_with("-1") => "an array".to_owned(),
        Some('{') => "a table".to_owned(),
        _ => {
            let end = line.find([',', ']', '}', '#']).unwrap_or(line.len());
            match line[..end].trim_end() {
                key if key.ends_with(':') || key.contains(": ") => "a table".to_owned(),
                value => value.to_owned(),
            }
        }
    }
}

/// The places of all values.
pub(super) fn places(text: &str) -> Option<Places> {
    let root: Spanned<Value> = serde_saphyr::from_str_with_options(text, bounds()).ok()?;
    Some(places_in(root))
}

fn places_in(value: Spanned<Value>) -> Places {
    let place = Place::Position(position(value.referenced));
    let (fields, elements) = match value.value {
        Value::Table(fields) => (fields, Vec::new()),
        Value::Array(elements) => (HashMap::new(), elements),
        Value::Other => Default::default(),
    };
    let fields = fields.into_iter();
    Places {
        place,
        fields: fields.map(|(key, value)| (key, places_in(value))).collect(),
        elements: elements.into_iter().map(places_in).collect(),
    }
}

/// Any value, of which only the places are kept.
enum Value {
    Table(HashMap<String, Spanned<Self>>),
    Array(Vec<Spanned<Self>>),
    Other,
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

/// Visits values that have no others in them.
macro_rules! others {
    ($($visit:ident($type:ty)),+) => {
        $(fn $visit<E>(self, _: $type) -> Result<Value, E> {
            Ok(Value::Other)
        })+
    };
}

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    others! { visit_bool(bool), visit_i64(i64), visit_u64(u64), visit_i128(i128), visit_u128(u128), visit_f64(f64), visit_str(&str) }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Other)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = array.next_element()? {
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Value, A::Error> {
        let mut fields = HashMap::new();
        while let Some((key, value)) = table.next_entry()? {
            fields.insert(key, value);
        }
        Ok(Value::Table(fields))
    }
}
