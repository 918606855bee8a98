//! The order of the requests that wait for the same keys, and their call of the store.

use std::{collections::BTreeMap, mem};

/// Requests in order of arrival, and their call of the store. Only the first request begins calls and polls them. A call that is
/// pending stays here, so nothing has to be handed over when the first request leaves.
///
/// A task that removes the first request, puts a call back or ends it then wakes the new first request.
pub(crate) struct WaitList<W, C, D> {
    /// The requests without a decision, by a number that increases.
    pub(crate) waiters: BTreeMap<u64, W>,
    /// The decisions of requests that have not seen them.
    pub(crate) decided: BTreeMap<u64, D>,
    pub(crate) call: Call<C>,
    last_number: u64,
}

/// A call of the store for the first request, and for others.
pub(crate) enum Call<C> {
    None,
    InFlight(C),
    /// Taken by a task, which polls or begins it, and then sets one of the others.
    Taken,
}

/// What the task of a request does next.
pub(crate) enum Step<C, D> {
    Return(D),
    /// The call is taken.
    Poll(C),
    /// The call is taken, and has to be made.
    Begin,
}

impl<W, C, D> Default for WaitList<W, C, D> {
    fn default() -> Self {
        Self {
            waiters: BTreeMap::new(),
            decided: BTreeMap::new(),
            call: Call::None,
            last_number: 0,
        }
    }
}

impl<W, C, D> WaitList<W, C, D> {
    /// Adds a request at the end; returns its number.
    pub(crate) fn push(&mut self, waiter: W) -> u64 {
        let number = self.next_number();
        self.waiters.insert(number, waiter);
        number
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The request that no other is ahead of.
    pub(crate) fn first(&self) -> Option<(u64, &W)> {
        let (number, first) = self.waiters.first_key_value()?;
        Some((*number, first))
    }

    pub(crate) fn is_first(&self, number: u64) -> bool {
        self.first().is_some_and(|(first, _)| first == number)
    }

    pub(crate) fn has_call(&self) -> bool {
        !matches!(self.call, Call::None)
    }

    /// The next step of a request; `None` if it waits until it is woken: others are ahead of it, or another task has the call.
    pub(crate) fn step(&mut self, number: u64) -> Option<Step<C, D>> {
        if let Some(decision) = self.decided.remove(&number) {
            return Some(Step::Return(decision));
        }
        if !self.is_first(number) {
            return None;
        }
        if self.has_call() {
            return self.take_call().map(Step::Poll);
        }
        self.call = Call::Taken;
        Some(Step::Begin)
    }

    /// Takes the call, unless another task has.
    pub(crate) fn take_call(&mut self) -> Option<C> {
        match mem::replace(&mut self.call, Call::Taken) {
            Call::InFlight(call) => Some(call),
            other => {
                self.call = other;
                None
            }
        }
    }

    /// Whether there is neither a request nor a call.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty() && self.decided.is_empty() && !self.has_call()
    }
}

#[cfg(test)]
mod tests {
    //! Tasks that wait, as in `wait_queue`, beside a store that replies, under every interleaving. If one of them waited for ever, loom
    //! would report a deadlock.

    use loom::{
        sync::{Arc, Mutex, MutexGuard, Notify},
        thread,
    };

    use super::*;

    /// A call of the store for some requests.
    #[derive(Default)]
    struct Check {
        state: Mutex<CheckState>,
    }

    #[derive(Default)]
    struct CheckState {
        admitted: Option<usize>,
        waker: Option<Arc<Notify>>,
        is_cancelled: bool,
    }

    struct Queue {
        state: Mutex<State>,
        /// The store waits for calls.
        store: Notify,
    }

    #[derive(Default)]
    struct State {
        list: WaitList<Option<Arc<Notify>>, Arc<Check>, ()>,
        /// The call that the store has to reply to.
        sent: Option<(usize, Arc<Check>)>,
        units: Units,
    }

    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Units {
        charged: usize,
        refunded: usize,
        admitted: usize,
    }

