//! Requests without a key: the key that they share, and the log events about them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::{
    extract::{Extracted, MissingKey},
    key::Key,
    log::LogThrottle,
    policy::Policy,
};

/// As many requests without a key, before any with one, are probably a mistake of the application.
const SUSPECTED_AFTER: u32 = 5;

/// Records whether a policy's requests have keys.
#[derive(Debug, Default)]
pub(crate) struct MissingKeys {
    /// Whether any request had a key.
    found_any: AtomicBool,
    /// The number of requests without a key before the first with one, up to [`SUSPECTED_AFTER`].
    before_any: AtomicU32,
    /// Whether the last request shared the bucket of those without a key, by a mistake of the application.
    shares_by_mistake: AtomicBool,
    logged: LogThrottle,
}

impl MissingKeys {
    /// Records what the policy's extractor found in a request.
    #[inline]
    pub(crate) fn record(&self, found: Extracted) {
        let found_any = &self.found_any;
        if found == Extracted::Absent {
            return;
        }
        // Written if they change only, so that the cache line stays shared.
        if !found_any.load(Ordering::Relaxed) {
            found_any.store(true, Ordering::Relaxed);
        }
        if self.shares_by_mistake.load(Ordering::Relaxed) {
            self.shares_by_mistake.store(false, Ordering::Relaxed);
        }
    }

    /// The key that requests without a key share, if the policy has them share one. Logs the missing key.
    #[cold]
    pub(crate) fn missing_key(&self, policy: &Policy) -> Option<Key> {
        let missing = policy.on_missing_key();
        let skips = policy.skips_missing_key();
        let extractor = policy.extractor();
        let policy = policy.name();
        let hint = extractor.missing_key_hint();
        if hint.is_empty() && !skips && self.is_suspect() {
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
        if missing != MissingKey::Shared {
            return None;
        }
        if !hint.is_empty() && !self.shares_by_mistake.load(Ordering::Relaxed) {
            self.shares_by_mistake.store(true, Ordering::Relaxed);
        }
        Some(Key::missing())
    }

    /// Whether the last request shared the bucket of those without a key, which its extractor calls a mistake.
    pub(crate) fn shares_by_mistake(&self) -> bool {
        self.shares_by_mistake.load(Ordering::Relaxed)
    }

    /// Counts a request without a key. True once: when so many came that probably no request has one.
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
