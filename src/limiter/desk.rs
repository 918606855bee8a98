//! Where a limiter's books are kept, and those who keep them.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::{Inner, Role};
use crate::decision::Said;

/// Each decision holds on to its limiter. Were all of them to count themselves in one place, threads that decide at the same
/// time would wait for each other there more than anywhere else; so each of a few desks has a count of its own.
pub(super) struct Desks(Box<[Arc<Desk>]>);

/// One handle on a limiter. What it counts stands on a cache line of its own, and so does who shares what is said.
#[repr(align(128))]
pub(crate) struct Desk {
    inner: Arc<Inner>,
    said: Said,
}

impl Desks {
    pub(super) fn new(inner: Inner) -> Self {
        let inner = Arc::new(inner);
        let threads = thread::available_parallelism().map_or(1, |threads| threads.get().min(64));
        // A power of two, so that a thread's is found without a division.
        let desks = threads.next_power_of_two();
        Self((0..desks).map(|_| Arc::new(Desk::new(&inner))).collect())
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.0[0].inner
    }

    /// The one that this thread uses.
    pub(super) fn at_hand(&self) -> Arc<Desk> {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        // A thread that is ending has no number any more.
        let thread = THREAD.try_with(|thread| *thread).unwrap_or(0);
        self.0[thread & (self.0.len() - 1)].clone()
    }
}

impl Desk {
    fn new(inner: &Arc<Inner>) -> Self {
        let policies = inner.policies.iter();
        let live = policies.filter(|bound| matches!(bound.role, Role::Live));
        Self {
            said: Said::new(inner.policies.len(), live.count()),
            inner: inner.clone(),
        }
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub(super) fn said(&self) -> &Said {
        &self.said
    }
}

impl Deref for Desk {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}
