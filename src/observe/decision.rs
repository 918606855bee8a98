//! Decisions, as observers see them.

use std::{fmt, slice, time::Duration};

use crate::{
    clock::Timestamp,
    error::StoreError,
    key::Key,
    strategy::{LazyStatus, QuotaStatus, Rule},
};

/// The share of a limit, in percent, above which a request is [near](PolicyResult::Near) it by default.
pub const NEAR_PERCENT: u8 = 80;

/// A request was decided, or several [equal ones](crate::limiter::Check::times) at once.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DecisionEvent<'a> {
    /// How often the limiter had been [reconfigured](crate::Limiter::reconfigure) before the decision. A [`PolicyEvent::index`] is
    /// an index into the policies of this generation.
    pub generation: u64,
    /// How the requests ended; of several requests of which some were admitted, [`Admitted`](DecisionOutcome::Admitted). See
    /// [`outcomes`](Self::outcomes).
    pub outcome: DecisionOutcome,
    /// What decided them.
    pub source: DecisionSource,
    /// The number of requests: 1, or that of [`Check::times`](crate::limiter::Check::times).
    pub requests: u64,
    /// How many of them were let through, for whatever reason.
    pub admitted: u64,
    /// Whether they were admitted without being counted anywhere, since the store failed
    /// ([`OnStoreError::Admit`](crate::OnStoreError::Admit)).
    pub uncounted: bool,
    /// Whether the request was allowed to wait: [`Limiter::wait`](crate::Limiter::wait), or a layer of outgoing calls.
    pub waits: bool,
    /// How long the decision took, or how long it was until the request was dropped. If it had to wait for the store:
    /// since that was called. If the request was allowed to wait: since its first poll. Of decisions that are ready at once, one in
    /// 64 is timed, chosen at random; the others have `None`.
    pub elapsed: Option<Duration>,
    /// The store's error, where it failed and the request was rejected for that.
    pub error: Option<&'a StoreError>,
    /// The result under each policy that applied: live policies, bans that block, then shadow policies. Empty if nothing was
    /// counted.
    pub policies: PolicyEvents<'a>,
}

/// The results of a decision under each policy. The status under a policy is computed when it is read.
#[derive(Clone, Copy)]
pub struct PolicyEvents<'a>(&'a [PolicyEvent<'a>]);

/// Iterates over the results of a decision: see [`PolicyEvents`].
#[derive(Clone, Debug)]
pub struct PolicyEventsIter<'a>(slice::Iter<'a, PolicyEvent<'a>>);

/// The result of a decision under one policy.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct PolicyEvent<'a> {
    /// The policy's index among the [policies](crate::Limiter::policies) of that generation.
    pub index: usize,
    /// The policy's name.
    pub policy: &'a str,
    /// What the policy does to requests.
    pub kind: PolicyKind,
    /// The key by which the requests were counted; of a secret, its hash.
    pub key: &'a Key,
    /// The units that one request costs.
    pub cost: u64,
    /// The units that were charged on arrival. Not included is what [`charge_rejected`](crate::Policy::charge_rejected) charges for
    /// rejected requests.
    pub charged: u64,
    /// The number of requests.
    pub requests: u64,
    /// How many of them this policy rejected, or would have rejected if it were enforced.
    pub over: u64,
    pub(crate) status: EventStatus<'a>,
}

/// The status of a request under a policy, which is computed when it is read.
#[derive(Clone, Copy)]
pub(crate) struct EventStatus<'a> {
    pub(crate) limit: u64,
    pub(crate) rule: &'a dyn Rule,
    pub(crate) status: &'a LazyStatus,
    pub(crate) decided_at: Timestamp,
    /// The cost, as the store counts.
    pub(crate) units: u64,
}

/// What a policy does to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum PolicyKind {
    /// Rejects them.
    Live,
    /// Counts what the others reject, and rejects keys with too many rejections: a [ban](crate::Ban).
    Ban,
    /// Is [evaluated](crate::Policy::shadow), and not enforced.
    Shadow,
}

/// The result of a request under one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum PolicyResult {
    /// It was within the limit.
    Within,
    /// It was within the limit, of which most is used.
    Near,
    /// The policy rejected it.
    Over,
    /// The shadow policy would have rejected it.
    ShadowOver,
}

