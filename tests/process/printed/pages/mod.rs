//! What each page needs besides its commands.

use crate::printed::page::Page;

pub(crate) mod admin;
pub(crate) mod cli;
pub(crate) mod examples;
pub(crate) mod operations;
pub(crate) mod readme;
pub(crate) mod replay;

/// Fails unless the next block is of `Cargo.toml`, and names this version of the crate, features that it has, and other crates as the
/// project depends on them.
pub(crate) fn manifest(page: &mut Page) {
    let text = page.expect("toml").text;
    let ours: toml::Table = include_str!("../../../../Cargo.toml")
        .parse()
        .expect("TOML");
    let tests: toml::Table = include_str!("../../../Cargo.toml").parse().expect("TOML");
    let text = match text.contains("[dependencies]") {
        true => text,
        false => format!("[dependencies]\n{text}"),
    };
    let manifest: toml::Table = text.parse().expect("TOML");
    let dependencies = manifest["dependencies"].as_table().expect("dependencies");
    let version = |dependency: &toml::Value| {
        let version = dependency.get("version").unwrap_or(dependency);
        version.as_str().expect("a version").to_owned()
    };
    for (name, dependency) in dependencies {
        if name != "tollgate" {
            let our = [&ours["dependencies"], &tests["dependencies"]];
            let our = our.into_iter().find_map(|table| table.get(name));
            let our = version(our.expect("a dependency of the project"));
            assert!(our.starts_with(&version(dependency)), "{name} {our}");
            continue;
        }
        let our = ours["package"]["version"].as_str().expect("a version");
        assert!(our.starts_with(&version(dependency)), "{our}");
        let features = dependency.get("features").and_then(toml::Value::as_array);
        for feature in features.into_iter().flatten() {
            let feature = feature.as_str().expect("a name");
            assert!(
                ours["features"].get(feature).is_some(),
                "no feature {feature}"
            );
        }
    }
}
