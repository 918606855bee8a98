//! The list of mutants, and a copy of the workspace that has them all.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::run::{Outcome, capture, command};

const LIST: &str = "tests/mutants.toml";

/// The library, and the server for Envoy.
const LIBRARIES: [&str; 2] = ["src/lib.rs", "server/src/lib.rs"];

/// The module that each library of the copy has besides.
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
    original: String,
    mutated: String,
    /// A text that the file has once, after which the original comes first.
    after: Option<String>,
    /// Test programs with a part of the names of their tests: `redis store::exact`. The unit tests are those of `lib`,
    /// and the server's those of `server`, whose test program is `service`.
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

/// Mutants by the range of their original.
type Places = BTreeMap<(usize, usize), Vec<(usize, String)>>;

/// The files that differ in the copy.
pub(super) fn mutate(root: &Path, list: &[Mutant]) -> Outcome<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    let mut sources: BTreeMap<PathBuf, Places> = BTreeMap::new();
    for (number, mutant) in (1..).zip(list) {
        let wrong = |reason| format!("mutant {number} in {}: {reason}", mutant.file);
        let mut file = PathBuf::from(&mutant.file);
        let mut text = read_file(&root.join(&file))?;
        if !mutant.file.ends_with(".lua") && !can_be_chosen(&mutant.original) {
            return Err(wrong(
                "the original is neither an expression nor a statement".to_owned(),
            ));
        }
        let anchor = mutant.after.as_deref();
        let mut place = find(&text, anchor, &mutant.original).map_err(wrong)?;
        let mut mutated = mutant.mutated.clone();
        if let Some(name) = mutant.file.strip_suffix(".lua") {
            // The source includes a script with the mutant in its place. `gcra.rs` includes `gcra_fast.lua`, and a folder's `mod.rs`
            // a script without a source of its name.
            text.replace_range(place.0..place.1, &mutated);
            let changed = file.with_extension(format!("mutant{number}.lua"));
            mutated = include(&changed);
            files.insert(changed, text);
            let included = include(&file);
            let own = PathBuf::from(name.trim_end_matches("_fast").to_owned() + ".rs");
            file = match root.join(&own).is_file() {
                true => own,
                false => file.with_file_name("mod.rs"),
            };
            text = read_file(&root.join(&file))?;
            place = find(&text, None, &included).map_err(wrong)?;
        }
        let places = sources.entry(file).or_default();
        places.entry(place).or_default().push((number, mutated));
    }
    for (file, places) in sources {
        let text = with_switches(&read_file(&root.join(&file))?, &places)?;
        files.insert(file, text);
    }
    for lib in LIBRARIES.map(PathBuf::from) {
        let text = match files.remove(&lib) {
            Some(mutated) => mutated,
            None => read_file(&root.join(&lib))?,
        };
        files.insert(lib, text + SWITCH);
    }
    Ok(files)
}

/// Whether a text may be an expression or a statement, which an `if` can choose.
fn can_be_chosen(original: &str) -> bool {
    !original.starts_with("&&") && !original.starts_with("||") && !original.ends_with([',', '{'])
}

fn include(script: &Path) -> String {
    let name = script.file_name().unwrap_or_default();
    format!("include_str!({name:?})")
}

/// The range of a text that there is once, or of the first one after an anchor that there is once.
fn find(text: &str, anchor: Option<&str>, part: &str) -> Outcome<(usize, usize)> {
    let once = anchor.unwrap_or(part);
    let found = text.matches(once).count();
    if found != 1 {
        return Err(format!("found {found} of {once}"));
    }
    let from = text
        .find(once)
        .map_or(0, |at| at + anchor.map_or(0, str::len));
    let found = text[from..].find(part).ok_or(format!("no {part}"))?;
    Ok((from + found, from + found + part.len()))
}

/// A source in which each original is chosen, or a mutant of it.
fn with_switches(text: &str, places: &Places) -> Outcome<String> {
    let (mut changed, mut done) = (String::new(), 0);
    for ((start, end), mutants) in places {
        let before = text.get(done..*start);
        changed += before.ok_or(format!("mutant {} overlaps another one", mutants[0].0))?;
        let mut choice = String::new();
        for (number, mutated) in mutants {
            choice += &format!("if crate::mutant::is_on({number}) {{ {mutated} }} else ");
        }
        let original = &text[*start..*end];
        changed += &match original.ends_with(';') {
            true => format!("{choice}{{ {original} }}"),
            false => format!("({choice}{{ {original} }})"),
        };
        done = *end;
    }
    Ok(changed + &text[done..])
}

/// Copies what git has or would add. A file that is as it was keeps its time, so that it is not built again.
pub(super) fn copy(root: &Path, tree: &Path, mutated: &BTreeMap<PathBuf, String>) -> Outcome {
    let words = "-c safe.directory=* ls-files -z --cached --others --exclude-standard";
    let words: Vec<&str> = words.split(' ').collect();
    let (files, _) = capture(command("git", &words).current_dir(root))?;
    let files = files.split_terminator('\0').map(Path::new);
    let files = files.filter(|file| root.join(file).is_file() && !mutated.contains_key(*file));
    let copied = files.map(|file| fs::read(root.join(file)).map(|content| (file, content)));
    let changed = mutated
        .iter()
        .map(|(file, text)| Ok((&**file, text.clone().into_bytes())));
    let write = |(file, content): (&Path, Vec<u8>)| {
        let path = tree.join(file);
        if fs::read(&path).is_ok_and(|before| before == content) {
            return Ok(());
        }
        fs::create_dir_all(path.parent().unwrap_or(tree))?;
        fs::write(path, content)
    };
    let mut all = copied.chain(changed);
    all.try_for_each(|file| write(file?))
        .map_err(|error: io::Error| format!("copying to {}: {error}", tree.display()))
}
