//! The leases of a key that are requested, and have no response yet.

use std::time::Duration;

use smallvec::SmallVec;

use crate::clock::Timestamp;

/// The leases that are requested, the oldest first.
#[derive(Debug, Default)]
pub(super) struct RequestedLeases(SmallVec<[Requested; 4]>);

#[derive(Debug)]
struct Requested {
    number: u64,
    at: Timestamp,
    /// Under each counter.
    units: SmallVec<[u64; 2]>,
}

impl RequestedLeases {
    pub(super) fn add(&mut self, number: u64, at: Timestamp, units: SmallVec<[u64; 2]>) {
        self.0.push(Requested { number, at, units });
    }

    /// Removes the lease of this number, and returns whether it was waited for.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|lease| lease.number != number);
        self.0.len() < before
    }

    /// No lease is waited for any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Removes the leases whose response has not come within the timeout.
    #[inline]
    pub(super) fn give_up(&mut self, timeout: Duration, now: Timestamp) {
        let is_late = |lease: &Requested| now.since(lease.at) >= timeout;
        if self.0.first().is_some_and(is_late) {
            self.0.retain(|lease| !is_late(lease));
        }
    }

    /// The units of a counter that are requested.
    #[inline]
    pub(super) fn units(&self, counter: usize) -> u64 {
        self.0.iter().map(|lease| lease.units[counter]).sum()
    }

    #[cfg(test)]
    pub(super) fn contains(&self, number: u64) -> bool {
        self.0.iter().any(|lease| lease.number == number)
    }

    /// Whether a lease has no response yet that was requested at this moment or before.
    pub(super) fn any_requested_by(&self, moment: Timestamp) -> bool {
        self.0.iter().any(|lease| lease.at <= moment)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
