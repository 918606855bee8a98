//! What a run has found.

use std::{cmp::Reverse, collections::HashMap};

use jiff::Timestamp;
use serde_json::{Value, json};
use tollgate::{Decision, Key, limiter::DecisionKind};

use crate::output::table::Table;

/// The counts of all requests, and of each policy.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) requests: u64,
    pub(super) rejected: u64,
    /// Rejected requests that were on a deny list.
    deny_listed: u64,
    /// The first and the last arrival, in microseconds since the Unix epoch.
    span_us: Option<(i64, i64)>,
    policies: Vec<PolicyReport>,
    /// How many of the most rejected keys of each policy are shown.
    pub(super) top: usize,
    /// Requests that came too late to be sorted.
    pub(super) late: u64,
    /// Keys that the store has evicted.
    pub(super) evicted: u64,
    pub(super) unreadable: u64,
    /// Where the first unreadable line is, and why it was not read.
    pub(super) first_unreadable: Option<String>,
}

/// The counts of one policy.
#[derive(Debug)]
pub(super) struct PolicyReport {
    name: String,
    quota: String,
    role: &'static str,
    /// Requests that it was evaluated for.
    applied: u64,
    /// Those of them that it rejected, or would have rejected if it were no shadow.
    rejected: u64,
    rejections_by_key: HashMap<Key, u64>,
}

impl Report {
    pub(super) fn new(policies: Vec<PolicyReport>, top: usize) -> Self {
        Self {
            requests: 0,
            rejected: 0,
            deny_listed: 0,
            span_us: None,
            policies,
            top,
            late: 0,
            evicted: 0,
            unreadable: 0,
            first_unreadable: None,
        }
    }

    /// Counts a request and its decision, if any policy applied.
    pub(super) fn add(&mut self, arrived_us: i64, decision: Option<&Decision>) {
        self.requests += 1;
        let first_us = self.span_us.map_or(arrived_us, |(first_us, _)| first_us);
        self.span_us = Some((first_us, arrived_us));
        let Some(decision) = decision else {
            return;
        };
        self.rejected += u64::from(!decision.is_admitted());
        let is_deny_listed = matches!(decision.kind(), DecisionKind::DenyListed);
        self.deny_listed += u64::from(is_deny_listed);
        for decided in decision.policies().chain(decision.shadows()) {
            let mut policies = self.policies.iter_mut();
            let Some(policy) = policies.find(|policy| policy.name == decided.policy()) else {
                continue;
            };
            policy.applied += 1;
            if decided.would_reject() {
                policy.rejected += 1;
                *policy.rejections_by_key.entry(decided.key()).or_default() += 1;
            }
        }
    }

    pub(super) fn add_unreadable(&mut self, log: &str, line: u64, reason: &str) {
        self.unreadable += 1;
        self.first_unreadable
            .get_or_insert_with(|| format!("{log}:{line}: {reason}"));
    }

    pub(super) fn rejected_share(&self) -> f64 {
        share(self.rejected, self.requests)
    }

    pub(super) fn to_json(&self) -> Value {
        let policies = self.policies.iter().map(|policy| {
            let top: Vec<_> = policy
                .most_rejected(self.top)
                .into_iter()
                .map(|(key, rejected)| json!({ "key": key, "rejected": rejected }))
                .collect();
            json!({
                "policy": policy.name,
                "quota": policy.quota,
                "role": policy.role,
                "applied": policy.applied,
                "rejected": policy.rejected,
                "top": top,
            })
        });
        json!({
            "requests": self.requests,
            "admitted": self.requests - self.rejected,
            "rejected": self.rejected,
            "rejected_share": self.rejected_share(),
            "deny_listed": self.deny_listed,
            "from": self.span_us.map(|(first_us, _)| instant(first_us)),
            "to": self.span_us.map(|(_, last_us)| instant(last_us)),
            "policies": policies.collect::<Vec<_>>(),
            "late": self.late,
            "evicted": self.evicted,
            "unreadable": self.unreadable,
            "first_unreadable": self.first_unreadable,
        })
    }

    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        if let Some((first_us, last_us)) = self.span_us {
            text = format!(
                "{} requests from {} to {}, {} rejected ({})\n",
                self.requests,
                instant(first_us),
                instant(last_us),
                self.rejected,
                percent(self.rejected, self.requests)
            );
        }
        let mut table = Table::new(&[
            "POLICY",
            "QUOTA",
            "APPLIED",
            "REJECTED",
            "SHARE",
            "MOST REJECTED KEYS",
        ]);
        for policy in &self.policies {
            let name = match policy.role {
                "live" => policy.name.clone(),
                role => format!("{} ({role})", policy.name),
            };
            let top: Vec<_> = policy
                .most_rejected(self.top)
                .into_iter()
                .map(|(key, rejected)| format!("{key} ({rejected})"))
                .collect();
            table.row([
                name,
                policy.quota.clone(),
                policy.applied.to_string(),
                policy.rejected.to_string(),
                percent(policy.rejected, policy.applied),
                top.join(", "),
            ]);
        }
        text += &table.to_text();
        for (count, meaning) in [
            (self.deny_listed, "rejected by a deny list"),
            (self.late, "too late to be sorted: use a larger --window"),
            (self.evicted, "keys evicted: store.max_keys is too small"),
        ] {
            if count > 0 {
                text += &format!("{count} {meaning}\n");
            }
        }
        if let Some(first) = &self.first_unreadable {
            text += &format!("{} unreadable lines; the first: {first}\n", self.unreadable);
        }
        text
    }
}

impl PolicyReport {
    pub(super) fn new(name: &str, quota: String, role: &'static str) -> Self {
        Self {
            name: name.to_owned(),
            quota,
            role,
            applied: 0,
            rejected: 0,
            rejections_by_key: HashMap::new(),
        }
    }

    /// The keys with the most rejections, with `hash:` before a hash.
    fn most_rejected(&self, count: usize) -> Vec<(String, u64)> {
        let mut keys: Vec<_> = self.rejections_by_key.iter().collect();
        keys.sort_by_key(|(key, rejected)| (Reverse(**rejected), **key));
        keys.into_iter()
            .take(count)
            .map(|(key, rejected)| (key.to_string().replace('#', "hash:"), *rejected))
            .collect()
    }
}

/// An instant in RFC 3339.
fn instant(micros: i64) -> String {
    let timestamp = Timestamp::from_microsecond(micros).unwrap_or_default();
    timestamp.to_string()
}

/// The part of a whole, from 0 to 1.
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", share(part, whole) * 100.0)
}
