//! The guide to configuration files: its documents, its mistakes as they are printed, and its fields.

use tollgate::config::{Document, Format};

use crate::support::registry;

const GUIDE: &str = include_str!("../../docs/configuration.md");

/// The blocks of code, each with its language and its line.
fn blocks() -> Vec<(usize, &'static str, &'static str)> {
    let mut blocks = Vec::new();
    let mut rest = GUIDE;
    let mut line = 1;
    while let Some((before, after)) = rest.split_once("\n```") {
        let (language, after) = after.split_once('\n').expect("a block");
        let (text, after) = after.split_once("```").expect("its end");
        line += before.matches('\n').count() + 2;
        blocks.push((line, language, text));
        line += text.matches('\n').count();
        rest = after;
    }
    blocks
}

/// The documents without mistakes, with their lines.
pub(crate) fn documents() -> impl Iterator<Item = (usize, &'static str)> {
    let blocks = blocks();
    let next = blocks
        .iter()
        .skip(1)
        .map(|(_, language, _)| *language)
        .chain([""]);
    let documents = blocks
        .iter()
        .zip(next)
        .filter(|((_, language, _), next)| *language == "toml" && *next != "text");
    let documents: Vec<_> = documents
        .map(|((line, _, text), _)| (*line, *text))
        .collect();
    documents.into_iter()
}

#[test]
fn every_document_of_the_guide_builds_a_layer() {
    let mut count = 0;
    for (line, text) in documents() {
        count += 1;
        // Some show a part of a document.
        let text = match text.contains("policies") {
            true => text.to_owned(),
            false => format!("{text}\n[policies.api]\nquota = '100/min'"),
        };
        let document = Document::parse(&text, Format::Toml)
            .unwrap_or_else(|error| panic!("line {line}: {error}"));
        let built = document.layer(&registry());
        let errors = built
            .err()
            .map_or_else(Vec::new, |error| error.mistakes().to_vec());
        // The variables and files that the guide names are not there.
        let others = errors.iter().filter(|mistake| {
            !mistake.found().contains("a variable that is not set")
                && !mistake.expected().contains("can be read")
        });
        let others: Vec<_> = others.map(|mistake| mistake.to_string()).collect();
        assert_eq!(others, [""; 0], "line {line}");
    }
    assert!(count >= 5, "{count}");
}

#[test]
fn the_mistakes_of_the_guide_are_printed_as_it_says() {
    let blocks = blocks();
    let mistakes = blocks
        .windows(2)
        .filter(|pair| pair[0].1 == "toml" && pair[1].1 == "text");
    let mut count = 0;
    for pair in mistakes {
        let (line, _, text) = pair[0];
        let error = match Document::parse(text, Format::Toml) {
            Ok(document) => document.layer(&registry()).expect_err("a mistake"),
            Err(error) => error,
        };
        let printed: String = error
            .to_string()
            .lines()
            .map(|line| format!("limits.toml:{line}\n"))
            .collect();
        assert_eq!(printed, pair[1].2, "line {line}");
        count += error.mistakes().len();
    }
    assert!(count >= 10, "{count}");
}

#[test]
fn the_guide_names_every_field() {
    let schema = Document::schema();
    let definitions = schema["$defs"].as_object().expect("definitions").values();
    let tables = definitions
        .chain([&schema])
        .filter_map(|table| table["properties"].as_object());
    let fields = tables.flat_map(|fields| fields.keys());
    let missing: Vec<_> = fields
        .filter(|field| !GUIDE.contains(&format!("`{field}`")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
