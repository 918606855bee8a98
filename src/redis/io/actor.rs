//! The actor: the task that does all IO of one store, and owns its state.

use std::{
    collections::BTreeMap,
    future::{pending, poll_fn},
    mem,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, future::abortable, stream::FuturesUnordered};
use redis::{Cmd, RedisError, Value};
use tokio::{
    sync::oneshot,
    task::{
        coop::{Unconstrained, unconstrained},
        yield_now,
    },
    time::{Instant, sleep, timeout},
};

use super::{
    Command, Io, OpenBreaker, ServerRef, Target,
    breaker::Breaker,
    deadline_timer::DeadlineTimer,
    lane::{Call, Lane, MIN_CALL_TIME},
    node::Node,
    server::{Server, Servers},
    slots::{self, Asked, Redirect, SlotRange, Slots, run_beside},
    wire::{CallError, Wire},
};
use crate::{
    clock::Clock as _,
    error::StoreError,
    log::LogThrottle,
    observe::{BreakerState, Event, NodeStats, StoreCallEvent},
    redis::{
        batch::{Batch, wire::decode_and_complete},
        error_class::{self, Retry},
        key_names,
        request::Sent,
    },
    sync::lock,
};

/// Opening a connection takes no longer than this, or the store's timeout if that is longer.
const MIN_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A probe has the store's timeout, for servers that are far away, but at most this, and at most this to open its connection.
const MAX_PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Pause before a call is sent again after TRYAGAIN, and before a redirect is followed for nodes that redirect to each other.
const REDIRECT_DELAY: Duration = Duration::from_millis(5);

/// `MOVED` replies in a row that a lane follows without a pause.
const MAX_IMMEDIATE_REDIRECTS: u32 = 3;

/// Redirects that a command beside the lanes follows.
const MAX_COMMAND_REDIRECTS: u32 = 5;

/// Turns of the loop after which other tasks of the runtime run, the drivers of the connections among them.
const MAX_TURNS: u32 = 16;

/// The pause after a panic.
const PANIC_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Actor<W: Wire> {
    pub(super) io: Arc<Io>,
    wire: Arc<W>,
    /// By hash tag.
    pub(super) lanes: Vec<Lane>,
    nodes: BTreeMap<u64, Node<W::Connection>>,
    /// The slot map, of a cluster.
    slots: Option<Slots>,
    /// Calls in flight, connections that are being opened, and all else that is awaited.
    jobs: FuturesUnordered<Job<W::Connection>>,
    /// Commands that wait for the slot map.
    parked: Vec<Command>,
    last_id: u64,
    closed_at: Option<Instant>,
}

/// A job is not limited by the task's budget: with it, replies that have come would look pending.
type Job<C> = Unconstrained<Pin<Box<dyn Future<Output = Done<C>> + Send>>>;

/// What has ended.
enum Done<C> {
    Call {
        lane: usize,
        id: u64,
        reply: Result<Value, CallError>,
    },
    Connected {
        node: u64,
        result: Result<C, StoreError>,
    },
    /// The reply to a `PING` on an idle connection.
    Pinged {
        node: u64,
        connection: u64,
        result: Result<Value, CallError>,
    },
    /// A probe, and the connection on which it was answered.
    Probed {
        node: u64,
        result: Result<C, StoreError>,
    },
    Slots(Result<Vec<SlotRange>, StoreError>),
    Command(EndedCommand),
}

/// A command beside the lanes.
struct CommandRun {
    cmd: Cmd,
    timeout: Duration,
    reply: oneshot::Sender<Result<Value, StoreError>>,
    /// Redirects that were followed.
    redirects: u32,
}

/// A command beside the lanes that has a reply or an error.
struct EndedCommand {
    node: u64,
    run: CommandRun,
    result: Result<Result<Value, RedisError>, StoreError>,
}

impl<W: Wire> Actor<W> {
    pub(super) fn new(io: Arc<Io>, servers: Servers, wire: W) -> Self {
        let lanes = io.inboxes.iter().map(|_| Lane::default()).collect();
        let mut actor = Self {
            io,
            wire: Arc::new(wire),
            lanes,
            nodes: BTreeMap::new(),
            slots: None,
            jobs: FuturesUnordered::new(),
            parked: Vec::new(),
            last_id: 0,
            closed_at: None,
        };
        match servers {
            Servers::One(server) => {
                let node = actor.add_node(server, None);
                actor
                    .lanes
                    .iter_mut()
                    .for_each(|lane| lane.node = Some(node));
            }
            Servers::Cluster(config) => {
                for (address, server) in config.seeds.clone() {
                    actor.add_node(server, Some(address));
                }
                actor.slots = Some(Slots::new(*config));
            }
        }
        actor
    }

