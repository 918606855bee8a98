use std::{sync::Arc, time::Duration};

use deadpool_redis::{Config, Manager, Pool, PoolConfig, Runtime};
use redis::{AsyncConnectionConfig, ConnectionInfo, IntoConnectionInfo, io::tcp::TcpSettings};

use super::{
    Inner, RedisStore, Shared, cluster::Cluster, generation::Generation, lanes::Lanes,
    link::Source, names, route::Servers, script::Scripts, tags::Tags,
};
use crate::{
    clock::{Clock, SystemClock},
    error::ConfigError,
    guard::denials::Denials,
};

/// Connections that a pool of the store's own may have: lanes of more runtimes than any machine has cores.
const OWN_POOL: usize = 1_024;

/// Hash tags of a cluster's keys, unless set.
const HASH_TAGS: usize = 128;

/// The longest deadline. Past all time, adding it to an instant would panic.
const LONGEST: Duration = Duration::from_secs(86_400);

/// The longest that a refusal may be believed which somebody else may have ended.
const LONGEST_BOUND: Duration = Duration::from_secs(3_600);

/// Builds a [`RedisStore`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisStoreBuilder {
    connections: Option<Connections>,
    prefix: String,
    deadline: Duration,
    lanes: usize,
    hash_tags: usize,
    denials: Duration,
    most_denials: usize,
    clock: Arc<dyn Clock>,
}

#[derive(Clone, Debug)]
enum Connections {
    Url(String),
    Config(Box<Config>),
    Pool(Pool),
    Cluster(Vec<String>),
}

impl Default for RedisStoreBuilder {
    fn default() -> Self {
        Self {
            connections: None,
            prefix: "tg:".to_owned(),
            deadline: Duration::from_millis(100),
            lanes: 1,
            hash_tags: HASH_TAGS,
            denials: Duration::from_secs(1),
            most_denials: 100_000,
            clock: Arc::new(SystemClock),
        }
    }
}

impl RedisStoreBuilder {
    /// Counts on the server that `url` names.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.connections = Some(Connections::Url(url.into()));
        self
    }

    /// Takes connections from a pool that the application already has.
    pub fn pool(mut self, pool: Pool) -> Self {
        self.connections = Some(Connections::Pool(pool));
        self
    }

    /// Takes connections from a pool made from deadpool's configuration.
    pub fn config(mut self, config: Config) -> Self {
        self.connections = Some(Connections::Config(Box::new(config)));
        self
    }

    /// Counts on a Redis Cluster, which is found by any of the nodes that `urls` name.
    ///
    /// Who serves what is learnt from the nodes, also while slots are moved and masters fail: what a node turns away is
    /// asked elsewhere until the [deadline](Self::deadline), and nothing is ever sent again that may have run.
    ///
    /// A request whose keys are in several slots is asked about in all of them at once; if one refuses, the others give back
    /// what they took before it is answered. So no more is admitted than each policy allows, but while a request is being
    /// asked about, another may be refused for it. If the process is killed in between, that one request stays charged.
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
        self.connections = Some(Connections::Cluster(urls.collect()));
        self
    }

    /// How many hash tags the keys on a [cluster](Self::cluster) carry: 128 unless set; a power of two, at most 1,024.
    ///
    /// Keys with equal tags are in one slot, and travel together. Fewer tags make larger calls; at least some ten for each
    /// master spread the keys evenly. All processes have to agree on it: keys counted with another number are other keys.
    pub fn hash_tags(mut self, tags: usize) -> Self {
        self.hash_tags = tags;
        self
    }

    /// Begins every key with `prefix`, in place of `tg:`, so that applications that share a server don't share counts.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long a request waits for its answer at most, from its arrival on: 100 ms unless set.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How many connections carry requests, in each runtime: one unless set, and never more than a quarter of a shared
    /// pool. On a [cluster](Self::cluster), to each node.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// Refuses in process whom the server refused, until the time it told, without asking again.
    ///
    /// What may let him pass earlier is a refund or a reset. By this process, it lets him at once; by another, within
    /// `bound`: one second unless set. For that each process reads one key twice per bound while it refuses, however many it
    /// refuses. What is changed on the server by other hands (a key deleted with `redis-cli`) is not seen. Zero turns it off:
    /// every request is asked.
    ///
    /// In-flight limits are always asked, and so are policies whose [refusals count](crate::Denied::Counts).
    pub fn denials(mut self, bound: Duration) -> Self {
        self.denials = bound;
        self
    }

    /// How many refusals are remembered at most: 100,000 unless set, some 15 MB. The ones that end first make room.
    pub fn max_denials(mut self, most: usize) -> Self {
        self.most_denials = most;
        self
    }

    /// Tells the time by `clock` to what remembers [refusals](Self::denials), in place of the system's. All else goes by the
    /// server's.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The store. Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// If there is no server, or a URL that isn't one; a pool of fewer than two connections; a deadline of zero, no
    /// lanes, a bound for refusals of more than an hour, or a prefix that keys can't begin with.
    pub fn build(self) -> Result<RedisStore, ConfigError> {
        names::check_prefix(&self.prefix)?;
        if !(Duration::from_millis(1)..=LONGEST).contains(&self.deadline) {
            return Err(ConfigError::new(
                format!("a deadline of {:?}", self.deadline),
                "at least 1 ms, at most a day",
            ));
        }
        if !(1..=64).contains(&self.lanes) {
            return Err(ConfigError::new(format!("{} lanes", self.lanes), "1 to 64"));
        }
        if self.denials > LONGEST_BOUND {
            return Err(ConfigError::new(
                format!("refusals believed for {:?}", self.denials),
                "at most an hour; zero for not at all",
            ));
        }
        let none = || {
            ConfigError::new(
                "a Redis store without a server",
                "a URL, a deadpool configuration or a pool",
            )
        };
        let servers = match self.connections.ok_or_else(none)? {
            Connections::Cluster(urls) => {
                Servers::Cluster(cluster(urls, self.hash_tags, self.lanes)?)
            }
            connections => Servers::One(connections.source(self.lanes)?),
        };
        let shared = Arc::new(Shared {
            generation: Generation::new(&self.prefix, servers.tags()),
            servers,
            scripts: Scripts::new().into(),
            deadline: self.deadline,
            denials: Denials::new(self.denials, self.most_denials, self.clock),
            ahead: Default::default(),
        });
        Ok(RedisStore {
            inner: Arc::new(Inner {
                lanes: Arc::new(Lanes::new(shared.clone(), self.lanes)),
                shared,
                prefix: self.prefix,
            }),
        })
    }
}

