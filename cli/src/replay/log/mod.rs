//! Access logs: what a line says about a request.

mod combined;
mod fields;
mod input;
mod instant;
mod json;
mod record;

pub(super) use self::{
    fields::{DurationUnit, FieldNames, FieldOption},
    input::Input,
    record::{LoggedTime, Record, Unreadable},
};

/// Reads a line: of JSON if it begins with a brace, or else in the common or combined format.
pub(super) fn parse<'a>(line: &'a str, names: &FieldNames) -> Result<Record<'a>, Unreadable> {
    // A log that another program has converted may begin with a byte order mark.
    let line = line.strip_prefix('\u{feff}').unwrap_or(line).trim();
    match line.starts_with('{') {
        true => json::parse(line, names),
        false => combined::parse(line),
    }
}

#[cfg(test)]
mod tests;
