//! The sources: that they stand alone, and the house rules no compiler knows.

use std::path::Path;

use crate::run::{Outcome, capture, grep, line};

/// What is searched for in which files.
const RULES: [(&str, &[&str], &str); 3] = [
    (
        // Absolute paths under these exist on one machine only. The lists keep this rule from finding itself.
        r"\.\./(shared)|(^|[^a-zA-Z0-9_.])/(tmp|root|work)/",
        // Hashes and addresses of dependencies are not the project's own words.
        &[".", ":(exclude)*.lock"],
        "a path outside of the project",
    ),
    (
        // The keyword in code only: documentation may well say the word.
        r"(^|[^a-zA-Z0-9_/])unsafe *(\{|\(|fn |impl|extern|trait)|allow\(unsafe_",
        &["src/*.rs"],
        "unsafe code in src",
    ),
    (
        r"#\[(cfg_attr\(.*, *)?ignore[] =,)]",
        &["*.rs"],
        "an ignored test",
    ),
];

pub(crate) fn check(root: &Path) -> Outcome {
    let mut broken = Vec::new();
    for (pattern, files, rule) in RULES {
        let mut grep = grep(root);
        grep.args(["-nE", "-e", pattern, "--"]).args(files);
        match capture(&mut grep)? {
            (_, Some(1)) => {}
            (places, Some(0)) => {
                println!("{rule}:\n{}", places.trim_end());
                broken.push(rule);
            }
            _ => return Err(format!("`{}` failed", line(&grep))),
        }
    }
    if broken.is_empty() {
        return Ok(());
    }
    Err(broken.join("; "))
}
