//! Refunds and charges on their way to the server and back, which are counted.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

/// Counts as on its way until it has ended or is dropped.
#[derive(Debug)]
pub(crate) struct UndeliveredGuard {
    sent: Arc<AtomicUsize>,
    ended: AtomicBool,
}

impl UndeliveredGuard {
    /// Counts one more in `sent`.
    pub(crate) fn new(sent: &Arc<AtomicUsize>) -> Self {
        sent.fetch_add(1, Ordering::AcqRel);
        Self {
            sent: sent.clone(),
            ended: AtomicBool::new(false),
        }
    }

    pub(crate) fn end(&self) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            self.sent.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for UndeliveredGuard {
    fn drop(&mut self) {
        self.end();
    }
}
