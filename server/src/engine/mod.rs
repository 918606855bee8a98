//! The decisions of the service: requests are matched against the [`Rules`], and counted by a [`Limiter`] with their policies.

mod metadata;
mod metrics;
mod plan;
mod response;
mod tree;

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use ::metrics::{Counter, Key, KeyName, Label, Level, Metadata, Recorder};
use tokio::{sync::Semaphore, task::JoinError};
use tollgate::{
    CalendarWindow, CallError, ConfigError, Limiter, OnStoreError, Policy, RedisStore, StoreError,
    limiter::{LimiterBuilder, OnMisconfiguration},
    observe::Observer,
};

use self::{metrics::RuleMetrics, tree::Tree};
use crate::{
    proto::{RateLimitRequest, RateLimitResponse},
    rules::{Rule, Rules, Unit},
};

/// The most descriptors of a request.
pub const MAX_DESCRIPTORS: usize = 64;
/// The most entries of a descriptor.
pub const MAX_ENTRIES: usize = 16;
/// The longest domain, key or value, in bytes.
pub const MAX_TEXT_BYTES: usize = 1024;

/// The most limits of a request that are charged together, which is the limiter's.
pub const MAX_TOGETHER: usize = 128;

/// Decides requests. Cheap to clone; clones share the rules in force.
#[derive(Clone, Debug)]
pub struct Engine(Arc<Shared>);

struct Shared {
    limiter: Limiter,
    /// Read while the calls of a request are made, and written while the limiter is reconfigured: so a request is matched and
    /// counted under the same rules.
    tree: RwLock<Tree>,
    settings: EngineSettings,
    metrics: RuleMetrics,
    counters: ServiceCounters,
    /// One for each request that may be decided at once.
    permits: Arc<Semaphore>,
}

/// The reference server's counters of the service.
struct ServiceCounters {
    loads: Counter,
    load_errors: Counter,
    redis_errors: Counter,
    service_errors: Counter,
    overloads: Counter,
}

/// How requests are decided, beside the rules.
#[derive(Clone)]
#[non_exhaustive]
pub struct EngineSettings {
    /// What is answered if the store fails. Default: an error.
    pub on_error: OnError,
    /// Whether all answers are OK, whatever the limits say. Default: false.
    pub shadow_mode: bool,
    /// Whether all rules are in quota mode. Default: false.
    pub quota_mode: bool,
    /// Whether responses have the fields `RateLimit`, `RateLimit-Policy` and `Retry-After`, and rejections problem details as
    /// their body. Default: true.
    pub response_details: bool,
    /// Whether responses have dynamic metadata. Default: false.
    pub dynamic_metadata: bool,
    /// The share of a limit, in percent, above which requests count as near it. Default: 80.
    pub near_percent: u8,
    /// The most requests that are decided at once. Default: no bound.
    pub max_requests: usize,
    /// Where the metrics of the service are recorded, other than those of rules. Default: nowhere.
    pub recorder: Option<Arc<dyn Recorder + Send + Sync>>,
    /// Observers of the limiter.
    pub observers: Vec<Arc<dyn Observer>>,
}

impl Default for EngineSettings {
    fn default() -> Self {
        Self {
            on_error: OnError::Error,
            shadow_mode: false,
            quota_mode: false,
            response_details: true,
            dynamic_metadata: false,
            near_percent: 80,
            max_requests: Semaphore::MAX_PERMITS,
            recorder: None,
            observers: Vec::new(),
        }
    }
}

/// What is answered if the store fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The request may pass.
    Admit,
    /// The request is over the limit.
    Reject,
    /// The gRPC status `UNAVAILABLE`. What follows is the proxy's choice: `failure_mode_deny`.
    #[default]
    Error,
}

