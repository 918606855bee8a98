//! Counts what was decided, request by request.

use tollgate::Key;

use super::{
    distinct::Distinct,
    keys::RejectedKeys,
    timeline::{Peak, Timeline},
};
use crate::replay::{
    request::Entry,
    simulation::{Decided, Outcome},
};

/// The counts of all requests, and of each policy.
#[derive(Debug)]
pub(in crate::replay) struct Tally {
    pub(super) requests: u64,
    pub(super) rejected: u64,
    /// Admitted requests to which no policy applied.
    pub(super) exempt: u64,
    pub(super) missing_key: u64,
    pub(super) deny_listed: u64,
    pub(super) failed: u64,
    pub(super) without_duration: u64,
    /// Lines with the status of a rejection.
    pub(super) rejected_before: u64,
    /// Lines with times of whole seconds.
    pub(super) whole_seconds: u64,
    /// The first and the last arrival.
    pub(super) span: Option<(i64, i64)>,
    pub(super) clients: Distinct,
    /// Of each bucket: admitted and rejected requests, and then the same of each policy.
    pub(super) timeline: Timeline,
    pub(super) most_requests: Peak,
    pub(super) most_rejected: Peak,
    pub(super) policies: Vec<PolicyTally>,
}

/// The counts of one policy.
#[derive(Debug)]
pub(super) struct PolicyTally {
    /// Requests that it was evaluated for.
    pub(super) applied: u64,
    /// Those that it rejected, or would have rejected if it were no shadow.
    pub(super) rejected: u64,
    /// Requests without a key.
    pub(super) without_key: u64,
    pub(super) keys: Distinct,
    pub(super) rejected_keys: RejectedKeys,
    /// The first and the last rejection.
    pub(super) span: Option<(i64, i64)>,
    pub(super) most_rejected: Peak,
}

/// The status of the response to a rejected request.
const TOO_MANY_REQUESTS: http::StatusCode = http::StatusCode::TOO_MANY_REQUESTS;

impl Tally {
    pub(in crate::replay) fn new(policies: usize) -> Self {
        let policy = || PolicyTally {
            applied: 0,
            rejected: 0,
            without_key: 0,
            keys: Distinct::new(),
            rejected_keys: RejectedKeys::new(),
            span: None,
            most_rejected: Peak::of_seconds(60),
        };
        Self {
            requests: 0,
            rejected: 0,
            exempt: 0,
            missing_key: 0,
            deny_listed: 0,
            failed: 0,
            without_duration: 0,
            rejected_before: 0,
            whole_seconds: 0,
            span: None,
            clients: Distinct::new(),
            timeline: Timeline::new(2 * (policies + 1)),
            most_requests: Peak::of_seconds(1),
            most_rejected: Peak::of_seconds(1),
            policies: (0..policies).map(|_| policy()).collect(),
        }
    }

    /// Counts what the log says about a request, before it is replayed.
    pub(in crate::replay) fn add_logged(&mut self, entry: &Entry) {
        let count = |sum: &mut u64, is_counted: bool| *sum += u64::from(is_counted);
        count(&mut self.requests, true);
        count(&mut self.without_duration, entry.duration_us.is_none());
        count(&mut self.whole_seconds, entry.logged.is_whole_second);
        let status = *entry.request.body();
        count(&mut self.rejected_before, status == Some(TOO_MANY_REQUESTS));
    }

    /// Counts what was decided on a request that arrived at `at` from the client of this key.
    pub(in crate::replay) fn add(&mut self, at: i64, client: Option<Key>, decided: &Decided) {
        let is_rejected = decided.outcome != Outcome::Admitted;
        extend(&mut self.span, at);
        self.most_requests.add(at);
        if is_rejected {
            self.rejected += 1;
            self.most_rejected.add(at);
        }
        if let Some(client) = client {
            self.clients.add(&client, is_rejected);
        }
        let bucket = self.timeline.at(at);
        bucket[usize::from(is_rejected)] += 1;
        match decided.outcome {
            Outcome::Admitted if decided.policies.is_empty() => self.exempt += 1,
            Outcome::Admitted | Outcome::Rejected => {}
            Outcome::MissingKey(index) => {
                self.missing_key += 1;
                if let Some(policy) = self.policies.get_mut(index) {
                    policy.without_key += 1;
                    policy.add(at, true);
                    bucket[2 * index + 3] += 1;
                }
            }
            Outcome::DenyListed => self.deny_listed += 1,
            Outcome::Failed => self.failed += 1,
        }
        for decided in &decided.policies {
            let Some(policy) = self.policies.get_mut(decided.index) else {
                continue;
            };
            policy.add(at, decided.rejects);
            if decided.rejects {
                policy.rejected_keys.add(decided.key, at);
            }
            policy.keys.add(&decided.key, decided.rejects);
            policy.without_key += u64::from(decided.key == Key::missing());
            bucket[2 * decided.index + 2 + usize::from(decided.rejects)] += 1;
        }
    }

    /// The share of requests that were rejected.
    pub(in crate::replay) fn rejected_share(&self) -> f64 {
        share(self.rejected, self.requests)
    }
}

impl PolicyTally {
    fn add(&mut self, at: i64, is_rejected: bool) {
        self.applied += 1;
        if is_rejected {
            self.rejected += 1;
            self.most_rejected.add(at);
            extend(&mut self.span, at);
        }
    }
}

fn extend(span: &mut Option<(i64, i64)>, at: i64) {
    *span = Some((span.map_or(at, |(first, _)| first), at));
}

/// The part of a whole, from 0 to 1.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => part as f64 / whole as f64,
    }
}
