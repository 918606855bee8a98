//! The list of mutants, and a copy of the workspace that has them all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::run::{Outcome, capture, command};

const LIST: &str = "tests/mutants.toml";

/// The module that the copy's library has besides.
const SWITCH: &str = r#"
pub(crate) mod mutant {
    pub(crate) fn is_on(number: u32) -> bool {
        static ON: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
        let read = || std::env::var("TOLLGATE_MUTANT").ok()?.parse().ok();
        *ON.get_or_init(read) == Some(number)
    }
}
"#;

/// A fault. Its number is its place in the list, from 1 on.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mutant {
    pub(super) file: String,
    /// A text that the file has once: an expression, or a statement if it ends with a semicolon.
    pub(super) original: String,
    pub(super) mutated: String,
    /// A text that the file has once, after which the original comes first.
    after: Option<String>,
    /// Test programs with the start of the names of their tests: `redis store::exact`. The unit tests are those of `lib`.
    pub(super) caught_by: Vec<String>,
    /// The fault.
    pub(super) what: String,
}

#[derive(Deserialize)]
struct List {
    mutant: Vec<Mutant>,
}

pub(super) fn read(root: &Path) -> Outcome<Vec<Mutant>> {
    let text = read_file(&root.join(LIST))?;
    let list: List = toml::from_str(&text).map_err(|error| format!("{LIST}: {error}"))?;
    Ok(list.mutant)
}

fn read_file(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The files that differ in the copy: those with mutants, those that include a script with mutants, and these scripts.
pub(super) fn mutate(root: &Path, list: &[Mutant]) -> Outcome<BTreeMap<PathBuf, String>> {
    let mut by_file: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (number, mutant) in (1..).zip(list) {
        by_file
            .entry(&mutant.file)
            .or_default()
            .push((number, mutant));
    }
    let mut mutated = BTreeMap::new();
    let lib = PathBuf::from("src/lib.rs");
    mutated.insert(lib.clone(), read_file(&root.join(lib))? + SWITCH);
    let (scripts, sources): (Vec<_>, Vec<_>) =
        { by_file.iter() }.partition(|(file, _)| file.ends_with(".lua"));
    for (file, mutants) in sources {
        let text = read_file(&root.join(file))?;
        mutated.insert(file.into(), with_switches(&text, mutants)?);
    }
    for (file, mutants) in scripts {
        let (text, file) = (read_file(&root.join(file))?, Path::new(file));
        let name = |file: &Path| file.file_name().map(|name| name.display().to_string());
        let include = |file: &Path| format!("include_str!({:?})", name(file).unwrap_or_default());
        let mut choices = Vec::new();
        for (number, mutant) in mutants {
            let mut changed = text.clone();
            changed.replace_range(place(&text, *number, mutant)?, &mutant.mutated);
            let path = file.with_extension(format!("mutant{number}.lua"));
            choices.push((*number, include(&path)));
            mutated.insert(path, changed);
        }
        // `gcra_fast.lua` is included by `gcra.rs`.
        let stem = file.with_extension("").display().to_string();
        let source = PathBuf::from(stem.trim_end_matches("_fast").to_owned() + ".rs");
        let text = match mutated.get(&source) {
            Some(text) => text.clone(),
            None => read_file(&root.join(&source))?,
        };
        let choice = switch(&choices, &include(file));
        mutated.insert(source, text.replacen(&include(file), &choice, 1));
    }
    Ok(mutated)
}

/// A source in which each original is chosen, or a mutant of it.
fn with_switches(text: &str, mutants: &[(usize, &Mutant)]) -> Outcome<String> {
    let mut places: BTreeMap<(usize, usize), Vec<(usize, String)>> = BTreeMap::new();
    for (number, mutant) in mutants {
        let Range { start, end } = place(text, *number, mutant)?;
        let choices = places.entry((start, end)).or_default();
        choices.push((*number, mutant.mutated.clone()));
    }
    let (mut changed, mut done) = (String::new(), 0);
    for ((start, end), choices) in places {
        let before = text.get(done..start);
        let before = before.ok_or(format!("mutant {} overlaps another one", choices[0].0))?;
        changed += before;
        changed += &switch(&choices, &text[start..end]);
        done = end;
    }
    Ok(changed + &text[done..])
}

fn switch(choices: &[(usize, String)], original: &str) -> String {
    let mut text = String::new();
    for (number, mutated) in choices {
        text += &format!("if crate::mutant::is_on({number}) {{ {mutated} }} else ");
    }
    match original.ends_with(';') {
        true => format!("{text}{{ {original} }}"),
        false => format!("({text}{{ {original} }})"),
    }
}

/// Where a mutant's original is.
fn place(text: &str, number: usize, mutant: &Mutant) -> Outcome<Range<usize>> {
    let Mutant { file, original, .. } = mutant;
    let wrong = |found: usize, part: &str| format!("mutant {number}: {file} has {found} of {part}");
    let once = |part: &str| match text.matches(part).count() {
        1 => text.find(part).ok_or(wrong(0, part)),
        found => Err(wrong(found, part)),
    };
    let start = match &mutant.after {
        None => once(original)?,
        Some(anchor) => {
            let from = once(anchor)? + anchor.len();
            let found = text[from..].find(original.as_str());
            from + found.ok_or(wrong(0, original))?
        }
    };
    Ok(start..start + original.len())
}

/// Copies what git has or would add. A file that is as it was keeps its time, so that it is not built again.
pub(super) fn copy(root: &Path, folder: &Path, mutated: &BTreeMap<PathBuf, String>) -> Outcome {
    let words = "-c safe.directory=* ls-files -z --cached --others --exclude-standard";
    let words: Vec<&str> = words.split(' ').collect();
    let (files, _) = capture(command("git", &words).current_dir(root))?;
    let files = files.split_terminator('\0').map(PathBuf::from);
    let files: BTreeSet<PathBuf> = files.filter(|file| root.join(file).is_file()).collect();
    let copied = folder.join("files.txt");
    let before = fs::read_to_string(&copied).unwrap_or_default();
    let write = |file: &Path, content: &[u8]| {
        let path = folder.join("tree").join(file);
        if fs::read(&path).is_ok_and(|before| before == content) {
            return Ok(());
        }
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(path, content)
    };
    let update = || -> io::Result<()> {
        for file in before
            .lines()
            .filter(|file| !files.contains(Path::new(file)))
        {
            let _ = fs::remove_file(folder.join("tree").join(file));
        }
        for file in files.iter().filter(|file| !mutated.contains_key(*file)) {
            write(file, &fs::read(root.join(file))?)?;
        }
        for (file, text) in mutated {
            write(file, text.as_bytes())?;
        }
        let names = files.iter().chain(mutated.keys());
        let names: Vec<String> = names.map(|file| file.display().to_string()).collect();
        fs::write(&copied, names.join("\n"))
    };
    update().map_err(|error| format!("copying to {}: {error}", folder.display()))
}
