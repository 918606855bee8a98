//! Counts the units of leases, by policy.

use std::sync::{Arc, Mutex, MutexGuard};

use super::{
    held_lease::{LeaseRequest, Unspent},
    leased_key::LeasedKey,
};
use crate::{
    observe::LeaseStats,
    store::{OpResult, redis::request::op::OwnedCounterOp},
    sync::lock,
};

/// The units that were leased since the store was built, except spent ones and those that a [`LeasedKey`] holds.
#[derive(Debug, Default)]
pub(super) struct Totals(Mutex<Vec<LeaseStats>>);

impl Totals {
    /// Adds units that were charged for a lease.
    pub(super) fn grant(&self, request: &LeaseRequest, result: &OpResult) {
        let mut all = self.all();
        for (counter, units) in charged(request, result) {
            let stats = entry(&mut all, counter.limit.policy());
            stats.granted = stats.granted.saturating_add(units);
        }
    }

    /// Adds units that were charged for a lease, and are neither spent nor refunded.
    pub(super) fn lapse_charge(&self, request: &LeaseRequest, result: &OpResult) {
        let mut all = self.all();
        for (counter, units) in charged(request, result) {
            let stats = entry(&mut all, counter.limit.policy());
            stats.lapsed = stats.lapsed.saturating_add(units);
        }
    }

    /// Adds the units of a lease that may have been charged, and has no response.
    pub(super) fn lose(&self, request: &LeaseRequest) {
        let mut all = self.all();
        let counters = request.counters.iter();
        for counter in counters.filter(|counter| !counter.units.is_zero()) {
            let stats = entry(&mut all, counter.limit.policy());
            let units = counter.units.get();
            stats.granted = stats.granted.saturating_add(units);
            stats.lapsed = stats.lapsed.saturating_add(units);
        }
    }

    /// Adds units that were held and are not refunded.
    pub(super) fn lapse(&self, unspent: &Unspent) {
        let mut all = self.all();
        for counter in &unspent.counters {
            let stats = entry(&mut all, counter.limit.policy());
            stats.lapsed = stats.lapsed.saturating_add(counter.units.get());
        }
    }

    /// Adds units whose refund is sent. They are held until it has a result.
    pub(super) fn begin_refund(&self, unspent: &Unspent) {
        let mut all = self.all();
        for counter in &unspent.counters {
            let stats = entry(&mut all, counter.limit.policy());
            stats.held = stats.held.saturating_add(counter.units.get());
        }
    }

    /// Adds units whose refund was sent, refunded as far as its result says.
    pub(super) fn refund(&self, unspent: &Unspent, result: Option<&OpResult>) {
        let mut all = self.all();
        for (index, counter) in unspent.counters.iter().enumerate() {
            let refunded = result.and_then(|result| result.counters.get(index));
            let refunded = refunded.map_or(0, |counter| counter.units);
            let (stats, units) = (entry(&mut all, counter.limit.policy()), counter.units.get());
            stats.held = stats.held.saturating_sub(units);
            let lapsed = units.saturating_sub(refunded);
            stats.refunded = stats.refunded.saturating_add(refunded);
            stats.lapsed = stats.lapsed.saturating_add(lapsed);
        }
    }

    pub(super) fn stats(&self) -> Vec<LeaseStats> {
        self.all().clone()
    }

    fn all(&self) -> MutexGuard<'_, Vec<LeaseStats>> {
        lock(&self.0)
    }
}

/// The units that were charged for a lease.
fn charged<'a>(
    request: &'a LeaseRequest,
    result: &'a OpResult,
) -> impl Iterator<Item = (&'a OwnedCounterOp, u64)> {
    let counters = request.counters.iter().zip(&result.counters);
    let units = counters.map(|(counter, charged)| (counter, charged.units));
    units.filter(|(_, units)| *units > 0)
}

/// Adds the units that a key holds and has spent.
pub(super) fn add_units(all: &mut Vec<LeaseStats>, key: &LeasedKey) {
    for (counter, units) in key
        .units()
        .filter(|(counter, _)| counter.limit.info().lease.is_some())
    {
        let stats = entry(all, counter.limit.policy());
        let held = units.held.saturating_add(units.ended);
        stats.held = stats.held.saturating_add(held);
        stats.spent = stats.spent.saturating_add(units.spent);
    }
}

/// The entry of a policy, which is added if there is none.
pub(super) fn entry<'a>(all: &'a mut Vec<LeaseStats>, policy: &str) -> &'a mut LeaseStats {
    let index = all.iter().position(|stats| &*stats.policy == policy);
    let index = index.unwrap_or_else(|| {
        all.push(LeaseStats::new(Arc::from(policy)));
        all.len() - 1
    });
    &mut all[index]
}
