//! Stripes: a key that a process requests very often has leases for each thread, since threads that share a lock and what it protects
//! wait for each other's caches.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

/// The stripes of a process. Threads share them if there are more.
pub(super) const STRIPES: usize = 16;

/// The most keys of a stripe.
pub(super) const STRIPE_CAPACITY: usize = 64;

/// At this rate, in requests per second, a key that threads share gets leases for one of them. Tests reach theirs on any machine.
pub(super) const MIN_SHARED_RATE: f64 = if cfg!(test) { 1_000.0 } else { 200_000.0 };

/// Below this rate, in requests per second, a thread has no leases of its own for a key.
pub(super) const MIN_STRIPE_RATE: f64 = if cfg!(test) { 500.0 } else { 10_000.0 };

/// The stripe of this thread.
#[inline]
pub(super) fn current() -> usize {
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

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU64, AtomicUsize, Ordering},
        thread,
        time::{Duration, Instant},
    };

    use testkit::Server;

    use crate::{FixedWindow, Gcra, Key, Lease, Limiter, Policy, Quota, RedisStore};

    /// The units that some threads are admitted until nothing was for a second, and the most stripes that had keys.
    fn spend(store: &RedisStore, limiter: &Limiter) -> (u64, usize) {
        let (admitted, done) = (AtomicU64::new(0), AtomicUsize::new(0));
        let striped = || store.inner.leases.striped.load(Ordering::Relaxed);
        let check = || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut last = Instant::now();
                while last.elapsed() < Duration::from_secs(1) {
                    match limiter.check(Key::new("k")).await.is_admitted() {
                        true => {
                            admitted.fetch_add(1, Ordering::Relaxed);
                            last = Instant::now();
                        }
                        false => tokio::time::sleep(Duration::from_millis(1)).await,
                    }
                }
            });
            done.fetch_add(1, Ordering::Relaxed);
        };
        let mut most = 0;
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(check);
            }
            while done.load(Ordering::Relaxed) < 3 {
                most = most.max(striped());
                thread::sleep(Duration::from_millis(1));
            }
        });
        (admitted.into_inner(), most)
    }

    #[test]
    fn threads_with_leases_of_their_own_share_a_quota() {
        const UNITS: u64 = 200_000;
        let quota = Quota::requests(UNITS).per(Duration::from_secs(100 * 24 * 3_600));
        for policy in [
            Policy::new("p", quota).strategy(FixedWindow),
            Policy::new("p", quota).strategy(Gcra),
        ] {
            let server = Server::start();
            let store = RedisStore::open(server.url()).expect("a store");
            let policy = policy.lease(Lease::max_units(256));
            let limiter = Limiter::builder().store(store.clone()).policy(policy);
            let limiter = limiter.build().expect("a limiter");
            let (admitted, stripes) = spend(&store, &limiter);
            assert!(stripes > 0);
            assert!(admitted <= UNITS, "{admitted}");
            let stats = &store.inner.leases.stats()[0];
            let sum = stats.spent + stats.refunded + stats.lapsed + stats.held;
            assert_eq!(sum, stats.granted);
        }
    }
}
