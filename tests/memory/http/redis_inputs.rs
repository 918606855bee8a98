//! What must hold of a store's configuration, whatever it is. The fuzz targets share it.

use tollgate::RedisStore;

/// A URL and a prefix are accepted, or rejected with what would be valid.
pub(crate) fn a_store_is_accepted_or_rejected(text: &str) {
    for store in [
        RedisStore::open(text),
        RedisStore::builder()
            .url("redis://[::1]")
            .prefix(text)
            .build(),
    ] {
        if let Err(error) = store {
            assert!(!error.expected().is_empty(), "{text:?}");
        }
    }
}
