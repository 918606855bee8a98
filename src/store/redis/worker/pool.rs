//! The lanes of a store: a set for each runtime, since a lane lives and dies with the requests it carries.

use std::{
    hash::BuildHasher,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use hashbrown::DefaultHashBuilder;
use tokio::{
    runtime::{self, Handle, RuntimeFlavor},
    time::Instant,
};

use super::{Lane, steal::steal};
use crate::{
    error::StoreError,
    store::{
        Op, OpResult,
        redis::{
            Shared,
            hash_tags::Tags,
            pending_refunds::OnItsWay,
            rejection_cache::Mark,
            request::{
                Matter, Question, ended,
                op::{Lines, OwnLine},
                response_handle::Awaited,
            },
            topology::Route,
        },
    },
};

#[derive(Debug)]
pub(crate) struct Lanes {
    shared: Arc<Shared>,
    /// How many each runtime has.
    many: usize,
    /// Read by each request, and hardly ever written.
    sets: ArcSwap<Vec<Set>>,
    laying: Mutex<()>,
    hasher: DefaultHashBuilder,
}

/// The lanes of one runtime.
#[derive(Clone, Debug)]
struct Set {
    runtime: Handle,
    lanes: Arc<[Arc<Lane>]>,
    /// Whether a task of the runtime [steals](super::steal) for them.
    steals: bool,
}

impl Lanes {
    pub(crate) fn new(shared: Arc<Shared>, many: usize) -> Self {
        Self {
            shared,
            many,
            sets: ArcSwap::default(),
            laying: Mutex::default(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn many(&self) -> usize {
        self.many
    }

    /// A hash of their keys.
    fn hash(&self, lines: &Lines) -> u64 {
        let keys = lines.iter().map(|line| self.hasher.hash_one(line.key));
        keys.reduce(|all, hash| all.rotate_left(5) ^ hash)
            .unwrap_or(0)
    }

    /// Which lane is theirs. Equal questions have equal ones; on a cluster, so have all whose keys share a hash tag.
    fn place(&self, lines: &Lines, hash: u64) -> usize {
        match (self.shared.servers.tags(), lines.first()) {
            (Some(tags), Some(first)) => tags.of(&first.key),
            // In a batch, equal ones are found by the other half.
            _ => (hash >> 32) as usize,
        }
    }

    /// The hash tags, on a cluster.
    pub(crate) fn tags(&self) -> Option<&Tags> {
        self.shared.servers.tags()
    }

    /// The sets, with this runtime's among them, unless it is ending: such a one takes its lanes away at once.
    #[inline]
    fn laid(self: &Arc<Self>, runtime: &Handle) -> Guard<Arc<Vec<Set>>> {
        let sets = self.sets.load();
        if sets.iter().any(|set| set.is_of(runtime.id())) {
            return sets;
        }
        drop(sets);
        self.lay(runtime);
        self.sets.load()
    }

    /// Asks, in the lane of this runtime for the lines' keys, which are in one slot. With a mark, a refusal is remembered.
    pub(crate) fn ask(
        self: &Arc<Self>,
        ask: Op,
        lines: Lines,
        deadline: Instant,
        mark: Option<Mark>,
    ) -> Result<Awaited, StoreError> {
        self.send(ask, lines, deadline, mark, false)
    }

    /// Asks there. What is given back by it is given back later if it can't be now.
    pub(crate) fn insist(
        self: &Arc<Self>,
        ask: Op,
        lines: Lines,
        deadline: Instant,
    ) -> Result<Awaited, StoreError> {
        self.send(ask, lines, deadline, None, true)
    }

    #[inline]
    fn send(
        self: &Arc<Self>,
        ask: Op,
        lines: Lines,
        deadline: Instant,
        mark: Option<Mark>,
        insists: bool,
    ) -> Result<Awaited, StoreError> {
        let outside =
            || StoreError::NoRuntime("the Redis store sends from the runtime of its caller");
        let (place, hash) = self.begin(ask, &lines);
        let here = Handle::try_current().map_err(|_| outside())?;
        let matter = Matter::marked(ask, lines, deadline, hash, mark, self.on_its_way(ask));
        let (mut question, awaited) = Question::asked(matter, Some(here.id()));
        if insists {
            question.insist();
        }
        let sets = self.laid(&here);
        let lane = lane_of(&sets, here.id(), place).ok_or_else(outside)?;
        lane.push(question)?;
        Ok(awaited)
    }

    /// Ends what is known of refusals that are lifted with it. Returns which lane is theirs, and a hash of the keys.
    #[inline]
    fn begin(&self, ask: Op, lines: &Lines) -> (usize, u64) {
        if ask.lifts() {
            self.shared.denials.end(lines.iter().map(OwnLine::asked));
        }
        let hash = self.hash(lines);
        (self.place(lines, hash), hash)
    }

    /// Has something done that nothing waits for: by this runtime, or by another where there is none or it is ending. Without
    /// any, a refund waits for the next one.
    pub(crate) fn tell(self: &Arc<Self>, ask: Op, lines: Lines) {
        let (place, hash) = self.begin(ask, &lines);
        let (deadline, on_its_way) = (self.deadline(), self.on_its_way(ask));
        let matter = Matter::marked(ask, lines, deadline, hash, None, on_its_way);
        let question = Question::told(matter);
        let here = Handle::try_current().ok();
        let sets = match &here {
            Some(here) => self.laid(here),
            None => self.sets.load(),
        };
        let own = here.and_then(|here| lane_of(&sets, here.id(), place));
        if let Some(own) = own {
            // What can't be sent now is kept, or dropped, by the lane.
            let _ = own.push(question);
        } else if let Some(other) = running(&sets, None) {
            if let Some(lane) = other.lane(place) {
                lane.tell(question);
            }
        } else if let Some(line) = question.lines.first() {
            let tag = self.shared.servers.tag_of(&line.key);
            self.shared.kept.wait_for_runtime(tag, question);
        }
    }

    /// Counts a refund or a charge of which nothing must be lost.
    #[inline]
    fn on_its_way(&self, ask: Op) -> Option<OnItsWay> {
        match ask {
            Op::Acquire(_) | Op::Peek | Op::Renew => None,
            Op::ForceAcquire | Op::Refund | Op::Settle | Op::Reset => {
                Some(self.shared.kept.on_its_way())
            }
        }
    }

    /// Keeps the permits' refunds of a question that was lost with its runtime. It may have been sent.
    pub(crate) fn keep_lost(&self, matter: Arc<Matter>) {
        let tag = matter.lines.first();
        let tag = tag.map_or(0, |line| self.shared.servers.tag_of(&line.key));
        let kept = &self.shared.kept;
        kept.fail(tag, Question::told(matter), ended(), true);
    }

    /// A runtime that uses the store, other than `stalled`.
    pub(crate) fn other_runtime(&self, stalled: Option<runtime::Id>) -> Option<Handle> {
        let sets = self.sets.load();
        running(&sets, stalled).map(|set| set.runtime.clone())
    }

    /// Whether a runtime is the only one that uses the store. Nothing steals for it any more then.
    pub(crate) fn is_alone(&self, runtime: runtime::Id) -> bool {
        let _laying = self.laying.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sets = Vec::clone(&self.sets.load());
        let alone = sets.iter().all(|set| set.is_of(runtime));
        if alone {
            sets.iter_mut().for_each(|set| set.steals = false);
            self.sets.store(Arc::new(sets));
        }
        alone
    }

    /// Takes what nothing waits for out of the queues of all runtimes but one, as far as its deadline is before
    /// `told_before`.
    pub(crate) fn stalled(&self, here: runtime::Id, told_before: Instant) -> Vec<Question> {
        let sets = self.sets.load();
        let others = sets.iter().filter(|set| !set.is_of(here));
        let lanes = others.flat_map(|set| set.lanes.iter());
        lanes.flat_map(|lane| lane.stalled(told_before)).collect()
    }

    /// Lays the lanes of a runtime, and has it drive them.
    fn lay(self: &Arc<Self>, handle: &Handle) {
        let laying = self.laying.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sets = Vec::clone(&self.sets.load());
        if sets.iter().any(|set| set.is_of(handle.id())) {
            return;
        }
        let routes = self.shared.servers.routes(self.many);
        let lane = |route: &Route| Arc::new(Lane::new(self.shared.clone(), route.tag()));
        let lanes: Arc<[_]> = routes.iter().map(lane).collect();
        sets.push(Set {
            runtime: handle.clone(),
            lanes: lanes.clone(),
            steals: false,
        });
        if let [_, _, ..] = &sets[..] {
            for set in sets.iter_mut().filter(|set| !set.steals) {
                set.steals = true;
                let steal = steal(Arc::downgrade(self), set.runtime.id());
                drop(set.runtime.spawn(steal));
            }
        }
        self.sets.store(Arc::new(sets));
        // A runtime that is ending drops what is spawned at once, which takes the lanes away again: not under the lock.
        drop(laying);
        for (lane, route) in lanes.iter().cloned().zip(routes) {
            let ends = Ends {
                runtime: handle.id(),
                lanes: Arc::downgrade(self),
            };
            drop(handle.spawn(async move {
                let _ends = ends;
                lane.run(route).await;
            }));
        }
    }

    /// Takes a runtime's lanes away.
    fn take_up(&self, runtime: runtime::Id) {
        let laying = self.laying.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, sets): (Vec<_>, Vec<_>) = Vec::clone(&self.sets.load())
            .into_iter()
            .partition(|set| set.is_of(runtime));
        self.sets.store(Arc::new(sets));
        // A lane that is dropped answers those who wait in it, and they may look for another: not under the lock.
        drop(laying);
        ended.iter().for_each(Set::close);
    }
}

impl Set {
    fn is_of(&self, runtime: runtime::Id) -> bool {
        self.runtime.id() == runtime
    }

    fn lane(&self, place: usize) -> Option<&Arc<Lane>> {
        self.lanes.get(place % self.lanes.len().max(1))
    }

    fn close(&self) {
        self.lanes.iter().for_each(|lane| lane.close());
    }
}

fn lane_of(sets: &[Set], runtime: runtime::Id, place: usize) -> Option<&Arc<Lane>> {
    let set = sets.iter().find(|set| set.is_of(runtime))?;
    set.lane(place)
}

/// The runtime other than `stalled` that is most likely to run: one of several threads does unless all of them are blocked.
fn running(sets: &[Set], stalled: Option<runtime::Id>) -> Option<&Set> {
    let others = || sets.iter().filter(|set| Some(set.runtime.id()) != stalled);
    let flavor = |set: &&Set| set.runtime.runtime_flavor() != RuntimeFlavor::CurrentThread;
    others().find(flavor).or_else(|| others().next())
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
    pub(crate) fn note_denial(&self, matter: &Matter, answer: &OpResult, mark: &Mark) {
        let denials = &self.shared.denials;
        // Its deadline was set when it was asked.
        let age = self.deadline().saturating_duration_since(matter.deadline);
        denials.note(matter.lines.iter().map(OwnLine::asked), answer, mark, age);
        self.shared.keep_denials();
    }

    /// By when a question that is asked now has to be answered.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout()
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.shared.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        RedisStore,
        clock::Timestamp,
        key::Key,
        quota::Quota,
        store::{CounterOp, CounterResult, DecisionSource, LimitHandle},
        strategy::{Gcra, Strategy},
    };

    #[test]
    fn a_refusal_is_remembered_from_when_it_was_asked_for() {
        let store = RedisStore::open("redis://127.0.0.1:1").expect("a store");
        let (lanes, denials) = (&store.inner.lanes, &store.inner.shared.denials);
        let rule = Gcra.bind(&Quota::requests(1).per_minute()).expect("a rule");
        let limit = LimitHandle::new("p", rule, ());
        // One unit has to wait for a minute.
        let refused = OpResult {
            admitted: 0,
            at: Timestamp::default(),
            age: Duration::ZERO,
            admitted_after: 0,
            source: DecisionSource::Store,
            counters: [CounterResult::of(0, [1_200_000_000, 0, 0])].into(),
        };
        for (key, ago, holds) in [("now", 0, true), ("long ago", 61, false)] {
            let line = OwnLine::of(&CounterOp::plain(&limit, Key::new(key)));
            let lines = Lines::from([line.clone()]);
            let asked = || std::iter::once(line.asked());
            let mark = denials.mark(Op::Acquire(1), asked()).expect("it matters");
            let asked_at = Instant::now() - Duration::from_secs(ago);
            let deadline = asked_at + store.inner.shared.deadline;
            let matter = Matter::new(Op::Acquire(1), lines, deadline, 0);
            lanes.note_denial(&matter, &refused, &mark);
            let found = denials.find(Op::Acquire(1), asked());
            assert_eq!(found.is_some(), holds, "{key}");
        }
    }
}
