//! Errors of documents.

use std::{error, fmt};

use serde_saphyr::{Location, Spanned};

/// The most mistakes that are reported.
const MAX_MISTAKES: usize = 100;

/// The longest domain, key, value or name, in bytes.
const MAX_TEXT_BYTES: usize = 1_024;

/// The most characters of what was found that a mistake shows.
const MAX_FOUND_CHARS: usize = 100;

/// A position in a document's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl Position {
    /// The position of a location, if it is known.
    pub(super) fn of(location: Location) -> Option<Self> {
        let number = |number| usize::try_from(number).unwrap_or(usize::MAX);
        (location != Location::UNKNOWN).then(|| Self {
            line: number(location.line()),
            column: number(location.column()),
        })
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A mistake in a document. It displays as `limits.yaml:3:5: the rule has no key; expected a key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The name of the file.
    pub file: String,
    /// Where it is; `None` for a mistake of the whole file, such as its size.
    pub position: Option<Position>,
    /// What was found, and what was expected.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            position,
            message,
        } = self;
        match position {
            Some(position) => write!(f, "{file}:{position}: {message}"),
            None => write!(f, "{file}: {message}"),
        }
    }
}

/// The mistakes of all documents that were read, at least one and at most 100, in the order of the files and their lines. It displays
/// one line for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(Vec<Mistake>);

impl Mistakes {
    /// Each mistake.
    pub fn mistakes(&self) -> &[Mistake] {
        &self.0
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{mistake}")?;
        }
        Ok(())
    }
}

impl error::Error for Mistakes {}

/// Collects the mistakes of one file after the other.
#[derive(Debug, Default)]
pub(super) struct Report {
    file: String,
    mistakes: Vec<Mistake>,
    /// The number of those in the files before this one.
    before: usize,
}

impl Report {
    /// Mistakes from here on are in this file.
    pub(super) fn begin(&mut self, file: &str) {
        self.sort();
        self.before = self.mistakes.len();
        file.clone_into(&mut self.file);
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Adds a mistake, unless there are enough. One of the whole file has no known location.
    pub(super) fn add(&mut self, location: Location, message: impl Into<String>) {
        if self.mistakes.len() < MAX_MISTAKES {
            self.mistakes.push(Mistake {
                file: self.file.clone(),
                position: Position::of(location),
                message: message.into(),
            });
        }
    }

    /// Adds a text that is not what its key needs.
    pub(super) fn wrong(&mut self, key: &str, text: &Spanned<String>, expected: &str) {
        let found = quoted(&text.value);
        self.add(text.defined, format!("{key}: {found}; expected {expected}"));
    }

    /// The text of a key, if it has one; one that is too long is a mistake.
    pub(super) fn text<'a>(
        &mut self,
        key: &str,
        text: Option<&'a Spanned<String>>,
    ) -> Option<&'a str> {
        let text = text?;
        if text.value.len() > MAX_TEXT_BYTES {
            self.wrong(key, text, &format!("at most {MAX_TEXT_BYTES} bytes"));
            return None;
        }
        Some(&text.value)
    }

    /// The error, if there is a mistake.
    pub(super) fn finish(mut self) -> Result<(), Mistakes> {
        self.sort();
        if self.mistakes.is_empty() {
            Ok(())
        } else {
            Err(Mistakes(self.mistakes))
        }
    }

    /// Brings the mistakes of this file into the order of its lines.
    fn sort(&mut self) {
        if let Some(own) = self.mistakes.get_mut(self.before..) {
            own.sort_by_key(|mistake| mistake.position);
        }
    }
}

/// A text in quotes, on one line, and not longer than a line.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_FOUND_CHARS) {
        Some((end, _)) => format!("{:?}...", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}
