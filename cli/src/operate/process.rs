//! `tollgate top`, `shadows` and `health`.

use clap::Args;
use serde_json::Value;

use crate::{
    client::Connection,
    exit::{Answer, Outcome},
    output::{
        Output,
        printable::printable,
        table::{Table, flag, list, number, text},
    },
};

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The policy's name. Left out, all policies are listed.
    #[arg(long)]
    policy: Option<String>,
    /// The most keys of each policy.
    #[arg(short, default_value_t = 10)]
    n: u64,
}

impl Top {
    pub(crate) async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        let client = connection.process("top")?;
        let policy = self.policy.clone().map(|policy| ("policy", policy));
        let number_of_keys = [("n", self.n.to_string())];
        let query: Vec<_> = policy.into_iter().chain(number_of_keys).collect();
        let answer = client.get("/top", &query).await?;
        let text = || {
            let mut table = Table::new(&["POLICY", "KEY", "REJECTED", "AT MOST OVER BY"]);
            for policy in list(&answer, "policies") {
                for key in list(policy, "keys") {
                    let [rejected, over] =
                        ["rejected", "at_most_over"].map(|field| text(key, field));
                    table.row([text(policy, "policy"), text(key, "key"), rejected, over]);
                }
            }
            let since = text(&answer, "since");
            if table.is_empty() {
                format!("this process has rejected no key since {since}")
            } else {
                let rows = table.to_text();
                format!("rejected by this process since {since}\n{rows}")
            }
        };
        output.print(|| answer.clone(), text)?;
        Ok(Answer::Yes)
    }
}

pub(crate) async fn run_shadows(connection: &Connection, output: &Output) -> Outcome {
    let client = connection.process("shadows")?;
    let answer = client.get("/shadows", &[]).await?;
    let text = || {
        let mut table = Table::new(&["POLICY", "EVALUATED", "WOULD REJECT"]);
        for shadow in list(&answer, "shadows") {
            let fields = ["policy", "evaluated", "would_reject"];
            table.row(fields.map(|field| text(shadow, field)));
        }
        table.or("there is no shadow policy")
    };
    output.print(|| answer.clone(), text)?;
    Ok(Answer::Yes)
}

pub(crate) async fn run_health(connection: &Connection, output: &Output) -> Outcome {
    let answer = connection.client()?.health().await?;
    output.print(|| answer.clone(), || health(&answer))?;
    Ok(Answer::from(flag(&answer, "healthy")))
}

fn health(answer: &Value) -> String {
    let is_healthy = flag(answer, "healthy");
    let verdict = if is_healthy { "healthy" } else { "unhealthy" };
    let mut lines = vec![verdict.to_owned()];
    for (field, title) in [
        ("issues", "issue"),
        ("warnings", "warning"),
        ("unchecked", "not checked"),
    ] {
        let texts = list(answer, field).iter().filter_map(Value::as_str);
        lines.extend(texts.map(|text| format!("{title}: {}", printable(text))));
    }
    for (field, title) in [
        ("dropped_refunds", "refunds dropped"),
        (
            "unconfirmed",
            "refunds, charges and settlements without a response",
        ),
    ] {
        let count = number(answer, field);
        if count > 0 {
            lines.push(format!("{title}: {count}"));
        }
    }
    lines.join("\n")
}
