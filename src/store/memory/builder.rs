use std::{num::NonZeroUsize, sync::Arc};

use super::{MemoryStore, shards::Shards};
use crate::clock::{Clock, SystemClock};

/// Builds a [`MemoryStore`].
#[derive(Debug)]
#[must_use]
pub struct MemoryStoreBuilder {
    max_keys: NonZeroUsize,
    clock: Arc<dyn Clock>,
}

impl MemoryStore {
    /// A store for at most 1,000,000 keys.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Starts to build a store.
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
            max_keys: NonZeroUsize::MIN.saturating_add(999_999),
            clock: Arc::new(SystemClock),
        }
    }
}

impl MemoryStoreBuilder {
    /// Holds at most so many keys, of all policies together: 1,000,000 unless set, which take some 100 MB.
    pub fn max_keys(mut self, keys: NonZeroUsize) -> Self {
        self.max_keys = keys;
        self
    }

    /// The clock that it counts by, in place of the [machine's](SystemClock).
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Builds the store.
    pub fn build(self) -> MemoryStore {
        let shards = Shards::new(self.clock, self.max_keys.get());
        MemoryStore {
            shards: Arc::new(shards),
        }
    }
}
