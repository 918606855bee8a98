//! Imports between the folders of a crate: none lead in a circle.
//!
//! A file depends on another if it imports one of its items, or mentions one in code, types or macros' arguments; so do
//! the folders that they are in. A path through a re-export leads to the file that defines the item, so that no re-export
//! hides a cycle. Files of one folder may depend on each other, and a folder's own file, `mod.rs`, on its children. Tests are
//! left out: items that are compiled for tests alone may import anything.

mod conditions;
mod cycles;
mod modules;
mod resolve;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;

use self::cycles::Cycle;
use self::modules::Modules;
use crate::run::Outcome;

/// The crates whose files are checked: their folders and root files.
const CRATES: [(&str, &str); 4] = [
    ("src", "lib.rs"),
    ("cli/src", "lib.rs"),
    ("server/src", "lib.rs"),
    ("xtask/src", "main.rs"),
];

/// Fails on a cycle.
pub(crate) fn check(root: &Path) -> Outcome {
    let found = find_all(root)?;
    for cycle in &found {
        println!("{}", show(cycle));
    }
    let wrong: Vec<String> = found.iter().map(|cycle| names(&cycle.members)).collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("import cycles: {}", wrong.join("; ")))
    }
}

fn find_all(root: &Path) -> Outcome<Vec<Cycle>> {
    let mut found = Vec::new();
    for (folder, file) in CRATES {
        let prefix = format!("{folder}/");
        found.extend(find(&root.join(folder), file, &prefix)?);
    }
    Ok(found)
}

fn find(folder: &Path, file: &str, prefix: &str) -> Outcome<Vec<Cycle>> {
    let modules = Modules::read(folder, file)?;
    let mut cycles = cycles::find(&resolve::edges(&modules));
    for cycle in &mut cycles {
        cycle.add_prefix(prefix);
    }
    Ok(cycles)
}

fn names(members: &BTreeSet<String>) -> String {
    let names: Vec<&str> = members.iter().map(String::as_str).collect();
    names.join(" ")
}

fn show(cycle: &Cycle) -> String {
    let count = cycle.members.len();
    let mut text = format!("import cycle of {count}: {}\n", names(&cycle.members));
    for ((from, to), example) in &cycle.edges {
        text += &format!("    {from} -> {to}    {example}\n");
    }
    text
}
