//! The documentation as docs.rs builds it.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::skipped::Skipped;
use super::toolchain::{self, Toolchain};
use super::unpacked;
use crate::run::{Outcome, metadata, succeed};
use crate::test::{self, PACKAGE};

/// The page of an item that a feature adds, and what it says of it.
const LABELLED: (&str, &str) = ("struct.RedisStore.html", "<code>redis</code>");

pub(super) fn check(root: &Path, skipped: &mut Skipped) -> Outcome {
    let metadata = metadata(root, &["--no-deps"])?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let library = packages.clone().find(|package| package["name"] == PACKAGE);
    let settings = library.map(|package| &package["metadata"]["docs"]["rs"]);
    if !settings.is_some_and(names_features) {
        return Err(format!(
            "[package.metadata.docs.rs] of {PACKAGE} lacks `all-features = true`, or `--cfg docsrs` in `rustdoc-args`"
        ));
    }
    let Some(nightly) = Toolchain::find("nightly") else {
        skipped.add(
            "the features on the items of the documentation",
            &format!("needs nightly: {}", toolchain::install("nightly")),
        );
        return test::docs(root);
    };
    let target = unpacked::target(root)?;
    let words = [
        "doc",
        "--no-deps",
        "--all-features",
        "--locked",
        "--package",
    ];
    let mut command = nightly.cargo(root, &words);
    command.arg(PACKAGE).arg("--target-dir").arg(&target);
    succeed(command.env("RUSTDOCFLAGS", "--cfg docsrs"))?;
    let (page, label) = LABELLED;
    let page = target.join("doc").join(PACKAGE).join(page);
    let text = fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))?;
    if text.contains("Available on") && text.contains(label) {
        Ok(())
    } else {
        Err(format!("{} does not name its feature", page.display()))
    }
}

fn names_features(settings: &Value) -> bool {
    let arguments = settings["rustdoc-args"].as_array();
    settings["all-features"] == true
        && arguments.is_some_and(|arguments| arguments.iter().any(|word| word == "docsrs"))
}

#[test]
fn the_settings_of_docs_rs_are_read() {
    let right = r#"{ "all-features": true, "rustdoc-args": ["--cfg", "docsrs"] }"#;
    let right: Value = serde_json::from_str(right).expect("JSON");
    assert!(names_features(&right));
    assert!(!names_features(&Value::Null));
}
