//! The settings of a builder, in the words of a configuration document.

use std::fmt;

use blake3::Hash;
use redis::IntoConnectionInfo;

use super::RedisStoreBuilder;
use crate::{
    redact::redacted_value,
    secret::Secret,
    setting::{CODE, to_text},
    store::{
        redis::config::{ConnectConfig, ServerConfig},
        section::{
            BreakerSection, RejectionCacheSection, RejectionCacheSettings, SentinelSection,
            StoreSection, TlsSection,
        },
    },
};

impl RedisStoreBuilder {
    /// Says that a document opens the store, and what the document says in place of each secret.
    pub(crate) fn by_document(mut self, sources: Vec<(String, Secret)>) -> Self {
        self.sources = Some(sources);
        self
    }

    /// The settings, in the words of a document.
    pub(crate) fn settings(&self) -> StoreSettings {
        let sources = self.sources.as_deref().unwrap_or_default();
        let secret = |secret: &str| {
            let source = sources.iter().find(|(value, _)| value == secret);
            source.map_or_else(
                || Secret::text(redacted_value(secret)),
                |(_, source)| source.clone(),
            )
        };
        let default = RedisStoreBuilder::default();
        let breaker = match self.breaker {
            Some(threshold) => BreakerSection::Threshold(threshold),
            None => BreakerSection::Enabled(false),
        };
        let cache = if self.rejection_cache.is_zero() {
            RejectionCacheSection::Enabled(false)
        } else {
            RejectionCacheSection::Settings(RejectionCacheSettings {
                staleness: Some(self.rejection_cache),
                capacity: Some(self.rejection_cache_capacity),
            })
        };
        let cached = |builder: &Self| (builder.rejection_cache, builder.rejection_cache_capacity);
        let section = StoreSection {
            prefix: (self.prefix != default.prefix).then(|| self.prefix.clone()),
            timeout: (self.timeout != default.timeout).then_some(self.timeout),
            connections: (self.connect.workers != default.connect.workers)
                .then_some(self.connect.workers),
            circuit_breaker_threshold: (self.breaker != default.breaker).then_some(breaker),
            rejection_cache: (cached(self) != cached(&default)).then_some(cache),
            hash_tags: (self.connect.hash_tags != default.connect.hash_tags)
                .then_some(self.connect.hash_tags),
            overrides: (self.overrides != default.overrides).then_some(self.overrides),
            ..StoreSection::default()
        };
        StoreSettings::new(section, &self.connect, secret, self.sources.is_some())
    }
}

