//! `tollgate check`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tollgate::config::{Document, LoadError, Mistake, Registry};

use crate::{
    exit::{Answer, Outcome},
    output::Output,
};

/// Check a configuration file, and print all of its mistakes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The configuration file, in TOML, YAML or JSON.
    file: PathBuf,
}

pub(crate) fn run(options: &Options, output: &Output) -> Outcome {
    let registry = Registry::new();
    let loaded = Document::load_with(&options.file, &registry);
    let built = loaded.and_then(|document| document.layer(&registry));
    match built {
        Ok(_) => {
            let text = || format!("{}: no mistake", options.file.display());
            output.print(|| json!({ "mistakes": [] }), text)?;
            Ok(Answer::Yes)
        }
        Err(error) => {
            output.print(|| as_json(&error), || error.to_string())?;
            Ok(Answer::No)
        }
    }
}

fn as_json(error: &LoadError) -> Value {
    let mistake = |mistake: &Mistake| {
        let position = mistake.position();
        json!({
            "path": mistake.path(),
            "line": position.map(|position| position.line),
            "column": position.map(|position| position.column),
            "found": mistake.found(),
            "expected": mistake.expected(),
        })
    };
    json!({
        "file": error.file(),
        "mistakes": error.mistakes().iter().map(mistake).collect::<Vec<_>>(),
    })
}
