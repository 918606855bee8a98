//! What a policy does with requests without a key, and what is logged of them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use http::request::Parts;

use crate::{extract::MissingKey, key::Key, log::LogThrottle, policy::Policy};

/// So many requests without a key before any with one are probably a mistake of the application's.
const SUSPECTED_AFTER: u32 = 5;

/// What a policy has seen of requests without a key.
#[derive(Debug, Default)]
pub(crate) struct MissingKeys {
    /// Whether any request had a key.
    found_any: AtomicBool,
    /// How many had none before that.
    before_any: AtomicU32,
    logged: LogThrottle,
}

impl MissingKeys {
    /// The key of a request.
    #[inline]
    pub(crate) fn find_key(&self, policy: &Policy, parts: &Parts) -> Option<Key> {
        let key = policy.extractor().key(parts)?;
        let found_any = &self.found_any;
        // Written once, so that the cache line stays shared.
        if !found_any.load(Ordering::Relaxed) {
            found_any.store(true, Ordering::Relaxed);
        }
        Some(key)
    }

    /// The key that requests without one share, if they do.
    #[cold]
    pub(crate) fn missing_key(&self, policy: &Policy) -> Option<Key> {
        let missing = policy.on_missing_key();
        let extractor = policy.extractor();
        let policy = policy.name();
        let hint = extractor.missing_key_hint();
        if hint.is_empty() && self.is_suspect() {
            tracing::warn!(
                policy,
                action = ?missing,
                key = ?extractor,
                "the first {SUSPECTED_AFTER} requests all had no key: probably a middleware that adds it runs too late; if \
                 so, put it outside the limiter (with axum, in a `.layer(..)` call after the limiter's)"
            );
        }
        self.logged.log_with(|suppressed| {
            if hint.is_empty() {
                tracing::debug!(policy, action = ?missing, suppressed, "a request has no key");
            } else {
                tracing::error!(policy, action = ?missing, suppressed, "a request has no key: {hint}");
            }
        });
        (missing == MissingKey::Shared).then(Key::missing)
    }

    /// Whether this is the request that makes it probable that no request has a key; true once.
    fn is_suspect(&self) -> bool {
        let Self {
            found_any,
            before_any,
            ..
        } = self;
        if found_any.load(Ordering::Relaxed)
            || before_any.load(Ordering::Relaxed) >= SUSPECTED_AFTER
        {
            return false;
        }
        before_any.fetch_add(1, Ordering::Relaxed) + 1 == SUSPECTED_AFTER
    }
}
