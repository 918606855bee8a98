use tower_layer::Layer;

use super::RateLimit;
use crate::{
    error::ConfigError,
    limiter::{Limiter, LimiterBuilder, OnStoreError},
    policy::Policy,
    store::Store,
};

/// Limits the requests that reach a service.
///
/// It has no type parameters, is cheap to clone, and its clones share everything. See the [module](crate::layer) for
/// what it does to a request.
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::{Router, routing::get};
/// use tollgate::{Policy, Quota, RateLimitLayer};
///
/// let layer = RateLimitLayer::builder()
///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
///     .policy(Policy::new("daily", Quota::requests(5_000).per_day()))
///     .build()?;
/// let app: Router = Router::new().route("/", get(async || "hello")).layer(layer);
/// # }
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    limiter: Limiter,
    enabled: bool,
}

impl RateLimitLayer {
    /// A layer over `limiter`, sharing its counts.
    pub fn new(limiter: Limiter) -> Self {
        Self {
            limiter,
            enabled: true,
        }
    }

    /// Starts to build a layer and its limiter.
    pub fn builder() -> RateLimitLayerBuilder {
        RateLimitLayerBuilder {
            limiter: Limiter::builder(),
            enabled: true,
        }
    }

    /// Switches the layer off (or on again) without changing its type: requests pass untouched.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// The limiter, to ask about keys that only a handler knows.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, self.enabled.then(|| self.limiter.clone()))
    }
}

/// Builds a [`RateLimitLayer`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RateLimitLayerBuilder {
    limiter: LimiterBuilder,
    enabled: bool,
}

impl RateLimitLayerBuilder {
    /// See [`LimiterBuilder::store`].
    pub fn store(mut self, store: impl Store) -> Self {
        self.limiter = self.limiter.store(store);
        self
    }

    /// See [`LimiterBuilder::policy`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.limiter = self.limiter.policy(policy);
        self
    }

    /// See [`LimiterBuilder::on_store_error`].
    pub fn on_store_error(mut self, answer: OnStoreError) -> Self {
        self.limiter = self.limiter.on_store_error(answer);
        self
    }

    /// See [`RateLimitLayer::enabled`].
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// The layer.
    ///
    /// # Errors
    ///
    /// See [`LimiterBuilder::build`].
    pub fn build(self) -> Result<RateLimitLayer, ConfigError> {
        Ok(RateLimitLayer::new(self.limiter.build()?).enabled(self.enabled))
    }
}
