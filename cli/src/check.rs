//! `tollgate check`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tollgate::config::{LoadError, Mistake};

use crate::{
    document::{Code, HINT, Reader, is_code, is_secret},
    exit::{Answer, Outcome},
    output::{Output, print_error},
};

/// Check a configuration file, and print its mistakes: the first, if the file can't be read as a document, or else all.
///
/// Nothing connects. Secrets whose variable is not set, or whose file can't be read, are listed as not checked, so that a
/// file can be checked where there are none.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The configuration file, in TOML, YAML or JSON.
    file: PathBuf,
    #[command(flatten)]
    code: Code,
    /// Count secrets that are not there as mistakes.
    #[arg(long)]
    require_secrets: bool,
}

/// What was found in a document.
#[derive(Debug, Default)]
struct Report {
    mistakes: Vec<Mistake>,
    /// Code that only the application has, and secrets that are not there.
    unchecked: Vec<Mistake>,
}

pub(crate) fn run(options: &Options, output: &Output) -> Outcome {
    let report = check(options);
    output.print(
        || report.as_json(&options.file),
        || report.to_text(&options.file),
    )?;
    if report.mistakes.iter().any(is_code) {
        print_error(HINT);
    }
    Ok(Answer::from(report.mistakes.is_empty()))
}

fn check(options: &Options) -> Report {
    let (path, code) = (&options.file, options.code);
    let mut report = Report::default();
    let mut reader = Reader::default();
    let add = |report: &mut Report, read: Result<_, LoadError>| {
        let mistakes = read
            .err()
            .map(|error| error.mistakes().to_vec())
            .unwrap_or_default();
        for mistake in mistakes {
            let list = if is_secret(&mistake) && !options.require_secrets {
                &mut report.unchecked
            } else {
                &mut report.mistakes
            };
            if !list.contains(&mistake) {
                list.push(mistake);
            }
        }
    };
    add(&mut report, reader.read(path, code, |_| {}));
    if report.mistakes.is_empty() && !report.unchecked.is_empty() {
        // What depends on the whole document is checked without the parts that need secrets.
        let without_secrets = reader.read(path, code, |document| {
            document.store = None;
            document.bearer = None;
        });
        add(&mut report, without_secrets);
    }
    report.unchecked.append(&mut reader.assumed);
    report.unchecked.sort_by_key(Mistake::position);
    report
}

impl Report {
    fn as_json(&self, path: &Path) -> Value {
        let list = |mistakes: &[Mistake]| mistakes.iter().map(as_json).collect::<Vec<_>>();
        json!({
            "file": path,
            "valid": self.mistakes.is_empty(),
            "mistakes": list(&self.mistakes),
            "unchecked": list(&self.unchecked),
        })
    }

    fn to_text(&self, path: &Path) -> String {
        let path = path.display();
        let place = |mistake: &Mistake| match mistake.position() {
            Some(position) => format!("{path}:{position}:"),
            None => format!("{path}:"),
        };
        let mistakes = self.mistakes.iter();
        let mut lines: Vec<_> = mistakes
            .map(|mistake| format!("{} {mistake}", place(mistake)))
            .collect();
        for unchecked in &self.unchecked {
            let (place, at, found) = (place(unchecked), unchecked.path(), unchecked.found());
            lines.push(format!("{place} {at}: not checked: {found}"));
        }
        lines.push(match self.mistakes.len() {
            0 => format!("{path}: no mistake"),
            1 => format!("{path}: 1 mistake"),
            count => format!("{path}: {count} mistakes"),
        });
        lines.join("\n")
    }
}

fn as_json(mistake: &Mistake) -> Value {
    let position = mistake.position();
    json!({
        "path": mistake.path(),
        "line": position.map(|position| position.line),
        "column": position.map(|position| position.column),
        "found": mistake.found(),
        "expected": mistake.expected(),
    })
}
