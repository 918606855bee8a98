//! The state of a limiter and of its store at one moment, for gauges.

use std::{fmt, sync::Arc};

use super::decision::PolicyKind;
use crate::quota::Quota;

/// The state of a [limiter](crate::Limiter::stats) in this process. Reading it calls no store.
///
/// ```
/// use tollgate::{Limiter, Policy, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("reports", Quota::concurrent(3)))
///     .build()?;
/// let admission = limiter.admit("alice").await?;
/// assert_eq!(limiter.stats().policies[0].permits, 1);
/// drop(admission);
/// assert_eq!(limiter.stats().policies[0].permits, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LimiterStats {
    /// How often the limiter has been [reconfigured](crate::Limiter::reconfigure).
    pub generation: u64,
    /// The policies in force, in the order of [`Limiter::policies`](crate::Limiter::policies).
    pub policies: Vec<PolicyStats>,
    /// The state of the store, which other limiters may share.
    pub store: StoreStats,
}

/// The state of a policy in this process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PolicyStats {
    /// The policy's name.
    pub policy: Arc<str>,
    /// What the policy does to requests.
    pub kind: PolicyKind,
    /// Its quota; `None` for a [block list](crate::Policy::block_list), which has none.
    pub quota: Option<Quota>,
    /// The most units that can be charged at once: the burst, or a window's whole quota; 0 for a block list.
    pub limit: u64,
    /// The permits of an in-flight limit that requests of this process hold. One that a handler has
    /// [released early](crate::limiter::PolicyAdmission::refund) counts until its request ends.
    pub permits: u64,
    /// The requests that [wait](crate::Limiter::wait) for it, or for another policy that applies to them too.
    pub waiters: u64,
    /// The [overrides](crate::limiter::Override) of its keys that are in force in this process.
    pub overrides: u64,
    /// What a [shadow policy](crate::Policy::shadow) would have rejected; `None` for other policies.
    pub shadow: Option<ShadowStats>,
}

/// Counts what a [shadow policy](crate::Policy::shadow) would have rejected, in requests of this process since the policy was
/// added or last changed. From [`Limiter::shadow_stats`](crate::Limiter::shadow_stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShadowStats {
    /// Requests that the enforced policies admitted, and that the shadow policy was evaluated for.
    pub evaluated: u64,
    /// Those of them that the shadow policy would have rejected.
    pub would_reject: u64,
}

/// The state of a store in this process: see [`Store::stats`](crate::store::Store::stats).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StoreStats {
    /// The [keys](crate::MemoryStore::keys) of a [`MemoryStore`](crate::MemoryStore).
    pub memory_keys: Option<u64>,
    /// The keys that a [`MemoryStore`](crate::MemoryStore) has [evicted](crate::MemoryStore::dropped) with units in use.
    pub memory_evictions: Option<u64>,
    /// The rejections that are cached.
    pub rejection_cache_entries: Option<u64>,
    /// The units of [leases](crate::Policy::lease) in this process, for each policy that had a lease.
    pub leases: Vec<LeaseStats>,
    /// The servers that were called.
    pub nodes: Vec<NodeStats>,
    /// Refunds, charges, settlements and resets that are in flight or kept for later, also refunds of leases.
    pub queued_refunds: u64,
    /// Operations that were [dropped](crate::store::HealthReport::dropped_refunds) since the store was built.
    pub dropped_refunds: u64,
    /// Operations whose result is [unknown](crate::store::HealthReport::unconfirmed).
    pub unconfirmed_refunds: u64,
}

/// The units that this process has [leased](crate::Policy::lease) under a policy since the store was built. `granted` is the sum of all
/// others. None of them falls, except `held`.
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{Limiter, observe::LeaseStats};
///
/// /// The share of the leased units that were spent.
/// fn spent_share(leases: &LeaseStats) -> f64 {
///     leases.spent as f64 / leases.granted.max(1) as f64
/// }
///
/// fn print(limiter: &Limiter) {
///     for leases in limiter.stats().store.leases {
///         println!("{}: {:.0} % spent", leases.policy, 100.0 * spent_share(&leases));
///     }
/// }
///
/// let mut leases = LeaseStats::new(Arc::from("tenant"));
/// (leases.granted, leases.spent, leases.held) = (200, 150, 50);
/// assert_eq!(spent_share(&leases), 0.75);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeaseStats {
    /// The policy's name.
    pub policy: Arc<str>,
    /// Units that were charged in the store ahead of need; also those of a lease without a response, which may not have been.
    pub granted: u64,
    /// Units of requests that were admitted by them.
    pub spent: u64,
    /// Units that were left, and refunded.
    pub refunded: u64,
    /// Units that were left, and of which no refund is known: they had refilled before it, the refund failed, the key was reset, or
    /// the lease got no response in time.
    pub lapsed: u64,
    /// Units that this process holds now: they may be spent, or are about to be refunded, or their refund has no response yet.
    pub held: u64,
}

impl LeaseStats {
    /// No units of a policy, for a [`Store`](crate::store::Store) of your own.
    pub const fn new(policy: Arc<str>) -> Self {
        Self {
            policy,
            granted: 0,
            spent: 0,
            refunded: 0,
            lapsed: 0,
            held: 0,
        }
    }
}

/// The state of one server of a store, as this process sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStats {
    /// The server, as in [`StoreCallEvent::node`](super::StoreCallEvent::node).
    pub node: Arc<str>,
    /// Its circuit breaker.
    pub breaker: BreakerState,
    /// The open connections on which the store sends requests to it.
    pub connections: u64,
}

/// The state of a circuit breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum BreakerState {
    /// The server is called.
    #[default]
    Closed,
    /// The server is not called, but for a probe, which is in flight or due.
    HalfOpen,
    /// The server is not called.
    Open,
}

/// Reads the state of a limiter later: from [`Event::PoliciesInForce`](super::Event::PoliciesInForce), for an observer that
/// reports gauges. It does not keep the limiter alive.
#[derive(Clone)]
pub struct StatsHandle(Arc<dyn Fn() -> Option<LimiterStats> + Send + Sync>);

impl NodeStats {
    /// The state of a server, for a [`Store`](crate::store::Store) of your own.
    pub fn new(node: impl Into<Arc<str>>, breaker: BreakerState, connections: u64) -> Self {
        Self {
            node: node.into(),
            breaker,
            connections,
        }
    }
}

impl StatsHandle {
    /// A handle by which `stats` is called, with a weak reference to the limiter.
    pub(crate) fn new(stats: impl Fn() -> Option<LimiterStats> + Send + Sync + 'static) -> Self {
        Self(Arc::new(stats))
    }

    /// The [state](crate::Limiter::stats) of the limiter; `None` once it was dropped.
    pub fn stats(&self) -> Option<LimiterStats> {
        (self.0)()
    }
}

impl fmt::Debug for StatsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatsHandle").finish_non_exhaustive()
    }
}

impl BreakerState {
    /// Its name: `closed`, `half_open` or `open`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}
