//! Imports between the files of a crate: none lead in a circle.
//!
//! A file depends on another if it imports one of its items, or mentions one in code, types or
//! macros' arguments. A path through a re-export leads to the file that defines the item, so that
//! no re-export hides a cycle. Declaring a module is no dependency, and neither is listing a
//! child's items with `pub use`, unless the parent's own code uses them. Tests are left out:
//! items that are compiled for tests alone may import anything.

mod conditions;
mod cycles;
mod modules;
mod resolve;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use self::cycles::Cycle;
use self::modules::Modules;
use crate::run::Outcome;

/// The crates whose files are checked: their folders and root files.
const CRATES: [(&str, &str); 3] = [
    ("src", "lib.rs"),
    ("cli/src", "lib.rs"),
    ("xtask/src", "main.rs"),
];

/// The cycles that were there when the check was written: one file or folder per line, and an
/// empty line between two cycles.
const KNOWN: &str = "xtask/baseline/cycles.txt";

/// Fails on a cycle that is not known, and on a known one that is gone or smaller.
pub(crate) fn check(root: &Path) -> Outcome {
    let known = fs::read_to_string(root.join(KNOWN)).map_err(failed)?;
    let found = find_all(root)?;
    for cycle in &found {
        println!("{}", show(cycle));
    }
    compare(&parse(&known), &found)
}

/// Takes off the list what is gone.
pub(crate) fn shorten(root: &Path) -> Outcome {
    let text = fs::read_to_string(root.join(KNOWN)).map_err(failed)?;
    let known = parse(&text);
    let comments = text.lines().filter(|line| line.starts_with('#'));
    let mut text: String = comments.map(|line| format!("{line}\n")).collect();
    for Cycle { members, .. } in find_all(root)? {
        if known.iter().any(|cycle| members.is_subset(cycle)) {
            text += &format!("\n{}\n", names(&members).replace(' ', "\n"));
        }
    }
    fs::write(root.join(KNOWN), text).map_err(failed)
}

fn failed(error: std::io::Error) -> String {
    format!("{KNOWN}: {error}")
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

fn parse(known: &str) -> Vec<BTreeSet<String>> {
    let mut cycles = vec![BTreeSet::new()];
    for line in known.lines().filter(|line| !line.starts_with('#')) {
        match cycles.last_mut() {
            Some(cycle) if !line.is_empty() => {
                cycle.insert(line.to_owned());
            }
            _ => cycles.push(BTreeSet::new()),
        }
    }
    cycles.retain(|cycle| !cycle.is_empty());
    cycles
}

fn compare(known: &[BTreeSet<String>], found: &[Cycle]) -> Outcome {
    let mut wrong = Vec::new();
    for Cycle { members, .. } in found {
        if known.contains(members) {
            continue;
        }
        let listed = |cycle: &&BTreeSet<String>| !cycle.is_disjoint(members);
        let before: Vec<_> = known.iter().filter(listed).collect();
        if before.iter().any(|cycle| members.is_subset(cycle)) {
            // What is left of the known cycle; the loop below says that the list is too long.
            continue;
        }
        let before: BTreeSet<_> = before.into_iter().flatten().collect();
        let added: Vec<&str> = members
            .iter()
            .filter(|name| !before.contains(name))
            .map(String::as_str)
            .collect();
        wrong.push(if before.is_empty() {
            format!("a new import cycle: {}", added.join(", "))
        } else if added.is_empty() {
            "known import cycles have become one".to_owned()
        } else {
            format!("files added to a known import cycle: {}", added.join(", "))
        });
    }
    for cycle in known {
        if found.iter().any(|found| found.members == *cycle) {
            continue;
        }
        let left: Vec<String> = found
            .iter()
            .filter(|found| found.members.is_subset(cycle))
            .map(|found| names(&found.members))
            .collect();
        let gone = names(cycle);
        wrong.push(if left.is_empty() {
            format!("{KNOWN} lists a cycle that is gone; take it off the list: {gone}")
        } else {
            let left = left.join(" / ");
            format!("{KNOWN} lists a cycle that is smaller now ({gone}); what is left: {left}")
        });
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
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
