//! `tollgate policies`.

use clap::Args;
use serde_json::Value;

use crate::{
    client::Connection,
    exit::{Answer, Outcome},
    output::{
        Output,
        table::{Table, list, text},
    },
};

#[derive(Debug, Args)]
pub(crate) struct Policies {}

pub(crate) async fn run(connection: &Connection, output: &Output) -> Outcome {
    let answer = connection.client()?.get("/policies", &[]).await?;
    output.print(|| answer.clone(), || table(&answer))?;
    Ok(Answer::Yes)
}

fn table(answer: &Value) -> String {
    let mut table = Table::new(&["POLICY", "ROLE", "QUOTA", "STRATEGY", "KEY"]);
    for policy in list(answer, "policies") {
        let role = match text(policy, "shadow_of") {
            live if live.is_empty() => text(policy, "role"),
            live => format!("shadow of {live}"),
        };
        let [name, quota, strategy, key] =
            ["name", "quota", "strategy", "key"].map(|field| text(policy, field));
        table.row([name, role, quota, strategy, key]);
    }
    table.to_text()
}
