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
    /// Whether its units are held when the response comes; if not, they are refunded.
    is_awaited: bool,
    requested_at: Timestamp,
    /// The units of each counter.
    units: SmallVec<[u64; 2]>,
}

impl RequestedLeases {
    pub(super) fn add(&mut self, number: u64, requested_at: Timestamp, units: SmallVec<[u64; 2]>) {
        self.0.push(Requested {
            number,
            is_awaited: true,
            requested_at,
            units,
        });
    }

    /// Removes the lease of this number, and returns whether it was awaited.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        let index = self.0.iter().position(|lease| lease.number == number);
        index.is_some_and(|index| self.0.remove(index).is_awaited)
    }

    /// Marks all leases as not awaited: their units are refunded when the response comes.
    pub(super) fn abandon(&mut self) {
        for lease in &mut self.0 {
            lease.is_awaited = false;
        }
    }

    /// Removes the leases whose response has not come within the timeout, and returns whether there were any.
    #[inline]
    pub(super) fn remove_timed_out(&mut self, timeout: Duration, now: Timestamp) -> bool {
        let is_late = |lease: &Requested| now.since(lease.requested_at) >= timeout;
        let has_late = self.0.first().is_some_and(is_late);
        if has_late {
            self.0.retain(|lease| !is_late(lease));
        }
        has_late
    }

    /// The units of a counter that are requested.
    #[inline]
    pub(super) fn units(&self, counter: usize) -> u64 {
        let awaited = self.0.iter().filter(|lease| lease.is_awaited);
        awaited.map(|lease| lease.units[counter]).sum()
    }

    #[cfg(test)]
    pub(super) fn contains(&self, number: u64) -> bool {
        let mut all = self.0.iter();
        all.any(|lease| lease.number == number && lease.is_awaited)
    }

    /// Whether a lease has no response yet that was requested at this moment or before.
    pub(super) fn any_requested_by(&self, moment: Timestamp) -> bool {
        self.0.iter().any(|lease| lease.requested_at <= moment)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
