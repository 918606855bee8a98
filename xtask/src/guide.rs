//! The guides: the files, items and pages that they name exist, and they read the same on a code host and in the documentation.

use std::{collections::HashSet, fs, path::Path};

use crate::run::{Outcome, capture, grep, line};

/// The guide to the architecture, which names items too.
const ARCHITECTURE: &str = "docs/architecture.md";

/// Guides that name files, mostly tests. Their other code spans are names of users' systems, too.
const OTHERS: [&str; 3] = ["docs/promises.md", "docs/operations.md", "CONTRIBUTING.md"];

/// What paths are relative to. A file without a folder is also one of the folder that was named before it in the line.
const BASES: [&str; 3] = ["", "src/", "src/store/redis/"];

/// Where docs.rs has what rustdoc builds into `target/doc`.
const DOCUMENTATION: &str = "https://docs.rs/tollgate/latest/";

/// Fails on a file or an item in a guide that is not in the tree, and on text that only rustdoc renders.
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
    for guide in files.iter().filter(|file| is_guide(file)) {
        for (line, what) in only_for_rustdoc(&read(root, guide)?) {
            println!("{guide}:{line}: {what}");
            found += 1;
        }
    }
    none(found, "mistakes in guides")
}

/// Fails on a link of a guide to a page or a heading that is not in `built`, the documentation as rustdoc built it.
pub(crate) fn links(root: &Path, built: &Path) -> Outcome {
    let mut dead = 0;
    for guide in files(root)?.iter().filter(|file| is_guide(file)) {
        for (number, line) in read(root, guide)?.lines().enumerate() {
            for link in documented(line).filter(|link| !is_built(built, link)) {
                println!("{guide}:{}: the documentation has no {link}", number + 1);
                dead += 1;
            }
        }
    }
    none(dead, "dead links in guides")
}

fn none(found: usize, what: &str) -> Outcome {
    if found == 0 {
        Ok(())
    } else {
        Err(format!("{found} {what}"))
    }
}

fn is_guide(file: &str) -> bool {
    file.ends_with(".md") && (file.starts_with("docs/") || !file.contains('/'))
}

/// The pages of the documentation that a line has links to.
fn documented(line: &str) -> impl Iterator<Item = &str> {
    let links = line.split(DOCUMENTATION).skip(1);
    links.map(|link| link.split([')', '>', ' ']).next().unwrap_or_default())
}

fn is_built(built: &Path, link: &str) -> bool {
    let (page, heading) = link.split_once('#').unwrap_or((link, ""));
    let page = fs::read_to_string(built.join(page));
    page.is_ok_and(|page| heading.is_empty() || page.contains(&format!("id=\"{heading}\"")))
}

/// The lines of a guide that a code host shows as rustdoc does not, and why.
fn only_for_rustdoc(guide: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut is_program = false;
    for (number, line) in guide.lines().enumerate() {
        if let Some(language) = line.strip_prefix("```") {
            is_program = language.starts_with("rust");
        } else if is_program && (line == "#" || line.starts_with("# ")) {
            found.push((number + 1, "a hidden line of a program"));
        } else if line.contains("](crate::") || line.contains("]: crate::") {
            found.push((number + 1, "a link that only rustdoc follows"));
        }
    }
    found
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

#[test]
fn text_that_only_rustdoc_renders_is_found() {
    let guide = "# Title\n[`Policy`](crate::Policy) and [`Policy`]\n```rust\n#[derive(Clone)]\n# fn main() {\n#\n```\n\
                 ```sh\n# a comment\n```\n[`Policy`]: crate::Policy\n";
    let lines = only_for_rustdoc(guide).into_iter().map(|(line, _)| line);
    assert_eq!(lines.collect::<Vec<_>>(), [2, 5, 6, 11]);
}

#[test]
fn links_to_pages_and_headings_that_are_not_built_are_dead() {
    let built = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = ["Cargo.toml)", "Cargo.toml#heading)", "page.html)"];
    let line = pages
        .map(|page| format!("[a link]({DOCUMENTATION}{page}"))
        .concat();
    let dead = documented(&line).filter(|link| !is_built(built, link));
    let dead: Vec<&str> = dead.collect();
    assert_eq!(dead, ["Cargo.toml#heading", "page.html"]);
}
