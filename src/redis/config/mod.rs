//! Which servers a store counts on, and how it connects to them.

use std::fmt;

use deadpool_redis::{Config, Pool};
use redis::{AsyncConnectionConfig, ConnectionInfo, IntoConnectionInfo, io::tcp::TcpSettings};

use super::{
    hash_tags::HashTags,
    io::{
        Sentinel,
        opener::Opener,
        server::{ClusterConfig, Server, Servers},
        tls::{self, Tls},
    },
};
use redact::redacted;

mod redact;
use crate::error::ConfigError;

/// Hash tags of a cluster's keys by default. With 512 requests in flight on three masters, 32 had 1.3 to 1.9 times the
/// throughput of a call for each request, 64 at most 1.2 times, and 128 less: too few requests shared a slot.
const HASH_TAGS: usize = 32;

#[derive(Clone)]
pub(crate) struct ConnectConfig {
    pub(crate) servers: Option<ServerConfig>,
    pub(crate) server_url_template: Option<String>,
    pub(crate) hash_tags: usize,
    pub(crate) tls: Tls,
}

#[derive(Clone)]
pub(crate) enum ServerConfig {
    Url(String),
    Config(Box<Config>),
    Pool(Pool),
    Cluster(Vec<String>),
    Sentinel { name: String, urls: Vec<String> },
}

/// Without the passwords of URLs and certificates.
impl fmt::Debug for ConnectConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectConfig")
            .field("servers", &self.servers)
            .field(
                "server_url_template",
                &self.server_url_template.as_deref().map(redacted),
            )
            .field("hash_tags", &self.hash_tags)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let redacted_all = |urls: &[String]| {
            let urls = urls.iter().map(|url| redacted(url));
            urls.collect::<Vec<_>>()
        };
        match self {
            Self::Url(url) => write!(f, "Url({})", redacted(url)),
            Self::Config(_) => f.write_str("Config"),
            Self::Pool(pool) => write!(f, "Pool({:?})", pool.status()),
            Self::Cluster(urls) => write!(f, "Cluster({:?})", redacted_all(urls)),
            Self::Sentinel { name, urls } => {
                write!(f, "Sentinel({name:?}, {:?})", redacted_all(urls))
            }
        }
    }
}

impl Default for ConnectConfig {
    fn default() -> Self {
        Self {
            servers: None,
            server_url_template: None,
            hash_tags: HASH_TAGS,
            tls: Tls::default(),
        }
    }
}

/// Sets one setting to that of the second configuration.
type Setter = fn(&mut ConnectConfig, &ConnectConfig);

