//! Policies with leases, of every strategy.

use std::{sync::Arc, time::Duration};

use super::bounds::Bound;
use crate::{
    CalendarWindow, FixedWindow, Gcra, ListWindow, Quota, SlidingLog, SlidingWindow, TokenBucket,
    strategy::Strategy,
};

/// A policy with leases, and its promise.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) strategy: Arc<dyn Strategy>,
    pub(super) quota: Quota,
    pub(super) bound: Bound,
    /// In microseconds.
    pub(super) ttl: i64,
}

impl Setting {
    fn new(strategy: impl Strategy, quota: Quota, bound: Bound, ttl: i64) -> Self {
        Self {
            strategy: Arc::new(strategy),
            quota,
            bound,
            ttl,
        }
    }

    pub(super) fn gcra(requests: i64, period: i64, burst: i64, ttl: i64) -> Self {
        let quota = quota(requests, period).burst(burst as u64);
        Self::new(Gcra, quota, Bound::rate(requests, period, burst), ttl)
    }

    pub(super) fn token_bucket(requests: i64, period: i64, burst: i64, ttl: i64) -> Self {
        Self {
            strategy: Arc::new(TokenBucket),
            ..Self::gcra(requests, period, burst, ttl)
        }
    }

    pub(super) fn fixed_window(requests: i64, length: i64, ttl: i64) -> Self {
        let bound = Bound::Windows { requests, length };
        Self::new(FixedWindow, quota(requests, length), bound, ttl)
    }

    pub(super) fn list_window(requests: i64, length: i64, ttl: i64) -> Self {
        Self {
            strategy: Arc::new(ListWindow),
            ..Self::fixed_window(requests, length, ttl)
        }
    }

    pub(super) fn calendar_window(requests: i64, length: i64, ttl: i64) -> Self {
        Self {
            strategy: Arc::new(CalendarWindow::utc()),
            ..Self::fixed_window(requests, length, ttl)
        }
    }

    pub(super) fn sliding_log(requests: i64, length: i64, ttl: i64) -> Self {
        let bound = Bound::HalfOpen { requests, length };
        Self::new(SlidingLog, quota(requests, length), bound, ttl)
    }

    pub(super) fn sliding_window(requests: i64, period: i64, buckets: i64, ttl: i64) -> Self {
        let length = period - period / buckets;
        let bound = Bound::Closed { requests, length };
        let strategy = SlidingWindow::buckets(buckets as u32);
        Self::new(strategy, quota(requests, period), bound, ttl)
    }

    /// The length of the interval that the promise is about.
    pub(super) fn length(&self) -> i64 {
        match self.bound {
            Bound::Rate { .. } => 0,
            Bound::HalfOpen { length, .. }
            | Bound::Closed { length, .. }
            | Bound::Windows { length, .. } => length,
        }
    }
}

fn quota(requests: i64, period: i64) -> Quota {
    Quota::requests(requests as u64).per(Duration::from_micros(period as u64))
}
