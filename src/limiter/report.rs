//! What observers receive of decisions and charges.

use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};

use smallvec::SmallVec;

use super::{
    decision::{Decision, DecisionKind},
    entry::Entry,
    keys::QueueKey,
    listener::AdjustListener,
    policy_set::{PolicyRole, PolicySet},
    request::Purpose,
    wait_queues::WaitQueues,
};
#[cfg(feature = "redis")]
use crate::{background, redis::io::events::defer};
use crate::{
    key::Key,
    observe::{
        DecisionEvent, DecisionOutcome, DecisionSource, Event, EventStatus, Observers, PolicyEvent,
        PolicyEvents, UnitsEvent,
    },
};
#[cfg(any(feature = "admin", feature = "metrics"))]
use crate::{
    observe::{PolicyResult, counts::PolicyCount},
    store::Op,
};

/// One in so many decisions that are made at once is timed, since a clock costs as much as a decision in process.
const TIMED_DECISIONS: u64 = 64;

/// Makes a decision, and reports it if it is made at once.
#[inline]
pub(crate) fn observe<P>(
    decision: &mut Decision,
    purpose: Purpose,
    decide: impl FnOnce(&mut Decision) -> Option<P>,
) -> Option<P> {
    match decision.set.observers {
        Some(_) if purpose.charges() => decide_and_report(decision, purpose, decide),
        _ => decide(decision),
    }
}

#[inline(never)]
fn decide_and_report<P>(
    decision: &mut Decision,
    purpose: Purpose,
    decide: impl FnOnce(&mut Decision) -> Option<P>,
) -> Option<P> {
    let since = is_timed().then(Instant::now);
    let pending = decide(decision);
    if pending.is_none() {
        match since {
            #[cfg(any(feature = "admin", feature = "metrics"))]
            None if count_admission(decision, purpose) => {}
            _ => report(decision, purpose, since.map(|since| since.elapsed())),
        }
    }
    pending
}

/// Reports a decision.
pub(crate) fn report(decision: &Decision, purpose: Purpose, elapsed: Option<Duration>) {
    let Some(observers) = &decision.set.observers else {
        return;
    };
    let entries = &decision.entries;
    let requests = purpose.requests();
    let not_checked = entries.is_empty() && decision.source == DecisionSource::NotChecked;
    let outcome = decision.kind.outcome(decision.allow_listed, not_checked);
    let admitted = match outcome {
        DecisionOutcome::Admitted if !entries.is_empty() => decision.admitted.min(requests),
        _ if decision.is_admitted() => requests,
        _ => 0,
    };
    // By any policy.
    let rejected = match outcome {
        DecisionOutcome::Admitted | DecisionOutcome::Rejected => requests - admitted,
        _ => 0,
    };
    let policies = entries
        .iter()
        .map(|entry| policy_event(&decision.set, entry, requests, rejected));
    let policies: SmallVec<[PolicyEvent<'_>; 4]> = policies.collect();
    let event = DecisionEvent {
        generation: decision.set.generation,
        outcome,
        source: decision.source,
        requests,
        admitted,
        uncounted: outcome == DecisionOutcome::Admitted && decision.admitted == 0,
        waits: purpose.waits(),
        elapsed,
        error: match &decision.kind {
            DecisionKind::StoreFailed(error) => Some(error),
            _ => None,
        },
        policies: PolicyEvents::new(&policies),
    };
    observers.notify(|observer| observer.on_decision(&event));
}

/// Reports requests that were dropped before they were decided.
#[cold]
pub(crate) fn report_cancelled(
    set: &PolicySet,
    requests: u64,
    waits: bool,
    elapsed: Option<Duration>,
) {
    let Some(observers) = &set.observers else {
        return;
    };
    let event = DecisionEvent {
        generation: set.generation,
        outcome: DecisionOutcome::Cancelled,
        source: DecisionSource::NotChecked,
        requests,
        admitted: 0,
        uncounted: false,
        waits,
        elapsed,
        error: None,
        policies: PolicyEvents::new(&[]),
    };
    observers.notify(|observer| observer.on_decision(&event));
}

fn policy_event<'a>(
    set: &'a PolicySet,
    entry: &'a Entry,
    requests: u64,
    rejected: u64,
) -> PolicyEvent<'a> {
    let admitted = requests.saturating_sub(rejected);
    let charged = entry.receipt.remaining;
    PolicyEvent {
        index: entry.policy as usize,
        policy: set.bound(entry.policy).policy.name(),
        kind: entry.role.into(),
        key: &entry.key,
        cost: entry.cost,
        charged,
        requests,
        over: match entry.role {
            PolicyRole::Live | PolicyRole::Ban if rejected > 0 && entry.rejects(set) => rejected,
            PolicyRole::Live | PolicyRole::Ban => 0,
            // A shadow is evaluated for what the others admitted.
            PolicyRole::Shadow { rejects: true } => admitted,
            PolicyRole::Shadow { rejects: false } => match charged.checked_div(entry.cost) {
                // It charges those that it would have admitted, if it charges on arrival.
                Some(fitting) if fitting > 0 => admitted.saturating_sub(fitting),
                _ => 0,
            },
        },
        status: event_status(set, entry),
    }
}

