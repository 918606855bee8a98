//! A store on Redis.

use std::{any::Any, sync::Arc, time::Duration};

use super::{THE_OPEN_STORE, in_process};
use crate::{
    config::{
        Secret,
        build::Build,
        document::store::{BreakerSection, RejectionCacheSection, StoreSection},
        tree::path::Path,
    },
    limiter::Limiter,
    setting::SettingValue,
    store::{
        Store,
        redis::{RedisStore, RedisStoreBuilder},
    },
};

/// The URL for counts in process, such as the default of `${REDIS_URL:-memory://}`.
const IN_PROCESS: &str = "memory://";

/// The URL of a server that is never called.
const UNUSED_URL: &str = "redis://localhost";

/// Where counts are stored.
enum Stored {
    InProcess,
    OnRedis(Box<RedisStoreBuilder>),
}

/// A store that is set up field by field, so that a mistake is found at its field.
struct Fields<'b, 'a> {
    build: &'b mut Build<'a>,
    path: Path,
    builder: RedisStoreBuilder,
    sources: Vec<(String, SettingValue)>,
    in_process: bool,
}

impl Build<'_> {
    /// The store that the document opens; `None` if it says nothing of one.
    pub(in crate::config::build) fn store(&mut self) -> Option<Arc<dyn Store>> {
        let section = self.document.store.as_ref()?;
        let Stored::OnRedis(builder) = self.stored(section)? else {
            return Some(in_process(section.max_keys));
        };
        let store = builder.build();
        let store = self.checked(&Path::default().key("store"), store)?;
        Some(Arc::new(store))
    }

    /// Notes a mistake if the document has another store than the limiter. Nothing is opened. Returns the settings in which the
    /// document has other credentials for the same store.
    pub(in crate::config::build) fn same_store(&mut self, limiter: &Limiter) -> Vec<&'static str> {
        let path = Path::default().key("store");
        let store = limiter.store();
        let store: &dyn Any = &*store;
        let current = store.downcast_ref::<RedisStore>().map(RedisStore::settings);
        let Some(section) = &self.document.store else {
            if current.is_some_and(|current| current.is_by_document()) {
                self.found(&path, "no store", THE_OPEN_STORE);
            }
            return Vec::new();
        };
        let (differences, credentials) = match (current, self.stored(section)) {
            (_, None) => return Vec::new(),
            (_, Some(Stored::InProcess)) => {
                self.same_store_in_process(limiter, section.max_keys);
                return Vec::new();
            }
            (Some(current), Some(Stored::OnRedis(builder))) => {
                let next = builder.settings();
                (
                    current.differences(&next),
                    current.differences_of_credentials(&next),
                )
            }
            _ => (vec!["url"], Vec::new()),
        };
        if !differences.is_empty() {
            let found = format!("another store: other {}", differences.join(", "));
            self.found(&path, found, THE_OPEN_STORE);
        }
        credentials
    }

    /// Where the document stores counts, unless that is a mistake.
    fn stored(&mut self, section: &StoreSection) -> Option<Stored> {
        let mut fields = Fields {
            build: self,
            path: Path::default().key("store"),
            builder: RedisStore::builder(),
            sources: Vec::new(),
            in_process: false,
        };
        let has_servers = fields.servers(section);
        if !has_servers || section.url.is_none() && fields.in_process {
            fields.builder = fields.builder.url(UNUSED_URL);
        }
        fields.settings(section);
        fields.tls(section);
        let stored = match fields.in_process {
            true => Stored::InProcess,
            false => Stored::OnRedis(Box::new(fields.builder.by_document(fields.sources))),
        };
        has_servers.then_some(stored)
    }
}

impl Fields<'_, '_> {
    /// Changes the builder, unless the result can't be built.
    fn set(
        &mut self,
        path: &Path,
        change: impl FnOnce(RedisStoreBuilder) -> RedisStoreBuilder,
    ) -> bool {
        let changed = change(self.builder.clone());
        let built = changed.clone().build();
        let is_valid = self.build.checked(path, built).is_some();
        if is_valid {
            self.builder = changed;
        }
        is_valid
    }

    /// The value of a secret, of which the source is kept.
    fn secret(&mut self, path: &Path, secret: &Secret) -> Option<String> {
        let value = self.build.secret(path, secret)?;
        let source = secret.source(self.build.document.folder());
        self.sources.push((value.clone(), source));
        Some(value)
    }

    fn secrets(&mut self, path: &Path, secrets: &[Secret]) -> Option<Vec<String>> {
        let values = secrets.iter().enumerate();
        let values: Vec<_> = values
            .map(|(index, secret)| self.secret(&path.index(index), secret))
            .collect();
        values.into_iter().collect()
    }

