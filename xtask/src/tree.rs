//! The sources: that they stand alone, and the house rules no compiler knows.

use std::path::Path;

use crate::run::{Outcome, capture, grep, line};

/// A source file longer than this likely holds more than one idea.
const MAX_LINES: usize = 400;

/// Absolute paths under these exist on one machine only.
const FOREIGN: [&str; 3] = ["tmp", "root", "work"];

struct Rule {
    pattern: String,
    files: &'static [&'static str],
    broken: &'static str,
}

pub(crate) fn check(root: &Path) -> Outcome {
    let mut broken = Vec::new();
    for rule in rules() {
        let places = matches(root, &rule)?;
        if !places.is_empty() {
            println!("{}:\n{}", rule.broken, places.trim_end());
            broken.push(rule.broken);
        }
    }
    let long = long_files(root)?;
    if !long.is_empty() {
        println!("files of more than {MAX_LINES} lines:");
        long.iter().for_each(|file| println!("    {file}"));
        broken.push("a file that is too long");
    }
    if broken.is_empty() {
        Ok(())
    } else {
        Err(broken.join("; "))
    }
}

fn rules() -> [Rule; 4] {
    // Put together here so that no rule finds itself.
    let sibling = ["shared"].map(|name| format!(r"\.\./{name}")).join("|");
    let foreign = FOREIGN.join("|");
    [
        Rule {
            pattern: format!("{sibling}|(^|[^a-zA-Z0-9_.])/({foreign})/"),
            // Hashes and addresses of dependencies are not the project's own words.
            files: &[".", ":(exclude)*.lock"],
            broken: "a path outside of the project",
        },
        Rule {
            // The keyword in code only: documentation may well say the word.
            pattern: r"(^|[^a-zA-Z0-9_/])unsafe *(\{|\(|fn |impl|extern|trait)|allow\(unsafe_"
                .into(),
            files: &["src/*.rs"],
            broken: "unsafe code in src",
        },
        Rule {
            pattern: r"#\[(cfg_attr\(.*, *)?ignore[] =,)]".into(),
            files: &["*.rs"],
            broken: "an ignored test",
        },
        Rule {
            // `required-features` in Cargo.toml says so when the target is asked for.
            pattern: r"^#!\[cfg\(".into(),
            files: &["tests/*/main.rs"],
            broken: "a test target that is empty without a feature",
        },
    ]
}

/// Every match as `file:line:text`; empty when there is none.
fn matches(root: &Path, rule: &Rule) -> Outcome<String> {
    let mut grep = grep(root);
    grep.args(["-nE", "-e", &rule.pattern, "--"])
        .args(rule.files);
    let (places, code) = capture(&mut grep)?;
    match code {
        Some(0 | 1) => Ok(places),
        _ => Err(format!("`{}` failed", line(&grep))),
    }
}

/// The Rust files with too many lines: of the library, the other packages, and all tests.
fn long_files(root: &Path) -> Outcome<Vec<String>> {
    let mut count = grep(root);
    // Each line matches.
    count.args(["-c", "-e", "", "--", "*.rs"]);
    let (counts, code) = capture(&mut count)?;
    match code {
        Some(0) => Ok(counts
            .lines()
            .filter(|line| is_long(line))
            .map(str::to_owned)
            .collect()),
        _ => Err(format!("`{}` failed", line(&count))),
    }
}

/// Whether a line `file:count` counts too many lines.
fn is_long(count: &str) -> bool {
    let lines = count
        .rsplit_once(':')
        .and_then(|(_, lines)| lines.parse().ok());
    lines.is_none_or(|lines: usize| lines > MAX_LINES)
}

#[test]
fn a_file_of_more_than_400_lines_is_long() {
    let long = ["src/lib.rs:400", "src/lib.rs:401", "a:b.rs:5"].map(is_long);
    assert_eq!(long, [false, true, false]);
}