/// The settings of a store.
#[derive(Clone)]
pub(crate) struct StoreSettings {
    /// Those that are no defaults, with the sources of secrets.
    section: StoreSection,
    /// A hash of the servers without their credentials: equal if the stores count on the same servers.
    servers: (&'static str, Hash),
    /// A hash of each value that may have credentials, with these.
    credentials: Vec<(&'static str, Hash)>,
    by_document: bool,
}

impl StoreSettings {
    /// Adds the servers and certificates to the other settings.
    pub(in crate::store::redis) fn new(
        mut section: StoreSection,
        connect: &ConnectConfig,
        secret: impl Fn(&str) -> Secret,
        by_document: bool,
    ) -> Self {
        let secrets = |urls: &[String]| urls.iter().map(|url| secret(url)).collect();
        let servers = |urls: &[String]| urls.iter().map(|url| server(url)).collect::<String>();
        let (name, identity, credentials) = match &connect.servers {
            Some(ServerConfig::Url(url)) => {
                section.url = Some(secret(url));
                ("url", server(url), Some(url.clone()))
            }
            Some(ServerConfig::Cluster(urls)) => {
                section.cluster = Some(secrets(urls));
                ("cluster", servers(urls), Some(urls.join("\n")))
            }
            Some(ServerConfig::Sentinel { name, urls }) => {
                let template = connect.server_url_template.as_deref();
                section.sentinel = Some(SentinelSection {
                    master: name.clone(),
                    urls: secrets(urls),
                    server_url: template.map(&secret),
                });
                let identity = format!("{name}\n{:?}\n{}", template.map(server), servers(urls));
                let credentials = format!("{template:?}\n{}", urls.join("\n"));
                ("sentinel", identity, Some(credentials))
            }
            Some(ServerConfig::Config(_) | ServerConfig::Pool(_)) | None => {
                section.url = Some(Secret::text(CODE));
                ("url", CODE.to_owned(), None)
            }
        };
        let hash = |text: &str| blake3::hash(text.as_bytes());
        let certificates = certificates(connect, secret);
        let credentials = credentials.map(|text| (name, hash(&text))).into_iter();
        let of_tls = certificates.as_ref().map(|(_, hash)| ("tls", *hash));
        section.tls = certificates.map(|(section, _)| section);
        Self {
            servers: (name, hash(&identity)),
            credentials: credentials.chain(of_tls).collect(),
            section,
            by_document,
        }
    }

    /// Whether the store was opened by a document.
    pub(crate) fn is_by_document(&self) -> bool {
        self.by_document
    }

    /// The settings that are no defaults, without secrets.
    pub(crate) fn section(&self) -> &StoreSection {
        &self.section
    }

    /// The names of the settings that two stores don't share, apart from credentials.
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let (own, its) = (&self.section, &other.section);
        let mut names = differences(&[self.servers], &[other.servers]);
        let plain = [
            ("prefix", own.prefix != its.prefix),
            ("timeout", own.timeout != its.timeout),
            ("connections", own.connections != its.connections),
            (
                "circuit_breaker_threshold",
                own.circuit_breaker_threshold != its.circuit_breaker_threshold,
            ),
            (
                "rejection_cache",
                own.rejection_cache != its.rejection_cache,
            ),
            ("hash_tags", own.hash_tags != its.hash_tags),
            ("overrides", own.overrides != its.overrides),
        ];
        names.extend(
            plain
                .into_iter()
                .filter(|(_, differs)| *differs)
                .map(|(name, _)| name),
        );
        names.sort_unstable();
        names
    }

    /// The names of the settings whose credentials two stores don't share.
    pub(crate) fn differences_of_credentials(&self, other: &Self) -> Vec<&'static str> {
        differences(&self.credentials, &other.credentials)
    }
}

/// The certificates and their key, and a hash of them.
#[cfg(feature = "redis-tls")]
fn certificates(
    connect: &ConnectConfig,
    secret: impl Fn(&str) -> Secret,
) -> Option<(TlsSection, Hash)> {
    let client = connect.tls.client.as_ref();
    let mut all = String::new();
    let mut read = |name: &str, pem: Option<&Vec<u8>>| {
        let pem = String::from_utf8_lossy(pem?);
        all.push_str(&format!("{name}: {pem}"));
        Some(secret(&pem))
    };
    let section = TlsSection {
        root_certificates: read("root_certificates", connect.tls.root.as_ref()),
        client_certificate: read("client_certificate", client.map(|own| &own.client_cert)),
        client_key: read("client_key", client.map(|own| &own.client_key)),
    };
    (!all.is_empty()).then(|| (section, blake3::hash(all.as_bytes())))
}

#[cfg(not(feature = "redis-tls"))]
fn certificates(_: &ConnectConfig, _: impl Fn(&str) -> Secret) -> Option<(TlsSection, Hash)> {
    None
}

fn differences(
    hashes: &[(&'static str, Hash)],
    others: &[(&'static str, Hash)],
) -> Vec<&'static str> {
    let own = hashes.iter().filter(|hash| !others.contains(hash));
    let others = others.iter().filter(|hash| !hashes.contains(hash));
    let mut names: Vec<_> = own.chain(others).map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What a URL says of its server without user and password.
fn server(url: &str) -> String {
    match url.into_connection_info() {
        Ok(info) => {
            let settings = info.redis_settings();
            let (database, protocol) = (settings.db(), settings.protocol());
            format!("{:?} {database} {protocol:?}\n", info.addr())
        }
        // It can't be used, and no store has it.
        Err(_) => url.to_owned(),
    }
}

/// Without hashes, by which a secret could be guessed.
impl fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreSettings({})", to_text(&self.section))
    }
}