/// Why a request has no answer.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// As many requests as this are being decided.
    TooMany(usize),
    /// The request is invalid: how.
    Invalid(String),
    /// The client may not send credits.
    Denied,
    /// The limit can't do what was asked: why.
    Unsupported(String),
    /// The store failed.
    Store(StoreError),
    /// A fault of this server.
    Internal(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany(max) => write!(
                f,
                "too many concurrent requests: at most {max} (--max-requests)"
            ),
            Self::Invalid(reason) | Self::Unsupported(reason) | Self::Internal(reason) => {
                f.write_str(reason)
            }
            Self::Denied => f.write_str(
                "a credit (is_negative_hits) needs a client certificate with a --credit-name",
            ),
            Self::Store(error) => write!(f, "rate limit store failed: {error}"),
        }
    }
}

impl From<CallError> for Refusal {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Store(error) => Self::Store(error),
            CallError::CreditUnsupported { .. } => Self::Unsupported(error.to_string()),
            error => Self::Internal(error.to_string()),
        }
    }
}

impl Engine {
    /// Puts rules in force. Without a store they are counted in this process.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the policies of the rules are invalid, such as two of one name.
    pub fn new(
        rules: &Rules,
        store: Option<RedisStore>,
        settings: EngineSettings,
    ) -> Result<Self, ConfigError> {
        let metrics = RuleMetrics::new(settings.near_percent);
        let tree = Tree::new(rules);
        tree.series().put_in_force(&metrics);
        let mut builder = builder(rules, &settings);
        if let Some(store) = store {
            builder = builder.store(store);
        }
        let counter = |name, labels: Vec<Label>| match &settings.recorder {
            Some(recorder) => {
                let key = Key::from_parts(KeyName::from_const_str(name), labels);
                let metadata = Metadata::new(module_path!(), Level::INFO, None);
                recorder.register_counter(&key, &metadata)
            }
            None => Counter::noop(),
        };
        let error = |kind| {
            let labels = vec![Label::new("err_type", kind)];
            counter("ratelimit_service_should_rate_limit_error", labels)
        };
        let counters = ServiceCounters {
            loads: counter("ratelimit_service_config_load_success", vec![]),
            load_errors: counter("ratelimit_service_config_load_error", vec![]),
            redis_errors: error("redis_error"),
            service_errors: error("service_error"),
            overloads: error("overload"),
        };
        counters.loads.increment(1);
        let permits = Semaphore::new(settings.max_requests.min(Semaphore::MAX_PERMITS));
        Ok(Self(Arc::new(Shared {
            limiter: builder.build()?,
            tree: RwLock::new(tree),
            settings,
            metrics,
            counters,
            permits: Arc::new(permits),
        })))
    }

    /// Replaces the rules. Each request is decided under the old rules or under the new ones.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the policies of the rules are invalid, such as two of one name. Those before them stay in force.
    pub fn reload(&self, rules: &Rules) -> Result<(), ConfigError> {
        let replaced = self.replace(rules);
        let counters = &self.0.counters;
        match &replaced {
            Ok(()) => counters.loads.increment(1),
            Err(_) => counters.load_errors.increment(1),
        }
        replaced
    }

    /// Counts rules that could not be read.
    pub fn count_load_error(&self) {
        self.0.counters.load_errors.increment(1);
    }

    fn replace(&self, rules: &Rules) -> Result<(), ConfigError> {
        let tree = Tree::new(rules);
        // Before the lock, for which requests wait.
        let series = tree.series();
        let builder = builder(rules, &self.0.settings);
        let mut in_force = self.0.tree.write().unwrap_or_else(PoisonError::into_inner);
        self.0.limiter.reconfigure(builder)?;
        *in_force = tree;
        // Still under the lock: a request that is matched from now on may add series.
        series.put_in_force(&self.0.metrics);
        Ok(())
    }

