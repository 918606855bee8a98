//! Credits: units that are added by hand.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
};

use http::request::Parts;
use smallvec::SmallVec;

use super::{
    adjust::Adjustment,
    check::Check,
    core::{LimiterCore, LimiterRef},
    decision::DecisionKind,
    entry::{PolicyEntry, longest_wait},
    handle::PolicyHandle,
    mode::Mode,
    policy_decision::LimitStatus,
};
use crate::{
    error::CallError,
    key::Key,
    quota::Quota,
    store::Op,
    strategy::{ChargeReceipt, LazyStatus, RetryAfter},
};

/// A call of [`PolicyHandle::credit`], which is sent when it is awaited.
#[must_use = "nothing is credited until this is awaited"]
#[derive(Clone, Debug)]
pub struct Credit {
    limiter: Arc<LimiterRef>,
    policy: PolicyHandle,
    peek: Check<Result<LimitStatus, CallError>>,
    units: u64,
}

/// The result of a [credit](PolicyHandle::credit).
#[derive(Clone, Debug)]
pub struct Credited {
    units: u64,
    status: LimitStatus,
}

impl Credited {
    /// The number of units that were added: fewer than requested if fewer were in use. The rest of a unit that has partly
    /// refilled counts as one. Credits of one key at the same time may each count the same units.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The status of the key after the credit.
    pub fn status(&self) -> &LimitStatus {
        &self.status
    }
}

impl Credit {
    pub(super) fn new(policy: &PolicyHandle, key: Key, units: u64) -> Self {
        let limiter = policy.limiter().local_ref();
        let keys = policy.named(key).into();
        Self {
            peek: Check::new(limiter.clone(), (Op::Peek, Mode::PEEK_KEY), keys),
            limiter,
            policy: policy.clone(),
            units,
        }
    }

    /// Sets the quota of the caller's tier under the policy of that name, in place of the policy's own: see
    /// [`Check::quota_for`].
    pub fn quota_for(mut self, policy: impl Into<String>, quota: Quota) -> Self {
        self.peek = self.peek.quota_for(policy, quota);
        self
    }

    /// Sets the head of a request of the caller, from which the policy takes its quota: see [`Check::parts`]. The policy's
    /// conditions and costs are not evaluated.
    pub fn parts(mut self, parts: &Parts) -> Self {
        self.peek = self.peek.parts(parts);
        self
    }

    async fn send(self) -> Result<Credited, CallError> {
        let limiter = self.limiter;
        let index = limiter.find(self.policy.name())?;
        let is_credited = |entry: &PolicyEntry| entry.policy as usize == index;
        let mut current = self.peek.await?.into_decision();
        let entry = current.entries.iter().find(|entry| is_credited(entry));
        if entry
            .and_then(|entry| limiter.units_in_use(entry))
            .is_none()
        {
            let policy = limiter.policies[index].policy.shared_name();
            return Err(CallError::CreditUnsupported { policy });
        }
        let credited = current.entries.iter().enumerate();
        let credited = credited.filter_map(|(index, entry)| {
            let credit = limiter.credit_of(entry, self.units)?;
            Some((index, credit))
        });
        let (indices, credits): (SmallVec<[_; 2]>, SmallVec<[Adjustment<'_>; 2]>) =
            credited.unzip();
        // Several credits are made in one call, all or none.
        let op = match credits.len() {
            1 => Op::Refund,
            _ => Op::Settle,
        };
        let adjusted = limiter.credit(op, &credits);
        drop(credits);
        let mut units = 0;
        for (index, adjusted) in indices.into_iter().zip(adjusted.await?) {
            let entry = &mut current.entries[index];
            entry.set_status(&adjusted);
            if is_credited(entry) {
                units = adjusted.units;
            }
        }
        let entries = current.entries.iter();
        let keys = entries.map(|entry| (entry.policy, entry.key));
        limiter
            .wait_queues
            .clear_rejections(limiter.generation, &keys.collect::<SmallVec<[_; 2]>>());
        current.kind = match longest_wait(&limiter, &current.entries) {
            RetryAfter::Now => DecisionKind::Admitted,
            _ => DecisionKind::Rejected,
        };
        let status = LimitStatus::new(current);
        Ok(Credited { units, status })
    }
}

impl LimiterRef {
    /// The refund of up to `units` of all that a key has used under a policy; `None` if its strategy can't credit.
    fn credit_of<'a>(&self, entry: &'a PolicyEntry, units: u64) -> Option<Adjustment<'a>> {
        // If units refill with time, the store reports as many as it was asked for.
        let units = units.min(self.units_in_use(entry)?);
        // The most that can be in use, since a debt is one capacity at most. The receipt is larger than the credit, so that units
        // that refill meanwhile do not reduce it.
        let max_in_use = self.limit(entry).info().capacity.saturating_mul(2);
        Some(Adjustment {
            entry,
            receipt: ChargeReceipt {
                remaining: units.saturating_add(max_in_use),
                ..entry.receipts.first()
            },
            units,
        })
    }
}

impl LimiterCore {
    /// The units that a key had in use under a policy when it was peeked at; `None` if its strategy can't credit.
    pub(super) fn units_in_use(&self, entry: &PolicyEntry) -> Option<u64> {
        let LazyStatus::Snapshot(snapshot) = &entry.lazy_status else {
            return None;
        };
        let at = entry.receipts.first().charged_at;
        self.limit(entry).rule().units_in_use(snapshot, at)
    }
}

impl IntoFuture for Credit {
    type Output = Result<Credited, CallError>;
    type IntoFuture = CreditFuture;

    fn into_future(self) -> CreditFuture {
        CreditFuture(Box::pin(self.send()))
    }
}

/// The future of a [`Credit`].
#[must_use = "futures do nothing unless polled"]
pub struct CreditFuture(Pin<Box<dyn Future<Output = Result<Credited, CallError>> + Send>>);

impl Future for CreditFuture {
    type Output = Result<Credited, CallError>;

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for CreditFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CreditFuture")
    }
}
