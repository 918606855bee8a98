//! Files of access lists.

use std::path::Path;

use crate::{error::ConfigError, file::read_text};

/// The largest list that is read: some four million addresses.
pub(crate) const MAX_LIST_BYTES: u64 = 64 << 20;

/// The entries of a file, one per line. A comment begins with a `#` at the beginning of a line or after a space. The error of
/// `read` says what is expected.
pub(super) fn entries<T, E: Into<String>>(
    path: &Path,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, ConfigError> {
    let text = read_text(path, MAX_LIST_BYTES).map_err(|error| {
        let file = format!("the list {}", path.display());
        ConfigError::new(file, format!("a file that can be read: {error}"))
    })?;
    let mut entries = Vec::new();
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let entry = entry(line);
        if !entry.is_empty() {
            // Without the line's text: the file may be another one than was meant, or hold credentials.
            let error = |expected| {
                let value = format!("line {} of {}", number + 1, path.display());
                ConfigError::new(value, expected)
            };
            entries.push(read(entry).map_err(error)?);
        }
    }
    Ok(entries)
}

pub(super) fn not_from_file() -> ConfigError {
    ConfigError::new(
        "a list that was not read from a file",
        "a list made by from_file",
    )
}

fn entry(line: &str) -> &str {
    let comment = line.char_indices().find(|(at, c)| {
        *c == '#'
            && line[..*at]
                .chars()
                .next_back()
                .is_none_or(char::is_whitespace)
    });
    line[..comment.map_or(line.len(), |(at, _)| at)].trim()
}
