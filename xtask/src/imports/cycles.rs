//! Folders that depend on each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::resolve::Edges;

/// The members of a cycle, and an example of each dependency between them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cycle {
    pub(super) members: BTreeSet<String>,
    pub(super) edges: BTreeMap<(String, String), String>,
}

impl Cycle {
    /// Puts the folder of the crate before each name.
    pub(super) fn add_prefix(&mut self, prefix: &str) {
        let with = |name: String| format!("{prefix}{name}");
        self.members = std::mem::take(&mut self.members)
            .into_iter()
            .map(with)
            .collect();
        self.edges = std::mem::take(&mut self.edges)
            .into_iter()
            .map(|((from, to), example)| ((with(from), with(to)), example))
            .collect();
    }
}

/// Every cycle between the folders in a folder, and between them and the files beside them.
pub(super) fn find(edges: &Edges) -> Vec<Cycle> {
    let mut cycles = Vec::new();
    for folder in folders(edges) {
        let mut inside = BTreeMap::new();
        for ((from, to), example) in edges {
            if let (Some(a), Some(b)) = (entry(&folder, from), entry(&folder, to))
                && a != b
            {
                let example = format!("{}: {example}", text(from));
                inside.entry((a, b)).or_insert(example);
            }
        }
        // Files of one folder may use each other.
        let has_folder = |cycle: &Cycle| cycle.members.iter().any(|name| name.ends_with('/'));
        cycles.extend(components(&inside).into_iter().filter(has_folder));
    }
    cycles
}

fn text(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "/")
}

fn folders(edges: &Edges) -> BTreeSet<PathBuf> {
    let files = edges.keys().flat_map(|(from, to)| [from, to]);
    files
        .flat_map(|file| file.ancestors().skip(1))
        .map(Path::to_path_buf)
        .collect()
}

/// The file or folder directly in `folder` that a file belongs to, unless it is the folder's own file.
fn entry(folder: &Path, file: &Path) -> Option<String> {
    let inside = file.strip_prefix(folder).ok()?;
    let mut parts = inside.components();
    let first = folder.join(parts.next()?);
    if parts.next().is_some() {
        return Some(format!("{}/", text(&first)));
    }
    let is_own = ["lib.rs", "main.rs", "mod.rs"]
        .iter()
        .any(|name| first.ends_with(name));
    (!is_own).then(|| text(&first))
}

/// The strongly connected components of more than one node.
fn components(edges: &BTreeMap<(String, String), String>) -> Vec<Cycle> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        next.entry(from).or_default().push(to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> = next
        .keys()
        .map(|node| (*node, reach(&next, node)))
        .collect();
    let mut found = Vec::new();
    let mut placed = BTreeSet::new();
    for (node, from_here) in &reached {
        if !from_here.contains(node) || placed.contains(node) {
            continue;
        }
        let back = |other: &&&str| reached.get(**other).is_some_and(|from| from.contains(node));
        let members: BTreeSet<&str> = from_here.iter().filter(back).copied().collect();
        placed.extend(members.iter().copied());
        let inside = |(from, to): &(String, String)| {
            members.contains(from.as_str()) && members.contains(to.as_str())
        };
        found.push(Cycle {
            edges: edges
                .iter()
                .filter(|(ends, _)| inside(ends))
                .map(|(ends, example)| (ends.clone(), example.clone()))
                .collect(),
            members: members.iter().map(|name| (*name).to_owned()).collect(),
        });
    }
    found
}

/// Every node that a path of edges leads to from `start`.
fn reach<'a>(next: &BTreeMap<&'a str, Vec<&'a str>>, start: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![start];
    while let Some(node) = open.pop() {
        for other in next.get(node).into_iter().flatten() {
            if found.insert(*other) {
                open.push(other);
            }
        }
    }
    found
}
