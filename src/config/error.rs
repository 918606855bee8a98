//! The error of a document: its mistakes, each with its path and its position.

use std::{
    error, fmt,
    path::{Path, PathBuf},
};

use super::path::Path as ValuePath;
use crate::error::Reference;

/// The most characters of what was found that an error shows: a bad document can be a mebibyte, and each error is logged.
const MAX_FOUND_CHARS: usize = 300;

/// The most characters that an error shows of what was expected, which may name what the document holds.
const MAX_EXPECTED_CHARS: usize = 2_000;

/// The most mistakes of a document that are looked for, each at a cost of the document's size.
pub(crate) const MAX_MISTAKES: usize = 100;

/// The error of a document that can't be loaded, or of which no limiter can be built: its first mistake of syntax or shape, or else all
/// mistakes in what it means, or the first hundred or so.
///
/// It displays one line for each, such as
/// `limits.toml:12:9: policies.api.quota: found "100/mins"; expected a quota such as "100/min"`.
///
/// ```
/// use tollgate::config::{Document, Format, Registry};
///
/// let text = "
/// [policies.api]
/// quota = '100/mins x'
/// cost = 'pages'
/// ";
/// let document = Document::parse(text, Format::Toml)?;
/// let error = document.limiter(&Registry::new()).unwrap_err();
/// let paths: Vec<_> = error.mistakes().iter().map(|mistake| mistake.path()).collect();
/// assert_eq!(paths, ["policies.api.quota", "policies.api.cost"]);
/// assert!(error.to_string().starts_with(r#"3:9: policies.api.quota: found "100/mins x"; expected a quota such as"#));
/// # Ok::<(), tollgate::config::LoadError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct LoadError {
    file: Option<PathBuf>,
    mistakes: Vec<Mistake>,
}

/// A mistake in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    path: Box<str>,
    segments: ValuePath,
    position: Option<Position>,
    found: Box<str>,
    expected: Box<str>,
    unresolved: Option<Box<Reference>>,
}

/// A position in a document's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Position {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl LoadError {
    /// The mistakes in their order in the text, as far as positions are known.
    pub(crate) fn new(file: Option<&Path>, mut mistakes: Vec<Mistake>) -> Self {
        mistakes.sort_by_key(|mistake| mistake.position);
        mistakes.dedup();
        Self {
            file: file.map(Path::to_owned),
            mistakes,
        }
    }

    /// The mistakes, at least one.
    pub fn mistakes(&self) -> &[Mistake] {
        &self.mistakes
    }

    /// The document's file, if it was loaded from one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }
}

/// The text without what follows the scheme of a URL, which may stand at a path where no secret is expected: it may be a password.
fn without_url(text: String) -> String {
    match text.split_once("://") {
        Some((before, _)) => format!("{before}://***"),
        None => text,
    }
}

/// The text, without its rest if it is long: it may be a whole document.
fn shortened(mut text: String, max_chars: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(max_chars) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

impl Mistake {
    pub(crate) fn new(
        path: &ValuePath,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self {
            path: shortened(path.to_string(), MAX_FOUND_CHARS).into(),
            segments: path.clone(),
            position: None,
            found: shortened(without_url(found.into()), MAX_FOUND_CHARS).into(),
            expected: shortened(expected.into(), MAX_EXPECTED_CHARS).into(),
            unresolved: None,
        }
    }

    /// The same mistake, which is that `reference` can't be resolved, if there is one.
    pub(crate) fn unresolved_as(mut self, reference: Option<Reference>) -> Self {
        self.unresolved = reference.map(Box::new);
        self
    }

    /// A mistake of a document as a whole.
    pub(crate) fn of_whole(found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::new(&ValuePath::default(), found, expected)
    }

    pub(super) fn segments(&self) -> &ValuePath {
        &self.segments
    }

    /// Sets the position, unless it is known.
    pub(super) fn locate(&mut self, position: Position) {
        self.position.get_or_insert(position);
    }

    pub(crate) fn at(mut self, position: Option<Position>) -> Self {
        self.position = position;
        self
    }

    /// The path of the value, such as `policies.api.quota`; empty for the document as a whole.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Where the value is in the text, or what would contain it. `None` for a document that was read from no text.
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    /// What was found there.
    pub fn found(&self) -> &str {
        &self.found
    }

    /// What would be valid.
    pub fn expected(&self) -> &str {
        &self.expected
    }

    /// What the document refers to, if the mistake is that it was not found: the document may be valid where the application
    /// runs, with the application's code and environment.
    pub fn unresolved(&self) -> Option<&Reference> {
        self.unresolved.as_deref()
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "found {}; expected {}", self.found, self.expected)
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            if let Some(file) = &self.file {
                write!(f, "{}:", file.display())?;
            }
            if let Some(position) = mistake.position {
                write!(f, "{position}:")?;
            }
            if self.file.is_some() || mistake.position.is_some() {
                f.write_str(" ")?;
            }
            write!(f, "{mistake}")?;
        }
        Ok(())
    }
}

/// The text, which a `main` that returns the error prints.
impl fmt::Debug for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for LoadError {}
