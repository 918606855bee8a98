//! What must hold of a store's configuration, whatever it is. The fuzz targets share it.

use tollgate::RedisStore;

/// A URL and a prefix are accepted, or rejected with what would be valid.
pub(crate) fn a_store_is_accepted_or_rejected(text: &str) {
    let prefixed = RedisStore::builder().url("redis://[::1]").prefix(text);
    for store in [RedisStore::open(text), prefixed.build()] {
        if let Err(error) = store {
            assert!(!error.expected().is_empty(), "{text:?}");
        }
    }
}
