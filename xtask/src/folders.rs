//! Folders of sources: small enough to be seen at a glance.

use std::fs;
use std::path::{Path, PathBuf};

use crate::baseline::{self, Counts};
use crate::run::Outcome;

/// The most files that a folder holds; a strategy's two halves count as one.
const MAX_FILES: usize = 12;

/// The folders that are checked, with everything in them. A folder of tests is a flat list of scenes, however many there are.
const FOLDERS: [&str; 6] = [
    "src",
    "benches",
    "cli/src",
    "plots/src",
    "testkit/src",
    "xtask/src",
];

/// The folders that held more when the check was written.
const KNOWN: &str = "xtask/baseline/folders.txt";

/// Fails on a folder with too many files, and on a known one that holds fewer by now.
pub(crate) fn check(root: &Path) -> Outcome {
    baseline::compare(root, KNOWN, MAX_FILES, &crowded(root)?)
}

/// Takes off the list what is gone.
pub(crate) fn shorten(root: &Path) -> Outcome {
    baseline::shorten(root, KNOWN, &crowded(root)?)
}

fn crowded(root: &Path) -> Outcome<Counts> {
    let mut crowded = Counts::new();
    for folder in FOLDERS {
        count(root, &PathBuf::from(folder), &mut crowded)?;
    }
    Ok(crowded)
}

/// Adds each folder with too many files, and how many it has.
fn count(root: &Path, folder: &Path, crowded: &mut Counts) -> Outcome {
    let failed = |error| format!("{}: {error}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(root.join(folder)).map_err(failed)? {
        let name = PathBuf::from(entry.map_err(failed)?.file_name());
        if root.join(folder).join(&name).is_dir() {
            count(root, &folder.join(name), crowded)?;
        } else {
            files.push(name);
        }
    }
    let files = files_but_pairs(&files);
    if files > MAX_FILES {
        crowded.insert(folder.display().to_string(), files);
    }
    Ok(())
}

fn files_but_pairs(files: &[PathBuf]) -> usize {
    let is_half = |file: &&PathBuf| {
        file.extension().is_some_and(|extension| extension == "lua")
            && files.contains(&file.with_extension("rs"))
    };
    files.len() - files.iter().filter(is_half).count()
}

#[test]
fn a_strategy_and_its_script_count_as_one_file() {
    let files = ["gcra.rs", "gcra.lua", "gcra_fast.lua", "mod.rs"].map(PathBuf::from);
    assert_eq!(files_but_pairs(&files), 3);
}
