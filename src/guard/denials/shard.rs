//! One shard: its part of the denials, and the bound on them.

use hashbrown::HashTable;

use super::Asked;
use crate::{clock::Timestamp, key::Key, store::Units, strategy::Seen};

/// One of so many makes room for another: the one that ends first.
const SAMPLE: usize = 8;

#[derive(Default)]
pub(super) struct Shard {
    denials: Vec<Denial>,
    /// Which of them is of which key.
    places: HashTable<u32>,
    /// Where those that are over are looked for, a few at a time.
    hand: usize,
}

/// That a policy refused a key.
#[derive(Clone, Copy)]
pub(super) struct Denial {
    pub(super) hash: u64,
    pub(super) account: u64,
    pub(super) key: Key,
    pub(super) units: Units,
    /// The state that refused, and when it did, on the store's clock.
    pub(super) seen: Seen,
    pub(super) judged: Timestamp,
    /// On this process's clock, as all that follows.
    pub(super) asked: Timestamp,
    pub(super) answered: Timestamp,
    pub(super) until: Timestamp,
    /// The store's generation, if it was known when the question was asked.
    pub(super) generation: Option<u64>,
}

impl Denial {
    fn is_of(&self, hash: u64, line: &Asked<'_>) -> bool {
        self.hash == hash && self.account == line.account.number() && self.key == *line.key
    }
}

impl Shard {
    pub(super) fn find(&self, hash: u64, line: &Asked<'_>) -> Option<&Denial> {
        let is_of = |place: &u32| self.denials[*place as usize].is_of(hash, line);
        let place = *self.places.find(hash, is_of)?;
        self.denials.get(place as usize)
    }

    /// Forgets a denial; returns whether there was one.
    pub(super) fn remove(&mut self, hash: u64, line: &Asked<'_>) -> bool {
        let is_of = |place: &u32| self.denials[*place as usize].is_of(hash, line);
        let Ok(found) = self.places.find_entry(hash, is_of) else {
            return false;
        };
        let (place, _) = found.remove();
        self.close_gap(place);
        true
    }

    /// Notes a denial, and forgets others that are over or, if there are `most`, would be soonest; returns how many more
    /// there are than before.
    pub(super) fn add(
        &mut self,
        denial: Denial,
        line: &Asked<'_>,
        now: Timestamp,
        most: usize,
    ) -> isize {
        let replaced = self.remove(denial.hash, line);
        let forgotten = self.make_room(now, most);
        let place = self.denials.len() as u32;
        self.denials.push(denial);
        let denials = &self.denials;
        let hash = |place: &u32| denials[*place as usize].hash;
        self.places.insert_unique(denial.hash, place, hash);
        1 - isize::from(replaced) - forgotten
    }

    fn make_room(&mut self, now: Timestamp, most: usize) -> isize {
        let before = self.denials.len();
        let mut soonest = None;
        for _ in 0..SAMPLE.min(before) {
            self.hand = if self.hand + 1 < self.denials.len() {
                self.hand + 1
            } else {
                0
            };
            let Some(denial) = self.denials.get(self.hand) else {
                break;
            };
            if denial.until <= now {
                self.drop_at(self.hand);
                soonest = None;
            } else if soonest.is_none_or(|(until, _)| denial.until < until) {
                soonest = Some((denial.until, self.hand));
            }
        }
        if let Some((_, place)) = soonest.filter(|_| self.denials.len() >= most) {
            self.drop_at(place);
        }
        (before - self.denials.len()) as isize
    }

    fn drop_at(&mut self, place: usize) {
        let hash = self.denials[place].hash;
        if let Ok(found) = self.places.find_entry(hash, |at| *at as usize == place) {
            found.remove();
        }
        self.close_gap(place as u32);
    }

    /// Takes a denial out of the row, and puts the last one in its place.
    fn close_gap(&mut self, place: u32) {
        self.denials.swap_remove(place as usize);
        let last = self.denials.len() as u32;
        if let Some(moved) = self.denials.get(place as usize)
            && let Some(at) = self.places.find_mut(moved.hash, |at| *at == last)
        {
            *at = place;
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        debug_assert_eq!(self.denials.len(), self.places.len());
        self.denials.len()
    }
}
