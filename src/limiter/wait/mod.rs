//! Waiting for one's turn.

use std::{
    fmt,
    future::{Future, IntoFuture},
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::request::Parts;
use tokio::{
    runtime::Handle,
    task::coop::poll_proceed,
    time::{Instant, sleep_until},
};

use self::{
    leader::Head,
    queue::{Joined, Turn, Wish},
    request::Question,
};
use super::{Keys, Limiter, judge::Own};
use crate::{
    admission::{Admission, Rejected},
    decision::Decision,
    quota::Quota,
};

pub(crate) mod grant;
pub(crate) mod leader;
pub(crate) mod queue;
pub(crate) mod request;

/// How many may wait for the same keys, unless told otherwise.
pub(crate) const QUEUE: usize = 1_024;

/// How often an in-flight limit is asked again, a store that failed, and a quota of which something was given back: the
/// first time after this long, each time after twice as long,
const FIRST_LOOK: Duration = Duration::from_millis(5);
/// and in the end after this long.
const LAST_LOOK: Duration = Duration::from_millis(250);

impl Limiter {
    /// Waits until a request is admitted, no longer than `timeout` from when this is first polled, and charges it: for
    /// outgoing calls, jobs, and all else that may rather be late than rejected.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Key, Limiter, Policy, Quota, RetryAfter};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("mail", Quota::requests(1).per(Duration::from_millis(20))))
    ///     .build()?;
    /// let patience = Duration::from_secs(5);
    /// for _ in 0..3 {
    ///     let _admission = limiter.wait(Key::new("alice"), patience).await?;
    /// }
    ///
    /// // A quota of one never admits two units together: that is rejected at once.
    /// let rejected = limiter.wait(Key::new("alice"), patience).cost(2).await.unwrap_err();
    /// assert_eq!(rejected.retry_after(), RetryAfter::Never);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # First come, first served
    ///
    /// Requests for the same keys through clones of one limiter wait in a queue. The first calls the store, sleeps for as long
    /// as the store says, and calls it again, since another process may have been quicker. Those behind it don't call the
    /// store, and none overtakes: an expensive request blocks those behind it. A [`check`](Limiter::check) doesn't queue, and other processes have queues of their own: between them the quota holds, but no order.
    ///
    /// Dropping the future leaves the queue, and what was charged for it is refunded. One that is kept without being
    /// polled blocks those behind it, as with tokio's locks.
    ///
    /// # When the store fails
    ///
    /// It is called again, after 5 ms at first, at last every 250 ms, until it answers or the timeout has passed; then the
    /// request is rejected with the store's error. With [`on_store_error`](crate::LimiterBuilder::on_store_error) it is admitted
    /// or rejected at once, or waits for its turn in process.
    ///
    /// # In-flight limits
    ///
    /// It is not known when a permit will be released. A permit that was waited for lets the queue go on when it is released in
    /// this process; others are found by calling the store, after 5 ms at first, at last every 250 ms.
    ///
    /// # Errors
    ///
    /// [`Rejected`], at once, if
    /// - the store says that it would take longer than the timeout, or the timeout passes while others are in front;
    /// - the [queue](Wait::queue) is full; neither is decided before the store has been called once, so that a rejection
    ///   always has a status;
    /// - it costs more than a quota ever allows;
    /// - it names a policy that the limiter doesn't have, or lacks a request that a policy takes settings from
    ///   ([`Check::parts`](crate::Check::parts));
    /// - the store failed, and the limiter is set to [reject](crate::OnStoreError::Reject) then, or the store is
    ///   [misconfigured](crate::StoreError::is_misconfiguration);
    /// - it would have to wait outside of a tokio runtime: [`StoreError::NoRuntime`](crate::StoreError::NoRuntime).
    ///
    /// Under [`charge_rejected`](crate::Policy::charge_rejected) each rejected call for the first in the queue is charged.
    ///
    /// # Lists, bans and shadows
    ///
    /// A request on a [deny list](crate::LimiterBuilder::deny) is rejected at once, and one on an
    /// [allow list](crate::LimiterBuilder::allow) is admitted at once. Waiting is no rejection: a [ban](crate::Ban) counts a
    /// request only if this returns [`Rejected`], once, and a banned key waits as for a quota that is used up.
    /// [Shadows](crate::Policy::shadow) are evaluated once too, when the waiting is over; no request waits for them.
    ///
    /// After a [`reset`](Limiter::reset) or [`unblock`](Limiter::unblock) by this limiter the queue calls the store at once;
    /// those by other processes are found at its next call.
    ///
    /// # Panics
    ///
    /// In a tokio runtime whose timers are not enabled, if it has to wait.
    pub fn wait(&self, keys: impl Into<Keys>, timeout: Duration) -> Wait {
        Wait {
            question: Question {
                desk: self.desk(),
                keys: keys.into(),
                own: Own {
                    retries: true,
                    waits: true,
                    ..Own::default()
                },
            },
            timeout,
            queue: QUEUE,
        }
    }
}

/// A turn to be waited for, from [`Limiter::wait`]. The queue is joined when this is awaited.
#[must_use = "nothing is waited for until this is awaited"]
#[derive(Clone)]
pub struct Wait {
    question: Question,
    timeout: Duration,
    queue: usize,
}

impl Wait {
    /// Rejects at once if `most` requests wait for the same keys already: 1,024 unless set. With 0 no request waits.
    pub fn queue(mut self, most: usize) -> Self {
        self.queue = most;
        self
    }

    /// See [`Check::cost`](crate::Check::cost).
    pub fn cost(mut self, units: u64) -> Self {
        self.question.own.cost = Some(units);
        self
    }

    /// See [`Check::cost_for`](crate::Check::cost_for).
    pub fn cost_for(mut self, policy: impl Into<String>, units: u64) -> Self {
        self.question.own.costs.push((policy.into(), units));
        self
    }

    /// See [`Check::parts`](crate::Check::parts). What the policies take from the request is found out once, before it waits.
    pub fn parts(mut self, parts: &Parts) -> Self {
        self.question.own.parts = Some(Arc::new(parts.clone()));
        self
    }

    /// See [`Check::address`](crate::Check::address).
    pub fn address(mut self, address: IpAddr) -> Self {
        self.question.own.address = Some(address);
        self
    }

    /// See [`Check::quota_for`](crate::Check::quota_for).
    pub fn quota_for(mut self, policy: impl Into<String>, quota: Quota) -> Self {
        self.question.own.quotas.push((policy.into(), quota));
        self
    }

    async fn decide(self) -> Decision {
        let deadline = Instant::now().checked_add(self.timeout);
        let mut question = self.question;
        if question.is_ruled() {
            return question.ask_alone().await;
        }
        question.read_parts().await;
        let question = Arc::new(question);
        if question.need_not_wait() {
            return question.ask_alone().await;
        }
        let wish = Wish {
            question: question.clone(),
            queue: self.queue,
            deadline,
        };
        match stand(wish).await {
            Some(decision) => question.conclude(decision).await,
            None => question.ask_alone().await,
        }
    }
}

/// Stands in the queue, until admitted or refused for good; `None` never happens.
async fn stand(wish: Wish) -> Option<Decision> {
    let (question, queue, deadline) = (wish.question.clone(), wish.queue, wish.deadline);
    let head = match question.desk.inner().join(question.id(), wish) {
        Joined::Refused(decision) => return Some(decision),
        Joined::Head(head) => head,
        Joined::Behind(_) if Handle::try_current().is_err() => {
            return Some(question.desk.clone().reject_without_runtime());
        }
        Joined::Behind(mut place) => {
            let turn = tokio::select! {
                biased;
                turn = place.turn() => turn,
                () = until(deadline) => match place.give_up() {
                    Some(decision) => return Some(decision),
                    // Nobody has been told anything yet: not for much longer, since calls of a store have a timeout.
                    None => place.turn().await,
                },
            };
            match turn? {
                Turn::Head(head) => head,
                Turn::Granted(grant) => return grant.accept(),
                Turn::Refused(decision) => return Some(decision),
            }
        }
    };
    Some(lead(head, question, queue, deadline).await)
}

/// Asks and sleeps, until admitted or refused for good. Whatever becomes of it, the head passes on when it is dropped.
async fn lead(
    mut head: Head,
    question: Arc<Question>,
    queue: usize,
    deadline: Option<Instant>,
) -> Decision {
    let mut known = head.inherited(&question);
    let (mut looks, mut failing) = (Looks(LAST_LOOK), false);
    loop {
        let refusal = match known.take() {
            Some(refusal) => refusal,
            None => match head.ask(&question).await {
                Ok(decision) => return decision,
                Err(refusal) => refusal,
            },
        };
        let now = Instant::now();
        if queue == 0 || refusal.outlasts(deadline, now) {
            head.note(refusal.clone());
            return refusal.at(now);
        }
        if Handle::try_current().is_err() {
            head.note(refusal);
            return question.desk.clone().reject_without_runtime();
        }
        if refusal.failed && !failing {
            looks = Looks(FIRST_LOOK);
        }
        failing = refusal.failed;
        let next = match refusal.polled {
            true => refusal.until.max(now + looks.next()),
            false if looks.are_over() => refusal.until,
            false => refusal.until.min(now + looks.next()),
        };
        let next = deadline.map_or(next, |deadline| next.min(deadline));
        head.stay(refusal);
        tokio::select! {
            biased;
            // What was given back may be on its way to the store still.
            () = head.freed() => looks = Looks(FIRST_LOOK),
            () = sleep_until(next) => {}
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Pauses between questions for which the store's answers are no guide.
struct Looks(Duration);

impl Looks {
    fn are_over(&self) -> bool {
        self.0 >= LAST_LOOK
    }

    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LAST_LOOK);
        pause
    }
}

impl IntoFuture for Wait {
    type Output = Result<Admission, Rejected>;
    type IntoFuture = WaitFuture;

    fn into_future(self) -> WaitFuture {
        WaitFuture(Some(Box::pin(self.decide())))
    }
}

/// The future of a [`Wait`].
///
/// It takes part in tokio's [cooperative scheduling](tokio::task::coop), also where it is decided at once.
#[must_use = "futures do nothing unless polled"]
pub struct WaitFuture(Option<Pin<Box<dyn Future<Output = Decision> + Send>>>);

impl Future for WaitFuture {
    type Output = Result<Admission, Rejected>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Futures must not be polled again when they are ready; one that is waits for ever.
        let Some(decision) = &mut self.0 else {
            return Poll::Pending;
        };
        let budget = ready!(poll_proceed(cx));
        let decision = ready!(decision.as_mut().poll(cx));
        budget.made_progress();
        self.0 = None;
        Poll::Ready(decision.into_result())
    }
}

impl fmt::Debug for WaitFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitFuture").finish_non_exhaustive()
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("keys", &self.question.keys)
            .field("own", &self.question.own)
            .field("timeout", &self.timeout)
            .field("queue", &self.queue)
            .finish()
    }
}
