//! Where keys are: in shards that all threads share, or in stripes.
//!
//! A key that a process requests very often has leases in each stripe. A stripe belongs to one of up to 16 groups of threads: threads
//! that share a lock and what it protects wait for each other's caches. Threads are assigned to stripes round robin.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

/// Shards of the keys that all threads share, each under a lock of its own.
const SHARDS: usize = 16;

/// The shards that all threads share, and then a shard for each stripe.
pub(super) const ALL_SHARDS: usize = SHARDS + STRIPES;

/// The most keys of a shard that all threads share: 4,096 in all.
const MAX_SHARD_KEYS: usize = 256;

/// The stripes of a process. Threads share them if there are more threads than stripes.
const STRIPES: usize = 16;

/// The most keys of a stripe.
const MAX_STRIPE_KEYS: usize = 64;

/// From this rate on, in requests per second, a key gets leases in stripes. Tests reach theirs on any machine.
pub(super) const MIN_STRIPING_RATE: f64 = if cfg!(test) { 1_000.0 } else { 200_000.0 };

/// Below this rate, in requests per second, a stripe requests no leases for a key.
pub(super) const MIN_STRIPE_LEASE_RATE: f64 = if cfg!(test) { 500.0 } else { 10_000.0 };

/// Where a key is.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyLocation {
    pub(super) shard: usize,
    pub(super) hash: u64,
}

impl KeyLocation {
    /// The location of a key that all threads share.
    pub(super) fn shared(hash: u64) -> Self {
        let shard = (hash >> 40) as usize % SHARDS;
        Self { shard, hash }
    }

    /// The location of a key in the stripe of this thread.
    pub(super) fn of_thread(hash: u64) -> Self {
        let shard = SHARDS + stripe_of_thread();
        Self { shard, hash }
    }

    pub(super) fn is_striped(self) -> bool {
        self.shard >= SHARDS
    }

    /// The most keys of its shard.
    pub(super) fn max_keys(self) -> usize {
        if self.is_striped() {
            MAX_STRIPE_KEYS
        } else {
            MAX_SHARD_KEYS
        }
    }
}

/// The stripe of this thread.
#[inline]
fn stripe_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    let stripe = STRIPE.get();
    if stripe < STRIPES {
        return stripe;
    }
    let stripe = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    STRIPE.set(stripe);
    stripe
}
