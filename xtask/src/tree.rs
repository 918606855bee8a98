//! The sources: that they stand alone, and the house rules no compiler knows.

use std::path::Path;

use crate::run::{Outcome, capture, grep, line};

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
    if broken.is_empty() {
        Ok(())
    } else {
        Err(broken.join("; "))
    }
}

fn rules() -> [Rule; 3] {
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
