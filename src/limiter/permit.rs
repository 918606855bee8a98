//! Places of in-flight limits, held by those who took them and kept alive meanwhile.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::Inner;
use crate::{
    decision::{Books, Counted},
    quota::Quota,
    store::{Account, Ask, Line, Manner},
};

/// A permit is renewed this often in each of its lives: two heartbeats may be lost.
const BEATS: u32 = 3;

/// The places that one request holds. They are given back when it is dropped.
pub(crate) struct Permit {
    limiter: Arc<Inner>,
    id: u64,
    places: SmallVec<[Counted; 1]>,
}

/// The permits of a limiter that are held now.
#[derive(Debug, Default)]
pub(super) struct Held {
    permits: Mutex<HashMap<u64, SmallVec<[Counted; 1]>>>,
    ids: AtomicU64,
    beating: AtomicBool,
}

impl Permit {
    /// Holds `places`, which were charged; none if there are none.
    pub(super) fn hold(
        limiter: &Arc<Inner>,
        places: SmallVec<[Counted; 1]>,
        life: Duration,
    ) -> Option<Arc<Self>> {
        if places.is_empty() {
            return None;
        }
        let held = &limiter.held;
        let id = held.ids.fetch_add(1, Ordering::Relaxed);
        let mut permits = held.permits();
        permits.insert(id, places.clone());
        // Under the lock, under which a heart that has nothing to do stops.
        let starts = !held.beating.swap(true, Ordering::AcqRel);
        drop(permits);
        if starts {
            beat(limiter, life / BEATS);
        }
        Some(Arc::new(Self {
            limiter: limiter.clone(),
            id,
            places,
        }))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limiter.held.permits().remove(&self.id);
        self.limiter.give_back(&self.places);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Held {
    fn permits(&self) -> MutexGuard<'_, HashMap<u64, SmallVec<[Counted; 1]>>> {
        self.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Renews what is held every `interval`, until nothing is.
fn beat(limiter: &Arc<Inner>, interval: Duration) {
    let mut heart = Heart {
        limiter: Arc::downgrade(limiter),
        stopped: false,
    };
    let Ok(runtime) = Handle::try_current() else {
        tracing::warn!(
            "permits of in-flight limits can't be renewed: there is no tokio runtime here"
        );
        return;
    };
    drop(runtime.spawn(async move {
        loop {
            tokio::time::sleep(interval).await;
            let Some(limiter) = heart.limiter.upgrade() else {
                return;
            };
            heart.stopped = !limiter.renew();
            if heart.stopped {
                return;
            }
        }
    }));
}

/// Lets the next permit start a new heartbeat when this one ends before its time, with its runtime.
struct Heart {
    limiter: Weak<Inner>,
    stopped: bool,
}

impl Drop for Heart {
    fn drop(&mut self) {
        if let Some(limiter) = self.limiter.upgrade().filter(|_| !self.stopped) {
            limiter.held.beating.store(false, Ordering::Release);
        }
    }
}

impl Inner {
    /// Renews what is held; false if nothing is.
    fn renew(&self) -> bool {
        let held = self.held.permits();
        if held.is_empty() {
            self.held.beating.store(false, Ordering::Release);
            return false;
        }
        let permits: Vec<_> = held.values().cloned().collect();
        drop(held);
        for places in &permits {
            let lines: SmallVec<[Line<'_>; 1]> = places.iter().map(|c| self.line(c)).collect();
            self.store.tell(Ask::Renew, &lines);
        }
        true
    }

    /// The line of what was charged, for what is left of it.
    pub(super) fn line<'a>(&'a self, counted: &'a Counted) -> Line<'a> {
        Line {
            account: self.account(counted.policy, counted.tier.as_ref()),
            key: counted.key,
            units: counted.receipt.left,
            receipt: counted.receipt,
            by: counted.by,
            manner: Manner::Charge,
        }
    }

    /// The account of a policy, or of a request's own quota under it.
    pub(super) fn account<'a>(
        &'a self,
        policy: usize,
        tier: Option<&'a (Quota, Account)>,
    ) -> &'a Account {
        tier.map_or(&self.policies[policy].account, |(_, account)| account)
    }
}