#[inline]
fn event_status<'a>(set: &'a PolicySet, entry: &'a Entry) -> EventStatus<'a> {
    let limit = entry.limit(set);
    EventStatus {
        limit: limit.info().capacity,
        rule: limit.rule(),
        status: &entry.status,
        decided_at: entry.receipt.charged_at,
        units: entry.units().get(),
    }
}

/// Counts an admitted request, if all observers only count; returns whether it did.
#[cfg(any(feature = "admin", feature = "metrics"))]
#[inline]
fn count_admission(decision: &Decision, purpose: Purpose) -> bool {
    let set = &*decision.set;
    let last = decision.entries.last().map(|entry| entry.role);
    // Shadows and bans are the last entries.
    let is_plain =
        decision.is_admitted() && purpose.op() == Op::Acquire(1) && last == Some(PolicyRole::Live);
    let observers = set.observers.as_ref().filter(|_| is_plain);
    let Some(counts) = observers.and_then(|observers| observers.counts()) else {
        return false;
    };
    for counts in counts {
        let near_percent = counts.near_percent();
        let policies = decision.entries.iter().map(|entry| {
            let within = PolicyResult::within(event_status(set, entry).is_near(near_percent));
            PolicyCount {
                index: entry.policy as usize,
                name: set.bound(entry.policy).policy.name(),
                results: [(within, 1), (PolicyResult::Over, 0)],
                charged: entry.receipt.remaining,
            }
        });
        let admitted = [(DecisionOutcome::Admitted, 1)];
        counts.count(decision.source, admitted, 0, policies);
    }
    true
}

/// Whether to time this decision: a random one of [`TIMED_DECISIONS`].
fn is_timed() -> bool {
    thread_local! {
        static RANDOM: Cell<u64> = const { Cell::new(0) };
    }
    // A linear congruential generator, of which the highest bits are the most random.
    let next = |random: &Cell<u64>| {
        let state = random.get().wrapping_mul(6_364_136_223_846_793_005);
        random.set(state.wrapping_add(1_442_695_040_888_963_407));
        random.get() < u64::MAX / TIMED_DECISIONS
    };
    RANDOM.try_with(next).unwrap_or(false)
}

/// The queues of the calls that wait, by their keys. A rejected attempt is reported by its decision.
pub(crate) type CallQueues = WaitQueues<QueueKey, Arc<Decision>>;

/// The receiver of what charges report: observers, and the queues of calls that wait.
pub(crate) struct Listener {
    pub(crate) observers: Option<Arc<Observers>>,
    pub(crate) queues: Arc<CallQueues>,
}

impl AdjustListener for Listener {
    fn on_units(&self, event: &UnitsEvent<'_>) {
        let Some(observers) = &self.observers else {
            return;
        };
        // The result of a call that no task awaits arrives on the IO thread, on which an observer that blocks would delay every
        // reply.
        #[cfg(feature = "redis")]
        if background::is_background() {
            return defer_units(observers, event);
        }
        observers.notify(|observer| observer.on_units(event));
    }

    fn on_event(&self, event: &Event<'_>) {
        if let Some(observers) = &self.observers {
            observers.on_event(event);
        }
    }

    fn released(&self, policy: &str, key: &Key) {
        self.queues.released(policy, key);
    }
}

#[cfg(feature = "redis")]
fn defer_units(observers: &Arc<Observers>, event: &UnitsEvent<'_>) {
    let observers = observers.clone();
    let (policy, key): (Arc<str>, Key) = (event.policy.into(), *event.key);
    let UnitsEvent {
        generation,
        index,
        kind,
        units,
        confirmed,
        ..
    } = *event;
    defer(move || {
        let event = UnitsEvent {
            generation,
            index,
            policy: &policy,
            key: &key,
            kind,
            units,
            confirmed,
        };
        observers.notify(|observer| observer.on_units(&event));
    });
}
