//! `tollgate explain`.

use std::{collections::BTreeMap, io};

use clap::Args;
use serde_json::{Value, json};

use super::keys::left;
use crate::{
    client::{Client, Connection},
    exit::{Answer, Failure, Outcome},
    key::json_of,
    output::{
        Output,
        table::{Table, flag, list, text, wait, yes},
    },
};

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The request's method.
    method: String,
    /// The request's path and query, or its URL.
    uri: String,
    /// A header, such as "x-api-key: sk_1". "-" reads headers from standard input, one from each line: the arguments of a
    /// process are visible to other users of the machine, so that is the way for an API key.
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    /// The address of the peer, such as 192.0.2.1.
    #[arg(long)]
    peer: Option<String>,
    /// The key of a policy, such as account=alice, in place of the one that it finds in the request: what a request has where the
    /// policy looks for it, or a key as tables show it, such as hash:7lEM2SSxGPnYHjFZP0wx. Given again for the same policy, it is
    /// the next part of its key. A policy by hand is evaluated if it has one.
    #[arg(long = "key", value_name = "POLICY=KEY")]
    keys: Vec<String>,
}

impl Explain {
    pub(crate) async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        let client = connection.client()?;
        let mut body = json!({
            "method": self.method,
            "uri": self.uri,
            "headers": self.headers()?,
        });
        if let Some(peer) = &self.peer {
            body["peer"] = json!(peer);
        }
        if !self.keys.is_empty() {
            body["keys"] = json!(self.keys(&self.policy_names(&client).await?)?);
        }
        let answer = client.post("/explain", &body).await?;
        output.print(|| answer.clone(), || explanation(&answer))?;
        let admitted = ["admitted", "allow_listed", "skipped"];
        Ok(Answer::from(admitted.contains(&&*text(&answer, "outcome"))))
    }

    /// The names of the policies, if one of those that keys are for may have an equals sign, as a rule's of a server has.
    async fn policy_names(&self, client: &Client) -> Outcome<Vec<String>> {
        let mut keys = self.keys.iter();
        if !keys.any(|key| key.matches('=').count() > 1) {
            return Ok(Vec::new());
        }
        let answer = client.get("/policies", &[]).await?;
        let policies = list(&answer, "policies").iter();
        Ok(policies.map(|policy| text(policy, "name")).collect())
    }

    /// The keys by the names of their policies: the longest name that one begins with.
    fn keys<'a>(&'a self, names: &'a [String]) -> Outcome<BTreeMap<&'a str, Value>> {
        let mut keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for key in &self.keys {
            // Without the text, which may be a credential.
            let no_policy = || Failure::Invalid("--key is a policy, = and its key".to_owned());
            let named =
                |name: &'a String| Some((&**name, key.strip_prefix(&**name)?.strip_prefix('=')?));
            let known = names
                .iter()
                .filter_map(named)
                .max_by_key(|(name, _)| name.len());
            let (policy, text) = known
                .or_else(|| key.split_once('='))
                .ok_or_else(no_policy)?;
            keys.entry(policy).or_default().push(text);
        }
        let keys = keys.into_iter();
        let keys = keys.map(|(policy, texts)| (policy, json_of(&texts)));
        Ok(keys.collect())
    }

    /// The names and values of the headers.
    fn headers(&self) -> Outcome<Vec<[String; 2]>> {
        let mut lines = Vec::new();
        for header in &self.headers {
            if header == "-" {
                let input = io::read_to_string(io::stdin())
                    .map_err(|error| Failure::unreachable("standard input", error))?;
                let headers = input.lines().filter(|line| !line.trim().is_empty());
                lines.extend(headers.map(str::to_owned));
            } else {
                lines.push(header.clone());
            }
        }
        lines
            .iter()
            .map(|line| {
                let (name, value) = line.split_once(':').ok_or_else(|| {
                    // Without the text, which may be a credential.
                    Failure::Invalid("a header is a name, a colon and a value".to_owned())
                })?;
                Ok([name, value].map(|text| text.trim().to_owned()))
            })
            .collect()
    }
}

fn explanation(answer: &Value) -> String {
    let outcome = text(answer, "outcome").replace('_', " ");
    let retry = match answer.get("retry_after_ms") {
        Some(retry) if retry.as_u64() > Some(0) => {
            format!("; retry in {}", wait(answer, "retry_after_ms"))
        }
        _ => String::new(),
    };
    let titles = [
        "POLICY", "APPLIES", "KEY", "COST", "LEFT", "LIMIT", "ADMITS", "RETRY",
    ];
    let mut table = Table::new(&titles);
    for policy in list(answer, "policies") {
        let applies = flag(policy, "applies");
        let mut name = text(policy, "policy");
        if flag(policy, "shadow") {
            name += " (shadow)";
        }
        let state = match text(policy, "reason") {
            reason if reason.is_empty() => yes(applies),
            reason => format!("{}: {reason}", yes(applies)),
        };
        let only_if_applies = |text: String| if applies { text } else { String::new() };
        let [cost, limit] = ["cost", "limit"].map(|field| only_if_applies(text(policy, field)));
        let key = only_if_applies(text(policy, "key"));
        let left = only_if_applies(left(policy));
        let admits = only_if_applies(yes(flag(policy, "would_admit")));
        let retry = only_if_applies(wait(policy, "retry_after_ms"));
        table.row([name, state, key, cost, left, limit, admits, retry]);
    }
    let reason = match text(answer, "reason") {
        reason if reason.is_empty() => reason,
        reason => format!(": {reason}"),
    };
    let hint = match text(answer, "hint") {
        hint if hint.is_empty() => hint,
        hint => format!("{hint}\n"),
    };
    format!("{outcome}{reason}{retry}\n{}{hint}", table.or(""))
}
