//! What must hold of a document, whatever it is. The fuzz target shares it.

use tollgate::config::{Document, Format, LoadError, Registry};

/// A document is read, or rejected with its places and what would be valid.
pub(crate) fn a_document_is_read_or_rejected(text: &str) {
    for format in [Format::Toml, Format::Yaml, Format::Json] {
        match Document::parse(text, format) {
            Ok(document) => {
                assert_eq!(document.text(), text);
                // What is in other files is not read.
                if document.files().is_empty()
                    && let Err(error) = document.limiter(&Registry::new())
                {
                    assert_shown(&error, text);
                }
            }
            Err(error) => assert_shown(&error, text),
        }
    }
}

fn assert_shown(error: &LoadError, text: &str) {
    // A `main` that returns the error prints it.
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(!error.mistakes().is_empty());
    // The line breaks of YAML.
    let breaks = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];
    let lines = text.split(breaks).count();
    for mistake in error.mistakes() {
        assert!(!mistake.expected().is_empty(), "{mistake}");
        if let Some(at) = mistake.position() {
            assert!(at.column > 0, "{mistake} at {at}");
            assert!((1..=lines + 1).contains(&at.line), "{mistake} at {at}");
        }
    }
    assert!(!error.to_string().is_empty());
}