impl Connections {
    fn source(self, lanes: usize) -> Result<Source, ConfigError> {
        let (pool, shared) = match self {
            Self::Url(url) => (own_pool(url.as_str(), PoolConfig::new(OWN_POOL))?, false),
            Self::Config(config) => {
                let pool = config.pool.unwrap_or(PoolConfig::new(OWN_POOL));
                let pool = match (config.url, config.connection) {
                    (Some(url), None) => own_pool(url.as_str(), pool),
                    (None, Some(connection)) => own_pool(connection, pool),
                    (None, None) => own_pool("redis://127.0.0.1:6379", pool),
                    (Some(_), Some(_)) => Err(ConfigError::new(
                        "a deadpool configuration with both a URL and a connection",
                        "one of them",
                    )),
                };
                (pool?, false)
            }
            Self::Pool(pool) => (pool, true),
            // It isn't one source.
            Self::Cluster(_) => return Err(ConfigError::new("a cluster", "one server")),
        };
        let size = pool.status().max_size;
        if size < 2 {
            return Err(ConfigError::new(
                format!("a pool of {size} connections"),
                "at least 2: lanes keep theirs",
            ));
        }
        let share = if shared { (size / 4).max(1) } else { size };
        Ok(Source::new(
            pool,
            share.min(if shared { lanes } else { size }),
        ))
    }
}

fn cluster(
    urls: Vec<String>,
    tags: usize,
    connections: usize,
) -> Result<Arc<Cluster>, ConfigError> {
    let seeds = urls.into_iter().map(|url| connection_info(url.as_str()));
    let open = |info| {
        let pool = own_pool(info, PoolConfig::new(OWN_POOL))?;
        Ok(Source::new(pool, OWN_POOL))
    };
    let seeds = seeds.collect::<Result<_, _>>()?;
    let cluster = Cluster::new(seeds, Tags::new(tags)?, connections, open)?;
    Ok(Arc::new(cluster))
}

fn connection_info(server: impl IntoConnectionInfo) -> Result<ConnectionInfo, ConfigError> {
    server.into_connection_info().map_err(wrong_address)
}

fn wrong_address(error: redis::RedisError) -> ConfigError {
    // Its words don't repeat the URL, which may hold a password.
    ConfigError::new(
        format!("a server address that can't be used ({error})"),
        "such as redis://user:password@host:6379/0",
    )
}

/// A pool whose connections send at once: a trip is one packet, and nothing is won by holding it back.
fn own_pool(server: impl IntoConnectionInfo, config: PoolConfig) -> Result<Pool, ConfigError> {
    let info = connection_info(server)?;
    let tcp = TcpSettings::default().set_nodelay(true);
    let manager = Manager::new_with_config(
        info.set_tcp_settings(tcp),
        // The lanes keep the time themselves.
        AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None),
    );
    Pool::builder(manager.map_err(wrong_address)?)
        .config(config)
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|error| ConfigError::new(format!("a pool ({error})"), "deadpool's own terms"))
}