    impl Queue {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                state: Mutex::default(),
                store: Notify::new(),
            })
        }

        fn lock(&self) -> MutexGuard<'_, State> {
            self.state.lock().expect("a lock")
        }

        /// Replies to one call.
        fn reply(&self, admits: usize) {
            let (requests, check) = loop {
                let sent = self.lock().sent.take();
                match sent {
                    Some(sent) => break sent,
                    None => self.store.wait(),
                }
            };
            let admitted = requests.min(admits);
            let mut state = check.state.lock().expect("a lock");
            if !state.is_cancelled {
                state.admitted = Some(admitted);
                self.lock().units.charged += admitted;
            }
            let waker = state.waker.take();
            drop(state);
            wake(waker);
        }

        /// The units, once nothing waits any more.
        fn end(&self) -> Units {
            let state = self.lock();
            assert!(state.list.is_empty());
            state.units
        }
    }

    fn wake(wakers: impl IntoIterator<Item = Arc<Notify>>) {
        wakers.into_iter().for_each(|waker| waker.notify());
    }

    struct Place {
        queue: Arc<Queue>,
        number: u64,
        wake: Arc<Notify>,
    }

    impl Place {
        fn join(queue: &Arc<Queue>) -> Self {
            Self {
                queue: queue.clone(),
                number: queue.lock().list.push(None),
                wake: Arc::new(Notify::new()),
            }
        }

        /// Whether it is admitted.
        fn poll(&self) -> bool {
            loop {
                let mut state = self.queue.lock();
                let step = state.list.step(self.number);
                if let Some(waker) = state.list.waiters.get_mut(&self.number) {
                    *waker = step.is_none().then(|| self.wake.clone());
                }
                let check = match step {
                    None => return false,
                    Some(Step::Return(())) => return true,
                    Some(Step::Poll(check)) => check,
                    Some(Step::Begin) => {
                        let check = Arc::new(Check::default());
                        state.sent = Some((state.list.waiters.len(), check.clone()));
                        self.queue.store.notify();
                        check
                    }
                };
                drop(state);
                let mut state = check.state.lock().expect("a lock");
                let admitted = state.admitted;
                if admitted.is_none() {
                    state.waker = Some(self.wake.clone());
                }
                drop(state);
                let is_admitted = self.give_back(check, admitted);
                if is_admitted || admitted.is_none() {
                    return is_admitted;
                }
            }
        }

        fn give_back(&self, check: Arc<Check>, admitted: Option<usize>) -> bool {
            let (mut is_admitted, mut woken) = (false, Vec::new());
            let mut state = self.queue.lock();
            state.list.call = match admitted {
                None => Call::InFlight(check),
                Some(_) => Call::None,
            };
            for _ in 0..admitted.unwrap_or(0) {
                match state.list.waiters.pop_first() {
                    Some((number, _)) if number == self.number => is_admitted = true,
                    Some((number, waker)) => {
                        state.list.decided.insert(number, ());
                        woken.extend(waker);
                    }
                    None => state.units.refunded += 1,
                }
            }
            woken.extend(state.list.first().and_then(|(_, waker)| waker.clone()));
            drop(state);
            wake(woken);
            is_admitted
        }

        fn wait(self) {
            while !self.poll() {
                self.wake.wait();
            }
            self.queue.lock().units.admitted += 1;
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let mut state = self.queue.lock();
            let was_first = state.list.is_first(self.number);
            state.list.waiters.remove(&self.number);
            if state.list.decided.remove(&self.number).is_some() {
                state.units.refunded += 1;
            }
            let next = state.list.first().and_then(|(_, waker)| waker.clone());
            let cancelled = match state.list.waiters.is_empty() {
                true => state.list.take_call(),
                false => None,
            };
            if cancelled.is_some() {
                state.list.call = Call::None;
            }
            drop(state);
            wake(next.filter(|_| was_first));
            if let Some(check) = cancelled {
                let mut state = check.state.lock().expect("a lock");
                state.is_cancelled = true;
                self.queue.lock().units.refunded += state.admitted.unwrap_or(0);
            }
        }
    }

    fn explore(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        // Every order with at most two switches in mid-step: with more it takes minutes.
        builder.preemption_bound = Some(2);
        builder.check(model);
    }

    #[test]
    fn no_request_waits_for_ever_if_each_call_admits_some() {
        for admits in [1, 2] {
            explore(move || {
                let queue = Queue::new();
                let [first, second] = [(); 2].map(|()| Place::join(&queue));
                let second = thread::spawn(move || second.wait());
                let first = thread::spawn(move || first.wait());
                queue.reply(admits);
                if admits == 1 {
                    queue.reply(1);
                }
                for ended in [first, second] {
                    ended.join().expect("it ends");
                }
                let all = Units {
                    charged: 2,
                    refunded: 0,
                    admitted: 2,
                };
                assert_eq!(queue.end(), all);
            });
        }
    }

    #[test]
    fn the_call_of_a_request_that_leaves_goes_on_and_its_unit_is_refunded() {
        explore(|| {
            let queue = Queue::new();
            let [first, second] = [(); 2].map(|()| Place::join(&queue));
            assert!(!first.poll());
            let leaving = thread::spawn(move || drop(first));
            let waiting = thread::spawn(move || second.wait());
            queue.reply(2);
            for ended in [leaving, waiting] {
                ended.join().expect("it ends");
            }
            let units = queue.end();
            assert_eq!((units.charged, units.refunded, units.admitted), (2, 1, 1));
        });
    }

    #[test]
    fn what_is_charged_for_requests_that_all_leave_is_refunded() {
        explore(|| {
            let queue = Queue::new();
            let [first, second] = [(); 2].map(|()| Place::join(&queue));
            assert!(!first.poll());
            let leaving = [first, second].map(|place| thread::spawn(move || drop(place)));
            queue.reply(2);
            for ended in leaving {
                ended.join().expect("it ends");
            }
            let units = queue.end();
            assert_eq!((units.charged - units.refunded, units.admitted), (0, 0));
        });
    }
}
