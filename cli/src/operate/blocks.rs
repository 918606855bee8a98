//! `tollgate block`, `unblock` and `blocks`.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tollgate::Quota;

use super::keys::{about, ask};
use crate::{
    client::Connection,
    confirm::Confirm,
    exit::{Answer, Outcome},
    key::KeyText,
    output::{
        Output,
        table::{Table, flag, list, text, wait},
    },
};

#[derive(Debug, Args)]
pub(crate) struct Block {
    #[command(flatten)]
    key: KeyText,
    /// For how long from now on, such as 30s, 10min, 2h or 1day.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    time: Duration,
    /// The name of a ban. Left out, the key is blocked under every ban that can read it.
    #[arg(long)]
    policy: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, Args)]
pub(crate) struct Unblock {
    #[command(flatten)]
    key: KeyText,
    /// The name of a ban. Left out, the key is unblocked under every ban that can read it.
    #[arg(long)]
    policy: Option<String>,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Debug, Args)]
pub(crate) struct Blocks {
    /// The name of a ban. Left out, the keys under all bans are listed.
    #[arg(long)]
    policy: Option<String>,
    /// The most keys, at most 10000.
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u64,
}

impl Block {
    pub(crate) async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        self.confirm.require_terminal(&self.key)?;
        let client = connection.client()?;
        let mut body = about(
            self.policy.as_deref(),
            &self.key.read(self.policy.as_deref())?,
            None,
        );
        ask(&self.confirm, &client, &body, ["Block", "ban"]).await?;
        let seconds = self.time.as_millis().div_ceil(1_000);
        body["seconds"] = json!(u64::try_from(seconds).unwrap_or(u64::MAX));
        let answer = client.post("/block", &body).await?;
        output.print(|| answer.clone(), || table(list(&answer, "blocked")))?;
        Ok(Answer::Yes)
    }
}

impl Unblock {
    pub(crate) async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        self.confirm.require_terminal(&self.key)?;
        let client = connection.client()?;
        let body = about(
            self.policy.as_deref(),
            &self.key.read(self.policy.as_deref())?,
            None,
        );
        ask(&self.confirm, &client, &body, ["Unblock", "ban"]).await?;
        let answer = client.post("/unblock", &body).await?;
        output.print(|| answer.clone(), || lifted(&answer))?;
        Ok(Answer::Yes)
    }
}

impl Blocks {
    pub(crate) async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        let client = connection.client()?;
        let policy = self.policy.clone().map(|policy| ("policy", policy));
        let limit = [("limit", self.limit.to_string())];
        let query: Vec<_> = policy.into_iter().chain(limit).collect();
        let answer = client.get("/blocks", &query).await?;
        output.print(|| answer.clone(), || listed(&answer))?;
        Ok(Answer::Yes)
    }
}

fn listed(answer: &Value) -> String {
    let mut table = Table::new(&["POLICY", "KEY", "ENDS", "ENDS IN"]);
    for block in list(answer, "blocks") {
        let [policy, ends_at] = ["policy", "ends_at"].map(|field| text(block, field));
        table.row([
            policy,
            text(block, "key"),
            ends_at,
            wait(block, "ends_in_ms"),
        ]);
    }
    if flag(answer, "complete") {
        return table.or("no key is blocked\n");
    }
    let reason = match &*text(answer, "incomplete") {
        "limit" => "there are more: --limit sets how many are listed",
        "timeout" => "there may be more: the search took too long and ended early",
        "keys_moved" => {
            "there may be more: keys moved to another node of the cluster during the search; repeat it"
        }
        _ => "there may be more",
    };
    format!("{}{reason}\n", table.or(""))
}

fn table(blocks: &[Value]) -> String {
    let mut table = Table::new(&["POLICY", "KEY", "ENDS"]);
    for block in blocks {
        let [policy, key, ends_at] = ["policy", "key", "ends_at"].map(|field| text(block, field));
        table.row([policy, key, ends_at]);
    }
    table.or("no key is blocked\n")
}

/// A table of what an unblock has lifted under each ban.
fn lifted(answer: &Value) -> String {
    let mut table = Table::new(&["POLICY", "KEY", "BLOCKED BEFORE"]);
    for before in list(answer, "before") {
        let [policy, key] = ["policy", "key"].map(|field| text(before, field));
        let until = match text(before, "blocked_until") {
            none if none.is_empty() => "no".to_owned(),
            until => format!("until {until}"),
        };
        table.row([policy, key, until]);
    }
    let nothing = match list(answer, "unblocked") {
        [] => "nothing was lifted: the key was not blocked\n",
        _ => "",
    };
    format!("{}{nothing}", table.or(""))
}

/// A duration in the words of a quota's period.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let expected = || "a number and a unit, such as 30s, 10min, 2h or 1day".to_owned();
    if !text.starts_with(|c: char| c.is_ascii_digit()) || text.contains(char::is_whitespace) {
        return Err(expected());
    }
    let quota: Quota = format!("1/{text}").parse().map_err(|_| expected())?;
    Ok(quota.period())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_list_says_why() {
        for (reason, shown) in [
            ("limit", "--limit"),
            ("timeout", "took too long"),
            ("keys_moved", "moved"),
            ("unknown", "there may be more"),
        ] {
            let answer = json!({ "blocks": [], "complete": false, "incomplete": reason });
            let text = listed(&answer);
            assert!(text.contains(shown) && !text.contains("POLICY"), "{text}");
        }
        let answer = json!({ "blocks": [], "complete": true });
        assert_eq!(listed(&answer), "no key is blocked\n");
    }

    #[test]
    fn a_duration_has_a_number_and_a_unit() {
        assert_eq!(duration("90min"), Ok(Duration::from_secs(5_400)));
        for text in ["", "1", "h", "min", "1 burst 2", "1h burst 2", "-1h", "1/h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
