//! A lane: the requests whose keys share a server or, on a cluster, a slot. They are sent in order, in batches.
//!
//! While a batch is in flight, further requests gather; they are sent as the next batch when its reply arrives, or when enough of them
//! wait. So the batch size follows the load, without a timer.

use std::{collections::VecDeque, time::Duration};

use futures_util::future::AbortHandle;
use tokio::time::Instant;

use super::node::{ConnectionId, NodeId};
use crate::redis::{
    batch::{Batch, MAX_BATCH_KEYS},
    request::{PendingRequest, op::CounterOps},
};

/// Batches in flight at once on one connection, whose replies come in order. More than one hides the round trip of a distant
/// server.
const MAX_IN_FLIGHT: usize = 4;

/// Waiting keys that justify a second batch in flight to a server nearby: the fixed cost of a call is small beside so many.
const MIN_KEYS_FOR_EXTRA_BATCH: usize = 32;

/// A call ends without a reply after this, or the store's timeout if that is longer. Until then a late reply refunds what no waiter reads.
pub(super) const MIN_CALL_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Lane {
    /// The node that has the lane's keys, if it is known.
    pub(super) node: Option<NodeId>,
    /// Requests that have arrived since the last turn. The inbox takes over the allocation.
    pub(super) incoming: Vec<PendingRequest>,
    /// Requests to send, the earliest deadline first.
    pub(super) backlog: VecDeque<PendingRequest>,
    /// Requests that go to the front of the backlog at an instant.
    delayed: Vec<(Instant, Vec<PendingRequest>)>,
    pub(super) calls: Vec<Call>,
    /// The load of the batch that was sent last.
    last: BatchLoad,
    /// `MOVED` replies in a row.
    pub(super) redirects: u32,
    /// Adjustments that are sent again later.
    pub(super) kept: VecDeque<CounterOps>,
    /// When kept adjustments are sent unless a reply comes first.
    pub(super) send_kept_at: Option<Instant>,
    /// Whether the server has replied to kept adjustments with an error: they are sent at `send_kept_at` alone.
    pub(super) is_kept_paused: bool,
    /// Emptied batches, whose memory is reused.
    spare: Vec<Batch>,
}

pub(super) type CallId = u64;

/// A batch in flight.
pub(super) struct Call {
    pub(super) id: CallId,
    pub(super) batch: Batch,
    pub(super) node: NodeId,
    pub(super) connection: ConnectionId,
    pub(super) sent_at: Instant,
    pub(super) with_text: bool,
    pub(super) asking: bool,
    /// Its requests and counters, while the call is to be reported to observers.
    pub(super) observed: Option<(usize, usize)>,
    pub(super) abort: AbortHandle,
}

/// The size of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchLoad {
    pub(super) requests: usize,
    pub(super) keys: usize,
}

impl Default for BatchLoad {
    fn default() -> Self {
        Self {
            requests: 1,
            keys: 1,
        }
    }
}

