//! Places of in-flight limits, held by those who took them and kept alive meanwhile.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::runtime::{self, Handle};

use super::{Bound, Inner};
use crate::{
    decision::{Counted, Permit},
    store::{Account, Ask, Line, Manner, Units},
};

/// A permit is renewed this often in each of its lives: two heartbeats may be lost.
const BEATS: u32 = 3;

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
        life: Duration,
    ) -> Option<Arc<dyn Permit>> {
        if places.is_empty() {
            return None;
        }
        let runtime = Handle::try_current().ok();
        let (id, starts) = limiter.held.wards().add(&places, runtime.as_ref());
        match &runtime {
            Some(runtime) if starts => beat(limiter, runtime, life / BEATS),
            Some(_) => {}
            None => tracing::warn!(
                "permits of in-flight limits can't be renewed: there is no tokio runtime here"
            ),
        }
        Some(Arc::new(Self {
            limiter: limiter.clone(),
            id,
            places,
            runtime,
        }))
    }
}

impl Permit for Taken {}

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

    fn stop(&mut self, heart: runtime::Id) {
        self.hearts.retain(|other| *other != heart);
        self.adopt();
    }

    /// What a heart has to renew. One that has nothing to stops here, under the lock under which the next one starts.
    fn of(&mut self, heart: runtime::Id) -> Vec<Places> {
        let wards = self.permits.values();
        let own = wards.filter(|ward| ward.heart == Some(heart));
        let own: Vec<_> = own.map(|ward| copy(&ward.places)).collect();
        if own.is_empty() {
            self.stop(heart);
        }
        own
    }
}

/// The places, with receipts of their own.
fn copy(places: &Places) -> Places {
    let copy =
        |place: &Counted| place.with_receipts(place.receipts.part(place.receipts.first().left));
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
        while !heart.stopped {
            tokio::time::sleep(interval).await;
            let Some(limiter) = heart.limiter.upgrade() else {
                return;
            };
            heart.stopped = !limiter.renew(heart.id);
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
    /// Renews what a heart has to; false if that is nothing.
    fn renew(&self, heart: runtime::Id) -> bool {
        let permits = self.held.wards().of(heart);
        for places in &permits {
            let lines: SmallVec<[Line<'_>; 1]> = places.iter().map(|c| self.line(c)).collect();
            // Those of one decision were all taken in one place.
            if let Some(place) = places.first() {
                self.store_of(place).tell(Ask::Renew, &lines);
            }
        }
        !permits.is_empty()
    }

    /// The line of what was charged on arrival.
    #[inline]
    pub(super) fn line<'a>(&'a self, counted: &'a Counted) -> Line<'a> {
        let receipt = counted.receipts.first();
        Line {
            account: self.account(counted),
            key: counted.key,
            units: Units::new(receipt.left),
            receipt,
            by: counted.by.as_deref().copied().unwrap_or(counted.key),
            manner: Manner::Charge,
        }
    }

    #[inline]
    pub(super) fn bound(&self, policy: u32) -> &Bound {
        &self.policies[policy as usize]
    }

    /// The account of a policy, or of a request's own quota under it.
    #[inline]
    pub(super) fn account<'a>(&'a self, counted: &'a Counted) -> &'a Account {
        match &counted.tier {
            Some(tier) => &tier.account,
            None => &self.bound(counted.policy).account,
        }
    }
}
