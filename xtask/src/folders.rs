//! Folders of sources: small enough to be seen at a glance.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::run::Outcome;

/// The most files that a folder holds; a strategy's two halves count as one.
const MAX_FILES: usize = 14;

/// The folders that are checked, with everything in them.
const FOLDERS: [&str; 2] = ["src", "xtask/src"];

/// The folders that held more when the check was written, as `count folder`.
const KNOWN: &str = "xtask/baseline/folders.txt";

/// Fails on a folder with too many files, and on a known one that holds fewer by now.
pub(crate) fn check(root: &Path) -> Outcome {
    let known =
        fs::read_to_string(root.join(KNOWN)).map_err(|error| format!("{KNOWN}: {error}"))?;
    let mut crowded = BTreeMap::new();
    for folder in FOLDERS {
        count(root, &PathBuf::from(folder), &mut crowded)?;
    }
    compare(&parse(&known)?, &crowded)
}

/// Adds each folder with too many files, and how many it has.
fn count(root: &Path, folder: &Path, crowded: &mut BTreeMap<String, usize>) -> Outcome {
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

fn parse(known: &str) -> Outcome<BTreeMap<String, usize>> {
    known
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (count, folder) = line.split_once(' ')?;
            Some((folder.to_owned(), count.parse().ok()?))
        })
        .collect::<Option<_>>()
        .ok_or_else(|| format!("{KNOWN}: a line is not `count folder`"))
}

fn compare(known: &BTreeMap<String, usize>, found: &BTreeMap<String, usize>) -> Outcome {
    let mut wrong = Vec::new();
    for (folder, count) in found {
        let before = known.get(folder).copied().unwrap_or(MAX_FILES);
        if *count > before {
            wrong.push(format!("{folder} holds {count} files, more than {before}"));
        }
    }
    for (folder, before) in known {
        match found.get(folder) {
            Some(count) if count < before => {
                wrong.push(format!("{KNOWN}: {folder} holds {count} files now"));
            }
            None => wrong.push(format!("{KNOWN}: take {folder} off the list")),
            Some(_) => {}
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(folders: &[(&str, usize)]) -> BTreeMap<String, usize> {
        let owned = folders
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count));
        owned.collect()
    }

    #[test]
    fn a_strategy_and_its_script_count_as_one_file() {
        let files = ["gcra.rs", "gcra.lua", "gcra_fast.lua", "mod.rs"].map(PathBuf::from);
        assert_eq!(files_but_pairs(&files), 3);
    }

    #[test]
    fn a_folder_that_grows_fails_whether_or_not_it_is_known() {
        let known = map(&[("src/a", 20)]);
        assert_eq!(compare(&known, &map(&[("src/a", 20)])), Ok(()));
        assert!(compare(&known, &map(&[("src/a", 21)])).is_err());
        assert!(compare(&known, &map(&[("src/a", 20), ("src/b", 15)])).is_err());
    }

    #[test]
    fn the_list_of_crowded_folders_only_shrinks() {
        let known = map(&[("src/a", 20)]);
        assert!(compare(&known, &map(&[("src/a", 19)])).is_err());
        assert!(compare(&known, &map(&[])).is_err());
    }

    #[test]
    fn the_list_is_read_without_its_comments() {
        assert_eq!(parse("# why\n\n20 src/a\n"), Ok(map(&[("src/a", 20)])));
        assert!(parse("src/a 20").is_err());
    }
}
