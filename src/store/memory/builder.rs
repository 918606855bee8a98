use std::{num::NonZeroUsize, sync::Arc};

use super::{MemoryStore, shards::Shards};
use crate::{
    clock::{Clock, SystemClock},
    store::overrides::{DEFAULT_MAX_OVERRIDES, OverrideTable},
};

/// The keys that a store holds by default.
pub(crate) const DEFAULT_MAX_KEYS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(999_999);

/// Builds a [`MemoryStore`].
#[derive(Debug)]
#[must_use]
pub struct MemoryStoreBuilder {
    max_keys: NonZeroUsize,
    max_overrides: usize,
    clock: Arc<dyn Clock>,
}

impl MemoryStore {
    /// A store with the defaults of [`builder`](MemoryStore::builder).
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder of a store.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::default()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for MemoryStoreBuilder {
    fn default() -> Self {
        Self {
            max_keys: DEFAULT_MAX_KEYS,
            max_overrides: DEFAULT_MAX_OVERRIDES,
            clock: Arc::new(SystemClock),
        }
    }
}

impl MemoryStoreBuilder {
    /// Sets the number of keys that the store holds at most, of all policies together, and at least as many as a request has
    /// policies. Default: 1,000,000, which take about 100 MB. [`MemoryStore`] says which keys are evicted when it is full.
    pub fn max_keys(mut self, keys: NonZeroUsize) -> Self {
        self.max_keys = keys;
        self
    }

    /// Sets the number of [overrides](crate::limiter::Override) that the store holds at most, which are never evicted. Default:
    /// 100,000.
    pub fn max_overrides(mut self, overrides: usize) -> Self {
        self.max_overrides = overrides;
        self
    }

    /// Sets the clock that the store counts by. Default: [`SystemClock`].
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Builds the store.
    pub fn build(self) -> MemoryStore {
        let overrides = OverrideTable::by(self.clock.clone());
        let shards = Shards::new(self.clock, self.max_keys);
        MemoryStore {
            shards: Arc::new(shards),
            overrides: Arc::new(overrides),
            max_overrides: self.max_overrides,
        }
    }
}
