//! The inbox of a lane: requests that threads have pushed and the actor has not drained yet.

use std::mem;

/// Most requests that wait to be sent, those that the actor has drained included: 65,536 of them take some 20 MB.
pub(super) const MAX_WAITING: usize = 65_536;

/// Requests that wait for the actor. Used under a mutex that is held for a few instructions.
#[derive(Debug)]
pub(super) struct RequestQueue<T> {
    waiting: Vec<T>,
    /// How many waiting requests wake the actor. While a call is in flight, its reply makes the actor drain the queue.
    wake_at: usize,
    is_closed: bool,
}

/// What the caller of [`RequestQueue::push`] has to do.
#[derive(Debug)]
pub(super) enum PushOutcome<T> {
    /// Wake the actor.
    Wake,
    /// Nothing: the actor drains the queue by itself.
    Wait,
    /// The actor has ended; the request is returned.
    Closed(T),
    /// Too many requests wait; the request is returned.
    Full(T),
}

impl<T> Default for RequestQueue<T> {
    fn default() -> Self {
        Self {
            waiting: Vec::new(),
            wake_at: 1,
            is_closed: false,
        }
    }
}

impl<T> RequestQueue<T> {
    /// Appends a request. `drained` requests wait that the actor has drained before.
    pub(super) fn push(&mut self, request: T, drained: usize) -> PushOutcome<T> {
        if self.is_closed {
            return PushOutcome::Closed(request);
        }
        if self.waiting.len() + drained >= MAX_WAITING {
            return PushOutcome::Full(request);
        }
        self.waiting.push(request);
        if self.waiting.len() == self.wake_at {
            PushOutcome::Wake
        } else {
            PushOutcome::Wait
        }
    }

    /// Moves all requests into `drained`, which is empty, and whose allocation the queue takes over.
    pub(super) fn drain(&mut self, drained: &mut Vec<T>) {
        mem::swap(&mut self.waiting, drained);
    }

    /// Has `wake_at` waiting requests wake the actor. Returns false if so many wait by now: the actor drains the queue again before it
    /// waits.
    pub(super) fn wake_at(&mut self, wake_at: usize) -> bool {
        self.wake_at = wake_at;
        self.waiting.len() < wake_at
    }

    /// Rejects all further requests.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }
}

/// The actor and its callers in every interleaving, explored by loom.
#[cfg(test)]
mod tests {
    use loom::{
        sync::{Arc, Mutex, MutexGuard, Notify},
        thread,
    };

    use super::*;

    /// So many waiting requests justify another call while one is in flight.
    const THRESHOLD: usize = 2;

    /// Stands for a request: the waiter to notify, or none if it was cancelled.
    type Request = Option<Arc<Notify>>;

    /// When the server replies to the call in flight.
    #[derive(Clone, Copy)]
    enum Reply {
        AtOnce,
        /// Once as many of all these requests are sent that the others do not justify another call.
        After(usize),
    }

    struct Lane {
        queue: Mutex<RequestQueue<Request>>,
        wake: Notify,
    }

    impl Default for Lane {
        fn default() -> Self {
            Self {
                queue: Mutex::default(),
                wake: Notify::new(),
            }
        }
    }

    impl Lane {
        /// Serves the queue as the actor does, until it is closed and all requests have a reply.
        fn run(&self, reply: Reply) {
            let (mut drained, mut waiting, mut in_flight) = (Vec::new(), Vec::new(), Vec::new());
            let mut sent = 0;
            loop {
                self.queue().drain(&mut drained);
                waiting.append(&mut drained);
                if in_flight.is_empty() || waiting.len() >= THRESHOLD {
                    sent += waiting.len();
                    in_flight.extend(waiting.drain(..).flatten());
                }
                let wake_at = match in_flight.len() {
                    0 => 1,
                    _ => THRESHOLD.saturating_sub(waiting.len()).max(1),
                };
                let mut queue = self.queue();
                let (may_wait, is_closed) = (queue.wake_at(wake_at), queue.is_closed);
                drop(queue);
                match reply {
                    _ if !may_wait => {}
                    Reply::After(all) if all - sent >= THRESHOLD => self.wake.wait(),
                    _ if !in_flight.is_empty() => {
                        let waiters = in_flight.drain(..);
                        waiters.for_each(|waiter: Arc<Notify>| waiter.notify());
                    }
                    _ if is_closed => return,
                    _ => self.wake.wait(),
                }
            }
        }

        fn push(&self, request: Request) -> bool {
            let pushed = self.queue().push(request, 0);
            if let PushOutcome::Wake = pushed {
                self.wake.notify();
            }
            !matches!(pushed, PushOutcome::Closed(_))
        }

        /// Pushes a request and waits for the reply, unless the queue is closed.
        fn call(&self) {
            let reply = Arc::new(Notify::new());
            if self.push(Some(reply.clone())) {
                reply.wait();
            }
        }

        fn close(&self) {
            self.queue().close();
            self.wake.notify();
        }

        fn queue(&self) -> MutexGuard<'_, RequestQueue<Request>> {
            self.queue.lock().expect("a lock")
        }
    }
    /// Runs the lane beside two threads of callers. If one of the three waited for ever, loom would report a deadlock.
    fn explore(reply: Reply, first: fn(&Lane), second: fn(&Lane)) {
        let mut builder = loom::model::Builder::new();
        // Every order with at most two switches in mid-step: with more it takes minutes.
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let lane = Arc::new(Lane::default());
            let theirs = lane.clone();
            let first = thread::spawn(move || first(&theirs));
            let theirs = lane.clone();
            let second = thread::spawn(move || {
                second(&theirs);
                first.join().expect("it ends");
                theirs.close();
            });
            lane.run(reply);
            second.join().expect("it ends");
            assert!(lane.queue().waiting.is_empty());
        });
    }

    fn cancel_one_and_call(lane: &Lane) {
        assert!(lane.push(None));
        lane.call();
    }

    #[test]
    fn no_request_is_stranded_when_replies_come_at_once() {
        explore(Reply::AtOnce, cancel_one_and_call, Lane::call);
    }

    #[test]
    fn another_call_is_sent_while_the_first_has_no_reply() {
        let call_twice = |lane: &Lane| {
            let replies = [(); 2].map(|()| Arc::new(Notify::new()));
            for reply in &replies {
                assert!(lane.push(Some(reply.clone())));
            }
            replies.iter().for_each(|reply| reply.wait());
        };
        explore(Reply::After(3), call_twice, Lane::call);
    }

    #[test]
    fn a_request_that_meets_the_close_is_answered_or_returned() {
        explore(Reply::AtOnce, Lane::call, Lane::close);
    }

    #[test]
    fn no_more_requests_wait_than_the_bound() {
        let mut queue = RequestQueue::default();
        assert!(matches!(queue.push(1, MAX_WAITING - 1), PushOutcome::Wake));
        assert!(matches!(
            queue.push(2, MAX_WAITING - 1),
            PushOutcome::Full(2)
        ));
    }
}