    /// Serves the lanes until the store is dropped. A panic fails the calls in flight.
    pub(super) async fn run(mut self) {
        while AssertUnwindSafe(self.serve()).catch_unwind().await.is_err() {
            self.recover();
            sleep(PANIC_PAUSE).await;
        }
    }

    async fn serve(&mut self) {
        let mut timer = DeadlineTimer::default();
        let (mut is_due, mut turns) = (false, 0);
        loop {
            // All replies that have come, before deadlines count.
            while let Some(Some(done)) = self.jobs.next().now_or_never() {
                self.complete(done);
            }
            let now = self.now();
            if mem::take(&mut is_due) {
                self.check_deadlines(now);
            }
            self.drain(now);
            self.start_due_jobs(now);
            for lane in 0..self.lanes.len() {
                self.fill(lane, now);
            }
            if self.has_ended(now) {
                return;
            }
            turns += 1;
            if turns % MAX_TURNS == 0 {
                yield_now().await;
            }
            if !self.end_turn(now) {
                continue;
            }
            let next = self.next_due();
            tokio::select! {
                biased;
                // First: under load on one server there is always a reply or a request, and another server's calls time out nevertheless.
                () = wait_until(&mut timer, next) => {
                    // After the process was suspended, timers fire before replies are read: the runtime reads them, and the connections'
                    // tasks hand them over, before this task goes on.
                    let _ = tokio::spawn(yield_now()).await;
                    is_due = true;
                }
                Some(done) = self.jobs.next() => self.complete(done),
                () = self.io.wake.notified() => {}
            }
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.io.now()
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn start(&self, job: impl Future<Output = Done<W::Connection>> + Send + 'static) {
        self.jobs.push(unconstrained(Box::pin(job)));
    }

    fn complete(&mut self, done: Done<W::Connection>) {
        match done {
            Done::Call { lane, id, reply } => self.end_call(lane, id, reply),
            Done::Connected { node, result } => self.end_connect(node, result),
            Done::Pinged {
                node,
                connection,
                result,
            } => self.end_ping(node, connection, result),
            Done::Probed { node, result } => self.end_probe(node, result),
            Done::Slots(result) => self.apply_slots(result),
            Done::Command(ended) => self.end_command(ended),
        }
    }

    /// Fails what has passed its deadline. All replies that had come by then were read.
    fn check_deadlines(&mut self, now: Instant) {
        let timeout = self.io.timeout();
        for lane in 0..self.lanes.len() {
            for request in self.lanes[lane].take_expired(now) {
                self.fail(lane, request, StoreError::timeout(), Sent::No);
            }
            let calls = &mut self.lanes[lane].calls;
            calls.iter_mut().for_each(|call| call.batch.expire(now));
            self.lanes[lane].abort_calls(now, timeout);
        }
        let silent = self.nodes.iter_mut();
        let silent = silent.filter_map(|(id, node)| node.take_silence(now, timeout).then_some(*id));
        for id in silent.collect::<Vec<_>>() {
            self.replace_silent(id, now);
        }
    }

    /// Moves the requests in the inboxes into the backlogs, and starts the commands.
    fn drain(&mut self, now: Instant) {
        for (inbox, lane) in self.io.inboxes.iter().zip(&mut self.lanes) {
            lock(&inbox.queue).drain(&mut lane.incoming);
            lane.drained_at = Some(now);
            lane.backlog.extend(lane.incoming.drain(..));
        }
        let commands = mem::take(&mut lock(&self.io.commands).waiting);
        commands
            .into_iter()
            .for_each(|command| self.start_command(command));
    }

    /// Starts what is due: probes, `PING`s, a refresh of the slot map, and what is sent again.
    fn start_due_jobs(&mut self, now: Instant) {
        let timeout = self.io.timeout();
        let due = |node: &Node<W::Connection>| node.next_due(timeout).is_some_and(|at| at <= now);
        let due = self.nodes.iter().filter(|(_, node)| due(node));
        for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(node) = self.nodes.get_mut(&id) else {
                continue;
            };
            if node.breaker.is_probe_due(now) {
                if node.breaker.begin_probe(now) {
                    self.send_probe(id);
                }
                // The keys may have moved.
                self.want_slots(now);
            } else if node.is_idle(now) {
                self.send_ping(id, now);
            }
        }
        for index in 0..self.lanes.len() {
            let lane = &mut self.lanes[index];
            lane.retry_due(now);
            if lane.send_kept_at.is_some_and(|at| at <= now) {
                lane.is_kept_paused = false;
                self.send_kept(index);
            }
        }
        self.refresh_slots(now);
    }

    /// Sends the batches of a lane that are due.
    fn fill(&mut self, index: usize, now: Instant) {
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
    fn send(&mut self, lane: usize, mut batch: Batch, id: u64, send_as: SendAs) {
        let (now, call) = (self.now(), self.next_id());
        let cmd = batch.call(
            &self.io.script(),
            send_as.with_text,
            self.io.server_clock.now(),
        );
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

    fn end_call(&mut self, lane: usize, id: u64, reply: Result<Value, CallError>) {
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
    fn handle_reply(&mut self, lane: usize, mut call: Call, reply: Value) {
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
        self.lanes[lane].is_kept_paused |= reply.action.is_unwritable && !reply.failed.is_empty();
        for (request, error) in reply.failed {
            self.fail_in_call(lane, request, error);
        }
        self.lanes[lane].retry(reply.retry.into_iter());
        self.lanes[lane].recycle(call.batch);
        let now = self.now();
        match reply.error.filter(|_| reply.action.counts_as_failure) {
            Some(error) => self.note_failure(call.node, &error),
            None if now <= call.sent_at + self.io.timeout() => self.note_success(call.node),
            None => {}
        }
        if reply.action.reconnect {
            self.retire_connection(call.node);
        }
        if !self.lanes[lane].is_kept_paused {
            self.send_kept(lane);
        }
    }

    /// Does what is to be done about an error reply, or a connection that broke.
    fn handle_error(&mut self, lane: usize, mut call: Call, error: &RedisError) {
        let failed = error_class::to_store_error(error);
        let action = error_class::classify(error);
        let node = self.nodes.get(&call.node);
        let is_current = node
            .and_then(|node| node.current.as_ref())
            .is_some_and(|current| current.id == call.connection);
        if action.retry == Some(Retry::WithScriptText) && !call.with_text {
            self.report(&call, CallResult::Repeated(failed.clone()));
            call.batch.remove_answered();
            return match is_current && !call.batch.is_empty() {
                true => {
                    let send_as = SendAs {
                        with_text: true,
                        asking: call.asking,
                    };
                    self.send(lane, call.batch, call.node, send_as);
                }
                false => self.send_again(lane, call.batch, None),
            };
        }
        let host = node.and_then(|node| node.address.as_ref());
        let host = host.map_or("", |(host, _)| host);
        if self.slots.is_some()
            && let Some(redirect) = slots::redirect(error, host)
        {
            self.report(&call, CallResult::Repeated(failed.clone()));
            return self.follow(lane, call, redirect);
        }
        if action.retry == Some(Retry::AfterDelay) {
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

    /// Sends the batch of a call to another node, or again: nothing of it ran.
    fn follow(&mut self, lane: usize, call: Call, redirect: Redirect) {
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
    fn ask(&mut self, id: u64, lane: usize, mut batch: Batch) {
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

    /// Puts the requests of a batch before all others: now, or at an instant. Those without a waiter that only a waiter needs are
    /// dropped.
    fn send_again(&mut self, lane: usize, mut batch: Batch, at: Option<Instant>) {
        batch.remove_answered();
        let requests: Vec<_> = batch.drain().collect();
        let lane = &mut self.lanes[lane];
        lane.recycle(batch);
        match at {
            Some(at) => lane.retry_at(at, requests),
            None => lane.retry(requests.into_iter()),
        }
    }

    fn fail_batch(&mut self, lane: usize, mut batch: Batch, error: &StoreError, sent: Sent) {
        let requests: Vec<_> = batch.drain().collect();
        for request in requests {
            self.fail(lane, request, error.clone(), sent);
        }
        self.lanes[lane].recycle(batch);
    }

    /// Fails the requests of a lane that were not sent: its circuit breaker is open.
    fn fail_waiting(&mut self, lane: usize) {
        let Err(error) = self.io.check_breaker(lane) else {
            return;
        };
        for request in self.lanes[lane].take_waiting() {
            self.fail(lane, request, error.clone(), Sent::No);
        }
    }

    /// Whether the store is dropped, and all that it had to do is done, or a timeout has passed since.
    fn has_ended(&mut self, now: Instant) -> bool {
        if !self.io.is_closed.load(Ordering::Acquire) {
            return false;
        }
        if self.closed_at.is_none() {
            self.closed_at = Some(now);
            (0..self.lanes.len()).for_each(|lane| self.send_kept(lane));
            // What was kept is in the inboxes now, and what else was pushed until the store was dropped: one more turn.
            self.io.wake.notify_one();
            return false;
        }
        let is_over = self
            .closed_at
            .is_some_and(|closed_at| closed_at + self.io.timeout() <= now);
        is_over || self.lanes.iter().all(Lane::is_empty) && self.parked.is_empty()
    }

    /// Publishes what request threads read. Returns false if requests wait that are to be drained now.
    fn end_turn(&mut self, now: Instant) -> bool {
        let mut waiting = Vec::new();
        let (mut drained, mut may_wait) = (0, true);
        for (inbox, lane) in self.io.inboxes.iter().zip(&self.lanes) {
            let node = lane.node.and_then(|id| self.nodes.get(&id));
            let current = node.and_then(|node| node.current.as_ref());
            let is_distant = node.is_some_and(Node::is_distant);
            let wake_at = lane.wake_at(current.map(|current| current.id), is_distant);
            may_wait &= lock(&inbox.queue).wake_at(wake_at);
            drained += lane.backlog.len();
            if !lane.backlog.is_empty() {
                waiting.extend(lane.node);
            }
        }
        self.io.drained.store(drained, Ordering::Relaxed);
        for (id, node) in &mut self.nodes {
            node.note_silence(now, waiting.contains(id));
        }
        may_wait
    }

    /// When to look again without a reply or a push.
    fn next_due(&self) -> Option<Instant> {
        let timeout = self.io.timeout();
        let lanes = self.lanes.iter().filter_map(|lane| lane.next_due(timeout));
        let nodes = self
            .nodes
            .values()
            .filter_map(|node| node.next_due(timeout));
        let slots = self.slots.as_ref().and_then(Slots::next_due);
        let end = self.closed_at.map(|closed_at| closed_at + timeout);
        lanes.chain(nodes).chain(slots).chain(end).min()
    }

    /// Fails the calls in flight, and starts anew: the code of a strategy has panicked.
    fn recover(&mut self) {
        let panicked = || StoreError::connection("the IO of the store panicked");
        self.jobs = FuturesUnordered::new();
        for lane in 0..self.lanes.len() {
            for call in mem::take(&mut self.lanes[lane].calls) {
                self.fail_batch(lane, call.batch, &panicked(), Sent::Maybe);
            }
        }
        if let Some(slots) = &mut self.slots {
            slots.is_refreshing = false;
            // Commands may wait for the map.
            slots.is_wanted = true;
        }
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            if let Some(node) = self.nodes.get_mut(&id) {
                let fresh = Node::new(
                    node.server.clone(),
                    node.address.clone(),
                    Breaker::new(self.io.settings.breaker_threshold),
                );
                node.breaker = mem::replace(node, fresh).breaker;
                node.breaker.forget_probes();
            }
            self.note_failure(id, &panicked());
        }
    }

    fn report(&self, call: &Call, result: CallResult) {
        if let Some(ops) = call.observed {
            let elapsed = self.now().saturating_duration_since(call.sent_at);
            self.report_call(call.node, elapsed, ops, result);
        }
    }

    #[cold]
    fn report_call(
        &self,
        node: u64,
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
enum CallResult {
    Ok,
    Repeated(StoreError),
    Failed(StoreError),
}

/// How a batch is sent.
#[derive(Clone, Copy, Default)]
struct SendAs {
    /// With the script's text in place of its hash.
    with_text: bool,
    /// After `ASKING`.
    asking: bool,
}

async fn wait_until(timer: &mut DeadlineTimer, at: Option<Instant>) {
    match at {
        Some(at) => poll_fn(|cx| timer.poll(at, cx)).await,
        None => pending().await,
    }
}

/// The nodes: connections, circuit breakers, probes.
impl<W: Wire> Actor<W> {
    fn add_node(&mut self, server: Server, address: Option<super::server::Address>) -> u64 {
        let id = self.next_id();
        let breaker = Breaker::new(self.io.settings.breaker_threshold);
        self.nodes.insert(id, Node::new(server, address, breaker));
        id
    }

    fn connect_timeout(&self) -> Duration {
        self.io.timeout().max(MIN_CONNECT_TIMEOUT)
    }

    /// Opens a connection to a node, unless one is being opened.
    fn connect(&mut self, id: u64) {
        let within = self.connect_timeout();
        let Some(node) = self.nodes.get_mut(&id).filter(|node| !node.is_connecting) else {
            return;
        };
        node.is_connecting = true;
        node.is_silence_counted = false;
        let connected = self.wire.connect(&node.server, within);
        self.start(async move {
            Done::Connected {
                node: id,
                result: connected.await,
            }
        });
    }

    fn end_connect(&mut self, id: u64, result: Result<W::Connection, StoreError>) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.is_connecting = false;
        match result {
            Ok(_) if node.breaker.is_open() => {}
            Ok(connection) => self.set_current(id, connection),
            Err(error) => {
                let is_failure = node.restart_silence();
                self.report_call(
                    id,
                    Duration::ZERO,
                    (0, 0),
                    CallResult::Failed(error.clone()),
                );
                // Those that wait for it. A later request has another one opened.
                let error = error.sent(false);
                let mut waiting = Vec::new();
                for (index, lane) in self.lanes.iter_mut().enumerate() {
                    if lane.node == Some(id) {
                        let requests = lane.take_waiting().into_iter();
                        waiting.extend(requests.map(|request| (index, request)));
                    }
                }
                // Before the callers wake: each of them finds the circuit breaker open.
                if is_failure {
                    self.note_failure(id, &error);
                }
                for (lane, request) in waiting {
                    self.fail(lane, request, error.clone(), Sent::No);
                }
                self.want_slots(self.now());
            }
        }
    }

    fn set_current(&mut self, id: u64, connection: W::Connection) {
        let (now, connection_id) = (self.now(), self.next_id());
        if let Some(node) = self.nodes.get_mut(&id) {
            let closed = node.set_current(connection_id, connection, now);
            self.close_calls(closed);
        }
        self.publish(id);
    }

    /// Has no more calls sent on the current connection.
    fn retire_connection(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            let closed = node.retire();
            self.close_calls(closed);
        }
        self.publish(id);
    }

    /// Gives up the calls of a connection that is closed.
    fn close_calls(&self, closed: Option<u64>) {
        let Some(closed) = closed else {
            return;
        };
        let calls = self.lanes.iter().flat_map(|lane| &lane.calls);
        let calls = calls.filter(|call| call.connection == closed);
        calls.for_each(|call| call.abort.abort());
    }

    /// Notes that a connection broke. It counts once, however many calls find out, and not at all if no call was lost.
    fn lose_connection(&mut self, id: u64, connection: u64, error: Option<&StoreError>) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if node.lose(connection) {
            self.publish(id);
            if let Some(error) = error {
                self.note_failure(id, error);
            }
        }
    }

    /// Replaces the connection of a node that was silent for a timeout. Its calls may still have a reply.
    fn replace_silent(&mut self, id: u64, now: Instant) {
        let error = StoreError::timeout();
        for lane in 0..self.lanes.len() {
            let mut calls = mem::take(&mut self.lanes[lane].calls);
            for call in calls.iter_mut().filter(|call| call.node == id) {
                if now >= call.sent_at + self.io.timeout() {
                    self.report(call, CallResult::Failed(error.clone()));
                    call.observed = None;
                }
            }
            self.lanes[lane].calls = calls;
        }
        self.retire_connection(id);
        self.note_failure(id, &error);
        self.want_slots(now);
        if self
            .nodes
            .get(&id)
            .is_some_and(|node| !node.breaker.is_open())
        {
            self.connect(id);
        }
    }

    fn note_failure(&mut self, id: u64, error: &StoreError) {
        let now = self.now();
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let has_opened = node.breaker.on_failure(now, error);
        if has_opened {
            static OPENED: LogThrottle = LogThrottle::new();
            OPENED.log_with(|suppressed| {
                let error = error.clone();
                self.io.defer(move || {
                    tracing::warn!(%error, suppressed, "circuit breaker opened after failed calls to the store; probing in the background");
                });
            });
            let closed = node.retire();
            self.close_calls(closed);
            self.report_breaker(id, BreakerState::Open);
        }
        self.publish(id);
        for lane in 0..self.lanes.len() {
            if has_opened && self.lanes[lane].node == Some(id) {
                self.fail_waiting(lane);
            }
        }
    }

    fn note_success(&mut self, id: u64) {
        if let Some(node) = self.nodes.get_mut(&id)
            && node.breaker.on_success()
        {
            self.note_closed(id);
        }
    }

    /// Does what follows when a circuit breaker closes.
    fn note_closed(&mut self, id: u64) {
        static CLOSED: LogThrottle = LogThrottle::new();
        CLOSED.log_with(|suppressed| {
            self.io.defer(move || {
                tracing::info!(
                    suppressed,
                    "circuit breaker closed: the store responds again"
                );
            });
        });
        self.report_breaker(id, BreakerState::Closed);
        self.publish(id);
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].node == Some(id) {
                self.lanes[lane].is_kept_paused = false;
                self.send_kept(lane);
            }
        }
    }

    fn report_breaker(&self, id: u64, state: BreakerState) {
        if let Some(node) = self.nodes.get(&id) {
            let node = node.server.name.clone();
            self.io.report(move |observer| {
                let node = &*node;
                observer.on_event(&Event::BreakerChanged { node, state });
            });
        }
    }

    /// Publishes the state of a node: to the lanes that it serves, and for operators.
    fn publish(&self, id: u64) {
        let node = self.nodes.get(&id);
        let open = node.and_then(|node| node.breaker.next_probe());
        let open = open.map(|(next_probe, cause)| Arc::new(OpenBreaker { next_probe, cause }));
        for (inbox, lane) in self.io.inboxes.iter().zip(&self.lanes) {
            if lane.node == Some(id) {
                inbox.open.store(open.clone());
            }
        }
        let served = |id: &u64| self.lanes.iter().any(|lane| lane.node == Some(*id));
        let nodes = self.nodes.iter().filter(|(id, _)| served(id));
        let stats = nodes.map(|(_, node)| {
            let name = node.server.name.clone();
            NodeStats::new(name, node.breaker.observed(), node.connections() as u64)
        });
        *lock(&self.io.nodes) = stats.collect();
    }

    /// Tries a connection that was idle for long.
    fn send_ping(&mut self, id: u64, now: Instant) {
        let within = MIN_CALL_TIME.max(self.io.timeout());
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.begin_call(now);
        if let Some(current) = &node.current {
            let connection = current.id;
            let reply = self.wire.call(&current.wire, redis::cmd("PING"), false);
            self.start(async move {
                let reply = timeout(within, reply).await;
                Done::Pinged {
                    node: id,
                    connection,
                    result: reply.unwrap_or(Err(CallError::Aborted)),
                }
            });
        }
    }

    fn end_ping(&mut self, id: u64, connection: u64, result: Result<Value, CallError>) {
        let is_lost = match result {
            // A server that runs another client's script answers by an error, for one.
            Ok(_) => false,
            Err(CallError::Failed(error)) => error_class::classify(&error).reconnect,
            Err(CallError::NotTaken | CallError::Aborted) => true,
        };
        if let Some(node) = self.nodes.get_mut(&id) {
            node.end_call(connection, (!is_lost).then_some(Duration::MAX));
        }
        if is_lost {
            self.lose_connection(id, connection, None);
        }
    }

    /// Sends a probe on a connection of its own: it proves that connections can be opened, too.
    fn send_probe(&mut self, id: u64) {
        let tag = self.lanes.iter().position(|lane| lane.node == Some(id));
        let key = key_names::probe_key(self.io.prefix(), self.io.tags(), tag.unwrap_or(0));
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(include_str!("probe.lua")).arg(1).arg(key);
        // With a long timeout too: while as many probes as may be in flight hang, none finds that the server is back.
        let connect_timeout = self.connect_timeout().min(MAX_PROBE_TIMEOUT);
        let reply_timeout = self.io.timeout().min(MAX_PROBE_TIMEOUT);
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let connected = self.wire.connect(&node.server, connect_timeout);
        let wire = self.wire.clone();
        self.start(async move {
            let probe = async {
                let connection = connected.await?;
                let reply = timeout(reply_timeout, wire.call(&connection, cmd, false)).await;
                check_probe(reply.map_err(|_| StoreError::timeout())?)?;
                Ok(connection)
            };
            Done::Probed {
                node: id,
                result: probe.await,
            }
        });
        self.report_breaker(id, BreakerState::HalfOpen);
        self.publish(id);
    }

    fn end_probe(&mut self, id: u64, result: Result<W::Connection, StoreError>) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let was_open = node.breaker.is_open();
        let (connection, checked) = match result {
            Ok(connection) => (Some(connection), Ok(())),
            Err(error) => (None, Err(error)),
        };
        if node.breaker.end_probe(checked) {
            if let Some(connection) = connection {
                self.set_current(id, connection);
            }
            self.note_closed(id);
        } else if was_open && node.breaker.observed() == BreakerState::Open {
            self.report_breaker(id, BreakerState::Open);
            self.publish(id);
        }
    }
}

/// Returns the error of a probe whose server can't count. An error reply that does not open a breaker does not keep it open
/// either: a full server still rejects keys whose quota is used up.
fn check_probe(reply: Result<Value, CallError>) -> Result<(), StoreError> {
    match reply {
        Ok(_) => Ok(()),
        Err(CallError::Failed(error)) if !error_class::classify(&error).counts_as_failure => Ok(()),
        Err(CallError::Failed(error)) => Err(error_class::to_store_error(&error)),
        Err(CallError::NotTaken | CallError::Aborted) => {
            Err(StoreError::connection("the connection was closed"))
        }
    }
}

/// The slot map of a cluster, and commands beside the lanes.
impl<W: Wire> Actor<W> {
    /// Has the slot map refreshed: a server may no longer serve its keys.
    fn want_slots(&mut self, now: Instant) {
        if let Some(slots) = &mut self.slots {
            slots.is_wanted = true;
            self.refresh_slots(now);
        }
    }

    fn refresh_slots(&mut self, now: Instant) {
        let Some(rotation) = self
            .slots
            .as_mut()
            .and_then(|slots| slots.begin_refresh(now))
        else {
            return;
        };
        let asked = self.nodes.values().filter_map(|node| {
            Some(Asked {
                host: node.address.as_ref()?.0.clone(),
                server: node.server.clone(),
                side: node.side.clone(),
            })
        });
        let mut asked: Vec<_> = asked.collect();
        let first = rotation % asked.len().max(1);
        asked.rotate_left(first);
        let read = slots::read_from_any(self.wire.clone(), asked);
        self.start(async move { Done::Slots(read.await) });
    }

    fn apply_slots(&mut self, read: Result<Vec<SlotRange>, StoreError>) {
        let Some(slots) = &mut self.slots else {
            return;
        };
        slots.is_refreshing = false;
        let parked = mem::take(&mut self.parked);
        let ranges = match read {
            Ok(ranges) => ranges,
            Err(error) => {
                self.fail_without_owner(&error);
                return parked
                    .into_iter()
                    .for_each(|command| command.fail(error.clone()));
            }
        };
        let mut owners = vec![None; self.lanes.len()];
        let mut named = Vec::new();
        for (first, last, host, port) in &ranges {
            let node = self.node_at(host, *port);
            named.extend(node);
            for (tag, owner) in owners.iter_mut().enumerate() {
                let slot = self.io.tags().map(|tags| tags.slot(tag));
                if slot.is_some_and(|slot| (*first..=*last).contains(&slot)) {
                    *owner = node;
                }
            }
        }
        for (lane, owner) in owners.into_iter().enumerate() {
            self.set_owner(lane, owner);
        }
        self.remove_unused_nodes(&named);
        self.fail_without_owner(&no_owner());
        parked
            .into_iter()
            .for_each(|command| self.start_known(command));
    }

    /// Fails the requests of lanes whose slot no node serves.
    fn fail_without_owner(&mut self, error: &StoreError) {
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].node.is_none() {
                for request in self.lanes[lane].take_waiting() {
                    self.fail(lane, request, error.clone(), Sent::No);
                }
            }
        }
    }

    fn set_owner(&mut self, lane: usize, owner: Option<u64>) {
        if self.lanes[lane].node == owner {
            return;
        }
        self.lanes[lane].node = owner;
        match owner {
            Some(node) => self.publish(node),
            None => self.io.inboxes[lane].open.store(None),
        }
    }

    /// The node at an address, which may be new.
    fn node_at(&mut self, host: &str, port: u16) -> Option<u64> {
        let mut nodes = self.nodes.iter();
        if let Some((id, _)) = nodes.find(|(_, node)| node.has_address(host, port)) {
            return Some(*id);
        }
        let server = self.slots.as_ref()?.config.server_at(host, port)?;
        Some(self.add_node(server, Some((host.to_owned(), port))))
    }

    /// Removes the nodes that serve no slot and have no calls, but for the configured ones. Those serve none either, and are not
    /// probed.
    fn remove_unused_nodes(&mut self, named: &[u64]) {
        let Some(slots) = &self.slots else {
            return;
        };
        let (lanes, threshold) = (&self.lanes, self.io.settings.breaker_threshold);
        self.nodes.retain(|id, node| {
            let mut calls = lanes.iter().flat_map(|lane| &lane.calls);
            if named.contains(id) || node.is_connecting || calls.any(|call| call.node == *id) {
                return true;
            }
            node.breaker = Breaker::new(threshold);
            let mut seeds = slots.config.seeds.iter();
            seeds.any(|(address, _)| node.address.as_ref() == Some(address))
        });
    }

    fn start_command(&mut self, command: Command) {
        let needs_slots = match &command {
            Command::Run { target, .. } => match target {
                Target::Tag(tag) => self.lanes[*tag].node.is_none(),
                Target::Name(_) => false,
            },
            Command::Servers(_) => self.lanes.iter().any(|lane| lane.node.is_none()),
        };
        if needs_slots && self.slots.is_some() {
            self.parked.push(command);
            return self.want_slots(self.now());
        }
        self.start_known(command);
    }

    fn start_known(&mut self, command: Command) {
        match command {
            Command::Run {
                target,
                cmd,
                timeout,
                reply,
            } => {
                let node = match &target {
                    Target::Tag(tag) => self.lanes[*tag].node,
                    Target::Name(name) => {
                        let mut nodes = self.nodes.iter();
                        let node = nodes.find(|(_, node)| node.server.name == *name);
                        node.map(|(id, _)| *id)
                    }
                };
                match node {
                    Some(node) => {
                        let run = CommandRun {
                            cmd,
                            timeout,
                            reply,
                            redirects: 0,
                        };
                        self.run_command(node, run, false);
                    }
                    None => drop(reply.send(Err(no_owner()))),
                }
            }
            Command::Servers(reply) => {
                let _ = reply.send(self.servers());
            }
        }
    }

    fn servers(&self) -> Result<Vec<ServerRef>, StoreError> {
        let mut servers = Vec::<ServerRef>::new();
        for (tag, lane) in self.lanes.iter().enumerate() {
            let node = lane.node.and_then(|id| self.nodes.get(&id));
            let Some(node) = node else {
                return Err(no_owner());
            };
            let name = &node.server.name;
            if !servers.iter().any(|known| known.name == *name) {
                servers.push(ServerRef {
                    name: name.clone(),
                    tag,
                });
            }
        }
        Ok(servers)
    }

    fn run_command(&mut self, id: u64, run: CommandRun, asking: bool) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let (wire, server, side) = (self.wire.clone(), node.server.clone(), node.side.clone());
        self.start(async move {
            let result = run_beside(&*wire, &server, &side, &run.cmd, asking, run.timeout).await;
            Done::Command(EndedCommand {
                node: id,
                run,
                result,
            })
        });
    }

