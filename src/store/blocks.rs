//! The keys that bans block.

use std::{future::Future, pin::Pin, time::Duration};

use crate::{clock::Timestamp, error::StoreError, key::Key};

/// The keys that bans block now: from [`StoreAdmin::blocked_keys`](super::StoreAdmin::blocked_keys).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedKeys {
    /// Each key under each limit that blocks it, in any order.
    pub keys: Vec<BlockedKey>,
    /// Why these are not all, if they are not.
    pub incomplete: Option<Incomplete>,
}

/// Why a list of blocked keys has not all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incomplete {
    /// There are more than were asked for.
    Limit,
    /// The search took too long.
    Timeout,
    /// Keys of a cluster moved to another node during the search, or the nodes changed, so that some may have been missed.
    KeysMoved,
}

/// A key that a ban blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedKey {
    /// The index of the limit, among those that were asked for.
    pub limit: usize,
    /// The key.
    pub key: Key,
    /// When the ban ends, on the store's clock.
    pub ends_at: Timestamp,
    /// How long it lasts from the time of the search on.
    pub ends_in: Duration,
}

impl BlockedKeys {
    /// These keys, and why they are not all, if they are not.
    pub const fn new(keys: Vec<BlockedKey>, incomplete: Option<Incomplete>) -> Self {
        Self { keys, incomplete }
    }
}

impl BlockedKey {
    /// A key under the limit of that index, which is blocked for `ends_in`, as was read at the instant `now` of the store's
    /// clock.
    pub fn new(limit: usize, key: Key, now: Timestamp, ends_in: Duration) -> Self {
        Self {
            limit,
            key,
            ends_at: now + ends_in,
            ends_in,
        }
    }
}

/// A future of the keys that bans block: see [`StoreAdmin::blocked_keys`](super::StoreAdmin::blocked_keys).
pub type BlockedKeysFuture = Pin<Box<dyn Future<Output = Result<BlockedKeys, StoreError>> + Send>>;
