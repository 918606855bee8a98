//! A lane: one connection that carries, on each trip, what arrived while the last one was under way.

use std::{
    collections::VecDeque,
    future::{Future, pending, poll_fn},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};

use tokio::time::Instant;

use self::{
    deadline_timer::Alarm,
    queue::{Called, Put, Queue},
    shared_task::Relay,
};
use super::{
    Shared,
    batch::{Batch, MOST_KEYS},
    breaker::{Breaker, probe},
    request::Question,
    topology::Route,
};
use crate::{error::StoreError, sync::CachePadded};

pub(crate) mod deadline_timer;
pub(crate) mod dispatch;
pub(crate) mod pool;
pub(crate) mod queue;
pub(crate) mod shared_task;
pub(crate) mod steal;

/// Trips that may be under way at once, so that a server that is far away isn't waited for, and one that is near doesn't
/// wait for those it has answered. They keep their order: the connection is one.
const TRIPS: usize = 4;

/// Where no more went last time, whoever comes first sends his trip off himself. Else it's left to the lane: until it's the
/// lane's turn, others will have come.
const FEW: usize = 4;

/// As many keys that wait are worth a second trip: what a call costs by itself is little beside so many.
const WORTH: usize = 32;

/// As many questions are worth one beside so many, if they are like those that went last: a full batch at most, so that none
/// is smaller than it has to be.
fn enough(trips: usize, last: Load) -> usize {
    let keys = if trips < 2 { WORTH } else { MOST_KEYS };
    let alike = keys * last.questions / last.keys.max(1);
    // Equal questions are one key: each costs more by a trip of few than by waiting for as many as went last. Where few ask
    // of a server that is far away, no more than those go at once.
    let beside = trips.clamp(1, 2);
    let most = (last.questions * beside).clamp(keys, MOST_KEYS * beside);
    alike.clamp(1, most)
}

/// What a trip carries.
#[derive(Clone, Copy, Debug)]
struct Load {
    questions: usize,
    keys: usize,
}

#[derive(Debug)]
pub(crate) struct Lane {
    shared: Arc<Shared>,
    /// The hash tag of its keys: zero, but on a cluster.
    tag: usize,
    breaker: Arc<Breaker>,
    /// Padded: all callers write to it, and read its neighbours.
    queue: CachePadded<Mutex<Queue<Question>>>,
    relay: Relay,
    /// How many went last time.
    crowd: AtomicUsize,
    /// As many that wait are worth a second trip.
    enough: AtomicUsize,
}

/// A trip that is under way. Back, it brings its batch, to be used again, and questions that are to be asked again.
type Trip = Pin<Box<dyn Future<Output = (Batch, Vec<Question>)> + Send>>;

impl Lane {
    /// A lane for keys of a hash tag. It asks nothing while their breaker is open.
    pub(crate) fn new(shared: Arc<Shared>, tag: usize) -> Self {
        Self {
            breaker: shared.breaker(tag).clone(),
            shared,
            tag,
            queue: CachePadded::default(),
            relay: Relay::default(),
            crowd: AtomicUsize::new(0),
            enough: AtomicUsize::new(WORTH),
        }
    }

    /// Puts a question in the queue, unless nothing is to be asked now, and sends it off if no trip is under way. Only to be
    /// used within the lane's runtime.
    pub(crate) fn push(&self, question: Question) -> Result<(), StoreError> {
        if self.put(question)? {
            match self.crowd.load(Ordering::Relaxed) {
                0..=FEW => self.relay.call(),
                _ => self.relay.wake(),
            }
        }
        Ok(())
    }

    /// Puts a question in the queue, unless nothing is to be asked now. Returns whether the lane has to be called.
    fn put(&self, question: Question) -> Result<bool, StoreError> {
        if let Err(open) = self.breaker.check() {
            // Whoever saw to the probes may have ended with its runtime.
            probe::start(&self.shared, &self.breaker, self.tag);
            let kept = &self.shared.kept;
            kept.fail(self.tag, question, open.clone(), false);
            return Err(open);
        }
        // Not under the lock: whoever is told may ask again.
        let put = self
            .queue()
            .put(question, self.enough.load(Ordering::Relaxed));
        if let Put::Closed(question) = put {
            self.shared.kept.wait_for_runtime(self.tag, question);
            return Ok(false);
        }
        Ok(matches!(put, Put::Wake))
    }

