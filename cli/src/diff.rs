//! `tollgate diff`.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tollgate::changes::Changes;

use crate::{
    document::{Code, InProcess, Reader, invalid},
    exit::{Answer, Outcome},
    output::Output,
};

/// Print what a new configuration file changes, and what becomes of the counts of running processes.
///
/// Nothing connects, and no secret is needed: a store is compared by its text.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The configuration file in force.
    old: PathBuf,
    /// The new configuration file.
    new: PathBuf,
    #[command(flatten)]
    code: Code,
    /// Exit with 1 if anything changes.
    #[arg(long)]
    exit_code: bool,
}

/// What stays as it is until processes are restarted.
const RESTART: &str = "changes when processes are restarted";

pub(crate) fn run(options: &Options, output: &Output) -> Outcome {
    let mut reader = Reader::default();
    let old = InProcess::load_by(&mut reader, &options.old, options.code)?;
    let new = InProcess::load_by(&mut reader, &options.new, options.code)?;
    old.report_assumed(&options.old);
    new.report_assumed(&options.new);
    let layer = old.document.layer(&new.registry);
    let layer = layer.map_err(|error| invalid(&error))?;
    let changes = new.document.reconfigure_layer(&layer, &new.registry);
    let changes = changes.map_err(|error| invalid(&error))?;

    let mut others = Vec::new();
    if old.store != new.store {
        let counts = "counts on another store or under another prefix start afresh";
        others.push(("store", format!("{RESTART}; {counts}")));
    }
    if old.bearer != new.bearer {
        let counts = "callers with the key bearer are counted afresh";
        others.push((
            "bearer",
            format!("hashes tokens with another key: {counts}"),
        ));
    }
    let differs = !changes.is_empty() || !others.is_empty();
    let text = || {
        let others = others
            .iter()
            .map(|(name, text)| format!("{name}: {text}\n"));
        others.collect::<String>() + &changes.to_string()
    };
    output.print(|| as_json(differs, &others, &changes), text)?;
    Ok(Answer::from(!(differs && options.exit_code)))
}

fn as_json(differs: bool, others: &[(&str, String)], changes: &Changes) -> Value {
    let policies = changes.policies().map(|policy| {
        json!({
            "policy": policy.name(),
            "change": policy.kind().as_str(),
            "quota_before": policy.quota_before().map(|quota| quota.to_string()),
            "quota_after": policy.quota_after().map(|quota| quota.to_string()),
            "counts": policy.counts(),
        })
    });
    let others = others.iter();
    let others = others.map(|(name, text)| json!({ "setting": name, "effect": text }));
    json!({
        "differs": differs,
        "policies": policies.collect::<Vec<_>>(),
        "settings": changes.settings().collect::<Vec<_>>(),
        "other": others.collect::<Vec<_>>(),
    })
}
