//! Calls: batches that are sent, their replies and errors.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use futures_util::future::abortable;
use redis::{RedisError, Value};
use tokio::time::Instant;

use super::{
    OpenBreaker,
    actor::{Actor, Done},
    lane::{Call, CallId},
    node::NodeId,
    slots::{self, Redirect},
    wire::{CallError, Wire},
};
use crate::{
    clock::Clock as _,
    error::StoreError,
    observe::StoreCallEvent,
    redis::{
        batch::{Batch, wire::decode_and_complete},
        error_class::{self, Resend},
        request::Sent,
    },
};

/// Pause before a call is sent again after TRYAGAIN, and before a redirect is followed for nodes that redirect to each other.
const REDIRECT_DELAY: Duration = Duration::from_millis(5);

/// `MOVED` replies in a row that a lane follows without a pause.
const MAX_IMMEDIATE_REDIRECTS: u32 = 3;

impl<W: Wire> Actor<W> {
    /// Sends the batches of a lane that are due.
    pub(super) fn send_due(&mut self, index: usize, now: Instant) {
        while !self.lanes[index].backlog.is_empty() {
            let Some(id) = self.lanes[index].node else {
                return self.want_slots(now);
            };
            let Some(node) = self.nodes.get(&id) else {
                self.lanes[index].node = None;
                continue;
            };
            if node.breaker.is_open() {
                return self.fail_waiting(index);
            }
            let Some(current) = &node.current else {
                return self.connect(id);
            };
            if !self.lanes[index].is_due(current.id, node.is_distant()) {
                return;
            }
            let mut expired = Vec::new();
            let batch = self.lanes[index].fill(|request| {
                if request.deadline <= now {
                    expired.push(request);
                    return None;
                }
                (!request.is_cancelled()).then_some(request)
            });
            for request in expired {
                self.fail(index, request, StoreError::timeout(), Sent::No);
            }
            if let Some(batch) = batch {
                self.send(index, batch, id, SendAs::default());
            }
        }
    }

    /// Sends a batch on the current connection of a node.
    pub(super) fn send(&mut self, lane: usize, mut batch: Batch, id: NodeId, send_as: SendAs) {
        let (now, call) = (self.now(), self.next_id());
        let (script, clock) = (self.io.script(), self.io.server_clock.now());
        let encoded = AssertUnwindSafe(|| batch.call(&script, send_as.with_text, clock));
        let Ok(cmd) = catch_unwind(encoded) else {
            // A rule of the application has: no other batch fails with its own.
            let panicked = StoreError::connection("a rule panicked");
            return self.fail_batch(lane, batch, &panicked, Sent::No);
        };
        let Some(node) = self.nodes.get_mut(&id) else {
            return self.lanes[lane].retry(batch.drain().collect::<Vec<_>>().into_iter());
        };
        let Some(current) = &node.current else {
            return self.lanes[lane].retry(batch.drain().collect::<Vec<_>>().into_iter());
        };
        let connection = current.id;
        let (reply, abort) = abortable(self.wire.call(&current.wire, cmd, send_as.asking));
        node.begin_call(now);
        self.start(async move {
            Done::Call {
                lane,
                id: call,
                reply: reply.await.unwrap_or(Err(CallError::Aborted)),
            }
        });
        let is_observed = !self.io.observers.is_empty();
        self.lanes[lane].calls.push(Call {
            id: call,
            observed: is_observed.then(|| (batch.checks(), batch.keys())),
            batch,
            node: id,
            connection,
            sent_at: now,
            with_text: send_as.with_text,
            asking: send_as.asking,
            abort,
        });
    }

    pub(super) fn end_call(&mut self, lane: usize, id: CallId, reply: Result<Value, CallError>) {
        let Some(call) = self.lanes[lane].take_call(id) else {
            return;
        };
        let has_reply = match &reply {
            Ok(_) => true,
            Err(CallError::Failed(error)) => error.code().is_some(),
            Err(CallError::NotTaken | CallError::Aborted) => false,
        };
        let trip = has_reply.then(|| self.now().saturating_duration_since(call.sent_at));
        if let Some(node) = self.nodes.get_mut(&call.node) {
            node.end_call(call.connection, trip);
            if !node.is_current(call.connection) {
                // It may have been the last call of a replaced connection.
                self.publish(call.node);
            }
        }
        match reply {
            Ok(reply) => self.handle_reply(lane, call, reply),
            Err(CallError::Failed(error)) => self.handle_error(lane, call, &error),
            Err(CallError::NotTaken) => {
                self.lose_connection(call.node, call.connection, None);
                self.send_again(lane, call.batch, None);
            }
            Err(CallError::Aborted) => {
                self.report(&call, CallResult::Failed(StoreError::timeout()));
                self.fail_batch(lane, call.batch, &StoreError::timeout(), Sent::Maybe);
            }
        }
    }