impl Lane {
    /// Whether it has nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.backlog.is_empty()
            && self.delayed.is_empty()
            && self.calls.is_empty()
            && self.kept.is_empty()
    }

    /// Puts the requests that have arrived into the backlog.
    pub(super) fn accept_incoming(&mut self) {
        for request in self.incoming.drain(..) {
            let is_later = |last: &PendingRequest| last.deadline > request.deadline;
            if self.backlog.back().is_some_and(is_later) {
                let others = |other: &PendingRequest| other.deadline <= request.deadline;
                let position = self.backlog.partition_point(others);
                self.backlog.insert(position, request);
            } else {
                self.backlog.push_back(request);
            }
        }
    }

    /// The batches in flight on a connection.
    fn in_flight(&self, connection: ConnectionId) -> usize {
        let calls = self.calls.iter();
        calls.filter(|call| call.connection == connection).count()
    }

    /// Whether a batch is to be sent now on a connection.
    pub(super) fn is_due(&self, connection: ConnectionId, is_distant: bool) -> bool {
        let waiting = self.backlog.len();
        let in_flight = self.in_flight(connection);
        waiting > 0
            && in_flight < MAX_IN_FLIGHT
            && (in_flight == 0 || is_distant || waiting >= flush_threshold(in_flight, self.last))
    }

    /// How many requests in the inbox wake the actor.
    pub(super) fn wake_at(&self, connection: Option<ConnectionId>, is_distant: bool) -> usize {
        let in_flight = connection.map_or(0, |id| self.in_flight(id));
        match in_flight {
            // Only the first one, until the connection is open.
            0 if self.backlog.is_empty() => 1,
            0 | MAX_IN_FLIGHT.. => usize::MAX,
            _ if is_distant => 1,
            _ => flush_threshold(in_flight, self.last)
                .saturating_sub(self.backlog.len())
                .max(1),
        }
    }

    /// Fills a batch from the backlog; `take` handles a request that is not to be sent.
    pub(super) fn fill(
        &mut self,
        mut take: impl FnMut(PendingRequest) -> Option<PendingRequest>,
    ) -> Option<Batch> {
        let mut batch = self.spare.pop().unwrap_or_default();
        let mut requests = 0;
        while let Some(request) = self.backlog.pop_front() {
            let Some(request) = take(request) else {
                continue;
            };
            if let Err(request) = batch.push(request) {
                self.backlog.push_front(*request);
                break;
            }
            requests += 1;
        }
        if batch.is_empty() {
            self.spare.push(batch);
            return None;
        }
        self.last = BatchLoad {
            requests,
            keys: batch.keys(),
        };
        Some(batch)
    }

    /// Takes back a batch whose requests are completed.
    pub(super) fn recycle(&mut self, mut batch: Batch) {
        batch.clear();
        self.spare.push(batch);
    }

    /// Removes a call that has ended.
    pub(super) fn take_call(&mut self, id: CallId) -> Option<Call> {
        let index = self.calls.iter().position(|call| call.id == id)?;
        Some(self.calls.remove(index))
    }

    /// Puts requests before all others, but for those of another batch whose deadlines are earlier.
    pub(super) fn retry(&mut self, requests: impl DoubleEndedIterator<Item = PendingRequest>) {
        for request in requests.rev() {
            let earlier = |other: &PendingRequest| other.deadline < request.deadline;
            let position = self.backlog.partition_point(earlier);
            self.backlog.insert(position, request);
        }
    }

    /// Puts requests before all others at an instant.
    pub(super) fn retry_at(&mut self, at: Instant, requests: Vec<PendingRequest>) {
        self.delayed.push((at, requests));
    }

    /// Puts the delayed requests into the backlog that are due.
    pub(super) fn retry_due(&mut self, now: Instant) {
        while let Some(index) = self.delayed.iter().position(|(at, _)| *at <= now) {
            let (_, requests) = self.delayed.remove(index);
            self.retry(requests.into_iter());
        }
    }

    /// Removes all requests that were not sent.
    pub(super) fn take_waiting(&mut self) -> Vec<PendingRequest> {
        let delayed = self.delayed.drain(..).flat_map(|(_, requests)| requests);
        delayed.chain(self.backlog.drain(..)).collect()
    }

    /// Removes the requests that were not sent, and whose deadline has passed.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<PendingRequest> {
        let mut expired = Vec::new();
        let is_expired = |first: &PendingRequest| first.deadline <= now;
        while self.backlog.front().is_some_and(is_expired) {
            expired.extend(self.backlog.pop_front());
        }
        for (_, requests) in &mut self.delayed {
            expired.extend(requests.extract_if(.., |request| request.deadline <= now));
        }
        expired
    }

    /// Aborts the calls that have had no reply for too long.
    pub(super) fn abort_calls(&self, now: Instant, timeout: Duration) {
        let calls = self.calls.iter();
        let late = calls.filter(|call| call.sent_at + MIN_CALL_TIMEOUT.max(timeout) <= now);
        late.for_each(|call| call.abort.abort());
    }

    /// When the next of these happens: a deadline, a retry, the end of a call's time. Requests in the inbox are later: each has a deadline a
    /// timeout after the inbox was drained or more, unless the actor [was woken](super::Io::wake) for it; by then the first request
    /// of the backlog has expired, or the server was silent for a timeout or has replied.
    pub(super) fn next_due(&self, timeout: Duration) -> Option<Instant> {
        let delayed = self.delayed.iter().flat_map(|(at, requests)| {
            let deadlines = requests.iter().map(|request| request.deadline);
            deadlines.chain([*at])
        });
        let calls = self.calls.iter().flat_map(|call| {
            let deadline = call.batch.earliest_deadline();
            [Some(call.sent_at + MIN_CALL_TIMEOUT.max(timeout)), deadline]
        });
        let first = self.backlog.front().map(|first| first.deadline);
        let others = [first, self.send_kept_at.filter(|_| !self.kept.is_empty())];
        delayed
            .chain(calls.flatten())
            .chain(others.into_iter().flatten())
            .min()
    }
}

/// Queue length at which another batch is sent while `in_flight` batches are outstanding, estimated from the requests per key
/// of the last batch.
fn flush_threshold(in_flight: usize, last: BatchLoad) -> usize {
    let keys = if in_flight < 2 {
        MIN_KEYS_FOR_EXTRA_BATCH
    } else {
        MAX_BATCH_KEYS
    };
    let worth_a_batch = keys * last.requests / last.keys.max(1);
    // Equal requests share a key and are merged: a small extra batch costs more than waiting for as many as the last one had.
    // With few callers and a distant server, no more than that arrive at once.
    let factor = in_flight.clamp(1, 2);
    let max = (last.requests * factor).clamp(keys, MAX_BATCH_KEYS * factor);
    worth_a_batch.clamp(1, max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_batch_is_sent_for_as_many_keys_as_justify_it() {
        let load = |requests, keys| BatchLoad { requests, keys };
        for (in_flight, last, worth) in [
            (1, load(1, 1), 32),
            (1, load(128, 128), 32),
            (1, load(20, 60), 10),
            (1, load(1, 128), 1),
            (2, load(128, 128), 128),
            (3, load(40, 120), 42),
            // Equal requests: as many as the last batch had, within bounds.
            (1, load(10, 1), 32),
            (1, load(64, 1), 64),
            (1, load(64, 32), 64),
            (1, load(5_000, 1), 128),
            (2, load(64, 1), 128),
            (2, load(100, 1), 200),
            (3, load(5_000, 1), 256),
        ] {
            assert_eq!(
                flush_threshold(in_flight, last),
                worth,
                "{in_flight} {last:?}"
            );
        }
    }
}
