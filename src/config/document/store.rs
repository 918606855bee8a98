//! The part of a document about the store.

use std::num::NonZeroUsize;

use serde::Deserialize;

use crate::config::{
    forms::{duration_text, forms},
    secret::Secret,
};

/// The store: on Redis one of `url`, `cluster` and `sentinel`, and settings (see `RedisStoreBuilder`); in process `max_keys`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct StoreDocument {
    /// The URL of one server, such as `"${REDIS_URL}"`.
    pub url: Option<Secret>,
    /// The URLs of some nodes of a Redis Cluster.
    pub cluster: Option<Vec<Secret>>,
    /// Sentinels, and the master that they know.
    pub sentinel: Option<SentinelSection>,
    /// The prefix of every key: empty, or ending with a colon. Default: `tg:`.
    pub prefix: Option<String>,
    /// How long a request waits for the store, such as `"50ms"`: from 1 ms to a day. Default: 100 ms.
    #[serde(deserialize_with = "duration_text")]
    #[cfg_attr(
        feature = "config-schema",
        schemars(with = "Option<crate::config::forms::DurationSchema>")
    )]
    pub timeout: Option<String>,
    /// How many failures in a row open the circuit breaker, or `false` for none. Default: 3.
    pub circuit_breaker_threshold: Option<BreakerSection>,
    /// The cache of rejections, or `false` for none.
    pub rejection_cache: Option<RejectionCacheSection>,
    /// The number of hash tags of keys on a cluster: a power of two, at most 1,024. Default: 32.
    pub hash_tags: Option<usize>,
    /// Whether the store has overrides on Redis. Default: true.
    pub overrides: Option<bool>,
    /// The most keys that are counted in process, of all policies together; not used on Redis. Default: 1,000,000.
    pub max_keys: Option<NonZeroUsize>,
    /// Certificates, for `rediss://` URLs.
    pub tls: Option<TlsSection>,
}

/// Sentinels, and the master that they know.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SentinelSection {
    /// The master's name.
    pub master: String,
    /// The URLs of the sentinels.
    pub urls: Vec<Secret>,
    /// A URL with the user, password, database and TLS of the servers; its host is a placeholder.
    #[serde(default)]
    pub server_url: Option<Secret>,
}

forms! {
    /// The threshold of the circuit breaker.
    pub enum BreakerSection, "a number of failed calls, or false" {
        /// The number of calls that have to fail in a row.
        Threshold(u32) from number;
        /// Whether there is a circuit breaker, with the default threshold.
        Enabled(bool) from flag;
    }
}

forms! {
    /// The cache of rejections.
    pub enum RejectionCacheSection, "{ staleness = \"1s\", capacity = 100000 }, or false" {
        /// Whether there is a cache, with the defaults.
        Enabled(bool) from flag;
        /// The cache's settings.
        Settings(RejectionCacheSettings) from table;
    }
}

/// The settings of the cache of rejections.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct RejectionCacheSettings {
    /// How old a cached rejection may be, such as `"100ms"`: at most an hour. Default: 1 s.
    #[serde(deserialize_with = "duration_text")]
    #[cfg_attr(
        feature = "config-schema",
        schemars(with = "Option<crate::config::forms::DurationSchema>")
    )]
    pub staleness: Option<String>,
    /// How many rejections are cached at most. Default: 100,000.
    pub capacity: Option<usize>,
}

/// Certificates and their key, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct TlsSection {
    /// The root certificates of trusted servers. Default: those that the system trusts.
    pub root_certificates: Option<Secret>,
    /// The client's certificate. Default: none.
    pub client_certificate: Option<Secret>,
    /// The key of the client's certificate.
    pub client_key: Option<Secret>,
}
