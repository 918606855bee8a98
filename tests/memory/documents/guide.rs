//! The guide to configuration files: its documents, its mistakes as they are printed, and its fields.

use crate::documents::support::*;

const GUIDE: &str = include_str!("../../../docs/configuration.md");

/// The blocks of code of a guide, each with its language and its line.
fn blocks(guide: &str) -> Vec<(usize, &str, &str)> {
    let mut blocks = Vec::new();
    let mut rest = guide;
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
    let blocks = blocks(GUIDE);
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
fn the_documents_of_the_other_guides_build_layers() {
    for guide in [
        include_str!("../../../docs/replay.md"),
        include_str!("../../../README.md"),
    ] {
        let documents = blocks(guide).into_iter().filter(|(_, language, text)| {
            // Others are of Cargo.
            *language == "toml" && text.contains("[policies.")
        });
        let mut count = 0;
        for (line, _, text) in documents {
            let text = text.replace("${REDIS_URL}", "redis://127.0.0.1");
            let document = Document::parse(&text, Format::Toml).expect("a document");
            let built = document.layer(&registry());
            assert!(built.is_ok(), "line {line}: {built:?}");
            count += 1;
        }
        assert!(count > 0);
    }
}

/// The sources that `src` has, as one text.
fn sources(folder: &Path) -> String {
    let entries = fs::read_dir(folder).expect("a folder");
    let texts = entries.map(|entry| {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => sources(&path),
            false => fs::read_to_string(path).expect("a text"),
        }
    });
    texts.collect()
}

#[test]
fn the_programs_of_all_guides_are_compiled() {
    let root = &tollgate_tests::repository("");
    let sources = sources(&root.join("src"));
    let mut guides = vec![root.join("README.md")];
    for folder in ["docs", "docs/guide"] {
        let docs = fs::read_dir(root.join(folder)).expect("a folder");
        guides.extend(docs.map(|entry| entry.expect("an entry").path()));
    }
    let mut programs = 0;
    for guide in guides.into_iter().filter(|guide| guide.is_file()) {
        let text = fs::read_to_string(&guide).expect("a text");
        let blocks = blocks(&text);
        let rust: Vec<_> = blocks
            .iter()
            .filter(|(_, language, _)| language.starts_with("rust"))
            .collect();
        programs += rust.len();
        assert!(
            rust.iter()
                .all(|(_, language, _)| !language.contains("ignore"))
        );
        let path = guide.strip_prefix(root).expect("in the root");
        // As the documentation of an item, whose programs are tests.
        let is_documentation = sources.contains(&format!("../{}\")]", path.display()));
        assert!(rust.is_empty() || is_documentation, "{}", path.display());
    }
    assert!(programs > 5, "{programs}");
}

#[test]
fn the_list_of_examples_has_each_of_them() {
    let examples = tollgate_tests::repository("examples");
    let list = fs::read_to_string(examples.join("README.md")).expect("a text");
    let entries = fs::read_dir(examples).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let programs = paths.filter(|path| {
        path.extension().is_some_and(|extension| extension == "rs")
            || path.join("main.rs").is_file()
    });
    let mut count = 0;
    for program in programs {
        let name = program.file_stem().expect("a name").to_string_lossy();
        assert!(list.contains(&format!("\n## {name}\n")), "{name}");
        count += 1;
    }
    assert_eq!(list.matches("\n## ").count(), count);
}

#[test]
fn the_mistakes_of_the_guide_are_printed_as_it_says() {
    let blocks = blocks(GUIDE);
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
