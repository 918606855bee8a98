//! `cargo xtask mutants`: small faults of the library, each of which the tests have to catch.
//!
//! A copy of the workspace has all mutants of the list at once, each behind an `if`; a variable of the environment turns one of
//! them on. So the copy is built once, and a mutant takes as long as its tests do.

mod list;
mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use self::list::Mutant;
use self::programs::{Programs, Tests, parts};
use crate::run::{Outcome, target_directory};

/// How long the tests of a filter may take under a mutant: this, or four times as long as without one.
const MIN_TIMEOUT: Duration = Duration::from_secs(120);

/// How long they may take without a mutant.
const TIMEOUT: Duration = Duration::from_secs(900);

pub(crate) const USAGE: &str = "\
mutants [--only 3,17-20] [--list] [--keep]
                             small faults of the library, each of which the tests have to catch";

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Mutants {
    /// The numbers to run, in place of all.
    only: Option<BTreeSet<usize>>,
    lists: bool,
    keeps: bool,
}

/// What the options ask for.
pub(crate) fn read(options: &[&str]) -> Outcome<Mutants> {
    let mut mutants = Mutants::default();
    let mut words = options.iter();
    while let Some(word) = words.next() {
        match *word {
            "--list" => mutants.lists = true,
            "--keep" => mutants.keeps = true,
            "--only" => {
                let numbers = words.next().and_then(|text| numbers(text));
                let numbers = numbers.ok_or("--only needs numbers such as 3,17-20")?;
                mutants.only = Some(numbers);
            }
            _ => return Err(format!("no such option: {word}")),
        }
    }
    Ok(mutants)
}

fn numbers(text: &str) -> Option<BTreeSet<usize>> {
    let mut numbers = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(numbers)
}

pub(crate) fn run(root: &Path, options: &Mutants) -> Outcome {
    let list = list::read(root)?;
    let is_selected = |number: &usize| options.only.as_ref().is_none_or(|it| it.contains(number));
    let selected = (1..).zip(&list).filter(|(number, _)| is_selected(number));
    let selected: Vec<(usize, &Mutant)> = selected.collect();
    if options.lists {
        for (number, Mutant { file, what, .. }) in selected {
            println!("{number:>3} {file}: {what}");
        }
        return Ok(());
    }
    let folder = target_directory(root)?.join("mutants");
    let tree = folder.join("tree");
    if !options.keeps {
        list::copy(root, &tree, &list::mutate(root, &list)?)?;
    }
    let filters = selected.iter().flat_map(|(_, mutant)| &mutant.caught_by);
    let filters: BTreeSet<&str> = filters.map(String::as_str).collect();
    let programs = Programs::build(&tree, &folder.join("target"), &filters)?;
    let timeouts = check_without_mutant(&programs, &filters)?;
    let mut survivors = Vec::new();
    for (number, mutant) in &selected {
        let Mutant { file, what, .. } = mutant;
        let start = Instant::now();
        let caught = caught_by(&programs, &timeouts, *number, mutant)?;
        let seconds = start.elapsed().as_secs_f64();
        let result = caught.as_deref().unwrap_or("SURVIVED");
        println!("{number:>3} {file}: {result} ({seconds:.1} s)");
        if caught.is_none() {
            survivors.push(format!("{number} ({what})"));
        }
    }
    println!("{} mutants, {} survived", selected.len(), survivors.len());
    match survivors.is_empty() {
        true => Ok(()),
        false => Err(format!("no test caught {}", survivors.join(", "))),
    }
}

/// Runs the tests of each filter once as they are. Returns how long they may take under a mutant.
fn check_without_mutant<'a>(
    programs: &Programs,
    filters: &BTreeSet<&'a str>,
) -> Outcome<BTreeMap<&'a str, Duration>> {
    let mut timeouts = BTreeMap::new();
    let mut failed = Vec::new();
    for filter in filters {
        let start = Instant::now();
        let tests = programs.run(filter, 0, TIMEOUT)?;
        timeouts.insert(*filter, MIN_TIMEOUT.max(4 * start.elapsed()));
        let seconds = start.elapsed().as_secs_f64();
        let result = match tests {
            Tests::Passed(0) => "NO TESTS".to_owned(),
            Tests::Passed(tests) => format!("{tests} tests"),
            Tests::Failed(test) => format!("FAILED: {test}"),
            Tests::TimedOut => "TIMED OUT".to_owned(),
        };
        println!("  0 {filter}: {result} ({seconds:.1} s)");
        if !result.ends_with(" tests") {
            failed.push(*filter);
        }
    }
    match failed.is_empty() {
        true => Ok(timeouts),
        false => Err(format!(
            "without a mutant, these fail: {}",
            failed.join(", ")
        )),
    }
}

/// What catches a mutant first.
fn caught_by(
    programs: &Programs,
    timeouts: &BTreeMap<&str, Duration>,
    number: usize,
    mutant: &Mutant,
) -> Outcome<Option<String>> {
    for filter in &mutant.caught_by {
        match programs.run(filter, number, timeouts[filter.as_str()])? {
            Tests::Passed(_) => {}
            Tests::Failed(test) => return Ok(Some(format!("{} {test}", parts(filter).0))),
            Tests::TimedOut => return Ok(Some(format!("{filter} ran out of time"))),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_mistakes_are_reported() {
        let mutants = read(&["--only", "3,17-19", "--keep"]).expect("options");
        assert_eq!(mutants.only, Some(BTreeSet::from([3, 17, 18, 19])));
        assert!(mutants.keeps && !mutants.lists);
        for wrong in [&["--only"][..], &["--only", "x"], &["--all"]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_file_of_each_mutant_has_its_original() {
        let root = crate::root().expect("the workspace");
        let list = list::read(&root).expect("the list");
        list::mutate(&root, &list).expect("a copy with all mutants");
    }
}
