//! `tollgate peek`, `reset`, `credit` and `callers`: the counts of one key.

use clap::Args;
use serde_json::{Value, json};

use crate::{
    client::{Client, Connection},
    confirm::Confirm,
    exit::{Answer, Outcome},
    key::KeyText,
    output::{
        Output,
        printable::printable,
        table::{Table, flag, list, number, text, wait, yes},
    },
};

#[derive(Debug, Args)]
pub(crate) struct Peek {
    /// The policy's name.
    policy: String,
    #[command(flatten)]
    key: KeyText,
    /// The quota of the key's tier, such as 100/min, if it is not the policy's own.
    #[arg(long)]
    quota: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Reset {
    #[command(flatten)]
    key: KeyText,
    /// The policy's name. Left out, the key is reset under every policy that can read it.
    #[arg(long)]
    policy: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, Args)]
pub(crate) struct Credit {
    /// The policy's name.
    policy: String,
    #[command(flatten)]
    key: KeyText,
    /// How many units are returned, at most those in use.
    #[arg(long)]
    units: u64,
    /// The quota of the key's tier, such as 100/min, if it is not the policy's own.
    #[arg(long)]
    quota: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, Args)]
pub(crate) struct Callers {
    /// The policy's name.
    policy: String,
    #[command(flatten)]
    key: KeyText,
}

impl Peek {
    pub(crate) async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        let client = connection.client()?;
        let body = about(
            Some(&self.policy),
            &self.key.read(Some(&self.policy))?,
            self.quota.as_deref(),
        );
        let status = client.post("/peek", &body).await?;
        output.print(
            || status.clone(),
            || statuses(std::slice::from_ref(&status)),
        )?;
        Ok(Answer::Yes)
    }
}

impl Reset {
    pub(crate) async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        self.confirm.require_terminal(&self.key)?;
        let client = connection.client()?;
        let body = about(
            self.policy.as_deref(),
            &self.key.read(self.policy.as_deref())?,
            None,
        );
        ask(&self.confirm, &client, &body, ["Reset", "policy"]).await?;
        let answer = client.post("/reset", &body).await?;
        let text = || changed(list(&answer, "before"), list(&answer, "after"));
        output.print(|| answer.clone(), text)?;
        Ok(Answer::Yes)
    }
}

impl Credit {
    pub(crate) async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        self.confirm.require_terminal(&self.key)?;
        let client = connection.client()?;
        let mut body = about(
            Some(&self.policy),
            &self.key.read(Some(&self.policy))?,
            self.quota.as_deref(),
        );
        let key = shown_key(&client, &body).await?.unwrap_or_default();
        let question = format!("Return {} to {key}?", units(self.units));
        self.confirm.ask(&question)?;
        body["units"] = json!(self.units);
        let answer = client.post("/credit", &body).await?;
        let text = || {
            let after = answer.get("after").cloned().unwrap_or_default();
            let credited = number(&answer, "credited");
            format!("credited {}\n{}", units(credited), statuses(&[after]))
        };
        output.print(|| answer.clone(), text)?;
        Ok(Answer::Yes)
    }
}

/// A number of units in words.
fn units(units: u64) -> String {
    match units {
        1 => "1 unit".to_owned(),
        units => format!("{units} units"),
    }
}

impl Callers {
    pub(crate) async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        let client = connection.client()?;
        let body = about(
            Some(&self.policy),
            &self.key.read(Some(&self.policy))?,
            None,
        );
        let answer = client.post("/callers", &body).await?;
        let text = || {
            let callers: String = list(&answer, "callers")
                .iter()
                .filter_map(Value::as_str)
                .map(|caller| format!("{}\n", printable(caller)))
                .collect();
            if callers.is_empty() {
                return "no caller".to_owned();
            }
            callers
        };
        output.print(|| answer.clone(), text)?;
        Ok(Answer::Yes)
    }
}

/// The body of a request about a key.
pub(super) fn about(policy: Option<&str>, key: &Value, quota: Option<&str>) -> Value {
    let mut body = json!({ "key": key });
    if let Some(policy) = policy {
        body["policy"] = json!(policy);
    }
    if let Some(quota) = quota {
        body["quota"] = json!(quota);
    }
    body
}

/// Asks before a change of a key, such as `Reset`, under one policy, or else every `policy` or `ban` that can read the key.
pub(super) async fn ask(
    confirm: &Confirm,
    client: &Client,
    body: &Value,
    [change, kind]: [&str; 2],
) -> Outcome<()> {
    let question = match shown_key(client, body).await? {
        Some(key) => format!("{change} {key}?"),
        None => format!("{change} this key under every {kind} that can read it?"),
    };
    confirm.ask(&question)
}

/// The key of a request about one policy, as answers show it, which is not the text of a secret; `None` without a policy.
async fn shown_key(client: &Client, body: &Value) -> Outcome<Option<String>> {
    if body.get("policy").is_none() {
        return Ok(None);
    }
    let status = client.post("/peek", body).await?;
    let [policy, key] = ["policy", "key"].map(|field| text(&status, field));
    Ok(Some(format!("{key} under {policy:?}")))
}

/// A table of what keys have left.
pub(super) fn statuses(statuses: &[Value]) -> String {
    let mut table = Table::new(&[
        "POLICY", "KEY", "LEFT", "LIMIT", "ADMITTED", "RETRY", "RESET",
    ]);
    for status in statuses {
        let [policy, key, limit] = ["policy", "key", "limit"].map(|field| text(status, field));
        let admitted = yes(flag(status, "would_admit"));
        let [retry, reset] = ["retry_after_ms", "reset_after_ms"].map(|field| wait(status, field));
        table.row([policy, key, left(status), limit, admitted, retry, reset]);
    }
    table.to_text()
}

/// A table of what a key had left under each policy, and has now.
pub(super) fn changed(before: &[Value], after: &[Value]) -> String {
    let mut table = Table::new(&["POLICY", "KEY", "LEFT BEFORE", "LEFT", "LIMIT"]);
    for after in after {
        let [policy, key, limit] = ["policy", "key", "limit"].map(|field| text(after, field));
        let before = before.iter().find(|one| text(one, "policy") == policy);
        let left_before = before.map_or_else(String::new, left);
        table.row([policy, key, left_before, left(after), limit]);
    }
    table.or("no policy can read this key")
}

/// What a key has left, or whether it is blocked.
pub(super) fn left(status: &Value) -> String {
    match (&*text(status, "blocked_until"), text(status, "remaining")) {
        ("", left) if left.is_empty() => "not blocked".to_owned(),
        ("", left) => left,
        _ => "blocked".to_owned(),
    }
}
