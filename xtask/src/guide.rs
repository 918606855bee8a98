//! The guides: the files and items that they name exist.

use std::{collections::HashSet, fs, path::Path};

use crate::run::{Outcome, capture, grep, line};

/// The guide to the architecture, which names items too.
const ARCHITECTURE: &str = "docs/architecture.md";

/// Guides that name files, mostly tests. Their other code spans are names of users' systems, too.
const OTHERS: [&str; 3] = ["docs/promises.md", "docs/operations.md", "CONTRIBUTING.md"];

/// What paths are relative to. A file without a folder is also one of the folder that was named before it in the line.
const BASES: [&str; 3] = ["", "src/", "src/store/redis/"];

/// Fails on a file or an item in a guide that is not in the tree.
pub(crate) fn check(root: &Path) -> Outcome {
    let files = files(root)?;
    let mut sources = String::new();
    for file in files.iter().filter(|file| file.ends_with(".rs")) {
        sources.push_str(&read(root, file)?);
    }
    let identifiers = identifiers(&sources);
    let mut found = 0;
    for guide in [ARCHITECTURE].iter().chain(&OTHERS) {
        let identifiers = Some(&identifiers).filter(|_| *guide == ARCHITECTURE);
        for (line, name) in missing(&read(root, guide)?, &files, identifiers) {
            println!("{guide}:{line}: there is no {name}");
            found += 1;
        }
    }
    if found == 0 {
        Ok(())
    } else {
        Err(format!(
            "guides name {found} files or items that do not exist"
        ))
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

/// The names in code spans that are no file, folder or, with `identifiers`, identifier, and their lines. Patterns and
/// commands are not checked.
fn missing<'a>(
    guide: &'a str,
    files: &[String],
    identifiers: Option<&HashSet<&str>>,
) -> Vec<(usize, &'a str)> {
    let mut missing = Vec::new();
    for (number, line) in guide.lines().enumerate() {
        let mut folder = String::new();
        let spans = line.split('`').skip(1).step_by(2);
        for name in spans.flat_map(|span| span.split(", ")) {
            if name.contains(|c: char| !is_part_of_name(c) && !"./:()".contains(c))
                || name.contains("NAME")
            {
                continue;
            }
            let exists = match identifiers {
                Some(identifiers) if !name.contains(['/', '.']) => {
                    let mut parts = name.trim_end_matches("()").split("::");
                    parts.all(|part| identifiers.contains(part))
                }
                None if !is_file_name(name) => true,
                _ => match find(name, &folder, files) {
                    Some(path) => {
                        folder = path;
                        folder.truncate(folder.rfind('/').map_or(0, |slash| slash + 1));
                        true
                    }
                    None => false,
                },
            };
            if !exists {
                missing.push((number + 1, name));
            }
        }
    }
    missing
}

fn is_file_name(name: &str) -> bool {
    let is_source = [".rs", ".lua", ".py"].iter().any(|end| name.ends_with(end));
    is_source || name.starts_with("tests/")
}

/// The path of a file, or of a folder with files.
fn find(name: &str, folder: &str, files: &[String]) -> Option<String> {
    let name = name.trim_end_matches('/');
    let bases = BASES.iter().copied().chain([folder]);
    let paths = bases.map(|base| format!("{base}{name}"));
    let mut found = paths.filter(|path| {
        let mut rests = files.iter().filter_map(|file| file.strip_prefix(&**path));
        rests.any(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    found.next()
}

#[test]
fn names_of_files_and_items_that_do_not_exist_are_found() {
    let files = [
        "src/layer/mod.rs",
        "src/store/redis/worker/pool.rs",
        "tests/a/b.rs",
    ];
    let files = files.map(str::to_owned);
    let identifiers =
        identifiers("mod store { pub(crate) struct WorkerPool; fn a_test_of_it() {} }");
    let guide = "`layer/mod.rs`, `worker/pool.rs`, `worker/`, `src/layer` and `strategy/*.rs`\n\
                 `store::WorkerPool`, `a_test_of_it`, `store, WorkerPool` and `cargo test`\n\
                 `layer/mo`, `b.rs`, `worker/lane.rs`, `tests/a`, `tests/a/b.rs`, `b.rs`, `c.rs`\n\
                 `a_test_of`, `store::Lane`, `store, layers`, `b.rs`";
    let found = [
        (3, "layer/mo"),
        (3, "b.rs"),
        (3, "worker/lane.rs"),
        (3, "c.rs"),
        (4, "a_test_of"),
        (4, "store::Lane"),
        (4, "layers"),
        (4, "b.rs"),
    ];
    assert_eq!(missing(guide, &files, Some(&identifiers)), found);
    let found = [(3, "b.rs"), (3, "worker/lane.rs"), (3, "c.rs"), (4, "b.rs")];
    assert_eq!(missing(guide, &files, None), found);
}
