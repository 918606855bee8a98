use std::{sync::Arc, time::Duration};

use super::{Discard, KeysFn, StaticKeys};
use crate::limiter::{DEFAULT_MAX_WAITERS, Keys, Limiter};

/// How long a request waits, unless set otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Holds back requests on their way out until a [`Limiter`] lets them pass.
///
/// Unless set otherwise, all count under [`Key::global`](crate::Key::global), wait for at most 30 seconds, and at most 1,024 of them at a time. It is
/// cheap to clone, and its clones share everything. See the [module](crate::outgoing) for what it does to a request.
///
/// Where it is kept, `OutgoingLayer` names one with a fixed key, and [`Outgoing<C>`](crate::outgoing::Outgoing) its service. With
/// [`key_with`](OutgoingLayer::key_with) or [`attach`](OutgoingLayer::attach) the other type parameters have to be named, such as
/// `Outgoing<C, StaticKeys, InExtensions>`.
///
/// ```
/// use std::time::Duration;
/// use http::Request;
/// use tollgate::{Key, Limiter, OutgoingLayer, Policy, Quota};
///
/// // No two within 200 ms: a burst would let up to ten pass within a second.
/// let limiter = Limiter::builder()
///     .policy(Policy::new("upstream", Quota::requests(5).per_second().burst(1)))
///     .build()?;
/// // For each host that is called.
/// let layer = OutgoingLayer::new(limiter)
///     .key_with(|request: &Request<String>| Key::new(request.uri().host().unwrap_or_default()))
///     .timeout(Duration::from_secs(5))
///     .queue(100);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct OutgoingLayer<K = StaticKeys, H = Discard> {
    pub(super) limiter: Limiter,
    pub(super) question: K,
    pub(super) attach: H,
    pub(super) timeout: Duration,
    pub(super) queue: usize,
    pub(super) enabled: bool,
}

impl OutgoingLayer {
    /// A layer over `limiter`, sharing its counts.
    pub fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            question: StaticKeys::default(),
            attach: Discard,
            timeout: TIMEOUT,
            queue: DEFAULT_MAX_WAITERS,
            enabled: true,
        }
    }
}

impl<K, H> OutgoingLayer<K, H> {
    /// Counts all requests under `keys`: one [`Key`](crate::Key) for all policies, or pairs of a policy's name and its key.
    #[must_use]
    pub fn key(self, keys: impl Into<Keys>) -> OutgoingLayer<StaticKeys, H> {
        let keys = keys.into();
        self.keys_from(StaticKeys { keys, cost: None })
    }

    /// Counts each request under what `keys` says: as in [`key`](OutgoingLayer::key).
    #[must_use]
    pub fn key_with<Req, F, T>(self, keys: F) -> OutgoingLayer<KeysFn<Req>, H>
    where
        F: Fn(&Req) -> T + Send + Sync + 'static,
        T: Into<Keys>,
    {
        let keys = Arc::new(move |request: &Req| keys(request).into());
        self.keys_from(KeysFn { keys, cost: None })
    }

    /// How long a request waits at most: 30 seconds unless set. The wait of the first in the queue is known: if it is longer, that
    /// request is rejected at once. Those behind it learn theirs when they are first, at the latest after the timeout. So keep
    /// [`queue`](OutgoingLayer::queue) near what the quota admits within the timeout.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Rejects at once if `most` requests with the same keys wait already: 1,024 unless set. With 0 no request waits.
    #[must_use]
    pub fn queue(mut self, most: usize) -> Self {
        self.queue = most;
        self
    }

    /// Switches the layer off (or on again) without changing its type: requests pass at once, uncounted.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Hands each request's [`Admission`](crate::Admission) to its caller, [`AsTuple`](super::AsTuple) the response or
    /// [`InExtensions`](super::InExtensions) of it, or as you like.
    #[must_use]
    pub fn attach<G>(self, attach: G) -> OutgoingLayer<K, G> {
        OutgoingLayer {
            limiter: self.limiter,
            question: self.question,
            attach,
            timeout: self.timeout,
            queue: self.queue,
            enabled: self.enabled,
        }
    }

    /// Takes each request's keys and cost from an implementation of [`RequestKeys`](super::RequestKeys).
    #[must_use]
    pub fn keys_from<Q>(self, question: Q) -> OutgoingLayer<Q, H> {
        OutgoingLayer {
            limiter: self.limiter,
            question,
            attach: self.attach,
            timeout: self.timeout,
            queue: self.queue,
            enabled: self.enabled,
        }
    }

    /// The limiter, for calls by hand.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }
}

impl<H> OutgoingLayer<StaticKeys, H> {
    /// Charges `units` a request under every policy, in place of each policy's own cost.
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.question.cost = Some(units);
        self
    }
}

impl<Req, H> OutgoingLayer<KeysFn<Req>, H> {
    /// Charges each request what `cost` says under every policy, in place of each policy's own cost.
    #[must_use]
    pub fn cost_with<F>(mut self, cost: F) -> Self
    where
        F: Fn(&Req) -> u64 + Send + Sync + 'static,
    {
        self.question.cost = Some(Arc::new(cost));
        self
    }
}
