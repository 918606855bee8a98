//! The documents print what the programs print: their sessions are run command by command on a clock that stands still, and
//! compared. `TOLLGATE_WRITE_PRINTED=1` writes the documents anew.

mod lists;
mod page;
mod pages;
mod service;
mod session;
mod shell;

use lists::{COMPARED_ELSEWHERE, NOT_COMPARED, rows};
use page::Page;
use tollgate_tests::{prelude::*, repository};

/// A test for each page with sessions, and the list of them.
macro_rules! pages {
    ($($test:ident: $file:literal, $run:path;)*) => {
        const PAGES: &[&str] = &[$($file),*];
        $(
            #[test]
            fn $test() {
                let mut page = Page::open($file);
                $run(&mut page);
                page.finish();
            }
        )*
    };
}

pages! {
    the_readme_prints_what_its_examples_print: "README.md", pages::readme::run;
    the_list_of_examples_prints_what_the_examples_print: "examples/README.md", pages::examples::run;
    the_admin_guide_prints_what_the_admin_api_answers: "docs/admin.md", pages::admin::run;
    the_guide_to_the_command_line_prints_what_the_program_prints: "docs/cli.md", pages::cli::run;
    the_guide_to_metrics_names_dependencies_that_exist: "docs/metrics.md", pages::manifest;
    the_guide_to_operations_prints_what_operators_see: "docs/operations.md", pages::operations::run;
    the_guide_to_overrides_prints_what_operators_see: "docs/overrides.md", pages::admin::run_sessions;
    the_guide_to_replay_prints_its_report: "docs/replay.md", pages::replay::run;
}

/// All documents, relative to the root of the project.
fn documents() -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["", "docs", "docs/guide", "examples", "benches", "ops"] {
        for entry in fs::read_dir(repository(folder)).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            let name = name.to_string_lossy();
            if name.ends_with(".md") {
                let path = format!("{folder}/{name}");
                found.push(path.trim_start_matches('/').to_owned());
            }
        }
    }
    found
}

#[test]
fn every_output_in_every_document_is_compared_or_listed_with_its_reason() {
    let documents = documents();
    assert!(documents.len() > 20, "{documents:?}");
    for name in documents {
        if !PAGES.contains(&&*name) {
            // Panics if a block is left.
            Page::open(&name).finish();
        }
    }
}

#[test]
fn the_lists_of_blocks_name_blocks_tests_and_pages_that_exist() {
    for [page, language, test] in rows(COMPARED_ELSEWHERE) {
        let page = Page::open(page);
        assert!(
            page.has(|block| block.language == language),
            "{page:?} has no {language}"
        );
        assert!(repository(test).is_file(), "{test}");
    }
    for [page, first_line, reason] in rows(NOT_COMPARED) {
        let page = Page::open(page);
        let found = page.has(|block| block.text.lines().next() == Some(first_line));
        assert!(found, "no block of {page:?} begins with {first_line:?}");
        assert!(!reason.is_empty());
    }
}