    /// Has something done that nobody waits for, from anywhere.
    pub(crate) fn tell(&self, question: Question) {
        if let Ok(true) = self.put(question) {
            self.relay.wake();
        }
    }

    /// Takes what nothing waits for out of the queue, as far as its deadline is before `told_before`.
    pub(crate) fn stalled(&self, told_before: Instant) -> Vec<Question> {
        let stalls = |question: &Question| question.is_told() && question.deadline < told_before;
        self.queue().extract(stalls)
    }

    /// Ends the lane once its queue is empty.
    pub(crate) fn close(&self) {
        self.queue().close();
        self.relay.wake();
    }

    /// Carries questions until it is closed.
    pub(crate) async fn run(self: Arc<Self>, route: Route) {
        let work = self.clone().carry(route);
        self.relay.work(work).await;
    }

    async fn carry(self: Arc<Self>, route: Route) {
        let (mut come, mut backlog) = (Vec::new(), VecDeque::new());
        let mut last = Load {
            questions: 1,
            keys: 1,
        };
        let (mut trips, mut spare) = (Vec::with_capacity(TRIPS), Vec::new());
        let mut alarm = Alarm::default();
        let route = Arc::new(route);
        loop {
            let (trips_now, may) = (trips.len(), trips.len() < TRIPS);
            let left = backlog.len();
            let called =
                self.queue()
                    .take(&mut come, left, trips_now, may, enough(trips_now, last));
            if let Err(open) = self.breaker.check() {
                let waiting = backlog.drain(..).chain(come.drain(..));
                let kept = &self.shared.kept;
                waiting.for_each(|question| kept.fail(self.tag, question, open.clone(), false));
            }
            while trips.is_empty()
                || trips.len() < TRIPS && come.len() + backlog.len() >= enough(trips.len(), last)
            {
                let waiting = come.len() + backlog.len();
                self.crowd.store(waiting, Ordering::Relaxed);
                let mut batch = spare.pop().unwrap_or_default();
                board(&mut batch, &mut backlog, &mut come, |late| {
                    let kept = &self.shared.kept;
                    kept.fail(self.tag, late, StoreError::Timeout, false);
                });
                if batch.is_empty() {
                    spare.push(batch);
                    break;
                }
                last = Load {
                    questions: waiting - backlog.len(),
                    keys: batch.keys(),
                };
                self.enough.store(enough(1, last), Ordering::Relaxed);
                let (shared, breaker) = (self.shared.clone(), self.breaker.clone());
                let trip = dispatch::carry(shared, route.clone(), breaker, batch);
                trips.push(Box::pin(trip) as Trip);
            }
            if trips.is_empty() {
                match called {
                    // All of them had gone. Others may have come meanwhile, and were told that a trip is under way.
                    Called::Some => {}
                    Called::None => self.relay.called().await,
                    Called::NeverAgain => return,
                }
                continue;
            }
            tokio::select! {
                biased;
                (batch, again) = first_back(&mut trips) => {
                    spare.push(batch);
                    again.into_iter().rev().for_each(|q| backlog.push_front(q));
                }
                () = self.relay.called() => {}
                () = time_up(&mut alarm, backlog.front()) => self.leave_late(&mut backlog),
            }
        }
    }

