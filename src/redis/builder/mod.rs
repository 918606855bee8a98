use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use deadpool_redis::{Config, Pool};
use tokio::runtime::Handle;

use super::{
    Inner, RedisStore,
    config::{ConnectConfig, ServerConfig},
    io::{Io, IoSettings, ServerClock},
    keep_alive::PermitRegistry,
    key_names,
    lease::Leases,
    overrides::RedisOverrides,
    rejection_cache::RejectionCache,
};
use crate::{
    clock::{Clock, SystemClock},
    error::ConfigError,
};

#[cfg(feature = "config")]
pub(super) mod settings;

/// The longest timeout. Past all time, adding it to an instant would panic.
const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Upper bound of the staleness of a cached rejection.
const MAX_STALENESS: Duration = Duration::from_secs(3_600);

/// Builds a [`RedisStore`]. Set one of [`url`](Self::url), [`pool`](Self::pool), [`config`](Self::config),
/// [`cluster`](Self::cluster) and [`sentinel`](Self::sentinel).
#[derive(Clone)]
#[must_use]
pub struct RedisStoreBuilder {
    connect: ConnectConfig,
    prefix: String,
    timeout: Duration,
    breaker: Option<u32>,
    rejection_cache: Duration,
    rejection_cache_capacity: usize,
    clock: Arc<dyn Clock>,
    overrides: bool,
    runtime: Option<Handle>,
    /// Whether a document opens the store.
    #[cfg(feature = "config")]
    by_document: bool,
}

impl RedisStore {
    /// A store on the server at `url`, such as `redis://user:password@host:6379/0`. Nothing is connected before the first
    /// request.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the URL is invalid.
    pub fn open(url: impl Into<String>) -> Result<Self, ConfigError> {
        Self::builder().url(url).build()
    }

    /// A store on the server of an existing pool. The pool's manager opens the store's connections, with its settings but its response
    /// timeout. None is taken from the pool: those stand still with the tokio runtime that opened them.
    ///
    /// Set TCP_NODELAY in the pool's manager (`deadpool_redis::Manager::new_with_config`), as the store does where it has one of its own.
    ///
    /// # Errors
    ///
    /// None that depends on the pool.
    pub fn from_pool(pool: deadpool_redis::Pool) -> Result<Self, ConfigError> {
        Self::builder().pool(pool).build()
    }

    /// A store on the server of deadpool-redis's configuration, of which the settings of a pool have no effect.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the configuration is invalid.
    pub fn from_config(config: deadpool_redis::Config) -> Result<Self, ConfigError> {
        Self::builder().config(config).build()
    }

    /// A store on the Redis Cluster of the nodes at `urls`: see [the builder's method](RedisStoreBuilder::cluster) for its
    /// guarantees.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if there is no URL, or an invalid one.
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, ConfigError> {
        Self::builder().cluster(urls).build()
    }

    /// A store on the master that the sentinels at `urls` know by `name`: see [the builder's
    /// method](RedisStoreBuilder::sentinel) for its guarantees.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if there is no URL, or an invalid one.
    pub fn sentinel(
        name: impl Into<String>,
        urls: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, ConfigError> {
        Self::builder().sentinel(name, urls).build()
    }

    /// Returns a builder of a store.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::default()
    }
}

/// Without the passwords of URLs and certificates.
impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("connect", &self.connect)
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Default for RedisStoreBuilder {
    fn default() -> Self {
        Self {
            connect: ConnectConfig::default(),
            prefix: "tg:".to_owned(),
            timeout: Duration::from_millis(100),
            breaker: Some(3),
            rejection_cache: Duration::from_secs(1),
            rejection_cache_capacity: 100_000,
            clock: Arc::new(SystemClock),
            overrides: true,
            runtime: None,
            #[cfg(feature = "config")]
            by_document: false,
        }
    }
}

