//! The observers of a store that several limiters may share.

use std::sync::{
    Arc, RwLock, Weak,
    atomic::{AtomicBool, Ordering},
};

use super::{Observer, observers::notify};
use crate::sync::{read, write};

/// Observers of which each is called once, and none is kept alive.
#[derive(Debug, Default)]
pub(crate) struct SharedObservers {
    /// Whether there were any.
    any: AtomicBool,
    observers: RwLock<Arc<[Weak<dyn Observer>]>>,
}

impl SharedObservers {
    pub(crate) fn add(&self, observer: &Arc<dyn Observer>) {
        let mut observers = write(&self.observers);
        // A reference keeps the memory, so a dead observer is no other one's. None is upgraded: it could be dropped under the lock.
        let mut known = observers.iter().map(Weak::as_ptr);
        if known.any(|other| std::ptr::addr_eq(other, Arc::as_ptr(observer))) {
            return;
        }
        let alive = observers.iter().filter(|other| other.strong_count() > 0);
        let added = Arc::downgrade(observer);
        *observers = alive.cloned().chain([added]).collect();
        self.any.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Calls each observer, under no lock.
    pub(crate) fn notify(&self, call: impl Fn(&dyn Observer)) {
        if self.is_empty() {
            return;
        }
        let observers = Arc::clone(&read(&self.observers));
        for observer in observers.iter().filter_map(Weak::upgrade) {
            notify(&*observer, &call);
        }
    }
}
