//! `tollgate shadows` and `health`.

use clap::Args;
use serde_json::Value;

use crate::{
    client::Connection,
    exit::{Answer, Outcome},
    output::Output,
    printable::printable,
    table::{Table, flag, list, number, text},
};

#[derive(Debug, Args)]
pub(crate) struct Shadows {}

#[derive(Debug, Args)]
pub(crate) struct Health {}

impl Shadows {
    pub(crate) async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        let client = connection.process("shadows")?;
        let answer = client.get("/shadows", &[]).await?;
        let text = || {
            let mut table =
                Table::new(&["POLICY", "IN PLACE OF", "EVALUATED", "STRICTER", "LOOSER"]);
            for shadow in list(&answer, "shadows") {
                let fields = ["policy", "shadow_of", "evaluated", "stricter", "looser"];
                table.row(fields.map(|field| text(shadow, field)));
            }
            table.or("there is no shadow policy")
        };
        output.print(|| answer.clone(), text)?;
        Ok(Answer::Yes)
    }
}

impl Health {
    pub(crate) async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        let answer = connection.client()?.health().await?;
        output.print(|| answer.clone(), || health(&answer))?;
        Ok(Answer::from(flag(&answer, "healthy")))
    }
}

fn health(answer: &Value) -> String {
    let healthy = match flag(answer, "healthy") {
        true => "healthy",
        false => "unhealthy",
    };
    let mut lines = vec![healthy.to_owned()];
    for (field, title) in [("issues", "issue"), ("unchecked", "not checked")] {
        let texts = list(answer, field).iter().filter_map(Value::as_str);
        lines.extend(texts.map(|text| format!("{title}: {}", printable(text))));
    }
    for (field, title) in [
        ("dropped_refunds", "refunds dropped"),
        (
            "unconfirmed",
            "refunds, charges and settlements without a response",
        ),
        (
            "dropped_write_backs",
            "charges in process that were not written back",
        ),
    ] {
        let count = number(answer, field);
        if count > 0 {
            lines.push(format!("{title}: {count}"));
        }
    }
    lines.join("\n")
}