    /// Completes the requests of a batch with the reply.
    pub(super) fn handle_reply(&mut self, lane: usize, mut call: Call, reply: Value) {
        // Before the waiters are woken: a rejection decided before this batch may have been cached since it was sent.
        let cache = &self.io.rejection_cache;
        cache.invalidate(call.batch.invalidated());
        let reply = match decode_and_complete(&mut call.batch, reply, &self.io.server_clock) {
            Ok(reply) => reply,
            Err(malformed) => {
                self.report(&call, CallResult::Failed(malformed.clone()));
                // Nothing that follows on the connection can be trusted.
                self.lose_connection(call.node, call.connection, Some(&malformed));
                return self.fail_batch(lane, call.batch, &malformed, Sent::Maybe);
            }
        };
        let result = reply.error.clone();
        self.report(&call, result.map_or(CallResult::Ok, CallResult::Failed));
        self.lanes[lane].redirects = 0;
        for counters in reply.reset {
            self.forget_kept(lane, &counters);
        }
        let kept = self.lanes[lane].kept.len();
        for (request, error) in reply.failed {
            self.fail_in_call(lane, request, error);
        }
        self.lanes[lane].is_kept_paused |= self.lanes[lane].kept.len() > kept;
        self.lanes[lane].retry(reply.retry.into_iter());
        self.lanes[lane].recycle(call.batch);
        let now = self.now();
        match reply.error.filter(|_| reply.action.counts_as_failure) {
            Some(error) => self.note_failure(call.node, &error),
            None if now <= call.sent_at + self.io.timeout() => self.note_success(call.node),
            None => {}
        }
        let node = self.nodes.get(&call.node);
        if reply.action.reconnect && node.is_some_and(|node| node.is_current(call.connection)) {
            self.retire_connection(call.node);
        }
        if !self.lanes[lane].is_kept_paused {
            self.send_kept(lane);
        }
    }

    /// Sends a batch again, or fails it, after an error reply or with a connection that broke.
    pub(super) fn handle_error(&mut self, lane: usize, mut call: Call, error: &RedisError) {
        let failed = error_class::to_store_error(error);
        let action = error_class::classify(error);
        let node = self.nodes.get(&call.node);
        let is_current = node.is_some_and(|node| node.is_current(call.connection));
        if action.resend == Some(Resend::WithScriptText) && !call.with_text {
            self.report(&call, CallResult::Repeated(failed.clone()));
            call.batch.remove_answered();
            if !is_current || call.batch.is_empty() {
                return self.send_again(lane, call.batch, None);
            }
            let send_as = SendAs {
                with_text: true,
                asking: call.asking,
            };
            return self.send(lane, call.batch, call.node, send_as);
        }
        let host = node.and_then(|node| node.address.as_ref());
        let host = host.map_or("", |(host, _)| host);
        if self.slots.is_some()
            && let Some(redirect) = slots::redirect(error, host)
        {
            self.report(&call, CallResult::Repeated(failed.clone()));
            return self.follow(lane, call, redirect);
        }
        if action.resend == Some(Resend::AfterDelay) {
            self.report(&call, CallResult::Repeated(failed.clone()));
            return self.send_again(lane, call.batch, Some(self.now() + REDIRECT_DELAY));
        }
        self.report(&call, CallResult::Failed(failed.clone()));
        let sent = match error.code() {
            // An error reply proves that the script did not run.
            Some(_) => Sent::No,
            None => Sent::Maybe,
        };
        if sent == Sent::Maybe {
            self.lose_connection(call.node, call.connection, Some(&failed));
        } else if action.counts_as_failure {
            self.note_failure(call.node, &failed);
        }
        if action.reconnect && is_current {
            self.retire_connection(call.node);
        }
        self.want_slots(self.now());
        self.fail_batch(lane, call.batch, &failed, sent);
    }

