use std::{fmt, sync::Arc, time::Duration};

use super::{AnyResponse, HttpResponse, WithAdmission, obey::Obey};
use crate::{
    error::ConfigError,
    key::Key,
    limiter::{DEFAULT_MAX_WAITERS, Keys, Limiter},
    provider::Provider,
};

/// How long a request waits, unless set otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// A tower layer that delays outgoing requests until a [`Limiter`] admits them.
///
/// By default all requests count under [`Key::global`](crate::Key::global), wait for at most 30 seconds, and at most 1,024 wait
/// at a time. It is cheap to clone, and its clones share their counts and queues. The [module](crate::outgoing) describes what
/// happens to a request.
///
/// As a field's type, `OutgoingLayer` is a layer with a fixed key for a client of HTTP, and
/// [`Outgoing<C>`](crate::outgoing::Outgoing) its service. With [`key_with`](OutgoingLayer::key_with), or for a client with
/// other responses, the other type parameters have to be named, such as `Outgoing<C, StaticKeys, AnyResponse>`.
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
pub struct OutgoingLayer<K = StaticKeys, R = HttpResponse> {
    pub(super) limiter: Limiter,
    pub(super) keys: K,
    pub(super) responses: R,
    pub(super) timeout: Duration,
    pub(super) queue: usize,
    pub(super) enabled: bool,
}

impl OutgoingLayer {
    /// A layer over `limiter`, with which it shares counts and queues, for clients that respond with an
    /// [`http::Response`]. A call [ends](crate::outgoing#when-a-call-has-ended) with its response's body.
    pub fn new(limiter: Limiter) -> Self {
        Self::with_responses(limiter, HttpResponse::default())
    }
}

impl OutgoingLayer<StaticKeys, AnyResponse> {
    /// A layer over `limiter`, with which it shares counts and queues, for clients with responses of any type. A call
    /// [ends](crate::outgoing#when-a-call-has-ended) with its response.
    pub fn for_any_response(limiter: Limiter) -> Self {
        Self::with_responses(limiter, AnyResponse)
    }
}

impl<R> OutgoingLayer<StaticKeys, R> {
    fn with_responses(limiter: Limiter, responses: R) -> Self {
        Self {
            limiter,
            keys: StaticKeys::default(),
            responses,
            timeout: DEFAULT_TIMEOUT,
            queue: DEFAULT_MAX_WAITERS,
            enabled: true,
        }
    }
}

impl<K> OutgoingLayer<K, HttpResponse> {
    /// Obeys what the provider says in its HTTP responses: a refusal, and a window of which nothing is left, block the call's
    /// key in the store, for all processes. [The module](crate::outgoing#when-the-provider-refuses-calls) has the rules,
    /// [`provider`](crate::provider) the fields. Replaces the provider that was set before.
    ///
    /// Keys that are set for each policy need one for the block list too. If a [reload](Limiter::reconfigure) removes the block
    /// list, refusals are logged as errors.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the limiter has no [block list](crate::Policy::block_list), or several and the provider
    /// [names](Provider::block_list) none, or if a [policy](Provider::limit) that counts a limit of the provider is unknown.
    pub fn obey(mut self, provider: Provider) -> Result<Self, ConfigError> {
        self.responses.obey = Some(Obey::new(self.limiter.clone(), provider)?);
        Ok(self)
    }
}

impl<K> OutgoingLayer<K, AnyResponse> {
    /// Sets that each response is returned with its [`Admission`](crate::Admission), as a tuple.
    #[must_use]
    pub fn with_admission(self) -> OutgoingLayer<K, WithAdmission> {
        self.map(|keys, AnyResponse| (keys, WithAdmission))
    }
}

impl<K, R> OutgoingLayer<K, R> {
    /// Sets the keys of all requests: one [`Key`](crate::Key) for all policies, or pairs of a policy's name and its key.
    /// Default: [`Key::global`](crate::Key::global). Replaces the cost that was set before.
    #[must_use]
    pub fn key(self, keys: impl Into<Keys>) -> OutgoingLayer<StaticKeys, R> {
        let keys = keys.into();
        self.keys_from(StaticKeys { keys, cost: None })
    }

