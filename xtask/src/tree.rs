//! The sources: that they stand alone, and the house rules no compiler knows.

use std::fs;
use std::path::{Path, PathBuf};

use crate::run::{Outcome, capture, grep, line};

/// A source file longer than this likely holds more than one idea.
const LONG: usize = 400;

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
    for folder in ["src", "cli/src"] {
        warn_of_long_files(&root.join(folder), root)?;
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

fn warn_of_long_files(directory: &Path, root: &Path) -> Outcome {
    let told = |path: &Path, error| format!("{}: {error}", path.display());
    let entries = fs::read_dir(directory).map_err(|error| told(directory, error))?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<PathBuf>, _>>()
        .map_err(|error| told(directory, error))?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            warn_of_long_files(&path, root)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).map_err(|error| told(&path, error))?;
            let lines = text.lines().count();
            if lines > LONG {
                let path = path.strip_prefix(root).unwrap_or(&path).display();
                println!("warning: {path} has {lines} lines, more than {LONG}");
            }
        }
    }
    Ok(())
}
