//! The first in a queue, and what the store tells it.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{sync::Notify, time::Instant};

use super::{
    grant::{Flight, Grant},
    queue::{Id, Turn},
    request::{Question, answer},
};
use crate::{
    decision::{Decision, DecisionKind},
    limiter::{Inner, Judged, Pending},
    store::DecisionSource,
    strategy::RetryAfter,
};

/// A refusal never says that there is no need to wait, however old it is.
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// The most that are asked for in one question.
const MOST: usize = 1_024;

/// The right to ask. It is passed on when it is dropped.
pub(crate) struct Head {
    limiter: Arc<Inner>,
    id: Id,
    freed: Arc<Notify>,
    /// What was asked and is not answered yet.
    asked: Option<Asked>,
    is_over: bool,
    /// Whether nobody waits for its answer any more.
    winds_up: bool,
}

/// A question for so many.
pub(crate) struct Asked {
    pub(crate) question: Arc<Question>,
    n: u32,
    pending: Pending,
}

/// What the store told a head.
pub(crate) struct Refusal {
    decision: Decision,
    pub(crate) question: Arc<Question>,
    told: Instant,
    /// Until when there is no use in asking.
    pub(crate) until: Instant,
    /// Whether it can't be known when to ask again: a permit is wanting, or the store failed.
    pub(crate) polled: bool,
    /// Whether the store failed.
    pub(crate) failed: bool,
}

impl Head {
    pub(crate) fn new(
        limiter: Arc<Inner>,
        id: Id,
        freed: Arc<Notify>,
        asked: Option<Asked>,
    ) -> Self {
        Self {
            limiter,
            id,
            freed,
            asked,
            is_over: false,
            winds_up: false,
        }
    }

    /// Ends without passing on; leaves what was asked.
    pub(crate) fn retire(mut self) -> Option<Asked> {
        self.is_over = true;
        self.asked.take()
    }

    /// What the head before was told, if it goes for this one too.
    pub(crate) fn inherited(&self, question: &Question) -> Option<Arc<Refusal>> {
        let waiters = self.limiter.queues.lock();
        let queue = waiters.queues.get(&self.id)?;
        let refusal = queue.refusal.as_ref().filter(|_| self.asked.is_none())?;
        let holds = !refusal.polled && refusal.until > Instant::now();
        let goes = holds && refusal.question.is_same(question);
        goes.then(|| refusal.clone())
    }

    /// Asks for itself and for those next to it that ask the same, and hands out what it gets. Either the answer that ends
    /// the wait, or a refusal to wait for.
    pub(crate) async fn ask(&mut self, question: &Arc<Question>) -> Result<Decision, Arc<Refusal>> {
        let asked = match self.asked.take() {
            Some(asked) => self.asked.insert(asked),
            None => {
                let n = self.reach(question);
                match question.ask(n) {
                    Judged::Now(decision) => return self.answered(decision, question, n),
                    Judged::Later(pending) => self.asked.insert(Asked {
                        question: question.clone(),
                        n,
                        pending,
                    }),
                }
            }
        };
        // Should this be dropped meanwhile, the next head goes on from here.
        let (n, decision) = (asked.n, answer(&mut asked.pending).await);
        self.asked = None;
        self.answered(decision, question, n)
    }

    /// Nobody waits any more. What was charged is given to those who come before it is known, or else given back: withdrawn
    /// blindly, it would be missing to the next one who asks, who would be told to wait for it.
    pub(crate) fn wind_up(mut self) -> impl Future<Output = ()> + Send {
        // Also if the runtime drops what it was given.
        self.winds_up = true;
        async move {
            let Some(asked) = &mut self.asked else {
                return;
            };
            let (question, n) = (asked.question.clone(), asked.n);
            let decision = answer(&mut asked.pending).await;
            self.asked = None;
            match self.answered(decision, &question, n) {
                Ok(first) => self.hand_out(&question, vec![first]),
                Err(refusal) => self.note(refusal),
            }
        }
    }

    /// For how many the next question is, itself included. From here on nobody is told an older answer.
    fn reach(&self, question: &Question) -> u32 {
        let mut waiters = self.limiter.queues.lock();
        let Some(queue) = waiters.queues.get_mut(&self.id) else {
            return 1;
        };
        queue.asking = true;
        if !question.is_shared() {
            return 1;
        }
        let behind = queue.behind.values().take(MOST - 1);
        let same = behind.take_while(|waiter| waiter.wish.question.is_same(question));
        1 + same.count() as u32
    }

    fn answered(
        &self,
        decision: Decision,
        question: &Arc<Question>,
        n: u32,
    ) -> Result<Decision, Arc<Refusal>> {
        let exhausted = matches!(decision.kind, DecisionKind::Rejected);
        let failed = match &decision.kind {
            DecisionKind::StoreFailed(error) => question.outwaits(error),
            _ => false,
        };
        if failed || exhausted && decision.retry_after() != RetryAfter::Never {
            return Err(Refusal::new(decision, question.clone()));
        }
        // Where the store was not asked, or couldn't answer, all get the same.
        let n = u64::from(n);
        let k = match decision.admitted {
            0 => n,
            admitted => admitted,
        };
        if k < n {
            self.note(Refusal::after(&decision, question.clone()));
        }
        let first = self.part(&decision, question, 0, k);
        let others = (1..k).map(|i| self.part(&decision, question, i, k));
        self.hand_out(question, others.collect());
        Ok(first)
    }