    /// Decides a request, unless too many are being decided. `may_credit`: whether its client may send credits.
    ///
    /// What it charges stays charged if the future is dropped, as when its client has given up: it may report what a request has cost.
    ///
    /// # Errors
    ///
    /// [`Refusal`]. If it is [`TooMany`](Refusal::TooMany), [`Invalid`](Refusal::Invalid) or [`Denied`](Refusal::Denied), nothing was
    /// charged; otherwise some descriptors may have been.
    ///
    /// # Panics
    ///
    /// If it is polled outside of a tokio runtime.
    pub async fn decide(
        &self,
        request: RateLimitRequest,
        may_credit: bool,
    ) -> Result<RateLimitResponse, Refusal> {
        let shared = self.0.clone();
        let Ok(permit) = shared.permits.clone().try_acquire_owned() else {
            shared.counters.overloads.increment(1);
            return Err(Refusal::TooMany(shared.settings.max_requests));
        };
        // A task goes on when its handle is dropped.
        let decided = tokio::spawn(async move {
            let decided = shared.decide(&request, may_credit).await;
            drop(permit);
            match &decided {
                // Of the store's failures those are counted, too, that are answered.
                Ok(_) | Err(Refusal::Store(_)) => {}
                Err(_) => shared.counters.service_errors.increment(1),
            }
            decided
        });
        // A panic, or the runtime is ending.
        let ended = |error: JoinError| {
            self.0.counters.service_errors.increment(1);
            Err(Refusal::Internal(error.to_string()))
        };
        decided.await.unwrap_or_else(ended)
    }

    /// The metrics of the rules in force, in the text format of Prometheus.
    pub fn render_metrics(&self) -> String {
        self.0.metrics.render()
    }

    /// The limiter that counts.
    pub fn limiter(&self) -> &Limiter {
        &self.0.limiter
    }
}

impl Shared {
    async fn decide(
        &self,
        request: &RateLimitRequest,
        may_credit: bool,
    ) -> Result<RateLimitResponse, Refusal> {
        let plan = self.plan(request, may_credit)?;
        let failures = &self.counters.redis_errors;
        let outcomes = plan.carry_out(self.settings.on_error, failures).await?;
        Ok(self.response(request, &outcomes))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for EngineSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineSettings")
            .field("on_error", &self.on_error)
            .finish_non_exhaustive()
    }
}

/// A limiter with the policies of the rules, and those of limits that descriptors bring.
fn builder(rules: &Rules, settings: &EngineSettings) -> LimiterBuilder {
    // The limiter logs and counts what is answered. The engine answers alike where the limiter returns an error, as for a credit.
    let mut builder = Limiter::builder()
        .on_store_error(match settings.on_error {
            OnError::Admit => OnStoreError::Admit,
            OnError::Reject | OnError::Error => OnStoreError::Reject,
        })
        .on_misconfiguration(OnMisconfiguration::AsStoreError);
    for observer in &settings.observers {
        builder = builder.observe(observer.clone());
    }
    for unit in Unit::ALL {
        let policy = Policy::new(override_policy(unit), unit.quota(1))
            .strategy(CalendarWindow::from_epoch())
            .charge_rejected(true)
            .by_hand();
        builder = builder.policy(policy);
    }
    let domains = rules.domains.values();
    domains.fold(builder, |builder, rules| with_policies(builder, rules))
}

fn with_policies(builder: LimiterBuilder, rules: &[Rule]) -> LimiterBuilder {
    rules.iter().fold(builder, |builder, rule| {
        let counted = rule
            .limits
            .iter()
            .filter_map(|limit| limit.counted.as_ref());
        // A limit of 0 is counted nowhere.
        let counted = counted.filter(|counted| counted.requests_per_unit > 0);
        let builder = counted.fold(builder, |builder, counted| {
            builder.policy(counted.policy.clone())
        });
        with_policies(builder, &rule.descriptors)
    })
}

/// The policy that counts the limits that descriptors bring, by domain, entries and unit. A changed limit keeps the counts.
const fn override_policy(unit: Unit) -> &'static str {
    match unit {
        Unit::Second => "limit of a descriptor, per second",
        Unit::Minute => "limit of a descriptor, per minute",
        Unit::Hour => "limit of a descriptor, per hour",
        Unit::Day => "limit of a descriptor, per day",
        Unit::Week => "limit of a descriptor, per week",
        Unit::Month => "limit of a descriptor, per month",
        Unit::Year => "limit of a descriptor, per year",
    }
}