impl ConnectConfig {
    /// Reports each mistake. Servers that are one leave what depends on them unchecked.
    pub(crate) fn validate(&self, report: &mut dyn FnMut(ConfigError)) {
        if self.clone().servers().is_ok() {
            return;
        }
        // One setting after the other, each with those before it that are no mistakes.
        let mut trial = Self::default();
        let servers = match &self.servers {
            Some(ServerConfig::Cluster(_)) => "store.cluster",
            Some(ServerConfig::Sentinel { .. }) => "store.sentinel.urls",
            _ => "store.url",
        };
        let settings: &[(&'static str, Setter)] = &[
            (servers, |trial, own| trial.servers = own.servers.clone()),
            ("store.hash_tags", |trial, own| {
                trial.hash_tags = own.hash_tags
            }),
            ("store.sentinel.server_url", |trial, own| {
                trial.server_url_template = own.server_url_template.clone();
            }),
            #[cfg(feature = "redis-tls")]
            ("store.tls.root_certificates", |trial, own| {
                trial.tls.root = own.tls.root.clone();
            }),
            #[cfg(feature = "redis-tls")]
            ("store.tls", |trial, own| {
                trial.tls.client = own.tls.client.clone();
            }),
        ];
        for (field, set) in settings {
            let mut next = trial.clone();
            set(&mut next, self);
            match next.clone().servers() {
                Ok(_) => trial = next,
                Err(error) => report(error.in_field(field)),
            }
            if trial.servers.is_none() {
                return;
            }
        }
    }

    /// The servers, and the hash tags of keys on a cluster.
    pub(crate) fn servers(mut self) -> Result<(Servers, Option<HashTags>), ConfigError> {
        let none = || {
            ConfigError::new(
                "a Redis store without a server",
                "a URL, a deadpool configuration or a pool",
            )
        };
        let server = match self.servers.take().ok_or_else(none)? {
            ServerConfig::Url(url) => self.single(url.as_str())?,
            ServerConfig::Config(config) => self.build_from_config(*config)?,
            ServerConfig::Pool(pool) => Server::of_pool(pool),
            ServerConfig::Cluster(urls) => {
                let tags = HashTags::new(self.hash_tags)?;
                let cluster = ClusterConfig::new(self.infos(urls)?, make_opener)?;
                return Ok((Servers::Cluster(Box::new(cluster)), Some(tags)));
            }
            ServerConfig::Sentinel { name, urls } => {
                let template = self.server_url_template.as_deref().unwrap_or("redis://any");
                let server = format!("the master {name:?}");
                let (sentinels, template) = (self.infos(urls)?, self.info(template)?);
                let sentinel = Sentinel::new(name, sentinels, template, make_opener)?;
                Server::of_sentinel(server, sentinel)
            }
        };
        Ok((Servers::One(server), None))
    }

    fn build_from_config(&self, config: Config) -> Result<Server, ConfigError> {
        match (config.url, config.connection) {
            (Some(url), None) => self.single(url.as_str()),
            (None, Some(connection)) => self.single(connection),
            (None, None) => self.single("redis://127.0.0.1:6379"),
            (Some(_), Some(_)) => Err(ConfigError::new(
                "a deadpool configuration with both a URL and a connection",
                "one of them",
            )),
        }
    }

    fn single(&self, server: impl IntoConnectionInfo) -> Result<Server, ConfigError> {
        let info = self.info(server)?;
        let address = info.addr().to_string();
        Ok(Server::new(address, make_opener(info)?))
    }

    fn infos(&self, urls: Vec<String>) -> Result<Vec<ConnectionInfo>, ConfigError> {
        urls.iter().map(|url| self.info(url.as_str())).collect()
    }

    fn info(&self, server: impl IntoConnectionInfo) -> Result<ConnectionInfo, ConfigError> {
        let info = server.into_connection_info().map_err(invalid_address)?;
        self.tls.apply(info)
    }
}

pub(crate) fn invalid_address(error: redis::RedisError) -> ConfigError {
    let unknown = error.kind() == redis::ErrorKind::InvalidClientConfig;
    if cfg!(not(feature = "redis-tls")) && unknown && error.to_string().contains("TLS") {
        return tls::not_built();
    }
    let mut error = error.to_string();
    // Of the errors' texts this one alone repeats a part of the URL, which may hold a password.
    if error.starts_with("Invalid protocol version") {
        error = "its protocol is neither resp2 nor resp3".to_owned();
    }
    ConfigError::new(
        format!("a server address that can't be used ({error})"),
        "an address such as redis://user:password@host:6379/0",
    )
}

/// The opener of connections with TCP_NODELAY: a batch is one packet.
fn make_opener(info: ConnectionInfo) -> Result<Opener, ConfigError> {
    let tcp = TcpSettings::default().set_nodelay(true);
    // The IO of the store enforces timeouts, and needs late replies.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    Opener::new(info.set_tcp_settings(tcp), config).map_err(invalid_address)
}

#[cfg(all(test, not(feature = "redis-tls")))]
mod without_tls {
    use crate::RedisStore;

    #[test]
    fn an_encrypted_address_names_the_feature_that_it_needs() {
        for built in [
            RedisStore::open("rediss://127.0.0.1:6380"),
            RedisStore::cluster(["rediss://127.0.0.1:6380"]),
            RedisStore::sentinel("master", ["rediss://127.0.0.1:26380"]),
        ] {
            let error = built.expect_err("it is not built in").to_string();
            assert!(error.contains("feature `redis-tls`"), "{error}");
        }
    }
}
