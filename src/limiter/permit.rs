//! Places of in-flight limits, held by those who took them and kept alive meanwhile.

use std::{
    collections::HashMap,
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::Ordering},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    runtime::{self, Handle},
    task::coop::consume_budget,
    time::{Instant, sleep_until},
};

use super::{Bound, Inner};
use crate::{
    decision::{Counted, Permit},
    log::Seldom,
    store::{CounterMode, CounterOp, LimitHandle, Op, StoreResponse, Units},
};

/// A permit is renewed this often in each of its lives.
const BEATS: u32 = 3;

/// Renewals that failed are sent again after this part of the time between two heartbeats.
const RETRIES: u32 = 8;

/// Renewals that are under way at a time. Requests that come meanwhile wait for no more than these.
const MAX_RENEWALS: usize = 128;

type Places = SmallVec<[Counted; 1]>;

/// The places that one request holds. They are given back when it is dropped.
pub(super) struct Taken {
    limiter: Arc<Inner>,
    id: u64,
    places: Places,
    /// Where it was taken.
    runtime: Option<Handle>,
}

/// The permits of a limiter that are held now, and the hearts that renew them: one in each runtime in which some were
/// taken, since runtimes end, and those of one thread stand still at times.
#[derive(Debug, Default)]
pub(super) struct Held(Mutex<Wards>);

#[derive(Debug, Default)]
struct Wards {
    permits: HashMap<u64, Ward>,
    next: u64,
    hearts: Vec<runtime::Id>,
}

#[derive(Debug)]
struct Ward {
    places: Places,
    /// Whose heart renews it; none where there was no runtime.
    heart: Option<runtime::Id>,
}

impl Taken {
    /// Holds `places`, which were charged; none if there are none.
    pub(super) fn hold(
        limiter: &Arc<Inner>,
        places: Places,
        permit_ttl: Duration,
    ) -> Option<Arc<dyn Permit>> {
        if places.is_empty() {
            return None;
        }
        let runtime = Handle::try_current().ok();
        let (id, starts) = limiter.held.wards().add(&places, runtime.as_ref());
        match &runtime {
            Some(runtime) if starts => beat(limiter, runtime, permit_ttl / BEATS),
            Some(_) => {}
            None => {
                static OUTSIDE: Seldom = Seldom::new();
                OUTSIDE.then(|suppressed| {
                    tracing::warn!(
                        suppressed,
                        "permits of in-flight limits can't be renewed: there is no tokio runtime here"
                    );
                });
            }
        }
        Some(Arc::new(Self {
            limiter: limiter.clone(),
            id,
            places,
            runtime,
        }))
    }
}

