use std::{sync::Arc, time::SystemTime};

use crate::config::LoadError;

/// What a [`Watcher`](super::Watcher) has loaded, and what it has not.
#[derive(Clone, Debug, Default)]
pub struct WatchStatus {
    pub(super) hash: Option<Arc<str>>,
    pub(super) loaded_at: Option<SystemTime>,
    pub(super) last_attempt: Option<SystemTime>,
    pub(super) error: Option<Arc<LoadError>>,
    pub(super) loads: u64,
    pub(super) failures: u64,
}

impl WatchStatus {
    /// The BLAKE3 hash of the document in force, in hexadecimal, as `b3sum` prints that of its file. `None` until the watch has
    /// loaded one: what its target was built with is in force.
    pub fn hash(&self) -> Option<&str> {
        self.hash.as_deref()
    }

    /// When the document in force was loaded.
    pub fn loaded_at(&self) -> Option<SystemTime> {
        self.loaded_at
    }

    /// When the file was last read, or could not be read.
    pub fn last_attempt(&self) -> Option<SystemTime> {
        self.last_attempt
    }

    /// Why the file could not be loaded at the last attempt, `None` if it was or had not changed.
    pub fn error(&self) -> Option<&LoadError> {
        self.error.as_deref()
    }

    /// How many documents were put in force.
    pub fn loads(&self) -> u64 {
        self.loads
    }

    /// How many documents could not be loaded. One that stays as it is counts once, however often it is tried again.
    pub fn failures(&self) -> u64 {
        self.failures
    }
}