    /// Sets the keys of each request to those that `keys` returns for it: see [`key`](OutgoingLayer::key). Replaces the cost
    /// that was set before.
    #[must_use]
    pub fn key_with<Req, F, T>(self, keys: F) -> OutgoingLayer<KeysFn<Req>, R>
    where
        F: Fn(&Req) -> T + Send + Sync + 'static,
        T: Into<Keys>,
    {
        let keys = Arc::new(move |request: &Req| keys(request).into());
        self.keys_from(KeysFn { keys, cost: None })
    }

    /// Sets how long a request waits at most. Default: 30 seconds. A request is rejected at once if the wait of the first in the queue
    /// exceeds its timeout; its own wait is unknown until it is first, and it is rejected after the timeout at the latest. So set
    /// [`queue`](OutgoingLayer::queue) to about what the quota admits within the timeout.
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

    /// Sets the implementation of [`RequestKeys`](super::RequestKeys) that finds each request's keys and cost.
    #[must_use]
    pub fn keys_from<Q>(self, keys: Q) -> OutgoingLayer<Q, R> {
        self.map(|_, responses| (keys, responses))
    }

    /// The same layer with other types.
    fn map<Q, P>(self, parts: impl FnOnce(K, R) -> (Q, P)) -> OutgoingLayer<Q, P> {
        let (keys, responses) = parts(self.keys, self.responses);
        OutgoingLayer {
            limiter: self.limiter,
            keys,
            responses,
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

impl<R> OutgoingLayer<StaticKeys, R> {
    /// Sets the cost of each request under every policy to `units`. Default: each policy's own cost.
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.keys.cost = Some(units);
        self
    }
}

impl<Req, R> OutgoingLayer<KeysFn<Req>, R> {
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

/// Finds the keys and the cost of an outgoing request: set by [`OutgoingLayer::keys_from`](crate::OutgoingLayer::keys_from).
pub trait RequestKeys<Req> {
    /// The request's keys: one for all policies, or one for each.
    fn keys(&self, request: &Req) -> Keys;

    /// The request's cost in units under every policy; `None` for each policy's own cost.
    fn cost(&self, request: &Req) -> Option<u64>;
}

/// The same keys for all requests: set by [`OutgoingLayer::key`](crate::OutgoingLayer::key).
#[derive(Clone, Debug)]
pub struct StaticKeys {
    pub(crate) keys: Keys,
    pub(crate) cost: Option<u64>,
}

impl Default for StaticKeys {
    fn default() -> Self {
        Self {
            keys: Key::global().into(),
            cost: None,
        }
    }
}

impl<Req> RequestKeys<Req> for StaticKeys {
    fn keys(&self, _request: &Req) -> Keys {
        self.keys.clone()
    }

    fn cost(&self, _request: &Req) -> Option<u64> {
        self.cost
    }
}

/// Keys that a function finds in each request: set by [`OutgoingLayer::key_with`](crate::OutgoingLayer::key_with).
pub struct KeysFn<Req> {
    pub(crate) keys: RequestFn<Req, Keys>,
    pub(crate) cost: Option<RequestFn<Req, u64>>,
}

type RequestFn<Req, T> = Arc<dyn Fn(&Req) -> T + Send + Sync>;

impl<Req> RequestKeys<Req> for KeysFn<Req> {
    fn keys(&self, request: &Req) -> Keys {
        (self.keys)(request)
    }

    fn cost(&self, request: &Req) -> Option<u64> {
        self.cost.as_ref().map(|cost| cost(request))
    }
}

impl<Req> Clone for KeysFn<Req> {
    fn clone(&self) -> Self {
        Self {
            keys: self.keys.clone(),
            cost: self.cost.clone(),
        }
    }
}

impl<Req> fmt::Debug for KeysFn<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeysFn").finish_non_exhaustive()
    }
}
