//! The bans that have begun last, so that each is reported once.

use std::sync::{Mutex, PoisonError};

use crate::{clock::Timestamp, key::Key};

/// How many are kept. Equal requests that were rejected by one call of the store see the same ban begin.
const MAX_RECENT: usize = 64;

/// The bans that have begun last under one policy.
#[derive(Debug, Default)]
pub(crate) struct RecentBans(Mutex<Vec<(Key, Timestamp)>>);

impl RecentBans {
    /// Adds a ban; returns false if it is among them.
    pub(crate) fn add(&self, key: Key, began: Timestamp) -> bool {
        let mut recent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.contains(&(key, began)) {
            return false;
        }
        if recent.len() >= MAX_RECENT {
            recent.remove(0);
        }
        recent.push((key, began));
        true
    }
}
