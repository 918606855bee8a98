//! The baselines in process: governor called directly, and tower_governor's layer.

use std::{hint::black_box, num::NonZeroU32, time::SystemTime};

use axum::body::Body;
use governor::{
    RateLimiter,
    clock::{DefaultClock, QuantaInstant},
    middleware::{NoOpMiddleware, RateLimitingMiddleware, StateInformationMiddleware},
    state::keyed::DefaultKeyedStateStore,
};
use tollgate::Key;
use tower_governor::{
    GovernorLayer,
    governor::{GovernorConfig, GovernorConfigBuilder},
    key_extractor::PeerIpKeyExtractor,
};

use crate::{
    keys::{Callers, Rule},
    load::{Contender, Rng},
};

/// governor's keyed limiter, called directly.
pub struct Governor {
    limiter: RateLimiter<Key, DefaultKeyedStateStore<Key>, DefaultClock>,
    callers: Callers,
}

impl Governor {
    /// With the same keys as ours.
    pub fn new(rule: Rule, callers: Callers) -> Self {
        let quota = governor::Quota::with_period(rule.interval())
            .expect("an interval")
            .allow_burst(NonZeroU32::new(burst(rule)).expect("a burst"));
        Self {
            limiter: RateLimiter::keyed(quota),
            callers,
        }
    }
}

impl Contender for Governor {
    async fn decide(&self, rng: &mut Rng) -> bool {
        self.limiter.check_key(&self.callers.pick(rng)).is_ok()
    }
}

/// governor's keyed limiter in a program that does something between two decisions: it reads the clock. In a loop of its own
/// the processor begins with the next decision, and waits for the memory of both at once.
#[derive(Debug)]
pub struct Alone(pub Governor);

impl Contender for Alone {
    async fn decide(&self, rng: &mut Rng) -> bool {
        let admitted = self.0.decide(rng).await;
        black_box(SystemTime::now());
        admitted
    }
}

impl std::fmt::Debug for Governor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Governor").finish_non_exhaustive()
    }
}

/// tower_governor's layer, by the socket's peer.
pub type PeerLayer<M> = GovernorLayer<PeerIpKeyExtractor, M, Body>;

/// tower_governor's layer, without headers on what it admits.
pub fn bare_layer(rule: Rule) -> PeerLayer<NoOpMiddleware> {
    finish(builder(rule))
}

/// tower_governor's layer, with headers.
pub fn header_layer(rule: Rule) -> PeerLayer<StateInformationMiddleware> {
    finish(builder(rule).use_headers())
}

fn builder(rule: Rule) -> GovernorConfigBuilder<PeerIpKeyExtractor, NoOpMiddleware> {
    let mut builder = GovernorConfigBuilder::default();
    builder.period(rule.interval()).burst_size(burst(rule));
    builder
}

fn finish<M: RateLimitingMiddleware<QuantaInstant>>(
    mut builder: GovernorConfigBuilder<PeerIpKeyExtractor, M>,
) -> PeerLayer<M> {
    let config: GovernorConfig<PeerIpKeyExtractor, M> = builder.finish().expect("a rule");
    GovernorLayer::new(config)
}

fn burst(rule: Rule) -> u32 {
    u32::try_from(rule.burst).expect("governor counts in 32 bits")
}
