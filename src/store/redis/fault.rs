//! What each of the server's errors means to a lane.

use redis::RedisError;

use crate::error::StoreError;

/// The store error that stands for `error`.
pub(super) fn of(error: &RedisError) -> StoreError {
    match error.code() {
        Some(code) => StoreError::Server {
            code: code.into(),
            message: error.detail().unwrap_or_default().into(),
        },
        None if error.is_timeout() => StoreError::Timeout,
        None => StoreError::Connection(error.to_string().into()),
    }
}

/// Whether the server no longer knows the script. Nothing was charged.
pub(super) fn lacks_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// Whether another connection would do better than the one this came from.
pub(super) fn severs(error: &RedisError) -> bool {
    match error.code() {
        Some(code) => severs_code(code),
        None => true,
    }
}

/// A master that was demoted stays a replica for this connection; one that is loading or not let in may have a sibling
/// behind the same name.
pub(super) fn severs_code(code: &str) -> bool {
    matches!(
        code,
        "READONLY" | "LOADING" | "MASTERDOWN" | "NOAUTH" | "WRONGPASS"
    )
}
