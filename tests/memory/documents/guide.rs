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

/// The blocks of documents, each with its line and the mistakes that the guide prints below it.
fn guide() -> impl Iterator<Item = (usize, &'static str, Option<&'static str>)> {
    let blocks = blocks(GUIDE);
    let mut next: Vec<_> = blocks.iter().skip(1).copied().map(Some).collect();
    next.push(None);
    let pairs = blocks.into_iter().zip(next);
    let documents = pairs.filter(|((_, language, _), _)| *language == "toml");
    documents.map(|((line, _, text), next)| {
        let printed = next.filter(|(_, language, _)| *language == "text");
        (line, text, printed.map(|(_, _, text)| text))
    })
}

/// The documents without mistakes, with their lines.
pub(crate) fn documents() -> impl Iterator<Item = (usize, &'static str)> {
    guide().filter_map(|(line, text, mistakes)| mistakes.is_none().then_some((line, text)))
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
        let _case = Case(format!("line {line}"));
        let built = document(&text).layer(&registry());
        let errors = built.err();
        let errors = errors.iter().flat_map(|error| error.mistakes());
        // The variables and files that the guide names are not there.
        let others = errors.filter(|mistake| {
            !mistake.found().contains("a variable that is not set")
                && !mistake.expected().contains("can be read")
        });
        let others: Vec<_> = others.map(|mistake| mistake.to_string()).collect();
        assert_eq!(others, [""; 0]);
    }
    assert!(count >= 5, "{count}");
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
        let languages = blocks(&text).into_iter().map(|(_, language, _)| language);
        let rust: Vec<_> = languages
            .filter(|language| language.starts_with("rust"))
            .collect();
        programs += rust.len();
        assert!(rust.iter().all(|language| !language.contains("ignore")));
        let path = guide.strip_prefix(root).expect("in the root");
        // As the documentation of an item, whose programs are tests.
        let is_documentation = sources.contains(&format!("../{}\")]", path.display()));
        assert!(rust.is_empty() || is_documentation, "{}", path.display());
    }
    assert!(programs > 5, "{programs}");
}

#[test]
fn the_mistakes_of_the_guide_are_printed_as_it_says() {
    let mut count = 0;
    for (line, text, printed) in guide() {
        let Some(printed) = printed else { continue };
        let found = mistakes_in(text);
        let found: String = found
            .lines()
            .map(|line| format!("limits.toml:{line}\n"))
            .collect();
        assert_eq!(found, printed, "line {line}");
        count += found.lines().count();
    }
    assert!(count >= 10, "{count}");
}

#[test]
fn the_guide_names_every_field() {
    let schema = Document::schema();
    let definitions = schema["$defs"].as_object().expect("definitions").values();
    let tables = definitions.chain([&schema]);
    let fields = tables.filter_map(|table| table["properties"].as_object());
    let fields = fields.flat_map(|fields| fields.keys());
    let missing: Vec<_> = fields
        .filter(|field| !GUIDE.contains(&format!("`{field}`")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
