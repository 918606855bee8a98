//! A store on Redis.

use std::{any::Any, sync::Arc, time::Duration};

use super::{THE_OPEN_STORE, in_process};
use crate::{
    config::{
        Secret,
        build::{Build, with},
        document::store::{BreakerSection, RejectionCacheSection, StoreDocument},
        path::Path,
    },
    limiter::Limiter,
    redis::{RedisStore, RedisStoreBuilder},
    store::Store,
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

impl Build<'_> {
    /// The store that the document opens, in process if it says nothing of one; `None` if it is a mistake.
    pub(in crate::config::build) fn store(&mut self) -> Option<Arc<dyn Store>> {
        let Some(section) = &self.document.store else {
            return Some(in_process(None));
        };
        match self.stored(section)? {
            Stored::InProcess => Some(in_process(section.max_keys)),
            Stored::OnRedis(builder) => {
                let store = self.checked(&Path::default().key("store"), builder.build())?;
                Some(Arc::new(store))
            }
        }
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

    /// Where the document stores counts, unless there is a mistake in it.
    fn stored(&mut self, section: &StoreDocument) -> Option<Stored> {
        let known = self.mistakes.len();
        let path = Path::default().key("store");
        let servers = self.servers(&path, section);
        let builder = match &servers {
            Some(Stored::OnRedis(builder)) => (**builder).clone(),
            // The other settings are checked with a server that is never called.
            Some(Stored::InProcess) | None => RedisStore::builder().url(UNUSED_URL),
        };
        let builder = self.settings(&path, builder, section);
        let encrypted = self.tls(&path.key("tls"), section, builder.clone());
        // Whether certificates fit servers is not known of servers that are a mistake.
        let builder = servers.as_ref().map_or(builder, |_| encrypted);
        for error in builder.mistakes() {
            self.found_by_builder(&error);
        }
        let is_valid = self.mistakes.len() == known;
        servers.filter(|_| is_valid).map(|servers| match servers {
            Stored::InProcess => Stored::InProcess,
            Stored::OnRedis(_) => Stored::OnRedis(Box::new(builder.by_document())),
        })
    }

    /// The values of secrets.
    fn secrets(&mut self, path: &Path, secrets: &[Secret]) -> Option<Vec<String>> {
        let values = secrets.iter().enumerate();
        let values: Vec<_> = values
            .map(|(index, secret)| self.secret(&path.index(index), secret))
            .collect();
        values.into_iter().collect()
    }

    /// The servers; `None` if there are none, or if their addresses are not known.
    fn servers(&mut self, path: &Path, section: &StoreDocument) -> Option<Stored> {
        let builder = RedisStore::builder();
        let builder = match (&section.url, &section.cluster, &section.sentinel) {
            (Some(url), None, None) => match self.secret(&path.key("url"), url)? {
                url if url == IN_PROCESS => return Some(Stored::InProcess),
                url => builder.url(url),
            },
            (None, Some(urls), None) => builder.cluster(self.secrets(&path.key("cluster"), urls)?),
            (None, None, Some(sentinel)) => {
                let path = path.key("sentinel");
                let urls = self.secrets(&path.key("urls"), &sentinel.urls);
                let server = sentinel.server_url.as_ref();
                let server = server.map(|url| self.secret(&path.key("server_url"), url));
                let builder = builder.sentinel(&sentinel.master, urls?);
                match server {
                    Some(url) => builder.server_url_template(url?),
                    None => builder,
                }
            }
            (None, None, None) if section.max_keys.is_some() => return Some(Stored::InProcess),
            (None, None, None) => {
                let expected =
                    "one of url, cluster and sentinel, or max_keys for counts in process";
                self.found(path, "no server", expected);
                return None;
            }
            _ => {
                let found = "more than one of url, cluster and sentinel";
                self.found(path, found, "one of them");
                return None;
            }
        };
        Some(Stored::OnRedis(Box::new(builder)))
    }

    #[cfg(not(feature = "redis-tls"))]
    fn tls(
        &mut self,
        path: &Path,
        section: &StoreDocument,
        builder: RedisStoreBuilder,
    ) -> RedisStoreBuilder {
        if section.tls.is_some() {
            let expected = "the feature `redis-tls` of tollgate, or no certificates";
            self.found(path, "certificates", expected);
        }
        builder
    }

    #[cfg(feature = "redis-tls")]
    fn tls(
        &mut self,
        path: &Path,
        section: &StoreDocument,
        mut builder: RedisStoreBuilder,
    ) -> RedisStoreBuilder {
        let Some(tls) = &section.tls else {
            return builder;
        };
        if let Some(pem) = &tls.root_certificates
            && let Some(pem) = self.secret(&path.key("root_certificates"), pem)
        {
            builder = builder.root_certificates(pem);
        }
        match (&tls.client_certificate, &tls.client_key) {
            (None, None) => {}
            (Some(certificate), Some(key)) => {
                let path_of = |name| path.key(name);
                let certificate = self.secret(&path_of("client_certificate"), certificate);
                let key = self.secret(&path_of("client_key"), key);
                if let (Some(certificate), Some(key)) = (certificate, key) {
                    builder = builder.client_certificate(certificate, key);
                }
            }
            _ => {
                let found = "one of client_certificate and client_key";
                self.found(path, found, "both of them, or none");
            }
        }
        builder
    }

    /// The builder with the settings besides servers and certificates.
    fn settings(
        &mut self,
        path: &Path,
        mut builder: RedisStoreBuilder,
        section: &StoreDocument,
    ) -> RedisStoreBuilder {
        let timeout = section.timeout.as_ref();
        let timeout = timeout.and_then(|text| self.duration(&path.key("timeout"), text));
        builder = with(builder, section.prefix.as_ref(), RedisStoreBuilder::prefix);
        builder = with(builder, timeout, RedisStoreBuilder::timeout);
        builder = with(builder, section.hash_tags, RedisStoreBuilder::hash_tags);
        builder = with(builder, section.overrides, RedisStoreBuilder::overrides);
        match section.circuit_breaker_threshold {
            None | Some(BreakerSection::Enabled(true)) => {}
            Some(BreakerSection::Enabled(false)) => builder = builder.no_circuit_breaker(),
            Some(BreakerSection::Threshold(failures)) => {
                builder = builder.circuit_breaker_threshold(failures);
            }
        }
        let (staleness, capacity) = match &section.rejection_cache {
            None | Some(RejectionCacheSection::Enabled(true)) => (None, None),
            Some(RejectionCacheSection::Enabled(false)) => (Some(Duration::ZERO), None),
            Some(RejectionCacheSection::Settings(settings)) => {
                let path = path.key("rejection_cache").key("staleness");
                let staleness = settings.staleness.as_ref();
                let staleness = staleness.and_then(|text| self.duration(&path, text));
                (staleness, settings.capacity)
            }
        };
        builder = with(
            builder,
            staleness,
            RedisStoreBuilder::rejection_cache_staleness,
        );
        with(
            builder,
            capacity,
            RedisStoreBuilder::rejection_cache_capacity,
        )
    }
}
