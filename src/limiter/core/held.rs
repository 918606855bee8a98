//! The permits of a limiter that are held now, and which runtime renews each.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use smallvec::SmallVec;
use tokio::runtime::{self, Handle};

use crate::decision::Counted;

pub(crate) type Places = SmallVec<[Counted; 1]>;

/// The permits of a limiter that are held now, and the hearts that renew them: one in each runtime in which some were
/// taken, since runtimes end, and those of one thread stand still at times.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<Wards>);

#[derive(Debug, Default)]
pub(crate) struct Wards {
    pub(crate) permits: HashMap<u64, Ward>,
    next: u64,
    hearts: Vec<runtime::Id>,
}

#[derive(Debug)]
pub(crate) struct Ward {
    places: Places,
    /// Whose heart renews it; none where there was no runtime.
    heart: Option<runtime::Id>,
}

impl Held {
    pub(crate) fn wards(&self) -> MutexGuard<'_, Wards> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wards {
    /// Notes a permit; returns its number, and whether its runtime needs a heart.
    pub(crate) fn add(&mut self, places: &Places, runtime: Option<&Handle>) -> (u64, bool) {
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
    pub(crate) fn some(&self, some: &[u64]) -> Vec<(u64, Places)> {
        let held = some
            .iter()
            .filter_map(|id| Some((*id, self.permits.get(id)?)));
        held.map(|(id, ward)| (id, copy(&ward.places))).collect()
    }

    pub(crate) fn stop(&mut self, heart: runtime::Id) {
        self.hearts.retain(|other| *other != heart);
        self.adopt();
    }

    /// What a heart has to renew, by number. One that has nothing to stops here, under the lock under which the next one
    /// starts.
    pub(crate) fn of(&mut self, heart: runtime::Id) -> Vec<u64> {
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