impl RedisStoreBuilder {
    /// Counts on the server at `url`.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.connect.servers = Some(ServerConfig::Url(url.into()));
        self
    }

    /// Counts on the server of an existing pool: see [`RedisStore::from_pool`].
    pub fn pool(mut self, pool: Pool) -> Self {
        self.connect.servers = Some(ServerConfig::Pool(pool));
        self
    }

    /// Counts on the server of deadpool-redis's configuration: see [`RedisStore::from_config`].
    pub fn config(mut self, config: Config) -> Self {
        self.connect.servers = Some(ServerConfig::Config(Box::new(config)));
        self
    }

    /// Counts on a Redis Cluster, which is found by any of the nodes at `urls`.
    ///
    /// The store learns the slot map from the nodes, and follows redirects, until the [timeout](Self::timeout) has passed. A request whose keys
    /// are in several slots is sent to all of them at once; if one rejects it, the others are [refunded](crate::operations#cluster).
    ///
    /// ```no_run
    /// use tollgate::RedisStore;
    ///
    /// let store = RedisStore::builder()
    ///     .cluster(["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"])
    ///     .build()?;
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn cluster(mut self, urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let urls = urls.into_iter().map(Into::into);
        self.connect.servers = Some(ServerConfig::Cluster(urls.collect()));
        self
    }

    /// Sets the number of hash tags of keys on a [cluster](Self::cluster): a power of two, at most 1,024. Default: 32.
    ///
    /// Keys with equal tags are in one slot and share batches. Fewer tags make larger batches; about ten per master spread the
    /// keys evenly. Hundreds are for thousands of requests in flight. All processes must use the same number, since it is part
    /// of the keys.
    pub fn hash_tags(mut self, tags: usize) -> Self {
        self.connect.hash_tags = tags;
        self
    }

    /// Counts on the master that the sentinels at `urls` know by `name`.
    ///
    /// What a failover may admit once more, and which settings of the servers bound it, is among the
    /// [operations](crate::operations#sentinel).
    ///
    /// Servers are connected to without a password, at database 0, unless [`server_url_template`](Self::server_url_template) is
    /// set.
    ///
    /// ```no_run
    /// use tollgate::RedisStore;
    ///
    /// let store = RedisStore::builder()
    ///     .sentinel("mymaster", ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"])
    ///     .server_url_template("redis://user:password@any/0")
    ///     .build()?;
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn sentinel(
        mut self,
        name: impl Into<String>,
        urls: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let (name, urls) = (name.into(), urls.into_iter().map(Into::into).collect());
        self.connect.servers = Some(ServerConfig::Sentinel { name, urls });
        self
    }

    /// Sets how servers behind [sentinels](Self::sentinel) are connected to: with the user, password, database and TLS of
    /// `url`, whose host is a placeholder.
    pub fn server_url_template(mut self, url: impl Into<String>) -> Self {
        self.connect.server_url_template = Some(url.into());
        self
    }

    /// Sets the root certificates, in PEM, that sign the certificates of trusted servers. Default: those that the system
    /// trusts. For `rediss://` addresses.
    ///
    /// If the process has no default crypto provider of rustls, building the store installs ring.
    #[cfg(feature = "redis-tls")]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.connect.tls.root = Some(pem.into());
        self
    }

    /// Sets the client certificate and its key, both in PEM. For `rediss://` addresses. Default: none.
    #[cfg(feature = "redis-tls")]
    pub fn client_certificate(
        mut self,
        pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.connect.tls.client = Some(redis::ClientTlsConfig {
            client_cert: pem.into(),
            client_key: key_pem.into(),
        });
        self
    }

    /// Sets the prefix of every key. Default: `tg:`. Applications that share a server need different prefixes, or policies of
    /// the same name share counts.
    ///
    /// A prefix is empty or ends with a colon, has at most 16 characters, and no part of it between colons is a lowercase
    /// letter with a digit, such as `g2`, which is a [state format](crate::strategy::RuleInfo::state_format).
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets how long a request waits for the store's response at most, from its arrival: from 1 ms to a day. Default: 100 ms. What a
    /// request without a response charged is refunded if its reply comes later.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how many failures in a row open the circuit breaker of a server. Default: 3.
    ///
    /// While it is open, calls fail at once with [`StoreError::CircuitOpen`](crate::StoreError::CircuitOpen), and the server is probed.
    /// Rejections and errors of a single key are no failures; a reply within the timeout sets the count to zero.
    /// [Operations](crate::operations#connections-timeouts-and-the-circuit-breaker) has the rest, and what counts as a failure.
    pub fn circuit_breaker_threshold(mut self, failures: u32) -> Self {
        self.breaker = Some(failures);
        self
    }

    /// Disables the circuit breaker: a server that fails is called for each request, which waits for its own timeout.
    pub fn no_circuit_breaker(mut self) -> Self {
        self.breaker = None;
        self
    }

    /// Sets how old a cached rejection may be: at most an hour. Default: one second; zero disables the cache. A request that
    /// the store rejected is rejected in process, without a round trip, until its `Retry-After` or `bound` has passed: a key
    /// that is rejected over and over costs each process one call in each `bound`.
    ///
    /// Operations of this process on a key invalidate its cached rejections at once, under every quota: a refund, a reset, a
    /// charge past the quota, by any limiter over this store or a clone of it. An admission invalidates none, so the `remaining`
    /// of a cached rejection of a larger cost may be older than that of the admission. Operations of other processes, and a server that
    /// is restarted, flushed or replaced by a replica, take effect within `bound`.
    ///
    /// An entry applies to requests with the same keys under all of their policies, and the same cost. It also applies to
    /// larger costs under all strategies but [`SlidingLog`](crate::SlidingLog) and [`SlidingWindow`](crate::SlidingWindow),
    /// whose state does not determine their wait. A request with a smaller cost may be admitted, so the store is called.
    ///
    /// Rejections by in-flight limits are never cached. If rejections are counted, by a [`Ban`](crate::Ban) or under
    /// [`charge_rejected`](crate::Policy::charge_rejected), only those by a ban are cached.
    pub fn rejection_cache_staleness(mut self, bound: Duration) -> Self {
        self.rejection_cache = bound;
        self
    }

    /// Sets how many rejections are cached at most. Default: 100,000, about 20 MB. The oldest are evicted.
    pub fn rejection_cache_capacity(mut self, most: usize) -> Self {
        self.rejection_cache_capacity = most;
        self
    }

    /// Sets the clock of the [rejection cache](Self::rejection_cache_staleness), for tests. Default: the machine's monotonic
    /// clock. Limits are counted by the server's clock in any case.
    pub fn rejection_cache_clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Sets whether the store has [overrides](crate::limiter::Override). Default: it has.
    ///
    /// With overrides, each process with the store reads one key each second, from its first request on. Without their
    /// [permissions](crate::operations#deployments) there are no overrides, and nothing else changes.
    pub fn overrides(mut self, overrides: bool) -> Self {
        self.overrides = overrides;
        self
    }

    /// Has a task of `runtime`, which needs timers and IO, do the store's IO in place of the thread `tollgate`, with deadlines by the clock of
    /// that runtime. For tests that pause tokio's clock: in production, blocked threads of the runtime would make requests late. Once
    /// the runtime has ended, requests fail with [`StoreError::Connection`](crate::StoreError::Connection).
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Returns all mistakes in the settings, of which [`build`](Self::build) returns the first. Nothing connects.
    pub fn mistakes(&self) -> Vec<ConfigError> {
        let mut mistakes = Vec::new();
        self.validate(&mut |error| mistakes.push(error));
        mistakes
    }

    /// Reports each mistake in the settings.
    fn validate(&self, report: &mut dyn FnMut(ConfigError)) {
        if let Err(error) = key_names::check_prefix(&self.prefix) {
            report(error.in_field("store.prefix"));
        }
        if !(Duration::from_millis(1)..=MAX_TIMEOUT).contains(&self.timeout) {
            let error = ConfigError::new(
                format!("a timeout of {:?}", self.timeout),
                "at least 1 ms, at most a day",
            );
            report(error.in_field("store.timeout"));
        }
        if self.breaker == Some(0) {
            let error = ConfigError::new(
                "a circuit breaker with a threshold of 0",
                "at least 1; `no_circuit_breaker` for none",
            );
            report(error.in_field("store.circuit_breaker_threshold"));
        }
        if self.rejection_cache > MAX_STALENESS {
            let error = ConfigError::new(
                format!("a rejection cache staleness of {:?}", self.rejection_cache),
                "at most an hour; zero for not at all",
            );
            report(error.in_field("store.rejection_cache.staleness"));
        }
        self.connect.validate(report);
    }

    /// Builds the store. Nothing is connected before the first request.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if there is no server, a URL or certificate is invalid, or a
    /// setting is outside of its range: the timeout, the circuit breaker's threshold, the staleness of
    /// rejections, the prefix, or the hash tags.
    pub fn build(self) -> Result<RedisStore, ConfigError> {
        #[cfg(feature = "config")]
        let settings = self.settings();
        let mut first = None;
        self.validate(&mut |error| {
            first.get_or_insert(error);
        });
        if let Some(error) = first {
            return Err(error);
        }
        let (servers, tags) = self.connect.servers()?;
        let server_clock = Arc::<ServerClock>::default();
        let overrides = self.overrides.then(|| {
            let clock = server_clock.clone();
            RedisOverrides::new(&self.prefix, tags.as_ref(), clock, self.timeout)
        });
        let settings_of_io = IoSettings {
            prefix: self.prefix,
            timeout: self.timeout,
            breaker_threshold: self.breaker.and_then(NonZeroU32::new),
            tags,
            runtime: self.runtime,
        };
        let rejection_cache = RejectionCache::new(
            self.rejection_cache,
            self.rejection_cache_capacity,
            self.clock,
        );
        let io = Io::new(settings_of_io, servers, server_clock, rejection_cache);
        Ok(RedisStore {
            inner: Arc::new(Inner {
                leases: Leases::new(io.clone()),
                permits: PermitRegistry::new(&io),
                io,
                overrides,
                #[cfg(feature = "config")]
                settings,
            }),
        })
    }
}
