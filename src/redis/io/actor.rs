//! The actor: the task that does all IO of one store, and owns its state.
//!
//! Its methods are here, but for those of calls (`calls`), connections and probes (`connections`), commands (`commands`), the slot map
//! (`slots`) and kept adjustments (`kept`).

use std::{
    collections::BTreeMap,
    future::{pending, poll_fn, ready},
    mem,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use redis::Value;
use tokio::{
    task::{
        coop::{Unconstrained, unconstrained},
        yield_now,
    },
    time::{Instant, sleep},
};

use super::{
    Command, Io,
    breaker::Breaker,
    commands::EndedCommand,
    deadline_timer::DeadlineTimer,
    lane::{CallId, Lane},
    node::{ConnectionId, Node, NodeId},
    server::Servers,
    slots::{SlotRange, Slots},
    wire::{CallError, Wire},
};
use crate::{error::StoreError, redis::request::Sent, sync::lock};

/// Most turns before the runtime's other tasks run, among them those that drive the connections.
const MAX_TURNS: u32 = 16;

/// The pause after a panic.
const PANIC_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Actor<W: Wire> {
    pub(super) io: Arc<Io>,
    pub(super) wire: Arc<W>,
    /// By hash tag.
    pub(super) lanes: Vec<Lane>,
    pub(super) nodes: BTreeMap<NodeId, Node<W::Connection>>,
    /// The slot map, of a cluster.
    pub(super) slots: Option<Slots>,
    /// Calls in flight, connections that are being opened, and all else that is awaited.
    pub(super) jobs: FuturesUnordered<Job<W::Connection>>,
    /// Commands that wait for the slot map.
    pub(super) parked: Vec<Command>,
    last_id: u64,
    /// When the actor noticed that the store was dropped.
    closed_at: Option<Instant>,
}

/// A job is not limited by the task's budget: with it, replies that have come would look pending.
pub(super) type Job<C> = Unconstrained<Pin<Box<dyn Future<Output = Done<C>> + Send>>>;

/// A job that has ended.
pub(super) enum Done<C> {
    Call {
        lane: usize,
        id: CallId,
        reply: Result<Value, CallError>,
    },
    Connected {
        node: NodeId,
        result: Result<C, StoreError>,
    },
    /// The reply to a `PING` on an idle connection.
    Pinged {
        node: NodeId,
        connection: ConnectionId,
        result: Result<Value, CallError>,
    },
    /// A probe, and the connection on which it was answered.
    Probed {
        node: NodeId,
        result: Result<C, StoreError>,
    },
    Slots(Result<Vec<SlotRange>, StoreError>),
    Command(EndedCommand),
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
            // Replies that have come are handled before deadlines are checked.
            while let Some(Some(done)) = self.jobs.next().now_or_never() {
                self.complete(done);
            }
            let now = self.now();
            if mem::take(&mut is_due) {
                self.check_deadlines(now);
            }
            self.drain();
            self.start_due_jobs(now);
            for lane in 0..self.lanes.len() {
                self.send_due(lane, now);
            }
            if self.end_once_closed(now) {
                return;
            }
            turns = (turns + 1) % MAX_TURNS;
            if turns == 0 {
                yield_now().await;
            }
            let may_wait = self.end_turn(now);
            let next = self.next_due();
            tokio::select! {
                biased;
                // The timer is polled first: while one server is busy a reply or a request is always ready, and the calls of a silent
                // server have to time out nevertheless.
                () = wait_until(&mut timer, next) => {
                    // After the process was suspended, timers fire before replies are read. When this task goes on, the runtime has read
                    // the sockets, and the connections' tasks have handed the replies over.
                    let _ = tokio::spawn(yield_now()).await;
                    is_due = true;
                }
                Some(done) = self.jobs.next() => self.complete(done),
                () = self.io.wake.notified() => {}
                () = ready(()), if !may_wait => {}
            }
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.io.now()
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(super) fn start(&self, job: impl Future<Output = Done<W::Connection>> + Send + 'static) {
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

    /// Fails requests past their deadlines, ends calls that have no reply, and replaces silent connections. All replies that have come
    /// were handled.
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
    fn drain(&mut self) {
        for (inbox, lane) in self.io.inboxes.iter().zip(&mut self.lanes) {
            lock(&inbox.queue).drain(&mut lane.incoming);
            lane.accept_incoming();
        }
        let commands = mem::take(&mut lock(&self.io.commands).waiting);
        commands
            .into_iter()
            .for_each(|command| self.start_command(command));
    }

    /// Starts what is due: probes, `PING`s, a refresh of the slot map, retries, and kept adjustments.
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

    /// Once the store is dropped, sends the kept adjustments. Returns true when nothing is left to do, or after a timeout: the actor ends.
    fn end_once_closed(&mut self, now: Instant) -> bool {
        if !self.io.is_closed.load(Ordering::Acquire) {
            return false;
        }
        if self.closed_at.is_none() {
            self.closed_at = Some(now);
            (0..self.lanes.len()).for_each(|lane| self.send_kept(lane));
            // One more turn drains the inboxes, which now have what was kept and what was pushed before the store was dropped.
            self.io.wake.notify_one();
            return false;
        }
        let is_over = self
            .closed_at
            .is_some_and(|closed_at| closed_at + self.io.timeout() <= now);
        is_over || self.lanes.iter().all(Lane::is_empty) && self.parked.is_empty()
    }

    /// Sets how many further requests wake the actor, and notes since when servers are silent. Returns whether the actor may wait: not if
    /// that many requests have come meanwhile.
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

    /// When the next turn is due if neither a reply nor a request comes.
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

    /// Fails the calls in flight and drops the connections after a panic, which may be of a strategy's code. Backlogs, the slot map and
    /// the state of circuit breakers are kept.
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
}

async fn wait_until(timer: &mut DeadlineTimer, at: Option<Instant>) {
    match at {
        Some(at) => poll_fn(|cx| timer.poll(at, cx)).await,
        None => pending().await,
    }
}

/// Fails all waiting requests and commands: the actor has ended, or its runtime.
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
