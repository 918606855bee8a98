//! Versions: of the compiler, of dependencies, and of the public API.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::dependencies::has_subcommand;
use super::skipped::Skipped;
use super::toolchain::{self, Toolchain};
use super::{packages, unpacked};
use crate::run::{Outcome, capture, cargo, command, metadata, succeed};
use crate::test::PACKAGE;

/// With the oldest compiler where it is installed. Without it by what dependencies state and what clippy knows of the standard library, in
/// all code that is compiled for this system; newer syntax is found by that compiler alone.
pub(super) fn msrv(root: &Path, skipped: &mut Skipped) -> Outcome {
    let ours = packages::published(root)?;
    let ours: Vec<&str> = ours.iter().map(|package| &*package.name).collect();
    let metadata = metadata(root, &["--all-features", "--locked"])?;
    let all = by_id(&metadata);
    let library = all.values().find(|package| package["name"] == PACKAGE);
    let stated = library.and_then(|package| package["rust_version"].as_str());
    let stated = stated.ok_or_else(|| format!("{PACKAGE} states no rust-version"))?;

    let newer = newer(&metadata, &ours, stated);
    if !newer.is_empty() {
        return Err(format!(
            "dependencies that need a compiler newer than {stated}: {}; run `cargo update`, which prefers older ones",
            newer.join(", ")
        ));
    }
    println!("    no dependency in Cargo.lock states a compiler newer than {stated}");

    let mut clippy = cargo(
        root,
        &["clippy", "--all-features", "--locked", "--lib", "--bins"],
    );
    for package in &ours {
        clippy.args(["--package", package]);
    }
    succeed(clippy.args(["--", "-D", "clippy::incompatible_msrv"]))?;

    let Some(toolchain) = Toolchain::find(stated) else {
        skipped.add(
            &format!("a build by Rust {stated}, which finds newer syntax too"),
            &toolchain::install(stated),
        );
        return Ok(());
    };
    let mut command = toolchain.cargo(
        root,
        &["check", "--all-features", "--locked", "--lib", "--bins"],
    );
    for package in &ours {
        command.args(["--package", package]);
    }
    succeed(command.arg("--target-dir").arg(unpacked::target(root)?))
}

/// The library by itself: what others need is not what it says.
pub(super) fn minimal(root: &Path, skipped: &mut Skipped) -> Outcome {
    let Some(nightly) = Toolchain::find("nightly") else {
        skipped.add(
            "the oldest versions of dependencies",
            &format!("needs nightly: {}", toolchain::install("nightly")),
        );
        return Ok(());
    };
    let folder = unpacked::unpack(root, "minimal")?;
    let lock = folder.join("Cargo.lock");
    if lock.exists() {
        fs::remove_file(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    }
    let words = [
        "check",
        "--lib",
        "--all-features",
        "-Zdirect-minimal-versions",
    ];
    let mut command = nightly.cargo(&folder, &words);
    succeed(command.arg("--target-dir").arg(unpacked::target(root)?))
}

/// There is nothing to compare with before the first release.
pub(super) fn semver(root: &Path, skipped: &mut Skipped) -> Outcome {
    let words = [
        "-c",
        "safe.directory=*",
        "tag",
        "--list",
        "v*",
        "--sort=-version:refname",
    ];
    let mut git = command("git", &words);
    let (tags, _) = capture(git.current_dir(root))?;
    let Some(tag) = tags.lines().next() else {
        skipped.add(
            "cargo-semver-checks",
            "no release has a tag `v…` yet, so there is nothing to compare with; until then the step `api` has its listing",
        );
        return Ok(());
    };
    if !has_subcommand(root, "semver-checks") {
        skipped.add(
            "cargo-semver-checks",
            "run `cargo install --locked cargo-semver-checks`",
        );
        return Ok(());
    }
    let words = [
        "semver-checks",
        "--package",
        PACKAGE,
        "--all-features",
        "--baseline-rev",
        tag,
    ];
    succeed(&mut cargo(root, &words))
}

/// All packages, by their ids.
fn by_id(metadata: &Value) -> BTreeMap<&str, &Value> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect()
}

/// The packages that users of ours build, and that state a newer compiler.
fn newer(metadata: &Value, ours: &[&str], stated: &str) -> Vec<String> {
    let packages = by_id(metadata);
    let nodes = metadata["resolve"]["nodes"]
        .as_array()
        .into_iter()
        .flatten();
    let nodes: BTreeMap<&str, &Value> = nodes
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let roots = packages.iter().filter(|(_, package)| {
        let name = package["name"].as_str();
        name.is_some_and(|name| ours.contains(&name))
    });
    let mut open: Vec<&str> = roots.map(|(id, _)| *id).collect();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let mut newer = Vec::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        if let Some(package) = packages.get(id) {
            let needed = package["rust_version"].as_str();
            if let Some(needed) = needed.filter(|needed| numbers(needed) > numbers(stated)) {
                let (name, version) = (&package["name"], &package["version"]);
                let name = name.as_str().unwrap_or(id);
                let version = version.as_str().unwrap_or("");
                newer.push(format!("{name} {version} ({needed})"));
            }
        }
        let dependencies = nodes.get(id).and_then(|node| node["deps"].as_array());
        for dependency in dependencies.into_iter().flatten() {
            let kinds = dependency["dep_kinds"].as_array();
            let is_built = kinds
                .into_iter()
                .flatten()
                .any(|kind| kind["kind"] != "dev");
            open.extend(dependency["pkg"].as_str().filter(|_| is_built));
        }
    }
    newer.sort();
    newer
}

/// `1.88` is `1.88.0`.
fn numbers(version: &str) -> [u32; 3] {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    [(); 3].map(|()| parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_that_need_a_newer_compiler_are_found_and_those_of_tests_are_not() {
        let text = r#"{
            "packages": [
                { "id": "1", "name": "tollgate", "version": "0.1.0", "rust_version": "1.88" },
                { "id": "2", "name": "a", "version": "1.0.0", "rust_version": "1.100.0" },
                { "id": "3", "name": "b", "version": "1.0.0", "rust_version": "1.90" },
                { "id": "4", "name": "c", "version": "1.0.0", "rust_version": "1.88.0" },
                { "id": "5", "name": "d", "version": "1.0.0", "rust_version": null }
            ],
            "resolve": { "nodes": [
                { "id": "1", "deps": [
                    { "pkg": "3", "dep_kinds": [{ "kind": "dev" }] },
                    { "pkg": "4", "dep_kinds": [{ "kind": "dev" }, { "kind": null }] }
                ] },
                { "id": "4", "deps": [{ "pkg": "5", "dep_kinds": [{ "kind": "build" }] }] },
                { "id": "5", "deps": [{ "pkg": "2", "dep_kinds": [{ "kind": null }] }] }
            ] }
        }"#;
        let metadata: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(
            newer(&metadata, &["tollgate"], "1.88"),
            ["a 1.0.0 (1.100.0)"]
        );
    }
}