    /// Tells those whose time is up.
    fn leave_late(&self, backlog: &mut VecDeque<Question>) {
        let now = Instant::now();
        let is_late = |first: &Question| first.deadline <= now;
        while backlog.front().is_some_and(is_late)
            && let Some(late) = backlog.pop_front()
        {
            let kept = &self.shared.kept;
            kept.fail(self.tag, late, StoreError::Timeout, false);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<Question>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whatever is left in a lane whose runtime has ended is answered, not left hanging, and refunds are kept for another.
impl Drop for Lane {
    fn drop(&mut self) {
        let questions = self.queue().abandon();
        for question in questions {
            self.shared.kept.wait_for_runtime(self.tag, question);
        }
    }
}

/// Fills a batch from the backlog, and then from those who have come since, who are its end if they don't fit: first come,
/// first served. Those whose time is up, and those who have gone, stay behind.
fn board(
    batch: &mut Batch,
    backlog: &mut VecDeque<Question>,
    come: &mut Vec<Question>,
    fail: impl Fn(Question),
) {
    let now = Instant::now();
    let mut board = |question: Question| {
        if question.deadline <= now {
            fail(question);
        } else if !question.is_abandoned() {
            return batch.push(question);
        }
        Ok(())
    };
    let mut come = come.drain(..);
    while let Some(question) = backlog.pop_front().or_else(|| come.next()) {
        if let Err(question) = board(question) {
            backlog.push_front(*question);
            break;
        }
    }
    backlog.extend(come);
}

/// Waits until a question's time is up, if there is one. The first that waits may be one that is asked again: whose trip is
/// under way now came after it, and has more time.
async fn time_up(alarm: &mut Alarm, first: Option<&Question>) {
    match first.map(|question| question.deadline) {
        Some(deadline) => poll_fn(|cx| alarm.poll(deadline, cx)).await,
        None => pending().await,
    }
}

/// Waits for one of the trips to be back. They are polled in order, since it's the first poll that sends.
async fn first_back(trips: &mut Vec<Trip>) -> (Batch, Vec<Question>) {
    poll_fn(|cx| {
        for place in 0..trips.len() {
            if let Poll::Ready(back) = trips[place].as_mut().poll(cx) {
                drop(trips.remove(place));
                return Poll::Ready(back);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::redis::request::{Matter, op::OwnLine};
    use crate::{
        key::Key,
        quota::Quota,
        store::{CounterOp, LimitHandle, Op},
        strategy::{Gcra, Strategy},
    };

    fn question(limit: &LimitHandle, key: &str) -> Question {
        let line = CounterOp::plain(limit, Key::new(key));
        let lines = [OwnLine::of(&line)].into();
        let deadline = Instant::now() + Duration::from_secs(60);
        let hash = key
            .bytes()
            .fold(0, |hash, byte| 31 * hash + u64::from(byte));
        Question::told(Matter::new(Op::Acquire(1), lines, deadline, hash))
    }

    /// Boards so often until all have left; returns how many different keys each batch held, and how many questions.
    fn trips(come: Vec<Question>) -> Vec<(usize, usize)> {
        let (mut batch, mut backlog, mut come) = (Batch::default(), VecDeque::new(), come);
        let mut trips = Vec::new();
        loop {
            board(&mut batch, &mut backlog, &mut come, |_| {});
            if batch.is_empty() {
                return trips;
            }
            let keys = batch.entries().count();
            trips.push((keys, batch.drain().count()));
            batch.clear();
        }
    }

    #[test]
    fn a_further_trip_goes_for_as_many_keys_as_it_is_worth() {
        let load = |questions, keys| Load { questions, keys };
        for (trips, last, worth) in [
            (1, load(1, 1), 32),
            (1, load(128, 128), 32),
            (1, load(20, 60), 10),
            (1, load(1, 128), 1),
            (2, load(128, 128), 128),
            (3, load(40, 120), 42),
            // Of equal ones as many as went last, within bounds.
            (1, load(10, 1), 32),
            (1, load(64, 1), 64),
            (1, load(64, 32), 64),
            (1, load(5_000, 1), 128),
            (2, load(64, 1), 128),
            (2, load(100, 1), 200),
            (3, load(5_000, 1), 256),
        ] {
            assert_eq!(enough(trips, last), worth, "{trips} {last:?}");
        }
    }

    #[test]
    fn one_hot_key_takes_the_room_of_one() {
        let rule = Gcra.bind(&Quota::requests(9).per_minute()).expect("a rule");
        let limit = LimitHandle::new("p", rule, ());
        let hot = (0..10_000).map(|_| question(&limit, "hot"));
        let cold = (0..127).map(|key| question(&limit, &format!("cold {key}")));
        assert_eq!(trips(hot.chain(cold).collect()), [(128, 10_127)]);
    }

    #[test]
    fn who_came_first_goes_first_and_no_trip_holds_too_much() {
        let rule = Gcra.bind(&Quota::requests(9).per_minute()).expect("a rule");
        let limit = LimitHandle::new("p", rule, ());
        let all = (0..300).map(|key| question(&limit, &format!("{}", key % 150)));
        assert_eq!(trips(all.collect()), [(128, 128), (128, 128), (44, 44)]);
    }
}
