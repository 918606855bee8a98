use std::{
    fmt,
    future::{Future, IntoFuture},
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::task::coop::poll_proceed;

use super::{Desk, Judged, Keys, Pending, judge::Own};
use crate::{decision::Decision, quota::Quota, store::Op};

/// A question to a [`Limiter`](crate::Limiter), asked when it is awaited.
#[must_use = "nothing is asked until this is awaited"]
#[derive(Clone)]
pub struct Check {
    /// None once it is asked.
    desk: Option<Arc<Desk>>,
    ask: Op,
    keys: Keys,
    own: Option<Box<Own>>,
}

impl Check {
    pub(super) fn new(desk: Arc<Desk>, ask: Op, keys: Keys) -> Self {
        Self {
            desk: Some(desk),
            ask,
            keys,
            own: None,
        }
    }

    /// Costs `units` under every policy, in place of each policy's own cost.
    pub fn cost(mut self, units: u64) -> Self {
        self.own().cost = Some(units);
        self
    }

    /// Asks for `n` equal requests at one instant: as many as there is room for are charged, each whole, and
    /// [`Decision::admitted`] says how many. The decision is to admit if it's at least one. More than [`u32::MAX`] are as
    /// many as that.
    ///
    /// ```
    /// use tollgate::{Key, Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("jobs", Quota::requests(5).per_minute()))
    ///     .build()?;
    /// assert_eq!(limiter.check(Key::global()).times(8).await.admitted(), 5);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn times(mut self, n: u64) -> Self {
        if let Op::Acquire(_) = self.ask {
            self.ask = Op::Acquire(u32::try_from(n).unwrap_or(u32::MAX));
        }
        self
    }

    /// Asks; `None` if it has asked already.
    #[inline]
    fn judge(&mut self) -> Option<Judged> {
        let desk = self.desk.take()?;
        Some(desk.judge_keys(self.ask, &self.keys, self.own.as_deref()))
    }

    fn own(&mut self) -> &mut Own {
        self.own.get_or_insert_default()
    }

    /// Costs `units` under the policy of that name.
    pub fn cost_for(mut self, policy: impl Into<String>, units: u64) -> Self {
        self.own().costs.push((policy.into(), units));
        self
    }
}

impl Check {
    /// Counts by `quota` under the policy of that name, in place of the policy's own: the caller's tier's. See
    /// [`Policy::quota_with`](crate::Policy::quota_with).
    pub fn quota_for(mut self, policy: impl Into<String>, quota: Quota) -> Self {
        self.own().quotas.push((policy.into(), quota));
        self
    }
}

impl Check {
    /// The client's address, for [lists of addresses](crate::AddressList). It is not counted by.
    pub fn address(mut self, address: IpAddr) -> Self {
        self.own().address = Some(address);
        self
    }
}

impl IntoFuture for Check {
    type Output = Decision;
    type IntoFuture = CheckFuture;

    fn into_future(self) -> CheckFuture {
        CheckFuture(State::Unasked(self))
    }
}

/// The future of a [`Check`].
///
/// It takes part in tokio's [cooperative scheduling](tokio::task::coop), also where the decision is made in process: a task
/// that makes many in a loop yields to others. Nothing is charged before that. Outside of a runtime it never yields.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct CheckFuture(State);

enum State {
    Unasked(Check),
    Asked(Pending),
}

impl Future for CheckFuture {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        loop {
            match &mut self.0 {
                State::Asked(pending) => return Pin::new(pending).poll(cx),
                State::Unasked(check) => {
                    let budget = ready!(poll_proceed(cx));
                    match check.judge() {
                        Some(Judged::Now(decision)) => {
                            budget.made_progress();
                            return Poll::Ready(decision);
                        }
                        Some(Judged::Later(pending)) => self.0 = State::Asked(pending),
                        // Futures must not be polled again; one that is waits for ever, as those of the standard library may.
                        None => return Poll::Pending,
                    }
                }
            }
        }
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unasked(_) => "Unasked",
            Self::Asked(_) => "Asked",
        })
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("ask", &self.ask)
            .field("keys", &self.keys)
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}