    fn end_command(&mut self, ended: EndedCommand) {
        let EndedCommand {
            node,
            mut run,
            result,
        } = ended;
        let host = self.nodes.get(&node).and_then(|node| node.address.as_ref());
        let host = host.map_or(String::new(), |(host, _)| host.clone());
        if let Ok(Err(error)) = &result
            && self.slots.is_some()
            && run.redirects < MAX_COMMAND_REDIRECTS
            && let Some(redirect) = slots::redirect(error, &host)
        {
            run.redirects += 1;
            let (to, asking) = match redirect {
                Redirect::Moved(host, port) => {
                    self.want_slots(self.now());
                    (self.node_at(&host, port), false)
                }
                Redirect::Ask(host, port) => (self.node_at(&host, port), true),
                Redirect::TryAgain => (Some(node), false),
            };
            if let Some(to) = to {
                return self.run_command(to, run, asking);
            }
        }
        if result.is_err() {
            self.want_slots(self.now());
        }
        let result =
            result.and_then(|reply| reply.map_err(|error| error_class::to_store_error(&error)));
        let _ = run.reply.send(result);
    }
}

fn no_owner() -> StoreError {
    StoreError::Server {
        code: "CLUSTERDOWN".into(),
        message: "no node serves the slot".into(),
    }
}

/// The actor has ended, or its runtime: what waits fails.
impl<W: Wire> Drop for Actor<W> {
    fn drop(&mut self) {
        let mut commands = lock(&self.io.commands);
        commands.is_closed = true;
        let waiting = mem::take(&mut commands.waiting);
        drop(commands);
        drop(waiting);
        for (inbox, lane) in self.io.inboxes.iter().zip(&mut self.lanes) {
            let mut queue = lock(&inbox.queue);
            queue.close();
            queue.drain(&mut lane.incoming);
        }
    }
}
