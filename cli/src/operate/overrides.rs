//! `tollgate override`: the limit of one key, until an instant or for good.

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use serde_json::{Value, json};

use super::{
    On,
    blocks::duration,
    keys::{about, ask},
};
use crate::{
    client::Connection,
    confirm::Confirm,
    exit::{Answer, Outcome},
    key::KeyText,
    output::{
        Output,
        table::{Table, flag, list, number, text},
    },
};

/// A command about overrides.
#[derive(Debug, Subcommand)]
pub(crate) enum Override {
    /// Set the limit of a key under a policy, in all processes.
    Set(On<Set>),
    /// Remove the override of a key under a policy, in all processes.
    Remove(On<Remove>),
    /// List the overrides.
    List(On<List>),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("limit").required(true).args(["quota", "exempt"]))]
#[command(group = ArgGroup::new("end").args(["until", "time"]))]
pub(crate) struct Set {
    /// The policy's name.
    policy: String,
    #[command(flatten)]
    key: KeyText,
    /// The quota in place of the policy's, such as 1000/min.
    #[arg(long)]
    quota: Option<String>,
    /// Exempt the key from the policy.
    #[arg(long)]
    exempt: bool,
    /// When it ends, such as 2027-01-15T08:00:00Z. Without an end it holds until it is removed.
    #[arg(long, value_name = "DATE")]
    until: Option<String>,
    /// For how long from now on, such as 30min, 2h or 5day.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    time: Option<Duration>,
    /// Why it is set: at most 200 bytes.
    #[arg(long)]
    note: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// The policy's name.
    policy: String,
    #[command(flatten)]
    key: KeyText,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// The policy's name. Left out, the overrides of all policies are listed.
    #[arg(long)]
    policy: Option<String>,
    /// The most overrides, at most 10000.
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u64,
}

impl Override {
    pub(super) async fn run(&self, output: &Output) -> Outcome {
        match self {
            Self::Set(on) => on.options.run(&on.connection, output).await,
            Self::Remove(on) => on.options.run(&on.connection, output).await,
            Self::List(on) => on.options.run(&on.connection, output).await,
        }
    }
}

impl Set {
    async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        self.confirm.require_terminal(&self.key)?;
        let client = connection.client()?;
        let key = self.key.read(Some(&self.policy))?;
        let question = about(Some(&self.policy), &key, None);
        ask(
            &self.confirm,
            &client,
            &question,
            ["Set the limit of", "policy"],
        )
        .await?;
        let mut body = about(Some(&self.policy), &key, self.quota.as_deref());
        if self.exempt {
            body["exempt"] = json!(true);
        }
        if let Some(until) = &self.until {
            body["until"] = json!(until);
        }
        if let Some(time) = self.time {
            let seconds = time.as_millis().div_ceil(1_000);
            body["seconds"] = json!(u64::try_from(seconds).unwrap_or(u64::MAX));
        }
        if let Some(note) = &self.note {
            body["note"] = json!(note);
        }
        let answer = client.put("/overrides", &body).await?;
        output.print(|| answer.clone(), || changed(&answer))?;
        Ok(Answer::Yes)
    }
}

impl Remove {
    async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        self.confirm.require_terminal(&self.key)?;
        let client = connection.client()?;
        let body = about(
            Some(&self.policy),
            &self.key.read(Some(&self.policy))?,
            None,
        );
        let change = ["Remove the override of", "policy"];
        ask(&self.confirm, &client, &body, change).await?;
        let answer = client.delete("/overrides", &body).await?;
        output.print(|| answer.clone(), || changed(&answer))?;
        Ok(Answer::Yes)
    }
}

impl List {
    async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        let client = connection.client()?;
        let policy = self.policy.clone().map(|policy| ("policy", policy));
        let limit = [("limit", self.limit.to_string())];
        let query: Vec<_> = policy.into_iter().chain(limit).collect();
        let answer = client.get("/overrides", &query).await?;
        output.print(|| answer.clone(), || listed(&answer))?;
        Ok(Answer::Yes)
    }
}

fn listed(answer: &Value) -> String {
    let overrides = list(answer, "overrides");
    let mut table = Table::new(&["POLICY", "KEY", "LIMIT", "UNTIL", "SET BY", "NOTE", "STATE"]);
    for one in overrides {
        let [policy, key, set_by, note] =
            ["policy", "key", "set_by", "note"].map(|field| text(one, field));
        table.row([
            policy,
            key,
            limit(one),
            until(one),
            set_by,
            note,
            state(one),
        ]);
    }
    let mut shown = table.or("no key has an override\n");
    if (overrides.len() as u64) < number(answer, "total") {
        shown += "there are more: --limit sets how many are listed\n";
    }
    shown
}

/// A table of an override before and after its change.
fn changed(answer: &Value) -> String {
    let sides = ["before", "after"].map(|side| answer.get(side).filter(|side| side.is_object()));
    let mut table = Table::new(&["POLICY", "KEY", "BEFORE", "NOW"]);
    let [before, after] = sides.map(|side| match side {
        Some(side) => match &*until(side) {
            "" => limit(side),
            end => format!("{} until {end}", limit(side)),
        },
        None => "no override".to_owned(),
    });
    if let Some(side) = sides.into_iter().flatten().next() {
        let [policy, key] = ["policy", "key"].map(|field| text(side, field));
        table.row([policy, key, before, after]);
    }
    table.or("the key has no override\n")
}

fn limit(one: &Value) -> String {
    match flag(one, "exempt") {
        true => "exempt".to_owned(),
        false => text(one, "quota"),
    }
}

fn until(one: &Value) -> String {
    text(one, "until")
}

/// Whether it has an effect.
fn state(one: &Value) -> String {
    match text(one, "unused") {
        unused if unused.is_empty() => "in force".to_owned(),
        unused => format!("unused: {unused}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_the_end_the_note_and_what_is_not_in_force() {
        let answer = json!({"total": 4, "overrides": [
            {"policy": "api", "key": "alice", "quota": "9/h", "exempt": false, "until": "2027-01-15T08:00:00Z",
                "note": "ticket 1", "set_by": "ops"},
            {"policy": "api", "key": "bob", "exempt": true},
            {"policy": "old", "key": "carol", "exempt": true, "unused": "no policy"},
        ]});
        let text = listed(&answer);
        for part in [
            "2027-01-15T08:00:00Z",
            "ticket 1",
            "ops",
            "in force",
            "unused: no policy",
            "--limit",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let none = json!({"total": 0, "overrides": []});
        assert_eq!(listed(&none), "no key has an override\n");
    }

    #[test]
    fn a_change_shows_what_was_there_before() {
        let side = json!({"policy": "api", "key": "alice", "quota": "9/h", "until": "later"});
        let text = changed(&json!({ "after": side }));
        assert!(
            text.contains("no override") && text.contains("9/h until later"),
            "{text}"
        );
        assert_eq!(changed(&json!({})), "the key has no override\n");
    }
}
