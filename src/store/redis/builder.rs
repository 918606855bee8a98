use std::{num::NonZeroU32, sync::Arc, time::Duration};

use deadpool_redis::{Config, Pool};

use super::{
    Inner, RedisStore,
    breaker::Breaker,
    config::{ConnectConfig, ServerConfig},
    key_names,
    rejection_cache::{RejectionCache, epoch::EpochKey},
    script::ScriptRegistry,
    state::StoreState,
    worker::pool::WorkerPool,
};
use crate::{
    clock::{Clock, SystemClock},
    error::ConfigError,
};

/// The longest timeout. Past all time, adding it to an instant would panic.
const LONGEST: Duration = Duration::from_secs(86_400);

/// Upper bound of the staleness of a cached rejection.
const LONGEST_BOUND: Duration = Duration::from_secs(3_600);

/// Builds a [`RedisStore`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisStoreBuilder {
    connect: ConnectConfig,
    prefix: String,
    timeout: Duration,
    breaker: Option<u32>,
    rejection_cache: Duration,
    most_denials: usize,
    clock: Arc<dyn Clock>,
}

impl RedisStore {
    /// A store on the server that `url` names, such as `redis://user:password@host:6379/0`.
    ///
    /// # Errors
    ///
    /// If the URL isn't one. Nothing is connected yet.
    pub fn open(url: impl Into<String>) -> Result<Self, ConfigError> {
        Self::builder().url(url).build()
    }

    /// A store on a pool that the application already has. The store's workers hold at most a quarter of its
    /// connections, so it has to have two at least.
    ///
    /// Set TCP_NODELAY in the pool's manager (`deadpool_redis::Manager::new_with_config`); a store that makes its own
    /// pool does.
    ///
    /// # Errors
    ///
    /// If the pool has fewer than two connections.
    pub fn from_pool(pool: deadpool_redis::Pool) -> Result<Self, ConfigError> {
        Self::builder().pool(pool).build()
    }

    /// A store on a pool of its own, made from deadpool's configuration.
    ///
    /// # Errors
    ///
    /// If there is a mistake in the configuration.
    pub fn from_config(config: deadpool_redis::Config) -> Result<Self, ConfigError> {
        Self::builder().config(config).build()
    }

    /// A store on a Redis Cluster, which is found by any of the nodes that `urls` name. What it promises is with the
    /// [builder's method](RedisStoreBuilder::cluster).
    ///
    /// # Errors
    ///
    /// If there is no URL, or one that isn't one. Nothing is connected yet.
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, ConfigError> {
        Self::builder().cluster(urls).build()
    }

    /// A store on the master that sentinels know by `name`, wherever it is. What it promises is with the
    /// [builder's method](RedisStoreBuilder::sentinel).
    ///
    /// # Errors
    ///
    /// If there is no URL, or one that isn't one. Nothing is connected yet.
    pub fn sentinel(
        name: impl Into<String>,
        urls: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, ConfigError> {
        Self::builder().sentinel(name, urls).build()
    }

    /// Starts to build a store.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::default()
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
            most_denials: 100_000,
            clock: Arc::new(SystemClock),
        }
    }
}

