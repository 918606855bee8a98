//! The folders of `src` import in one direction, and so do the files of `src/limiter`.

use std::{collections::BTreeSet, fs, path::Path};

use crate::run::{Outcome, capture, grep};

/// The folders and files of `src`: each may import those before it. `lib` stands for the exports of the crate's root, which only
/// the last line uses, as an application does.
const ORDER: &str = "
    address log random sync background runtime differences shared_fn clock error key quota outcome scan forms file secret headers rejections
    strategy observe store redis extract access policy changes limiter respond layer integrations lib settings
    provider outgoing metrics config admin guide";

/// The files of `src/limiter`: each may import those before it.
const LIMITER_ORDER: &str = "
    listener wait_queues keys request policy_state quota_limits policy_set entry decision early resolve decide rejected
    adjust_call charge permits admission report evaluate health shutdown current builder bind
    check adjust explain wait bans block_list handle overrides limiter mod";

/// Imports against the order that remain. One that is gone fails the check.
const KNOWN: &[(&str, &str)] = &[
    // `limiter::Rejected` has the fields of its response, which a closure may write from a `Decision`.
    ("headers", "limiter"),
];

/// Folders and files of tests alone.
const TESTS: [&str; 5] = ["tests", "testing", "any_clock", "properties", "simulation"];

pub(crate) fn check(root: &Path) -> Outcome {
    let (list, _) = capture(grep(root).args(["-l", "crate::", "--", "src/*.rs"]))?;
    let mut backwards = BTreeSet::new();
    for file in list.lines() {
        let module = file.replace("src/", "").replace(".rs", "");
        if module.split('/').any(|name| TESTS.contains(&name)) {
            continue;
        }
        let text = fs::read_to_string(root.join(file)).map_err(|error| error.to_string())?;
        for path in imports(&text, "crate::") {
            let (from, to) = (place(ORDER, &module)?, place(ORDER, &path)?);
            if from.0 < to.0 && backwards.insert((from.1, to.1)) {
                println!("{file} imports {path:.40}");
            }
        }
        let Some(name) = module.strip_prefix("limiter/") else {
            continue;
        };
        for path in imports(&text, "super::") {
            let (from, to) = (place(LIMITER_ORDER, name)?, place(LIMITER_ORDER, &path)?);
            if from.0 < to.0 {
                return Err(format!(
                    "{file} imports {path:.40}, which stands after it in xtask/src/imports.rs"
                ));
            }
        }
    }
    if backwards == KNOWN.iter().copied().collect() {
        return Ok(());
    }
    Err("imports against the order in xtask/src/imports.rs, or known ones that are gone".into())
}

/// The paths behind a prefix, each of a group by itself. Tests at the end of a file are left out.
fn imports(text: &str, prefix: &str) -> Vec<String> {
    let is_test = |line: &str| line == "#[test]" || line.starts_with("mod ") && line.ends_with('{');
    let lines = text.lines().map(str::trim);
    let code = lines.take_while(|line| !is_test(line));
    let code: Vec<&str> = code.filter(|line| !line.starts_with("//")).collect();
    let mut paths = Vec::new();
    for path in code.concat().split(prefix).skip(1) {
        let Some(group) = path.strip_prefix('{') else {
            paths.push(path.to_owned());
            continue;
        };
        let group = group.split("};").next().unwrap_or(group);
        let group = group.trim_end_matches(',');
        let mut depth = 0;
        let parts = group.split(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        paths.extend(parts.map(|part| part.trim().to_owned()));
    }
    paths
}

/// The folder or file that a path leads to, and its place in the order.
fn place(order: &'static str, path: &str) -> Outcome<(usize, &'static str)> {
    let end = path.find(|c: char| !c.is_alphanumeric() && c != '_');
    let folder = match &path[..end.unwrap_or(path.len())] {
        export if export.starts_with(char::is_uppercase) => "lib",
        folder => folder,
    };
    let mut places = order.split_whitespace().enumerate();
    let place = places.find(|(_, known)| *known == folder);
    place.ok_or_else(|| format!("xtask/src/imports.rs does not list {folder:?}"))
}
