//! The store.

use std::{any::Any, num::NonZeroUsize, sync::Arc};

use super::Build;
use crate::{
    config::path::Path,
    limiter::Limiter,
    store::{
        Store,
        memory::{DEFAULT_MAX_KEYS, MemoryStore},
    },
};

#[cfg(not(feature = "redis"))]
mod none;
#[cfg(feature = "redis")]
mod redis;

/// What is expected of a document that is put in force in a running limiter.
const THE_OPEN_STORE: &str = "the store that is open: restart the process to open another";

/// A store in process.
fn in_process(max_keys: Option<NonZeroUsize>) -> Arc<dyn Store> {
    let max_keys = max_keys.unwrap_or(DEFAULT_MAX_KEYS);
    Arc::new(MemoryStore::builder().max_keys(max_keys).build())
}

impl Build<'_> {
    /// Notes a mistake unless the limiter counts in process, with this many keys at most.
    fn same_store_in_process(&mut self, limiter: &Limiter, max_keys: Option<NonZeroUsize>) {
        let store = limiter.store();
        let store: &dyn Any = &*store;
        let other = match store.downcast_ref::<MemoryStore>() {
            Some(store) if store.max_keys() == max_keys.unwrap_or(DEFAULT_MAX_KEYS) => return,
            Some(_) => "max_keys",
            None => "url",
        };
        let found = format!("another store: other {other}");
        self.found(&Path::default().key("store"), found, THE_OPEN_STORE);
    }
}