impl RedisStoreBuilder {
    /// Counts on the server that `url` names.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.connect.servers = Some(ServerConfig::Url(url.into()));
        self
    }

    /// Takes connections from a pool that the application already has.
    pub fn pool(mut self, pool: Pool) -> Self {
        self.connect.servers = Some(ServerConfig::Pool(pool));
        self
    }

    /// Takes connections from a pool made from deadpool's configuration.
    pub fn config(mut self, config: Config) -> Self {
        self.connect.servers = Some(ServerConfig::Config(Box::new(config)));
        self
    }

    /// Counts on a Redis Cluster, which is found by any of the nodes that `urls` name.
    ///
    /// The store learns from the nodes which one serves a slot, also while slots are moved and masters fail: redirects are
    /// followed until the [timeout](Self::timeout) has passed, and no call is sent again that may have run.
    ///
    /// A request whose keys are in several slots is sent to all of them at once; if one rejects, the others are refunded
    /// before the request is answered. So no more is admitted than each policy allows, but while a request is in flight,
    /// another may be rejected because of it. If the process is killed in between, that one request stays charged.
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

    /// How many hash tags the keys on a [cluster](Self::cluster) carry: 32 unless set; a power of two, at most 1,024.
    ///
    /// Keys with equal tags are in one slot, and travel together. Fewer tags make larger calls; more than there are masters
    /// are needed, and some ten for each spread the keys evenly. Hundreds are for thousands of requests in flight. All
    /// processes have to agree on it: keys counted with another number are other keys.
    pub fn hash_tags(mut self, tags: usize) -> Self {
        self.connect.hash_tags = tags;
        self
    }

    /// Counts on the master that sentinels know by `name`. `urls` name the sentinels.
    ///
    /// Whenever a connection is opened, the sentinels name the master, and the server has to confirm that it is one. During an
    /// election the limiter does what [`on_store_error`](crate::LimiterBuilder::on_store_error) says. What the old master
    /// admitted and no replica had received is not known to the new one, and may be admitted once more; so may what an old
    /// master admits that is cut off and doesn't know that it was replaced (`min-replicas-to-write` bounds that).
    ///
    /// The servers are connected to without a password, to database 0, unless [`server_url_template`](Self::server_url_template) says how.
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

    /// How servers behind [sentinels](Self::sentinel) are connected to: with the user, the password, the database and TLS of
    /// `url`, whose host stands for any.
    pub fn server_url_template(mut self, url: impl Into<String>) -> Self {
        self.connect.server_url_template = Some(url.into());
        self
    }

    /// Trusts servers whose certificates are signed by one of these, in PEM, in place of those that the system trusts. For
    /// addresses of `rediss://`.
    ///
    /// Without a default for the whole process, rustls uses ring, from when the store is built.
    #[cfg(feature = "redis-tls")]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.connect.tls.root = Some(pem.into());
        self
    }

    /// Shows servers this certificate, and holds its key; both in PEM. For addresses of `rediss://`.
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

    /// Begins every key with `prefix`, in place of `tg:`, so that applications that share a server don't share counts.
    ///
    /// A prefix is empty or ends with a colon, has at most 16 characters, and no part of it between colons is a lowercase
    /// letter with a digit, such as `g2`: that is how a [state format](crate::strategy::Rule::state_format) begins the rest of the key.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long a request waits for its answer at most, from its arrival on: 100 ms unless set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many connections carry requests, in each runtime: one unless set, and never more than a quarter of a shared
    /// pool. On a [cluster](Self::cluster), to each node.
    pub fn connections(mut self, workers: usize) -> Self {
        self.connect.workers = workers;
        self
    }

    /// How many calls in a row have to fail, for all of their requests, to open the circuit breaker: three unless set.
    ///
    /// While it is open, calls fail at once with [`StoreError::CircuitOpen`](crate::StoreError::CircuitOpen), and the limiter does
    /// what [`on_store_error`](crate::LimiterBuilder::on_store_error) says. In the background one probe at a time finds out
    /// whether the server counts: after 50 ms at first, later after up to a second, each time a random part of the pause
    /// earlier. As soon as one is answered, calls are made again. A probe waits as long as a request, and the next one for it
    /// half a second at most.
    ///
    /// What counts is what says that the server can't count now: no connection, no answer within the timeout, and the errors
    /// of the [operations](crate::operations) page. Rejections don't, nor does what is wrong with one key.
    pub fn circuit_breaker_threshold(mut self, faults: u32) -> Self {
        self.breaker = Some(faults);
        self
    }

    /// Goes on calling a server that fails: each request waits for its own timeout.
    pub fn no_circuit_breaker(mut self) -> Self {
        self.breaker = None;
        self
    }

    /// Caches rejections: a request that the store rejected is rejected in process, without a call, until its wait has
    /// passed.
    ///
    /// A wait from the cache is what the store answered at most `bound` ago, one second unless set, or would answer now. What this process does about a key ends what is cached of it at once, whatever the caller's quota is: a refund,
    /// a reset, a charge past the quota, by any limiter over this store or a clone of it. An admission ends none: the `remaining` of a cached rejection of a larger cost may be
    /// older than that of the admission, and a test that compares the two turns the cache off. What others do shows within
    /// `bound`: other processes, and a server that is restarted, flushed or replaced by a replica.
    ///
    /// An entry answers requests for the same keys of all of their policies, at the same cost. Where the strategy's state
    /// says what they wait for, it answers larger costs, too: under all strategies but [`SlidingLog`](crate::SlidingLog)
    /// and [`SlidingWindow`](crate::SlidingWindow). A smaller cost may be admitted, so the store is called.
    ///
    /// When it is as old as `bound`, the store is called again, unless no request for its keys could have been admitted
    /// since, which is so if each policy rejects a single unit. For that each process reads one key twice in each
    /// `bound` while it rejects, however many keys it rejects. On a [cluster](Self::cluster) the store is always called again.
    ///
    /// Zero turns it off. In-flight limits are never cached. Where rejections are counted, by a [`Ban`](crate::Ban) or under
    /// [`charge_rejected`](crate::Policy::charge_rejected), only what a ban rejects is cached.
    pub fn rejection_cache_staleness(mut self, bound: Duration) -> Self {
        self.rejection_cache = bound;
        self
    }

    /// How many rejections are cached at most: 100,000 unless set, some 20 MB. The ones that end first make room.
    pub fn rejection_cache_capacity(mut self, most: usize) -> Self {
        self.most_denials = most;
        self
    }

    /// The clock of the [rejection cache](Self::rejection_cache_staleness), in place of the machine's monotonic clock: for tests.
    /// All else goes by the server's.
    pub fn rejection_cache_clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Builds the store. Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// If there is no server, or a URL that isn't one; a pool of fewer than two connections; a timeout of zero, no
    /// connections, a circuit breaker with a threshold of zero, a staleness of rejections of more than an hour, or a prefix that keys can't
    /// begin with.
    pub fn build(self) -> Result<RedisStore, ConfigError> {
        key_names::check_prefix(&self.prefix)?;
        if !(Duration::from_millis(1)..=LONGEST).contains(&self.timeout) {
            return Err(ConfigError::new(
                format!("a timeout of {:?}", self.timeout),
                "at least 1 ms, at most a day",
            ));
        }
        if self.breaker == Some(0) {
            return Err(ConfigError::new(
                "a circuit breaker with a threshold of 0",
                "at least 1; `no_circuit_breaker` for none",
            ));
        }
        if self.rejection_cache > LONGEST_BOUND {
            return Err(ConfigError::new(
                format!("a rejection cache staleness of {:?}", self.rejection_cache),
                "at most an hour; zero for not at all",
            ));
        }
        let (workers, id) = (self.connect.workers, self.connect.id(&self.prefix));
        let topology = self.connect.servers()?;
        let threshold = self.breaker.and_then(NonZeroU32::new);
        let breaker = || Arc::new(Breaker::new(threshold));
        let tags = topology.tags().map_or(1, |tags| tags.len());
        let shared = Arc::new(StoreState {
            id,
            epoch: EpochKey::new(&self.prefix, topology.tags()),
            topology,
            prefix: self.prefix,
            scripts: ScriptRegistry::new().into(),
            timeout: self.timeout,
            breakers: (0..tags).map(|_| breaker()).collect(),
            pending_refunds: Default::default(),
            rejection_cache: RejectionCache::new(
                self.rejection_cache,
                self.most_denials,
                self.clock,
            ),
            clock_offset_us: Default::default(),
            opened: Default::default(),
            closed: Default::default(),
        });
        Ok(RedisStore {
            inner: Arc::new(Inner {
                workers: Arc::new(WorkerPool::new(shared.clone(), workers)),
                shared,
            }),
        })
    }
}
