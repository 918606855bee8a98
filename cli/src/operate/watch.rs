//! `tollgate watch`.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use clap::Args;
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{
    client::Connection,
    exit::{Answer, Outcome},
    output::{
        Output, print,
        table::{Table, list, number, text},
    },
};

/// How often the table is brought up to date.
const INTERVAL: Duration = Duration::from_secs(1);

/// Moves to the first line of a terminal, and clears it.
const CLEAR: &str = "\x1b[H\x1b[2J";

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// End after so many tables.
    #[arg(short = 'n', long, value_name = "TABLES")]
    count: Option<u64>,
}

impl Watch {
    /// Prints tables until Ctrl-C, until `count`, or until the reader of the output closes it.
    pub(crate) async fn run(&self, connection: &Connection, output: &Output) -> Outcome {
        let watch = self.tables(connection, output);
        tokio::select! {
            ended = watch => ended,
            _ = tokio::signal::ctrl_c() => Ok(Answer::Yes),
        }
    }

    async fn tables(&self, connection: &Connection, output: &Output) -> Outcome {
        let client = connection.process("watch")?;
        let clears = io::stdout().is_terminal() && !output.is_json();
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last: Option<(Instant, Value)> = None;
        let mut printed = 0;
        while self.count.is_none_or(|count| printed < count) {
            ticks.tick().await;
            let now = Instant::now();
            let activity = client.get("/activity", &[]).await?;
            let before = last.as_ref().map(|(at, activity)| (now - *at, activity));
            if output.is_json() {
                print(&activity.to_string())?;
            } else {
                let clear = if clears { CLEAR } else { "" };
                print(&format!("{clear}{}", table(&activity, before)))?;
            }
            last = Some((now, activity));
            printed += 1;
        }
        Ok(Answer::Yes)
    }
}

/// The table of a process, with rates since an earlier one.
fn table(activity: &Value, before: Option<(Duration, &Value)>) -> String {
    let process = activity.get("process").unwrap_or(&Value::Null);
    let [pid, host] = ["pid", "host"].map(|field| text(process, field));
    let mut lines = format!("{}  process {pid} on {host}\n", text(activity, "at"));
    // Behind a load balancer, another process may have answered before.
    let before = before.filter(|(_, earlier)| earlier.get("process") == Some(process));
    let store = activity.get("store").unwrap_or(&Value::Null);
    for breaker in list(store, "breaker") {
        let [node, state] = ["node", "state"].map(|field| text(breaker, field));
        lines.push_str(&format!("circuit breaker of {node}: {state}\n"));
    }
    let calls = activity.pointer("/latency/store").unwrap_or(&Value::Null);
    if number(calls, "calls") > 0 {
        let [p50, p99] = ["p50_us", "p99_us"].map(|field| number(calls, field));
        lines.push_str(&format!("store calls: p50 {p50} µs, p99 {p99} µs\n"));
    }
    for lease in list(store, "leases") {
        let fields = ["policy", "held", "granted", "spent", "refunded", "lapsed"];
        let [policy, held, granted, spent, refunded, lapsed] =
            fields.map(|field| text(lease, field));
        lines.push_str(&format!(
            "leased units of {policy}: {held} held; of {granted} granted, {spent} spent, {refunded} refunded, {lapsed} lapsed\n"
        ));
    }
    let titles = [
        "POLICY",
        "WITHIN/S",
        "NEAR/S",
        "OVER/S",
        "WITHIN",
        "NEAR",
        "OVER",
        "SHADOW OVER",
    ];
    let mut table = Table::new(&titles);
    for policy in list(activity, "policies") {
        let name = text(policy, "policy");
        let earlier = before.map(|(time, activity)| {
            let mut policies = list(activity, "policies").iter();
            let same = policies.find(|earlier| text(earlier, "policy") == name);
            (time, same.unwrap_or(&Value::Null))
        });
        let fields = ["within", "near", "over"];
        let [within, near, over] = fields.map(|field| rate(policy, earlier, field));
        let totals = ["within", "near", "over", "shadow_over"];
        let [all_within, all_near, all_over, shadow] = totals.map(|field| text(policy, field));
        table.row([
            name, within, near, over, all_within, all_near, all_over, shadow,
        ]);
    }
    let uncounted = number(activity, "uncounted");
    if uncounted > 0 {
        lines.push_str(&format!("admitted uncounted: {uncounted}\n"));
    }
    lines + &table.to_text()
}

/// A counter's rate per second; `-` in the first table, and if another process has answered.
fn rate(policy: &Value, earlier: Option<(Duration, &Value)>, field: &str) -> String {
    let rate = earlier.and_then(|(time, earlier)| {
        let more = number(policy, field).checked_sub(number(earlier, field))?;
        Some(more as f64 / time.as_secs_f64().max(0.001))
    });
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rates_are_those_since_the_table_before() {
        let activity = |within: u64| {
            json!({
                "process": { "pid": 7, "host": "a" },
                "at": "2026-01-01T00:00:00Z",
                "policies": [
                    { "policy": "api", "within": within, "near": 2, "over": 1, "shadow_over": 0 }
                ],
            })
        };
        let first = table(&activity(10), None);
        assert!(
            first.contains("api     -         -       -       10"),
            "{first}"
        );
        let second = table(&activity(30), Some((Duration::from_secs(2), &activity(10))));
        assert!(
            second.contains("api     10.0      0.0     0.0     30"),
            "{second}"
        );
        // Another process, or one that was restarted.
        let mut other = activity(50);
        other["process"]["pid"] = json!(8);
        let third = table(&other, Some((Duration::from_secs(1), &activity(30))));
        assert!(
            third.contains("api     -         -       -       50"),
            "{third}"
        );
    }
    #[test]
    fn leases_are_shown_by_policy() {
        let activity = json!({
            "process": { "pid": 7, "host": "a" },
            "at": "2026-01-01T00:00:00Z",
            "policies": [],
            "store": { "leases": [
                { "policy": "api", "granted": 90, "spent": 70, "refunded": 9, "lapsed": 1, "held": 10 }
            ] },
        });
        let table = table(&activity, None);
        let line = "leased units of api: 10 held; of 90 granted, 70 spent, 9 refunded, 1 lapsed";
        assert!(table.lines().any(|found| found == line), "{table}");
    }
}
