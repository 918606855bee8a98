//! The public API against a listing of it, so that each change of it is seen in a change of the listing.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use public_api::Builder;

use super::skipped::Skipped;
use super::toolchain::{self, Toolchain};
use super::unpacked;
use crate::run::{Outcome, capture, cargo, succeed};
use crate::test::PACKAGE;

const LISTING: &str = "docs/public-api.txt";

/// Writes the listing anew, if it is set.
const WRITE: &str = "TOLLGATE_WRITE_API";

/// What rustdoc writes for programs, and which automatic traits there are, changes between compilers. This one belongs to the
/// version of the library `public-api` in xtask/Cargo.toml.
const COMPILER: &str = "1.95";

/// Traits that the compiler alone implements and uses.
const UNSTABLE: [&str; 3] = [
    "core::marker::Freeze for ",
    "core::marker::UnsafeUnpin for ",
    "core::marker::StructuralPartialEq for ",
];

/// With all features.
pub(super) fn check(root: &Path, skipped: &mut Skipped) -> Outcome {
    let words = [
        "rustdoc",
        "--lib",
        "--all-features",
        "--locked",
        "--package",
        PACKAGE,
    ];
    let Some(mut rustdoc) = compiler(root, &words)? else {
        skipped.add(
            "the listing of the public API",
            &format!("needs Rust {COMPILER}: {}", toolchain::install(COMPILER)),
        );
        return Ok(());
    };
    let target = unpacked::target(root)?;
    rustdoc.arg("--target-dir").arg(&target);
    rustdoc.args(["--", "-Zunstable-options", "--output-format=json"]);
    // The output for programs has an unstable format, which this compiler writes if it is taken for a nightly one.
    succeed(rustdoc.env("RUSTC_BOOTSTRAP", "1"))?;

    let json = target.join("doc").join(format!("{PACKAGE}.json"));
    let api = Builder::from_rustdoc_json(&json)
        // Every type has those of `From`, `Into`, `Any` and the like.
        .omit_blanket_impls(true)
        .build()
        .map_err(|error| format!("{}: {error}", json.display()))?;
    let items = api.items().map(|item| Item {
        id: item.id().0,
        parent: item.parent_id().map(|id| id.0),
        text: item.to_string(),
    });
    let found = listing(&Vec::from_iter(items));

    let file = root.join(LISTING);
    if env::var_os(WRITE).is_some() {
        return fs::write(&file, found).map_err(|error| format!("{LISTING}: {error}"));
    }
    let listed = fs::read_to_string(&file).map_err(|error| format!("{LISTING}: {error}"))?;
    println!("    {} items", found.lines().count());
    let changes = changes(&listed, &found);
    if changes.is_empty() {
        return Ok(());
    }
    println!("    {}", changes.join("\n    "));
    Err(format!(
        "the public API is not what {LISTING} lists; if it is meant to change, run `{WRITE}=1 cargo xtask release-check --only api`"
    ))
}

/// The cargo of [`COMPILER`], if it is installed.
fn compiler(root: &Path, words: &[&str]) -> Outcome<Option<Command>> {
    let (version, _) = capture(&mut cargo(root, &["--version"]))?;
    if version.starts_with(&format!("cargo {COMPILER}.")) {
        return Ok(Some(cargo(root, words)));
    }
    Ok(Toolchain::find(COMPILER).map(|toolchain| toolchain.cargo(root, words)))
}

/// An item, as the compiler numbers and the library prints it.
struct Item {
    id: u32,
    parent: Option<u32>,
    text: String,
}

/// A line for each item. The methods of an implementation of a trait are those of the trait.
fn listing(items: &[Item]) -> String {
    let implementations = items.iter().filter(|item| item.is_of_trait());
    let implementations: BTreeSet<u32> = implementations.map(|item| item.id).collect();
    let listed = items.iter().filter(|item| {
        let is_implemented = item.parent.is_some_and(|id| implementations.contains(&id));
        let is_method = is_implemented && item.text.starts_with("pub fn ");
        let is_unstable = UNSTABLE.iter().any(|name| item.text.contains(name));
        !is_method && !is_unstable
    });
    listed.map(|item| format!("{}\n", item.text)).collect()
}

impl Item {
    fn is_of_trait(&self) -> bool {
        self.text.starts_with("impl") && self.text.contains(" for ")
    }
}

/// Lines that are gone, then new ones.
fn changes(listed: &str, found: &str) -> Vec<String> {
    let old: BTreeSet<&str> = listed.lines().collect();
    let new: BTreeSet<&str> = found.lines().collect();
    let gone = old.difference(&new).map(|line| format!("-{line}"));
    let added = new.difference(&old).map(|line| format!("+{line}"));
    gone.chain(added).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_of_implementations_of_traits_are_not_listed() {
        let items = [
            (1, None, "pub struct a::B", true),
            (2, Some(1), "impl a::B", true),
            (3, Some(2), "pub fn a::B::new() -> Self", true),
            (4, Some(1), "impl core::clone::Clone for a::B", true),
            (5, Some(4), "pub fn a::B::clone(&self) -> a::B", false),
            (6, Some(1), "impl a::Of<u8> for a::B", true),
            (7, Some(6), "pub type a::B::Item = u8", true),
            (8, Some(1), "impl !core::marker::Freeze for a::B", false),
            (9, None, "pub fn a::c()", true),
        ];
        let listed = items.iter().filter(|(.., is_listed)| *is_listed);
        let listed: Vec<&str> = listed.map(|(_, _, text, _)| *text).collect();
        let items = items.map(|(id, parent, text, _)| Item {
            id,
            parent,
            text: text.to_owned(),
        });
        assert_eq!(listing(&items).lines().collect::<Vec<_>>(), listed);
    }

    #[test]
    fn changes_of_the_listing_are_found_in_both_directions() {
        let listed = "pub fn a::b()\npub fn a::c()\n";
        let found = "pub fn a::b(u8)\npub fn a::c()\n";
        assert_eq!(
            changes(listed, found),
            ["-pub fn a::b()", "+pub fn a::b(u8)"]
        );
        assert!(changes(listed, listed).is_empty());
    }
}
