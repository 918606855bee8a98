//! The settings of a builder, in the words of a configuration document.

use super::RedisStoreBuilder;
use crate::{
    redact::redacted_value,
    secret::Secret,
    store::{
        redis::config::settings::StoreSettings,
        section::{BreakerSection, RejectionCacheSection, RejectionCacheSettings, StoreSection},
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
            max_overrides: (self.max_overrides != default.max_overrides)
                .then_some(self.max_overrides.unwrap_or(0)),
            ..StoreSection::default()
        };
        StoreSettings::new(section, &self.connect, secret, self.sources.is_some())
    }
}