impl DecisionEvent<'_> {
    /// The outcomes of the requests, and their numbers: one, or two where some of several requests were admitted and the others
    /// rejected.
    pub fn outcomes(&self) -> impl Iterator<Item = (DecisionOutcome, u64)> {
        let rejected = match self.outcome {
            DecisionOutcome::Admitted => self.requests.saturating_sub(self.admitted),
            _ => 0,
        };
        let first = (self.outcome, self.requests - rejected);
        let rest = (rejected > 0).then_some((DecisionOutcome::Rejected, rejected));
        [first].into_iter().chain(rest)
    }
}

impl<'a> PolicyEvents<'a> {
    pub(crate) fn new(events: &'a [PolicyEvent<'a>]) -> Self {
        Self(events)
    }

    /// How many policies applied.
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Whether nothing was counted.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl<'a> IntoIterator for PolicyEvents<'a> {
    type Item = PolicyEvent<'a>;
    type IntoIter = PolicyEventsIter<'a>;

    #[inline]
    fn into_iter(self) -> PolicyEventsIter<'a> {
        PolicyEventsIter(self.0.iter())
    }
}

impl<'a> Iterator for PolicyEventsIter<'a> {
    type Item = PolicyEvent<'a>;

    #[inline]
    fn next(&mut self) -> Option<PolicyEvent<'a>> {
        self.0.next().copied()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for PolicyEventsIter<'_> {}

impl fmt::Debug for PolicyEvents<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

impl PolicyEvent<'_> {
    /// The most units that can be charged at once: the burst, or a window's whole quota.
    pub fn limit(&self) -> u64 {
        self.status.limit
    }

    /// The status afterwards. It is computed by each call.
    pub fn status(&self) -> QuotaStatus {
        let status = &self.status;
        status
            .status
            .get(status.rule, status.decided_at, status.units)
    }

    /// The results of the requests, and their numbers: one, or two where only some of several requests were over the limit.
    /// Those within the limit are [near](PolicyResult::Near) it if more than `near_percent` of it are used afterwards;
    /// [`NEAR_PERCENT`] is a good value.
    pub fn results(&self, near_percent: u8) -> impl Iterator<Item = (PolicyResult, u64)> {
        let results = self.both_results(near_percent).into_iter();
        results.filter(|(_, requests)| *requests > 0)
    }

    /// The results of the requests within the limit and of those over it, and their numbers, which may be 0.
    #[inline]
    pub(crate) fn both_results(&self, near_percent: u8) -> [(PolicyResult, u64); 2] {
        let within = self.requests.saturating_sub(self.over);
        let is_near = within > 0 && self.is_near(near_percent);
        let over = match self.kind {
            PolicyKind::Shadow => PolicyResult::ShadowOver,
            PolicyKind::Live | PolicyKind::Ban => PolicyResult::Over,
        };
        [(PolicyResult::within(is_near), within), (over, self.over)]
    }

    /// Whether more than this share of the limit is used afterwards.
    #[inline]
    pub fn is_near(&self, percent: u8) -> bool {
        self.status.is_near(percent)
    }
}

impl EventStatus<'_> {
    /// Whether more than this share of the limit is used.
    #[inline]
    pub(crate) fn is_near(&self, percent: u8) -> bool {
        let units = fewest_left(self.limit, percent);
        !self.status.has_remaining(self.rule, self.decided_at, units)
    }
}

/// The fewest units that are left of a limit while no more than `percent` of it are used.
#[inline]
fn fewest_left(limit: u64, percent: u8) -> u64 {
    let rest = 100_u64.saturating_sub(percent.into());
    // A limit is at most 999,999,999,999,999.
    limit.saturating_mul(rest).div_ceil(100)
}

impl fmt::Debug for PolicyEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyEvent")
            .field("index", &self.index)
            .field("policy", &self.policy)
            .field("kind", &self.kind)
            .field("key", self.key)
            .field("limit", &self.limit())
            .field("cost", &self.cost)
            .field("charged", &self.charged)
            .field("status", &self.status())
            .field("requests", &self.requests)
            .field("over", &self.over)
            .finish()
    }
}

