//! The observers of a limiter.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
};

#[cfg(any(feature = "admin", feature = "metrics"))]
use super::counts::Counts;
use super::{Observer, event::Event};
use crate::log::LogThrottle;

/// The observers of a limiter, at least one.
#[derive(Debug)]
pub(crate) struct Observers {
    observers: Box<[Arc<dyn Observer>]>,
    /// Whether each has [`Observer::counts`].
    #[cfg(any(feature = "admin", feature = "metrics"))]
    all_count: bool,
}

impl Observers {
    /// `None` if there are none.
    pub(crate) fn new(observers: &[Arc<dyn Observer>]) -> Option<Arc<Self>> {
        let mut distinct: Vec<Arc<dyn Observer>> = Vec::new();
        for observer in observers {
            if !distinct.iter().any(|other| is_same(other, observer)) {
                distinct.push(observer.clone());
            }
        }
        #[cfg(any(feature = "admin", feature = "metrics"))]
        let all_count = distinct.iter().all(|observer| observer.counts().is_some());
        (!distinct.is_empty()).then(|| {
            Arc::new(Self {
                observers: distinct.into(),
                #[cfg(any(feature = "admin", feature = "metrics"))]
                all_count,
            })
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<dyn Observer>> {
        self.observers.iter()
    }

    pub(crate) fn on_event(&self, event: &Event<'_>) {
        self.notify(|observer| observer.on_event(event));
    }

    /// The counts of all observers, if each has some.
    #[cfg(any(feature = "admin", feature = "metrics"))]
    #[inline]
    pub(crate) fn counts(&self) -> Option<impl Iterator<Item = &Counts>> {
        let observers = self.observers.iter();
        let counts = observers.filter_map(|observer| observer.counts());
        self.all_count.then_some(counts)
    }

    /// Calls each observer. A panic is caught, so that it changes no count.
    #[inline]
    pub(crate) fn notify(&self, call: impl Fn(&dyn Observer)) {
        for observer in &self.observers {
            notify(&**observer, &call);
        }
    }
}

fn is_same(a: &Arc<dyn Observer>, b: &Arc<dyn Observer>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

#[inline]
pub(super) fn notify(observer: &dyn Observer, call: impl Fn(&dyn Observer)) {
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