impl Permit for Taken {
    fn log_unclaimed(&self) {
        for place in &self.places {
            let bound = self.limiter.bound(place.policy);
            if !bound.unclaimed_logged.swap(true, Ordering::Relaxed) {
                tracing::error!(
                    policy = bound.policy.name(),
                    "a decision was dropped with the permit of an in-flight limit, which is released: use Limiter::admit, and \
                     keep the Admission while the work runs"
                );
            }
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.limiter.held.wards().permits.remove(&self.id);
        // A thread of the application's own, where nothing could be sent.
        let outside = Handle::try_current().is_err_and(|error| error.is_missing_context());
        let runtime = self.runtime.as_ref().filter(|_| outside);
        let _entered = runtime.map(Handle::enter);
        self.limiter.take_back(&mut self.places);
    }
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Held {
    fn wards(&self) -> MutexGuard<'_, Wards> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wards {
    /// Notes a permit; returns its number, and whether its runtime needs a heart.
    fn add(&mut self, places: &Places, runtime: Option<&Handle>) -> (u64, bool) {
        let heart = runtime.map(Handle::id);
        let starts = heart.is_some_and(|heart| !self.hearts.contains(&heart));
        self.next += 1;
        let places = copy(places);
        self.permits.insert(self.next, Ward { places, heart });
        if let Some(heart) = heart.filter(|_| starts) {
            self.hearts.push(heart);
            self.adopt();
        }
        (self.next, starts)
    }

    /// Gives those whose heart has stopped another, if there is one.
    fn adopt(&mut self) {
        let Some(other) = self.hearts.first() else {
            return;
        };
        for ward in self.permits.values_mut() {
            if ward.heart.is_none_or(|heart| !self.hearts.contains(&heart)) {
                ward.heart = Some(*other);
            }
        }
    }

    /// Those of `some` that are still held.
    fn some(&self, some: &[u64]) -> Vec<(u64, Places)> {
        let held = some
            .iter()
            .filter_map(|id| Some((*id, self.permits.get(id)?)));
        held.map(|(id, ward)| (id, copy(&ward.places))).collect()
    }

    fn stop(&mut self, heart: runtime::Id) {
        self.hearts.retain(|other| *other != heart);
        self.adopt();
    }

    /// What a heart has to renew, by number. One that has nothing to stops here, under the lock under which the next one
    /// starts.
    fn of(&mut self, heart: runtime::Id) -> Vec<u64> {
        let wards = self.permits.iter();
        let own = wards.filter(|(_, ward)| ward.heart == Some(heart));
        let own: Vec<_> = own.map(|(id, _)| *id).collect();
        if own.is_empty() {
            self.stop(heart);
        }
        own
    }
}

/// The places, with receipts of their own.
fn copy(places: &Places) -> Places {
    let copy = |place: &Counted| {
        place.with_receipts(place.receipts.part(place.receipts.first().remaining))
    };
    places.iter().map(copy).collect()
}

/// Renews what was taken in `runtime` every `interval`, until nothing of it is held.
fn beat(limiter: &Arc<Inner>, runtime: &Handle, interval: Duration) {
    let mut heart = Heart {
        limiter: Arc::downgrade(limiter),
        id: runtime.id(),
        stopped: false,
    };
    drop(runtime.spawn(async move {
        let (mut next, mut failed) = (Instant::now() + interval, Vec::new());
        loop {
            let again = Instant::now() + interval / RETRIES;
            let beats = failed.is_empty() || next <= again;
            sleep_until(if beats { next } else { again }).await;
            let Some(limiter) = heart.limiter.upgrade() else {
                return;
            };
            let mut due = mem::take(&mut failed);
            if beats {
                next = Instant::now() + interval;
                due = limiter.held.wards().of(heart.id);
                heart.stopped = due.is_empty();
                if heart.stopped {
                    return;
                }
            }
            failed = limiter.renew(due).await;
        }
    }));
}

/// What it renews goes to another when it ends before its time, with its runtime.
struct Heart {
    limiter: Weak<Inner>,
    id: runtime::Id,
    stopped: bool,
}

impl Drop for Heart {
    fn drop(&mut self) {
        if let Some(limiter) = self.limiter.upgrade().filter(|_| !self.stopped) {
            limiter.held.wards().stop(self.id);
        }
    }
}

impl Inner {
    /// Renews permits that are still held, some at a time; returns those that the store failed to renew.
    async fn renew(&self, due: Vec<u64>) -> Vec<u64> {
        let mut failed = Vec::new();
        for some in due.chunks(MAX_RENEWALS) {
            consume_budget().await;
            let held = self.held.wards().some(some);
            let asked = held
                .into_iter()
                .map(|(id, places)| (id, self.ask_to_renew(&places)));
            let asked: Vec<_> = asked.collect();
            for (id, reply) in asked {
                let answer = match reply {
                    StoreResponse::Ready(answer) => answer,
                    StoreResponse::Pending(answer) => answer.await,
                };
                if answer.is_err() {
                    failed.push(id);
                }
            }
        }
        failed
    }

    fn ask_to_renew(&self, places: &Places) -> StoreResponse {
        let lines: SmallVec<[CounterOp<'_>; 1]> = places.iter().map(|c| self.line(c)).collect();
        // Those of one decision were all taken in one place.
        let store = places
            .first()
            .map_or(&*self.store, |place| self.store_of(place));
        store.execute(Op::Renew, &lines)
    }

    /// The line of what was charged on arrival.
    #[inline]
    pub(super) fn line<'a>(&'a self, counted: &'a Counted) -> CounterOp<'a> {
        let receipt = counted.receipts.first();
        CounterOp {
            limit: self.limit(counted),
            key: counted.key,
            units: Units::new(receipt.remaining),
            receipt,
            caller: counted.by.as_deref().copied().unwrap_or(counted.key),
            mode: CounterMode::Charge,
        }
    }

    #[inline]
    pub(super) fn bound(&self, policy: u32) -> &Bound {
        &self.policies[policy as usize]
    }

    /// The limit of a policy, or of a request's own quota under it.
    #[inline]
    pub(super) fn limit<'a>(&'a self, counted: &'a Counted) -> &'a LimitHandle {
        match &counted.tier {
            Some(tier) => &tier.limit,
            None => &self.bound(counted.policy).limit,
        }
    }
}