impl PolicyKind {
    /// Its name: `live`, `ban` or `shadow`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Ban => "ban",
            Self::Shadow => "shadow",
        }
    }
}

impl PolicyResult {
    /// All results.
    pub const ALL: [Self; 4] = [Self::Within, Self::Near, Self::Over, Self::ShadowOver];

    /// The result of a request within the limit.
    #[inline]
    pub(crate) const fn within(is_near: bool) -> Self {
        if is_near { Self::Near } else { Self::Within }
    }

    /// Its name in metrics: `within`, `near`, `over` or `shadow_over`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Within => "within",
            Self::Near => "near",
            Self::Over => "over",
            Self::ShadowOver => "shadow_over",
        }
    }
}

/// How a request ended for a limiter. Each request has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DecisionOutcome {
    /// Its policies admitted it, or the store failed and it was admitted nevertheless.
    Admitted,
    /// A policy or a ban rejected it.
    Rejected,
    /// It was on a [deny list](crate::limiter::LimiterBuilder::deny).
    DenyListed,
    /// It was on an [allow list](crate::limiter::LimiterBuilder::allow), and admitted.
    AllowListed,
    /// It was admitted since no policy applied to it: it is [skipped](crate::limiter::LimiterBuilder::skip_path), a preflight, or has no
    /// key under policies that exempt such requests.
    Skipped,
    /// It had no key under a policy that [rejects](crate::extract::MissingKey::Reject) such requests.
    MissingKey,
    /// The store failed, and it was rejected for that.
    StoreFailed,
    /// It was dropped before it was decided: the client has disconnected, or a timeout has passed. What it was charged is refunded.
    Cancelled,
    /// A mistake in a call by hand: see [`DecisionKind::Invalid`](crate::limiter::DecisionKind::Invalid).
    Invalid,
}

impl DecisionOutcome {
    /// All outcomes.
    pub const ALL: [Self; 9] = [
        Self::Admitted,
        Self::Rejected,
        Self::DenyListed,
        Self::AllowListed,
        Self::Skipped,
        Self::MissingKey,
        Self::StoreFailed,
        Self::Cancelled,
        Self::Invalid,
    ];

    /// Its name in metrics: `admitted`, `rejected`, `deny_listed`, `allow_listed`, `skipped`, `missing_key`, `store_failed`,
    /// `cancelled` or `invalid`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Rejected => "rejected",
            Self::DenyListed => "deny_listed",
            Self::AllowListed => "allow_listed",
            Self::Skipped => "skipped",
            Self::MissingKey => "missing_key",
            Self::StoreFailed => "store_failed",
            Self::Cancelled => "cancelled",
            Self::Invalid => "invalid",
        }
    }
}

/// The source of a decision, or of the result of an operation.
///
/// ```
/// use tollgate::{Limiter, Policy, Quota, observe::DecisionSource};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::ConfigError> {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("api", Quota::requests(10).per_minute()))
///     .build()?;
/// // Counts in process have neither cached rejections nor leases.
/// assert_eq!(limiter.check("alice").await.source(), DecisionSource::Store);
/// assert_eq!(DecisionSource::Lease.as_str(), "lease");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DecisionSource {
    /// The store counted the request.
    Store,
    /// A cached rejection of the store, which still holds.
    RejectionCache,
    /// Units that this process holds in a [lease](crate::Policy::lease) admitted the request, without a call of the store. A lease
    /// rejects no request.
    Lease,
    /// The store failed, and the request was handled as [`OnStoreError`](crate::OnStoreError) says.
    Fallback,
    /// Nothing was counted: no policy applied, one found no key, or an access list allowed or denied the request.
    NotChecked,
}

impl DecisionSource {
    /// All sources.
    pub const ALL: [Self; 5] = [
        Self::Store,
        Self::RejectionCache,
        Self::Lease,
        Self::Fallback,
        Self::NotChecked,
    ];

    /// Its name in metrics: `store`, `rejection_cache`, `lease`, `fallback` or `not_checked`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::RejectionCache => "rejection_cache",
            Self::Lease => "lease",
            Self::Fallback => "fallback",
            Self::NotChecked => "not_checked",
        }
    }
}
