//! What a run has found.

use std::fmt;

use serde::{Serialize, Serializer};

mod distinct;
mod keys;
mod notes;
mod policy;
mod tally;
mod text;
mod timeline;
mod unreadable;

use self::{distinct::Distinct, keys::RejectedKey, tally::PolicyTally, unreadable::Unreadable};
pub(super) use self::{
    notes::Circumstances,
    policy::{Policy, Role},
    tally::Tally,
    text::grouped,
};

/// What a run has found, as it is printed.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) requests: u64,
    pub(super) admitted: u64,
    pub(super) rejected: u64,
    /// From 0 to 1.
    pub(super) rejected_share: f64,
    /// Rejected requests that were on a deny list.
    pub(super) deny_listed: u64,
    /// Rejected requests without a key.
    pub(super) missing_key: u64,
    /// Admitted requests to which no policy applied.
    pub(super) exempt: u64,
    /// The first and the last arrival.
    pub(super) from: Option<Instant>,
    pub(super) to: Option<Instant>,
    pub(super) clients: Numbers,
    pub(super) most_requests: Option<Highest>,
    pub(super) most_rejected: Option<Highest>,
    pub(super) policies: Vec<PolicyReport>,
    pub(super) bucket_seconds: i64,
    pub(super) buckets: Vec<Bucket>,
    pub(super) unreadable: Unreadable,
    pub(super) notes: Vec<String>,
}

/// What a run has found about a policy.
#[derive(Debug, Serialize)]
pub(super) struct PolicyReport {
    pub(super) policy: String,
    pub(super) quota: String,
    pub(super) role: Role,
    /// Requests that it was evaluated for.
    pub(super) applied: u64,
    pub(super) rejected: u64,
    pub(super) first: Option<Instant>,
    pub(super) last: Option<Instant>,
    pub(super) keys: Numbers,
    /// The minute with the most rejections.
    pub(super) most_rejected: Option<Highest>,
    pub(super) top: Vec<TopKey>,
    /// Whether the counts in `top` are exact.
    pub(super) top_is_exact: bool,
}

/// The number of different keys or clients, and of those that were rejected at least once.
#[derive(Debug, Serialize)]
pub(super) struct Numbers {
    pub(super) seen: u64,
    pub(super) rejected: u64,
    pub(super) exact: bool,
}

/// The interval with the highest count.
#[derive(Debug, Serialize)]
pub(super) struct Highest {
    pub(super) at: Instant,
    pub(super) seconds: i64,
    pub(super) count: u64,
}

/// A key that was rejected.
#[derive(Debug, Serialize)]
pub(super) struct TopKey {
    /// Its text, with `hash:` before a hash.
    pub(super) key: String,
    pub(super) rejected: u64,
    /// How many of them may be those of other keys.
    pub(super) at_most_over: u64,
    pub(super) first: Instant,
    pub(super) last: Instant,
}

/// A part of the time of the log.
#[derive(Debug, Serialize)]
pub(super) struct Bucket {
    pub(super) at: Instant,
    pub(super) admitted: u64,
    pub(super) rejected: u64,
    /// Of each policy, in their order.
    pub(super) policies: Vec<BucketOfPolicy>,
}

/// What a policy has decided in a part of the time of the log.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct BucketOfPolicy {
    pub(super) admitted: u64,
    pub(super) rejected: u64,
}

/// An instant in microseconds since the Unix epoch, which is written in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instant(pub(super) i64);

impl Report {
    pub(super) fn new(
        tally: &Tally,
        policies: &[Policy],
        top: usize,
        circumstances: Circumstances,
    ) -> Self {
        let bucket = |(begins_s, counts): (i64, &[u64])| Bucket {
            at: Instant(begins_s * 1_000_000),
            admitted: counts[0],
            rejected: counts[1],
            policies: counts[2..]
                .chunks(2)
                .map(|pair| BucketOfPolicy {
                    admitted: pair[0],
                    rejected: pair[1],
                })
                .collect(),
        };
        let notes = circumstances.notes(tally, policies);
        let named = policies.iter().zip(&tally.policies);
        Self {
            requests: tally.requests,
            admitted: tally.requests - tally.rejected,
            rejected: tally.rejected,
            rejected_share: tally.rejected_share(),
            deny_listed: tally.deny_listed,
            missing_key: tally.missing_key,
            exempt: tally.exempt,
            from: tally.span.map(|(first, _)| Instant(first)),
            to: tally.span.map(|(_, last)| Instant(last)),
            clients: Numbers::of(&tally.clients),
            most_requests: highest(tally.most_requests.highest(), 1),
            most_rejected: highest(tally.most_rejected.highest(), 1),
            policies: named
                .map(|(policy, tally)| PolicyReport::new(policy, tally, top))
                .collect(),
            bucket_seconds: tally.timeline.width_s(),
            buckets: tally.timeline.buckets().map(bucket).collect(),
            unreadable: circumstances.unreadable,
            notes,
        }
    }
}

impl PolicyReport {
    fn new(policy: &Policy, tally: &PolicyTally, top: usize) -> Self {
        Self {
            policy: policy.name.clone(),
            quota: policy.quota.clone(),
            role: policy.role,
            applied: tally.applied,
            rejected: tally.rejected,
            first: tally.span.map(|(first, _)| Instant(first)),
            last: tally.span.map(|(_, last)| Instant(last)),
            keys: Numbers::of(&tally.keys),
            most_rejected: highest(tally.most_rejected.highest(), 60),
            top: tally
                .rejected_keys
                .top(top)
                .iter()
                .map(TopKey::new)
                .collect(),
            top_is_exact: tally.rejected_keys.is_exact(),
        }
    }
}

impl TopKey {
    fn new(counted: &RejectedKey) -> Self {
        Self {
            key: counted.key.to_string().replace('#', "hash:"),
            rejected: counted.count,
            at_most_over: counted.at_most_over,
            first: Instant(counted.first),
            last: Instant(counted.last),
        }
    }
}

impl Numbers {
    fn of(distinct: &Distinct) -> Self {
        Self {
            seen: distinct.seen(),
            rejected: distinct.rejected(),
            exact: distinct.is_exact(),
        }
    }
}

fn highest(highest: Option<(i64, u64)>, seconds: i64) -> Option<Highest> {
    highest.map(|(at, count)| Highest {
        at: Instant(at),
        seconds,
        count,
    })
}

impl Instant {
    /// The instant in this format of `strftime`.
    pub(super) fn format(self, format: &str) -> String {
        let timestamp = jiff::Timestamp::from_microsecond(self.0).unwrap_or_default();
        timestamp.strftime(format).to_string()
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.format("%Y-%m-%d %H:%M:%S"))
    }
}

impl Serialize for Instant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let timestamp = jiff::Timestamp::from_microsecond(self.0).unwrap_or_default();
        serializer.collect_str(&timestamp)
    }
}
