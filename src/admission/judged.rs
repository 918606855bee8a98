//! The decisions on one request, as its admission keeps them.

use std::{
    mem,
    sync::{Arc, Weak},
};

use crate::decision::{Books, Brief, Decision, Permit};

/// Whose turn it is to settle.
pub(super) type Turn = tokio::sync::Mutex<()>;

/// What is known of a request by now.
#[derive(Default)]
pub(super) struct Judged {
    /// The outermost layer's.
    first: First,
    more: Option<Box<More>>,
}

/// The decision of the outermost layer.
#[derive(Default)]
enum First {
    #[default]
    None,
    /// In compact form, until it is read.
    Brief(Brief),
    Made(Box<Decision>),
}

/// What most requests don't have.
#[derive(Default)]
struct More {
    /// The decisions of layers further in.
    others: Vec<Decision>,
    /// The permits of all, which the layers hold.
    permits: Vec<Weak<dyn Permit>>,
    /// The permit, where there is no layer to hold it.
    permit: Option<Arc<dyn Permit>>,
    turn: Option<Arc<Turn>>,
}

impl Judged {
    /// By one decision, in few words.
    pub(super) fn briefly(decision: Brief) -> Self {
        Self {
            first: First::Brief(decision),
            more: None,
        }
    }

    /// Adds a decision; returns its place, and its permit.
    pub(super) fn add(&mut self, mut decision: Decision) -> (usize, Option<Arc<dyn Permit>>) {
        let permit = decision.permit.take();
        if let Some(permit) = &permit {
            self.more().permits.push(Arc::downgrade(permit));
        }
        if let First::None = self.first {
            self.first = First::Made(Box::new(decision));
            return (0, permit);
        }
        let others = &mut self.more().others;
        others.push(decision);
        (others.len(), permit)
    }

    /// The name of a policy of `decision`'s that counted the request before, in the same place.
    pub(super) fn counted_before(&self, decision: &Decision) -> Option<String> {
        let again = |books: &dyn Books, policy: u32| {
            let place = books.counted_at(policy)?;
            let mut items = decision.counted.iter();
            let twice = items.any(|item| decision.books.counted_at(item.policy) == Some(place));
            twice.then(|| place.1.to_owned())
        };
        let of = |outer: &Decision| {
            let mut items = outer.counted.iter();
            items.find_map(|item| again(&*outer.books, item.policy))
        };
        let first = match &self.first {
            First::None => None,
            First::Brief(brief) => again(&*brief.books, 0),
            First::Made(outer) => of(outer),
        };
        first.or_else(|| self.more.as_ref()?.others.iter().find_map(of))
    }

    fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    fn first(&mut self) -> Option<&mut Decision> {
        if let First::Brief(_) = self.first
            && let First::Brief(brief) = mem::take(&mut self.first)
        {
            self.first = First::Made(Box::new(brief.decision()));
        }
        match &mut self.first {
            First::Made(decision) => Some(decision),
            _ => None,
        }
    }

    pub(super) fn decisions(&mut self) -> impl Iterator<Item = &mut Decision> {
        self.first();
        let first = match &mut self.first {
            First::Made(decision) => Some(&mut **decision),
            _ => None,
        };
        let others = self.more.iter_mut().flat_map(|more| &mut more.others);
        first.into_iter().chain(others)
    }

    /// The decision at a place.
    pub(super) fn at(&mut self, place: usize) -> Option<&mut Decision> {
        match place.checked_sub(1) {
            None => self.first(),
            Some(place) => self.more.as_mut()?.others.get_mut(place),
        }
    }

    /// The same, where it is not looked at again.
    pub(super) fn look(mut self, place: usize, look: impl FnOnce(&Decision)) {
        match self.first {
            First::Brief(brief) if place == 0 => look(&brief.decision()),
            _ => {
                if let Some(decision) = self.at(place) {
                    look(decision);
                }
            }
        }
    }

    /// Holds a permit for which there is no layer.
    pub(super) fn hold(&mut self, permit: Option<Arc<dyn Permit>>) {
        if permit.is_some() {
            self.more().permit = permit;
        }
    }

    /// The permits that are held still.
    pub(super) fn permits(&self) -> Vec<Arc<dyn Permit>> {
        let permits = self.more.iter().flat_map(|more| &more.permits);
        permits.filter_map(Weak::upgrade).collect()
    }

    pub(super) fn turn(&mut self) -> Arc<Turn> {
        self.more().turn.get_or_insert_default().clone()
    }
}
