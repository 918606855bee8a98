//! The settings of a builder, in the words of a configuration document.

use std::time::Duration;

use super::RedisStoreBuilder;
use crate::{
    quota::DurationText, redact::redacted_value, setting::SettingValue,
    store::redis::config::settings::StoreSettings,
};

impl RedisStoreBuilder {
    /// Says that a document opens the store, and what the document says in place of each secret.
    pub(crate) fn by_document(mut self, sources: Vec<(String, SettingValue)>) -> Self {
        self.sources = Some(sources);
        self
    }

    /// The settings, in the words of a document.
    pub(crate) fn settings(&self) -> StoreSettings {
        let mut settings = StoreSettings::new(self.sources.is_some());
        let sources = self.sources.as_deref().unwrap_or_default();
        let secret = |secret: &str| {
            let mut sources = sources.iter();
            match sources.find(|(value, _)| value == secret) {
                Some((_, source)) => source.clone(),
                None => SettingValue::text(redacted_value(secret)),
            }
        };
        settings.servers(&self.connect, secret);
        let defaults = RedisStoreBuilder::default();
        let plain = [
            (
                "prefix",
                SettingValue::text(self.prefix.clone()),
                SettingValue::text(defaults.prefix),
            ),
            (
                "timeout",
                duration(self.timeout),
                duration(defaults.timeout),
            ),
            (
                "connections",
                number(self.connect.workers),
                number(defaults.connect.workers),
            ),
            (
                "circuit_breaker_threshold",
                breaker(self.breaker),
                breaker(defaults.breaker),
            ),
            (
                "rejection_cache",
                cache(self.rejection_cache, self.rejection_cache_capacity),
                cache(defaults.rejection_cache, defaults.rejection_cache_capacity),
            ),
            (
                "hash_tags",
                number(self.connect.hash_tags),
                number(defaults.connect.hash_tags),
            ),
        ];
        for (name, value, default) in plain {
            if value != default {
                settings.add(name, value.clone(), &value.to_string());
            }
        }
        #[cfg(feature = "redis-tls")]
        settings.tls(&self.connect, secret);
        settings
    }
}

fn duration(duration: Duration) -> SettingValue {
    SettingValue::display(DurationText(duration))
}

fn number(number: usize) -> SettingValue {
    SettingValue::Number(number as u64)
}

fn breaker(threshold: Option<u32>) -> SettingValue {
    match threshold {
        Some(threshold) => SettingValue::Number(threshold.into()),
        None => SettingValue::Flag(false),
    }
}

fn cache(staleness: Duration, capacity: usize) -> SettingValue {
    if staleness.is_zero() {
        SettingValue::Flag(false)
    } else {
        SettingValue::table([
            ("staleness", duration(staleness)),
            ("capacity", number(capacity)),
        ])
    }
}
