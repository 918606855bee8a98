//! Where a limiter's books are kept, and those who keep them.

use std::{ops::Deref, sync::Arc};

use super::{Inner, Role};
use crate::{
    decision::Said,
    sync::{CachePadded, Handles},
};

/// Each decision holds on to its limiter, by the desk of the thread that asked.
pub(super) type Desks = Handles<Desk>;

/// One thread's reference to a limiter. Padded, since its thread counts the references to it.
pub(crate) struct Desk {
    inner: CachePadded<Arc<Inner>>,
    said: Said,
}

impl Desks {
    pub(super) fn of(inner: Inner) -> Self {
        let inner = Arc::new(inner);
        Self::new(|| Desk::new(&inner))
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.any().inner
    }
}

impl Desk {
    fn new(inner: &Arc<Inner>) -> Self {
        let policies = inner.policies.iter();
        let live = policies.filter(|bound| matches!(bound.role, Role::Live));
        Self {
            said: Said::new(inner.policies.len(), live.count()),
            inner: CachePadded::new(inner.clone()),
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