    /// Whether there are servers, without a mistake.
    fn servers(&mut self, section: &StoreSection) -> bool {
        let path = self.path.clone();
        // Certificates fit `rediss://` addresses alone, so they are checked together.
        match (&section.url, &section.cluster, &section.sentinel) {
            (Some(url), None, None) => {
                let path = path.key("url");
                let url = self.secret(&path, url);
                self.in_process = url.as_deref() == Some(IN_PROCESS);
                // The other settings are checked with a server that is never called.
                let url = url.map(|url| match self.in_process {
                    true => UNUSED_URL.to_owned(),
                    false => url,
                });
                url.is_some_and(|url| self.set(&path, |builder| builder.url(url)))
            }
            (None, Some(urls), None) => {
                let path = path.key("cluster");
                let urls = self.secrets(&path, urls);
                urls.is_some_and(|urls| self.set(&path, |builder| builder.cluster(urls)))
            }
            (None, None, Some(sentinel)) => {
                let path = path.key("sentinel");
                let urls = self.secrets(&path.key("urls"), &sentinel.urls);
                let server = sentinel.server_url.as_ref();
                let server = server.map(|url| self.secret(&path.key("server_url"), url));
                let (Some(urls), Some(server)) =
                    (urls, server.map_or(Some(None), |url| url.map(Some)))
                else {
                    return false;
                };
                let with_urls =
                    |builder: RedisStoreBuilder| builder.sentinel(&sentinel.master, urls);
                self.set(&path.key("urls"), with_urls)
                    && server.is_none_or(|url| {
                        let path = path.key("server_url");
                        self.set(&path, |builder| builder.server_url_template(url))
                    })
            }
            (None, None, None) if section.max_keys.is_some() => {
                self.in_process = true;
                true
            }
            (None, None, None) => {
                let expected =
                    "one of url, cluster and sentinel, or max_keys for counts in process";
                self.build.found(&path, "no server", expected);
                false
            }
            _ => {
                let found = "more than one of url, cluster and sentinel";
                self.build.found(&path, found, "one of them");
                false
            }
        }
    }

    fn settings(&mut self, section: &StoreSection) {
        let path = self.path.clone();
        if let Some(prefix) = &section.prefix {
            self.set(&path.key("prefix"), |builder| builder.prefix(prefix));
        }
        if let Some(timeout) = section.timeout {
            self.set(&path.key("timeout"), |builder| builder.timeout(timeout));
        }
        if let Some(connections) = section.connections {
            self.set(&path.key("connections"), |builder| {
                builder.connections(connections)
            });
        }
        if let Some(tags) = section.hash_tags {
            self.set(&path.key("hash_tags"), |builder| builder.hash_tags(tags));
        }
        let breaker = path.key("circuit_breaker_threshold");
        match section.circuit_breaker_threshold {
            None | Some(BreakerSection::Enabled(true)) => {}
            Some(BreakerSection::Enabled(false)) => {
                self.set(&breaker, RedisStoreBuilder::no_circuit_breaker);
            }
            Some(BreakerSection::Threshold(failures)) => {
                self.set(&breaker, |builder| {
                    builder.circuit_breaker_threshold(failures)
                });
            }
        }
        let cache = path.key("rejection_cache");
        match &section.rejection_cache {
            None | Some(RejectionCacheSection::Enabled(true)) => {}
            Some(RejectionCacheSection::Enabled(false)) => {
                let none = Duration::ZERO;
                self.set(&cache, |builder| builder.rejection_cache_staleness(none));
            }
            Some(RejectionCacheSection::Settings(settings)) => {
                if let Some(bound) = settings.staleness {
                    let path = cache.key("staleness");
                    self.set(&path, |builder| builder.rejection_cache_staleness(bound));
                }
                if let Some(most) = settings.capacity {
                    let path = cache.key("capacity");
                    self.set(&path, |builder| builder.rejection_cache_capacity(most));
                }
            }
        }
    }

    #[cfg(not(feature = "redis-tls"))]
    fn tls(&mut self, section: &StoreSection) {
        if section.tls.is_some() {
            let expected = "the feature `redis-tls` of tollgate, or no certificates";
            self.build
                .found(&self.path.key("tls"), "certificates", expected);
        }
    }

    #[cfg(feature = "redis-tls")]
    fn tls(&mut self, section: &StoreSection) {
        let Some(tls) = &section.tls else {
            return;
        };
        let path = self.path.key("tls");
        if let Some(pem) = &tls.root_certificates {
            let path = path.key("root_certificates");
            if let Some(pem) = self.secret(&path, pem) {
                self.set(&path, |builder| builder.root_certificates(pem));
            }
        }
        match (&tls.client_certificate, &tls.client_key) {
            (None, None) => {}
            (Some(certificate), Some(key)) => {
                let certificate = self.secret(&path.key("client_certificate"), certificate);
                let key = self.secret(&path.key("client_key"), key);
                if let (Some(certificate), Some(key)) = (certificate, key) {
                    self.set(&path, |builder| {
                        builder.client_certificate(certificate, key)
                    });
                }
            }
            _ => {
                let found = "one of client_certificate and client_key";
                self.build.found(&path, found, "both of them, or none");
            }
        }
    }
}
