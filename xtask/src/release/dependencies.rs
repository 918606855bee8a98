//! Dependencies: what is allowed of them, and which of them the public API names.

use std::collections::BTreeSet;
use std::path::Path;

use super::skipped::Skipped;
use super::toolchain::{self, Toolchain};
use super::unpacked;
use crate::run::{Outcome, capture, cargo, line, succeed};

/// The crates whose types and traits the public API names, some through the crate that re-exports them. `docs/stability.md`
/// says how their versions are followed.
const PUBLIC: [&str; 14] = [
    "axum",
    "axum_core",
    "bytes",
    "deadpool",
    "deadpool_redis",
    "http",
    "http_body",
    "metrics",
    "schemars",
    "serde_core",
    "serde_json",
    "tonic",
    "tower_layer",
    "tower_service",
];

/// What the compiler prints before the name of such a crate.
const MARK: &str = "from private dependency '";

/// Advisories have to be fetched, which the workflow does.
pub(super) fn deny(root: &Path, skipped: &mut Skipped) -> Outcome {
    if !has_subcommand(root, "deny") {
        skipped.add(
            "licences, sources and versions of dependencies by deny.toml",
            "needs cargo-deny: run `cargo install --locked cargo-deny`",
        );
        return Ok(());
    }
    let words = [
        "deny",
        // Those of the program too.
        "--workspace",
        "--all-features",
        "check",
        "bans",
        "licenses",
        "sources",
    ];
    succeed(&mut cargo(root, &words))
}

/// The compiler of nightly reports the items of other crates in the public API, unless Cargo.toml allows them, which stable
/// cannot read.
pub(super) fn external(root: &Path, skipped: &mut Skipped) -> Outcome {
    let Some(nightly) = Toolchain::find("nightly") else {
        skipped.add(
            "external types of the public API",
            &format!("needs nightly: {}", toolchain::install("nightly")),
        );
        return Ok(());
    };
    let folder = unpacked::unpack(root, "external")?;
    let words = ["check", "--lib", "--all-features", "-Zpublic-dependency"];
    let mut command = nightly.cargo(&folder, &words);
    command.arg("--target-dir").arg(unpacked::target(root)?);
    let output = command
        .output()
        .map_err(|error| format!("`{}` did not start: {error}", line(&command)))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        eprint!("{text}");
        return Err(format!("`{}`: {}", line(&command), output.status));
    }
    let found = named(&text);
    let listed = BTreeSet::from(PUBLIC);
    println!(
        "    the public API names {}",
        Vec::from_iter(found.iter().copied()).join(", ")
    );
    if found == listed {
        return Ok(());
    }
    let different = found.symmetric_difference(&listed).copied();
    Err(format!(
        "the public API names other crates than xtask/src/release/dependencies.rs lists: {}",
        Vec::from_iter(different).join(", ")
    ))
}

/// The crates that the compiler has found.
fn named(text: &str) -> BTreeSet<&str> {
    let names = text.split(MARK).skip(1);
    names.filter_map(|rest| rest.split('\'').next()).collect()
}

/// Whether cargo has it, as a program of its own.
pub(super) fn has_subcommand(root: &Path, name: &str) -> bool {
    let list = capture(&mut cargo(root, &["--list"]));
    list.is_ok_and(|(list, _)| {
        let mut names = list
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        names.any(|listed| listed == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_in_the_messages_of_the_compiler_are_found_once_each() {
        let text = "warning: type `http::Method` from private dependency 'http' in public interface\n\
                    warning: unused\n\
                    warning: crate `a_b` from private dependency 'a_b' is re-exported\n\
                    warning: type `http::Uri` from private dependency 'http' in public interface\n";
        assert_eq!(named(text), BTreeSet::from(["a_b", "http"]));
    }

    #[test]
    fn the_stability_policy_lists_the_public_crates() {
        let root = crate::root().expect("the root");
        let policy = std::fs::read_to_string(root.join("docs/stability.md")).expect("the policy");
        for name in PUBLIC {
            // What a crate re-exports has its version.
            let name = name.trim_end_matches("_core");
            assert!(
                policy.replace('-', "_").contains(&format!("`{name}")),
                "{name}"
            );
        }
    }
}
