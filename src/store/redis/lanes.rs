//! The lanes of a store: a set for each runtime, since a lane lives and dies with the requests it carries.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio::{
    runtime::{self, Handle},
    time::Instant,
};

use super::{
    Shared,
    lane::Lane,
    question::{Lines, OwnLine, Question},
};
use crate::{
    error::StoreError,
    guard::denials::Mark,
    store::{Answer, Ask},
};

#[derive(Debug)]
pub(super) struct Lanes {
    shared: Arc<Shared>,
    /// How many each runtime has.
    many: usize,
    /// Read by each request, and hardly ever written.
    sets: ArcSwap<Vec<Set>>,
    laying: Mutex<()>,
}

/// The lanes of one runtime.
#[derive(Clone, Debug)]
struct Set {
    runtime: runtime::Id,
    lanes: Arc<[Arc<Lane>]>,
}

impl Lanes {
    pub(super) fn new(shared: Arc<Shared>, many: usize) -> Self {
        Self {
            shared,
            many,
            sets: ArcSwap::default(),
            laying: Mutex::default(),
        }
    }

    pub(super) fn many(&self) -> usize {
        self.many
    }

    /// Puts a question into the lane of this runtime for `hash`. Equal questions have equal hashes, so that they find each
    /// other there.
    pub(super) fn push(self: &Arc<Self>, hash: u64, question: Question) -> Result<(), StoreError> {
        let outside = || StoreError::Unsupported("there is no tokio runtime here");
        let handle = Handle::try_current().map_err(|_| outside())?;
        let sets = self.sets.load();
        if let Some(lane) = lane_of(&sets, handle.id(), hash) {
            return lane.push(question);
        }
        drop(sets);
        self.lay(&handle);
        let sets = self.sets.load();
        // A runtime that is ending takes its lanes away at once.
        let lane = lane_of(&sets, handle.id(), hash).ok_or_else(outside)?;
        lane.push(question)
    }

    /// Has something done that nobody waits for: by this runtime, or by any other where there is none.
    pub(super) fn tell(self: &Arc<Self>, ask: Ask, lines: Lines) {
        if ask.lifts() {
            self.shared.denials.end(lines.iter().map(OwnLine::asked));
        }
        let told = |lane: &Lane| lane.tell(ask, lines);
        let sets = self.sets.load();
        let here = Handle::try_current().ok();
        let here = here.and_then(|handle| lane_of(&sets, handle.id(), 0));
        let any = || sets.first().and_then(|set| set.lanes.first());
        if let Some(lane) = here.or_else(any) {
            told(lane);
        }
    }

    /// Lays the lanes of a runtime, and has it drive them.
    fn lay(self: &Arc<Self>, handle: &Handle) {
        let laying = self.laying.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sets = Vec::clone(&self.sets.load());
        if sets.iter().any(|set| set.runtime == handle.id()) {
            return;
        }
        let lane = |_| Arc::new(Lane::new(self.shared.clone(), self.shared.breaker.clone()));
        let lanes: Arc<[_]> = (0..self.many).map(lane).collect();
        sets.push(Set {
            runtime: handle.id(),
            lanes: lanes.clone(),
        });
        self.sets.store(Arc::new(sets));
        // A runtime that is ending drops what is spawned at once, which takes the lanes away again: not under the lock.
        drop(laying);
        for lane in lanes.iter().cloned() {
            let ends = Ends {
                runtime: handle.id(),
                lanes: Arc::downgrade(self),
            };
            drop(handle.spawn(async move {
                let _ends = ends;
                lane.run().await;
            }));
        }
    }

    /// Takes a runtime's lanes away.
    fn take_up(&self, runtime: runtime::Id) {
        let laying = self.laying.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, sets): (Vec<_>, Vec<_>) = Vec::clone(&self.sets.load())
            .into_iter()
            .partition(|set| set.runtime == runtime);
        self.sets.store(Arc::new(sets));
        // A lane that is dropped answers those who wait in it, and they may look for another: not under the lock.
        drop(laying);
        ended.iter().for_each(Set::close);
    }
}

impl Set {
    fn close(&self) {
        self.lanes.iter().for_each(|lane| lane.close());
    }
}

fn lane_of(sets: &[Set], runtime: runtime::Id, hash: u64) -> Option<&Arc<Lane>> {
    let set = sets.iter().find(|set| set.runtime == runtime)?;
    set.lanes.get(hash as usize % set.lanes.len().max(1))
}

/// Takes a runtime's lanes away when one of them ends, which is when their runtime does.
struct Ends {
    runtime: runtime::Id,
    lanes: std::sync::Weak<Lanes>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(lanes) = self.lanes.upgrade() {
            lanes.take_up(self.runtime);
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.sets.load().iter().for_each(Set::close);
    }
}

impl Lanes {
    /// Remembers that a question was refused.
    pub(super) fn note_denial(&self, lines: &Lines, answer: &Answer, mark: &Mark) {
        let denials = &self.shared.denials;
        denials.note(lines.iter().map(OwnLine::asked), answer, mark);
        self.shared.keep_denials();
    }

    /// By when a question that is asked now has to be answered.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.shared.deadline
    }
}