    /// Follows a redirect, which proves that nothing of the call ran.
    pub(super) fn follow(&mut self, lane: usize, call: Call, redirect: Redirect) {
        let mut batch = call.batch;
        let later = Some(self.now() + REDIRECT_DELAY);
        match redirect {
            Redirect::Moved(host, port) => {
                if let Some(node) = self.node_at(&host, port) {
                    self.set_owner(lane, Some(node));
                }
                self.want_slots(self.now());
                self.lanes[lane].redirects += 1;
                let is_often = self.lanes[lane].redirects > MAX_IMMEDIATE_REDIRECTS;
                self.send_again(lane, batch, later.filter(|_| is_often));
            }
            Redirect::Ask(host, port) => match self.node_at(&host, port) {
                Some(node) if !call.asking => self.ask(node, lane, batch),
                // The nodes redirect to each other.
                _ => self.send_again(lane, batch, later),
            },
            // The keys are on two nodes. Each request is sent on its own.
            Redirect::TryAgain if batch.entries().nth(1).is_some() => {
                batch.send_alone();
                self.send_again(lane, batch, None);
            }
            Redirect::TryAgain => self.send_again(lane, batch, later),
        }
    }

    /// Sends a batch to the node that is importing its slot. Until the connection to that is open, the batch is sent to the lane's node
    /// again, which redirects it again unless the slot has moved by then.
    pub(super) fn ask(&mut self, id: NodeId, lane: usize, mut batch: Batch) {
        let Some(node) = self.nodes.get(&id) else {
            return self.send_again(lane, batch, None);
        };
        let now = self.now();
        if let Some((next_probe, cause)) = node.breaker.next_probe() {
            let open = OpenBreaker { next_probe, cause };
            return self.fail_batch(lane, batch, &open.error(now), Sent::No);
        }
        if node.current.is_none() {
            self.connect(id);
            return self.send_again(lane, batch, Some(now + REDIRECT_DELAY));
        }
        batch.remove_answered();
        if batch.is_empty() {
            return self.lanes[lane].recycle(batch);
        }
        let send_as = SendAs {
            asking: true,
            with_text: false,
        };
        self.send(lane, batch, id, send_as);
    }

    /// Puts the requests of a batch before all others: now, or at an instant. Requests that only a waiter needs, and whose waiter has
    /// its result, are dropped.
    pub(super) fn send_again(&mut self, lane: usize, mut batch: Batch, at: Option<Instant>) {
        batch.remove_answered();
        let requests: Vec<_> = batch.drain().collect();
        let lane = &mut self.lanes[lane];
        lane.recycle(batch);
        match at {
            Some(at) => lane.retry_at(at, requests),
            None => lane.retry(requests.into_iter()),
        }
    }

    pub(super) fn fail_batch(
        &mut self,
        lane: usize,
        mut batch: Batch,
        error: &StoreError,
        sent: Sent,
    ) {
        let requests: Vec<_> = batch.drain().collect();
        for request in requests {
            self.fail(lane, request, error.clone(), sent);
        }
        self.lanes[lane].recycle(batch);
    }

    /// Fails the requests of a lane that were not sent: its circuit breaker is open.
    pub(super) fn fail_waiting(&mut self, lane: usize) {
        let Err(error) = self.io.check_breaker(lane) else {
            return;
        };
        for request in self.lanes[lane].take_waiting() {
            self.fail(lane, request, error.clone(), Sent::No);
        }
    }

    pub(super) fn report(&self, call: &Call, result: CallResult) {
        if let Some(ops) = call.observed {
            let elapsed = self.now().saturating_duration_since(call.sent_at);
            self.report_call(call.node, elapsed, ops, result);
        }
    }

    #[cold]
    pub(super) fn report_call(
        &self,
        node: NodeId,
        elapsed: Duration,
        (requests, counter_ops): (usize, usize),
        result: CallResult,
    ) {
        let Some(node) = self.nodes.get(&node) else {
            return;
        };
        let node = node.server.name.clone();
        self.io.report(move |observer| {
            let event = StoreCallEvent::new(&node, elapsed).with_ops(requests, counter_ops);
            observer.on_store_call(&match &result {
                CallResult::Ok => event,
                CallResult::Repeated(reply) => event.repeated(reply),
                CallResult::Failed(error) => event.with_error(error),
            });
        });
    }
}

/// How a call ended, for observers: a [`StoreCallResult`](crate::observe::StoreCallResult).
pub(super) enum CallResult {
    Ok,
    Repeated(StoreError),
    Failed(StoreError),
}

/// How a batch is sent.
#[derive(Clone, Copy, Default)]
pub(super) struct SendAs {
    /// With the script's text in place of its hash.
    pub(super) with_text: bool,
    /// After `ASKING`.
    pub(super) asking: bool,
}
