//! The observers of a limiter.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
};

use super::Observer;
use crate::log::LogThrottle;

/// The observers of a limiter, at least one.
#[derive(Debug)]
pub(crate) struct Observers(Box<[Arc<dyn Observer>]>);

impl Observers {
    /// `None` if there are none.
    pub(crate) fn new(observers: &[Arc<dyn Observer>]) -> Option<Arc<Self>> {
        let mut distinct: Vec<Arc<dyn Observer>> = Vec::new();
        for observer in observers {
            if !distinct.iter().any(|other| is_same(other, observer)) {
                distinct.push(observer.clone());
            }
        }
        (!distinct.is_empty()).then(|| Arc::new(Self(distinct.into())))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Observer>> {
        self.0.iter()
    }

    /// Calls each observer. A panic is caught, so that it changes no count.
    #[inline]
    pub(crate) fn notify(&self, call: impl Fn(&dyn Observer)) {
        for observer in &self.0 {
            notify(&**observer, &call);
        }
    }
}

fn is_same(a: &Arc<dyn Observer>, b: &Arc<dyn Observer>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

#[inline]
fn notify(observer: &dyn Observer, call: impl Fn(&dyn Observer)) {
    // A request that is charged must not be lost in a panic of code that only watches it; nor may one begin in a destructor that
    // runs while another unwinds, where it would abort the process.
    if panic::catch_unwind(AssertUnwindSafe(|| call(observer))).is_err() {
        log_panic();
    }
}

#[cold]
fn log_panic() {
    static PANICKED: LogThrottle = LogThrottle::new();
    PANICKED.log_with(|suppressed| {
        tracing::error!(suppressed, "an observer panicked: decisions and counts are not affected, what it counts itself may be wrong");
    });
}
