use std::{sync::Arc, time::Duration};

use super::{Discard, KeysFn, StaticKeys};
use crate::limiter::{DEFAULT_MAX_WAITERS, Keys, Limiter};

/// How long a request waits, unless set otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// A tower layer that delays outgoing requests until a [`Limiter`] admits them.
///
/// By default all requests count under [`Key::global`](crate::Key::global), wait for at most 30 seconds, and at most 1,024 wait
/// at a time. It is cheap to clone, and its clones share their counts and queues. The [module](crate::outgoing) describes what
/// happens to a request.
///
/// As a field's type, `OutgoingLayer` is a layer with a fixed key, and [`Outgoing<C>`](crate::outgoing::Outgoing) its service.
/// With [`key_with`](OutgoingLayer::key_with) or [`attach`](OutgoingLayer::attach) the other type parameters have to be named,
/// such as `Outgoing<C, StaticKeys, InExtensions>`.
///
/// ```
/// use std::time::Duration;
/// use http::Request;
/// use tollgate::{Key, Limiter, OutgoingLayer, Policy, Quota};
///
/// // One every 220 ms, for upstreams that allow five a second: with a margin, since calls don't arrive as evenly as they leave.
/// let limiter = Limiter::builder()
///     .policy(Policy::new("upstream", Quota::requests(1).per(Duration::from_millis(220))))
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
    pub(super) keys: K,
    pub(super) attach: H,
    pub(super) timeout: Duration,
    pub(super) queue: usize,
    pub(super) enabled: bool,
}

impl OutgoingLayer {
    /// A layer over `limiter`, with which it shares counts and queues.
    pub fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            keys: StaticKeys::default(),
            attach: Discard,
            timeout: DEFAULT_TIMEOUT,
            queue: DEFAULT_MAX_WAITERS,
            enabled: true,
        }
    }
}

impl<K, H> OutgoingLayer<K, H> {
    /// Sets the keys of all requests: one [`Key`](crate::Key) for all policies, or pairs of a policy's name and its key.
    /// Default: [`Key::global`](crate::Key::global). Replaces the cost that was set before.
    #[must_use]
    pub fn key(self, keys: impl Into<Keys>) -> OutgoingLayer<StaticKeys, H> {
        let keys = keys.into();
        self.keys_from(StaticKeys { keys, cost: None })
    }

    /// Sets the keys of each request to those that `keys` returns for it: see [`key`](OutgoingLayer::key). Replaces the cost
    /// that was set before.
    #[must_use]
    pub fn key_with<Req, F, T>(self, keys: F) -> OutgoingLayer<KeysFn<Req>, H>
    where
        F: Fn(&Req) -> T + Send + Sync + 'static,
        T: Into<Keys>,
    {
        let keys = Arc::new(move |request: &Req| keys(request).into());
        self.keys_from(KeysFn { keys, cost: None })
    }

    /// Sets how long a request waits at most. Default: 30 seconds. The first request in the queue is rejected at once if its
    /// wait would exceed the timeout; the wait of those behind it is unknown until they are first, and they are rejected after
    /// the timeout at the latest. So set [`queue`](OutgoingLayer::queue) to about what the quota admits within the timeout.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the length of the queue: a request is rejected at once if `most` requests with the same keys wait already. Default:
    /// 1,024. With 0 no request waits.
    #[must_use]
    pub fn queue(mut self, most: usize) -> Self {
        self.queue = most;
        self
    }

    /// Sets whether the layer limits requests; if not, they pass at once, uncounted. Default: true. The layer's type is the
    /// same.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Sets how each request's [`Admission`](crate::Admission) is passed to the client's caller: [`AsTuple`](super::AsTuple)
    /// with the response, [`InExtensions`](super::InExtensions) of it, or by an implementation of
    /// [`AttachAdmission`](super::AttachAdmission). Default: [`Discard`](super::Discard).
    #[must_use]
    pub fn attach<G>(self, attach: G) -> OutgoingLayer<K, G> {
        OutgoingLayer {
            limiter: self.limiter,
            keys: self.keys,
            attach,
            timeout: self.timeout,
            queue: self.queue,
            enabled: self.enabled,
        }
    }

    /// Sets the implementation of [`RequestKeys`](super::RequestKeys) that finds each request's keys and cost.
    #[must_use]
    pub fn keys_from<Q>(self, keys: Q) -> OutgoingLayer<Q, H> {
        OutgoingLayer {
            limiter: self.limiter,
            keys,
            attach: self.attach,
            timeout: self.timeout,
            queue: self.queue,
            enabled: self.enabled,
        }
    }

    /// The layer's limiter, for calls by hand.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }
}

impl<H> OutgoingLayer<StaticKeys, H> {
    /// Sets the cost of each request under every policy to `units`. Default: each policy's own cost.
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.keys.cost = Some(units);
        self
    }
}

impl<Req, H> OutgoingLayer<KeysFn<Req>, H> {
    /// Sets the cost of each request under every policy to the units that `cost` returns for it. Default: each policy's own
    /// cost.
    #[must_use]
    pub fn cost_with<F>(mut self, cost: F) -> Self
    where
        F: Fn(&Req) -> u64 + Send + Sync + 'static,
    {
        self.keys.cost = Some(Arc::new(cost));
        self
    }
}
