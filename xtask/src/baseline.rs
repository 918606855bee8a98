//! Lists of what was wrong when a check was written: a count for each file, which may only fall.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::run::Outcome;

pub(crate) type Counts = BTreeMap<String, usize>;

/// Fails on a count above the one in `list`, a file of lines `count name`, or above `free` for a
/// name that is not listed; and on a listed count that is lower by now.
pub(crate) fn compare(root: &Path, list: &str, free: usize, found: &Counts) -> Outcome {
    let (_, known) = read(root, list)?;
    let wrong = differences(&known, free, found);
    if wrong.is_empty() {
        return Ok(());
    }
    println!("{list} differs from what was found:");
    for line in &wrong {
        println!("    {line}");
    }
    Err(format!("{list}: {}", wrong.join("; ")))
}

/// Lowers the counts in `list` that are lower by now; none is added or raised.
pub(crate) fn shorten(root: &Path, list: &str, found: &Counts) -> Outcome {
    let (text, known) = read(root, list)?;
    let comments = text.lines().filter(|line| line.starts_with('#'));
    let mut text: String = comments.map(|line| format!("{line}\n")).collect();
    for (name, before) in known {
        if let Some(count) = found.get(&name) {
            text += &format!("{} {name}\n", before.min(*count));
        }
    }
    fs::write(root.join(list), text).map_err(|error| format!("{list}: {error}"))
}

fn read(root: &Path, list: &str) -> Outcome<(String, Counts)> {
    let text = fs::read_to_string(root.join(list)).map_err(|error| format!("{list}: {error}"))?;
    let known = parse(&text).ok_or_else(|| format!("{list}: a line is not `count name`"))?;
    Ok((text, known))
}

fn parse(text: &str) -> Option<Counts> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (count, name) = line.split_once(' ')?;
            Some((name.to_owned(), count.parse().ok()?))
        })
        .collect()
}

fn differences(known: &Counts, free: usize, found: &Counts) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, count) in found {
        let before = known.get(name).copied().unwrap_or(free);
        if *count > before {
            wrong.push(format!("{name} has {count}, more than {before}"));
        }
    }
    for (name, before) in known {
        match found.get(name) {
            Some(count) if count < before => {
                wrong.push(format!("lower the count of {name} to {count}"));
            }
            None => wrong.push(format!("take {name} off the list")),
            Some(_) => {}
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(files: &[(&str, usize)]) -> Counts {
        let owned = files
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count));
        owned.collect()
    }

    #[test]
    fn a_growing_count_fails_whether_or_not_it_is_listed() {
        let known = counts(&[("a", 20)]);
        let check = |found| differences(&known, 14, &counts(found));
        assert!(check(&[("a", 20), ("b", 14)]).is_empty());
        assert_eq!(check(&[("a", 21)]), ["a has 21, more than 20"]);
        let more = check(&[("a", 20), ("b", 15)]);
        assert_eq!(more, ["b has 15, more than 14"]);
    }

    #[test]
    fn a_listed_count_only_falls() {
        let known = counts(&[("a", 20)]);
        let check = |found| differences(&known, 14, &counts(found));
        assert_eq!(check(&[("a", 19)]), ["lower the count of a to 19"]);
        assert_eq!(check(&[]), ["take a off the list"]);
    }

    #[test]
    fn shortening_a_list_lowers_counts_and_adds_none() {
        let root = std::env::temp_dir().join(format!("tollgate-list-{}", std::process::id()));
        fs::create_dir_all(&root).expect("a new folder");
        fs::write(root.join("list"), "# why\n3 a\n3 b\n3 c\n").expect("a new file");
        let found = counts(&[("a", 2), ("b", 4), ("d", 1)]);
        shorten(&root, "list", &found).expect("a list");
        let text = fs::read_to_string(root.join("list")).expect("a file");
        fs::remove_dir_all(&root).expect("an end of it");
        assert_eq!(text, "# why\n2 a\n3 b\n");
    }

    #[test]
    fn the_list_is_read_without_its_comments() {
        assert_eq!(parse("# why\n\n20 a b\n"), Some(counts(&[("a b", 20)])));
        assert_eq!(parse("a 20"), None);
    }
}