    /// One part of `k` that were admitted together.
    fn part(&self, whole: &Decision, question: &Question, i: u64, k: u64) -> Decision {
        let counted = whole.counted.iter().map(|counted| {
            let units = counted.receipts.first().remaining;
            let share = if counted.is_shadow() {
                units
            } else {
                units / k
            };
            counted.with_receipts(counted.receipts.part(share))
        });
        let mut part = whole.with_counted(counted);
        part.admitted = whole.admitted.min(1);
        for counted in &mut part.counted {
            if counted.is_shadow() {
                counted.divide_shadow(&*part.books, i);
                continue;
            }
            if i + 1 < k {
                // There was room for those after this one.
                let later = match question.is_charged_on_arrival(counted.policy) {
                    true => counted.units().of(k - 1 - i),
                    false => 0,
                };
                counted.amend(&*part.books, |status| {
                    status.retry_after = RetryAfter::Now;
                    status.remaining = status.remaining.saturating_add(later);
                });
            }
        }
        part.permit = part
            .permit
            .map(|permit| Arc::new(Flight::new(self.limiter.clone(), self.id.clone(), permit)));
        part
    }

    /// Hands decisions to those next to the head that ask the same. What was charged for those who have gone since is given
    /// back.
    fn hand_out(&self, question: &Question, decisions: Vec<Decision>) {
        let mut next = Vec::with_capacity(decisions.len());
        let mut waiters = self.limiter.queues.lock();
        if let Some(queue) = waiters.queues.get_mut(&self.id) {
            while next.len() < decisions.len() {
                match queue.behind.first_entry() {
                    Some(waiter) if waiter.get().wish.question.is_same(question) => {
                        next.push(waiter.remove());
                    }
                    _ => break,
                }
            }
        }
        drop(waiters);
        let mut next = next.into_iter();
        for decision in decisions {
            let turn = match decision.is_admitted() {
                true => {
                    let (limiter, id) = (self.limiter.clone(), self.id.clone());
                    Turn::Granted(Grant::new(limiter, id, decision))
                }
                false => Turn::Refused(decision),
            };
            if let Some(waiter) = next.next() {
                // Comes back, and is dropped, if that one is leaving just now.
                let _ = waiter.turn.send(turn);
            }
        }
    }

    /// Tells what it was told to those who come, and to the next head.
    pub(crate) fn note(&self, refusal: Arc<Refusal>) {
        let mut waiters = self.limiter.queues.lock();
        let before = waiters.queues.get_mut(&self.id).and_then(|queue| {
            queue.asking = false;
            queue.refusal.replace(refusal)
        });
        drop(waiters);
        drop(before);
    }

    /// Stays in spite of a refusal, and refuses those for whom there is no use in staying.
    pub(crate) fn stay(&self, refusal: Arc<Refusal>) {
        self.note(refusal.clone());
        let now = Instant::now();
        let mut refused = Vec::new();
        let mut waiters = self.limiter.queues.lock();
        if let Some(queue) = waiters.queues.get_mut(&self.id) {
            let mut ahead = 1;
            let vain = queue.behind.iter().filter(|(_, waiter)| {
                let vain = waiter.wish.is_vain(ahead, &refusal, now);
                ahead += usize::from(!vain);
                vain
            });
            let vain: Vec<u64> = vain.map(|(number, _)| *number).collect();
            refused.extend(vain.iter().filter_map(|number| queue.behind.remove(number)));
        }
        drop(waiters);
        for waiter in refused {
            // Fails if that one is leaving just now.
            let _ = waiter.turn.send(Turn::Refused(refusal.at(now)));
        }
    }

    /// Waits until something was given back.
    pub(crate) async fn freed(&mut self) {
        self.freed.notified().await;
    }
}

impl Drop for Head {
    fn drop(&mut self) {
        if !self.is_over {
            // Of one that was winding up, the runtime has ended.
            let asked = self.asked.take().filter(|_| !self.winds_up);
            self.limiter.pass_on(&self.id, asked);
        }
    }
}

impl Refusal {
    fn new(decision: Decision, question: Arc<Question>) -> Arc<Self> {
        let told = Instant::now();
        let wait = question.honest_wait(&decision);
        let failed = matches!(decision.kind, DecisionKind::StoreFailed(_));
        Arc::new(Self {
            told,
            until: told.checked_add(wait).unwrap_or(told),
            polled: failed || question.lacks_place(&decision),
            failed,
            decision,
            question,
        })
    }

    /// How it stands after as many were admitted as there was room for.
    fn after(admitted: &Decision, question: Arc<Question>) -> Arc<Self> {
        let counted = admitted.counted.iter();
        let counted = counted.map(|counted| counted.with_receipts(counted.receipts.part(0)));
        let mut decision = admitted.with_counted(counted);
        decision.kind = DecisionKind::Rejected;
        decision.admitted = 0;
        drop(decision.permit.take());
        for counted in &mut decision.counted {
            counted.shadow_stands(&*decision.books);
        }
        Self::new(decision, question)
    }

    /// Whether there is no use in waiting until the deadline.
    pub(crate) fn outlasts(&self, deadline: Option<Instant>, now: Instant) -> bool {
        deadline.is_some_and(|deadline| deadline <= now || deadline < self.until)
    }

    /// The refusal as it is told at `now`.
    pub(crate) fn at(&self, now: Instant) -> Decision {
        let mut decision = self.decision.clone();
        let since = now.saturating_duration_since(self.told);
        if since > Duration::ZERO && !self.failed {
            decision.source = DecisionSource::RejectionCache;
            for counted in &mut decision.counted {
                counted.amend(&*decision.books, |status| {
                    if let RetryAfter::In(wait) = status.retry_after {
                        status.retry_after =
                            RetryAfter::In(wait.saturating_sub(since).max(LEAST_WAIT));
                    }
                    status.reset_after = status.reset_after.saturating_sub(since);
                });
                counted.receipts.judged_later(since);
            }
        }
        decision
    }
}
