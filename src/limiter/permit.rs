//! Places of in-flight limits, held by those who took them and kept alive meanwhile.

use std::{
    fmt, mem,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    runtime::{self, Handle},
    task::coop::consume_budget,
    time::{Instant, sleep_until},
};

pub(super) use super::core::held::Held;
use super::{Inner, core::held::Places};
use crate::{
    decision::Permit,
    log::Seldom,
    store::{CounterOp, Op, StoreResponse},
};

/// A permit is renewed this often in each of its lives.
const BEATS: u32 = 3;

/// Renewals that failed are sent again after this part of the time between two heartbeats.
const RETRIES: u32 = 8;

/// Renewals that are under way at a time. Requests that come meanwhile wait for no more than these.
const MAX_RENEWALS: usize = 128;

/// The places that one request holds. They are given back when it is dropped.
pub(super) struct Taken {
    limiter: Arc<Inner>,
    id: u64,
    places: Places,
    /// Where it was taken.
    runtime: Option<Handle>,
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
                        "permits of in-flight limits can't be renewed outside of a tokio runtime: take them from a task of one"
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
}
