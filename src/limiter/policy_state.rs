//! What is counted and remembered of a policy in this process. It outlives a reconfiguration that keeps the policy.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crate::{
    clock::Timestamp,
    extract::{Extracted, MissingKey},
    key::Key,
    log::LogThrottle,
    observe::ShadowStats,
    policy::Policy,
    sync::lock,
};

/// The state of a policy in this process.
#[derive(Debug, Default)]
pub(crate) struct PolicyState {
    pub(crate) missing_keys: MissingKeys,
    pub(crate) bans_begun: RecentBans,
    /// The permits that requests of this process hold, also under the policies that this one has replaced.
    pub(crate) permits_held: Arc<AtomicU64>,
    pub(crate) shadow: ShadowCounters,
}

impl PolicyState {
    /// The state of a policy that replaces another of its name.
    pub(crate) fn of_changed(old: &Self) -> Self {
        Self {
            permits_held: old.permits_held.clone(),
            ..Self::default()
        }
    }
}

/// Requests without a key.
#[derive(Debug, Default)]
pub(crate) struct MissingKeys {
    /// Whether the last request without a key shared a bucket though its key should have been found, such as the address of a
    /// service without connect info.
    shares_by_mistake: AtomicBool,
    logged: LogThrottle,
}

impl MissingKeys {
    /// Records what was found for a request.
    #[inline]
    pub(crate) fn record(&self, found: Extracted) {
        // Written only if it changes, so that the cache line stays shared.
        if found != Extracted::Absent && self.shares_by_mistake.load(Ordering::Relaxed) {
            self.shares_by_mistake.store(false, Ordering::Relaxed);
        }
    }

    /// Logs a request without a key; returns the bucket that such requests share, if the policy has one.
    #[cold]
    pub(crate) fn missing_key(&self, policy: &Policy) -> Option<Key> {
        let missing = policy.on_missing_key();
        let hint = policy.extractor().missing_key_hint();
        let policy = policy.name();
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

    /// Whether requests share a bucket since their key can't be found.
    pub(crate) fn shares_by_mistake(&self) -> bool {
        self.shares_by_mistake.load(Ordering::Relaxed)
    }
}

/// Upper bound of the bans that are remembered.
const MAX_RECENT_BANS: usize = 64;

/// The bans that began most recently, so that each is reported once.
#[derive(Debug, Default)]
pub(crate) struct RecentBans(Mutex<Vec<(Key, Timestamp)>>);

impl RecentBans {
    /// Adds a ban; returns whether it is new.
    pub(crate) fn add(&self, key: Key, began: Timestamp) -> bool {
        let mut recent = lock(&self.0);
        if recent.contains(&(key, began)) {
            return false;
        }
        if recent.len() >= MAX_RECENT_BANS {
            recent.remove(0);
        }
        recent.push((key, began));
        true
    }
}

/// Counts what a [shadow policy](crate::Policy::shadow) would have rejected.
#[derive(Debug, Default)]
pub(crate) struct ShadowCounters {
    evaluated: AtomicU64,
    would_reject: AtomicU64,
}

impl ShadowCounters {
    pub(crate) fn record(&self, evaluated: u64, would_reject: u64) {
        self.evaluated.fetch_add(evaluated, Ordering::Relaxed);
        self.would_reject.fetch_add(would_reject, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> ShadowStats {
        ShadowStats {
            evaluated: self.evaluated.load(Ordering::Relaxed),
            would_reject: self.would_reject.load(Ordering::Relaxed),
        }
    }
}
