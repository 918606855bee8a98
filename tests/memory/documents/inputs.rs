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
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // YAML has a line break that TOML does not have.
    let texts = [
        text.to_owned(),
        text.replace("\r\n", "\n").replace('\r', "\n"),
    ];
    for mistake in error.mistakes() {
        assert!(!mistake.expected().is_empty(), "{mistake}");
        let at = mistake.position().expect("a position");
        let is_within = |text: &String| {
            let line = text.split('\n').nth(at.line.wrapping_sub(1));
            line.is_some_and(|line| (1..=line.chars().count() + 1).contains(&at.column))
        };
        assert!(texts.iter().any(is_within), "{mistake} at {at}");
    }
    assert!(!error.to_string().is_empty());
}
