//! The packages that are published: they build outside of the workspace, they are small, and a registry would take them.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::skipped::Skipped;
use crate::run::{Outcome, capture, cargo, line, metadata, succeed, target_directory};

/// The most that a package may take, compressed. The library's sources take three quarters of it, a third of them documentation of items;
/// pictures, recorded traces or tests would exceed it.
const MAX_KIB: u64 = 740;

/// What cargo prints if it cannot reach the registry that it publishes to.
const UNREACHABLE: [&str; 6] = [
    "is replaced with",
    "replaced source",
    "failed to download",
    "failed to fetch",
    "network error",
    "Could not resolve host",
];

pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    has_repository: bool,
}

/// The packages that a registry may have.
pub(super) fn published(root: &Path) -> Outcome<Vec<Package>> {
    let metadata = metadata(root, &["--no-deps"])?;
    Ok(read(&metadata))
}

pub(super) fn build(root: &Path, skipped: &mut Skipped) -> Outcome {
    let packages = published(root)?;
    let mut command = cargo(root, &["package", "--locked"]);
    for package in &packages {
        command.args(["--package", &package.name]);
    }
    succeed(&mut command)?;
    let folder = target_directory(root)?.join("package");
    let mut large = Vec::new();
    for Package { name, version, .. } in &packages {
        let file = folder.join(format!("{name}-{version}.crate"));
        let size = fs::metadata(&file)
            .map_err(|error| format!("{}: {error}", file.display()))?
            .len();
        let kib = size.div_ceil(1024);
        let files = files(root, name)?;
        println!("    {name} {version}: {kib} KiB of {MAX_KIB}, {files} files");
        if kib > MAX_KIB {
            large.push(format!("{name} takes {kib} KiB, more than {MAX_KIB}"));
        }
    }
    if !large.is_empty() {
        return Err(large.join("; "));
    }
    if packages.iter().any(|package| !package.has_repository) {
        skipped.add(
            "the address of the repository",
            "set `repository` in Cargo.toml once it is public: without it the registry's pages have no link to the sources",
        );
    }
    Ok(())
}

pub(super) fn publish(root: &Path, skipped: &mut Skipped) -> Outcome {
    // They were built in the step before.
    let words = [
        "publish",
        "--workspace",
        "--dry-run",
        "--no-verify",
        "--locked",
    ];
    let mut command = cargo(root, &words);
    let output = command
        .output()
        .map_err(|error| format!("`{}` did not start: {error}", line(&command)))?;
    let text = String::from_utf8_lossy(&output.stderr);
    eprint!("{text}");
    if output.status.success() {
        return Ok(());
    }
    if !is_unreachable(&text) {
        return Err(format!("`{}`: {}", line(&command), output.status));
    }
    skipped.add(
        &format!("`{}`", line(&command)),
        "the registry that cargo publishes to cannot be reached from here; the step `package` has built the packages nevertheless",
    );
    Ok(())
}

fn read(metadata: &Value) -> Vec<Package> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter(|package| {
            let registries = package["publish"].as_array();
            registries.is_none_or(|registries| !registries.is_empty())
        })
        .filter_map(|package| {
            Some(Package {
                name: package["name"].as_str()?.to_owned(),
                version: package["version"].as_str()?.to_owned(),
                has_repository: package["repository"].is_string(),
            })
        })
        .collect()
}

/// How many files a package has.
fn files(root: &Path, name: &str) -> Outcome<usize> {
    let mut command = cargo(root, &["package", "--list", "--quiet", "--package", name]);
    let (text, code) = capture(&mut command)?;
    if code == Some(0) {
        Ok(text.lines().count())
    } else {
        Err(format!("`{}` failed", line(&command)))
    }
}

fn is_unreachable(text: &str) -> bool {
    UNREACHABLE.iter().any(|mark| text.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::PACKAGE;

    #[test]
    fn packages_that_no_registry_may_have_are_left_out() {
        let text = r#"{ "packages": [
            { "name": "a", "version": "0.1.0", "publish": null },
            { "name": "b", "version": "0.1.0", "publish": [] },
            { "name": "c", "version": "0.2.0", "publish": ["own"] }
        ] }"#;
        let metadata: Value = serde_json::from_str(text).expect("JSON");
        let names: Vec<String> = read(&metadata).into_iter().map(|p| p.name).collect();
        assert_eq!(names, ["a", "c"]);
    }

    #[test]
    fn the_library_is_published() {
        let root = crate::root().expect("the root");
        let packages = published(&root).expect("metadata");
        assert!(packages.iter().any(|package| package.name == PACKAGE));
        assert!(packages.iter().all(|package| package.name != "xtask"));
    }

    #[test]
    fn a_mistake_in_a_package_is_not_taken_for_an_unreachable_registry() {
        assert!(is_unreachable(
            "error: crates-io is replaced with remote registry mirror;"
        ));
        assert!(!is_unreachable(
            "error: all dependencies must have a version requirement specified when publishing."
        ));
    }
}
