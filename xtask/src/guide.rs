//! The guide to the architecture: the files and items that it names exist.

use std::{collections::HashSet, fs, path::Path};

use crate::run::{Outcome, capture, grep, line};

const GUIDE: &str = "docs/architecture.md";

/// What paths in the guide are relative to.
const BASES: [&str; 3] = ["", "src/", "src/store/redis/"];

/// Fails on a file or an item in the guide that is not in the tree.
pub(crate) fn check(root: &Path) -> Outcome {
    let guide = read(root, GUIDE)?;
    let files = files(root)?;
    let mut sources = String::new();
    for file in files.iter().filter(|file| file.ends_with(".rs")) {
        sources.push_str(&read(root, file)?);
    }
    let missing = missing(&guide, &files, &identifiers(&sources));
    for (line, name) in &missing {
        println!("{GUIDE}:{line}: there is no {name}");
    }
    if missing.is_empty() {
        Ok(())
    } else {
        Err(format!("{GUIDE} names {} that do not exist", missing.len()))
    }
}

fn read(root: &Path, file: &str) -> Outcome<String> {
    fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))
}

/// The project's files.
fn files(root: &Path) -> Outcome<Vec<String>> {
    let mut grep = grep(root);
    grep.args(["-l", "-e", "", "--", "."]);
    let (files, code) = capture(&mut grep)?;
    if code != Some(0) {
        return Err(format!("`{}` failed", line(&grep)));
    }
    Ok(files.lines().map(str::to_owned).collect())
}

fn identifiers(sources: &str) -> HashSet<&str> {
    sources.split(|c| !is_part_of_name(c)).collect()
}

fn is_part_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The names in code spans that are no file, folder or identifier, and their lines. Patterns and commands are not checked.
fn missing<'a>(
    guide: &'a str,
    files: &[String],
    identifiers: &HashSet<&str>,
) -> Vec<(usize, &'a str)> {
    let mut missing = Vec::new();
    for (number, line) in guide.lines().enumerate() {
        let spans = line.split('`').skip(1).step_by(2);
        for name in spans.flat_map(|span| span.split(", ")) {
            let exists = if name.contains([' ', '*']) || name.contains("NAME") {
                true
            } else if name.contains(['/', '.']) {
                is_path(name.trim_end_matches('/'), files)
            } else {
                let mut parts = name.trim_end_matches("()").split("::");
                parts.all(|part| identifiers.contains(part))
            };
            if !exists {
                missing.push((number + 1, name));
            }
        }
    }
    missing
}

/// Whether it is a file, or a folder with files.
fn is_path(name: &str, files: &[String]) -> bool {
    BASES.iter().any(|base| {
        let rest = |file: &String| Some(file.strip_prefix(base)?.strip_prefix(name)?.to_owned());
        let mut rests = files.iter().filter_map(rest);
        rests.any(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[test]
fn names_of_files_and_items_that_do_not_exist_are_found() {
    let files = ["src/layer/mod.rs", "src/store/redis/worker/pool.rs"].map(str::to_owned);
    let identifiers =
        identifiers("mod store { pub(crate) struct WorkerPool; fn a_test_of_it() {} }");
    let guide = "`layer/mod.rs`, `worker/pool.rs`, `worker/`, `src/layer` and `strategy/*.rs`\n\
                 `store::WorkerPool`, `a_test_of_it`, `store, WorkerPool` and `cargo test`\n\
                 `layer/mo`, `pool.rs`, `worker/lane.rs`\n\
                 `a_test_of`, `store::Lane`, `store, layers`";
    let found = [
        (3, "layer/mo"),
        (3, "pool.rs"),
        (3, "worker/lane.rs"),
        (4, "a_test_of"),
        (4, "store::Lane"),
        (4, "layers"),
    ];
    assert_eq!(missing(guide, &files, &identifiers), found);
}
