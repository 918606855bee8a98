//! The store.

#[cfg(not(feature = "redis"))]
mod none;
#[cfg(feature = "redis")]
mod redis;
