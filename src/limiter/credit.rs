//! Credits: units that are added by hand.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
};

use http::request::Parts;
use tokio::task::coop::consume_budget;

use super::{
    adjust::Adjustment,
    check::{CheckOutput, CheckSettings},
    core::{LimiterCore, LimiterRef},
    decide::DecisionBuilder,
    decision::DecisionKind,
    entry::{PolicyEntry, longest_wait},
    handle::PolicyHandle,
    keys::Keys,
    mode::Mode,
    policy_decision::LimitStatus,
};
use crate::{
    error::CallError,
    key::Key,
    observe::{DecisionSource, UnitsKind},
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
    keys: Keys,
    settings: CheckSettings,
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
    /// refilled counts as one.
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
        Self {
            limiter: policy.limiter().local_ref(),
            policy: policy.clone(),
            keys: policy.named(key).into(),
            settings: CheckSettings::default(),
            units,
        }
    }

    /// Sets the quota of the caller's tier under the policy of that name, in place of the policy's own: see
    /// [`Check::quota_for`](crate::limiter::Check::quota_for).
    pub fn quota_for(mut self, policy: impl Into<String>, quota: Quota) -> Self {
        self.settings.quotas.push((policy.into(), quota));
        self
    }

    /// Sets the head of a request of the caller, from which the policy takes its quota: see
    /// [`Check::parts`](crate::limiter::Check::parts). The policy's conditions and costs are not evaluated.
    pub fn parts(mut self, parts: &Parts) -> Self {
        self.settings.parts = Some(Arc::new(parts.clone()));
        self
    }

    async fn send(self) -> Result<Credited, CallError> {
        // An in-process store responds at once: without this, a loop of credits would starve other tasks.
        consume_budget().await;
        let limiter = self.limiter;
        let index = limiter.find(self.policy.name())?;
        // The entry of a peek, which is not sent.
        let mut builder = DecisionBuilder::new(Op::Peek, Mode::PEEK_KEY);
        limiter.select_policies_of_call(&mut builder, &self.keys, Some(&self.settings));
        let found = Result::<LimitStatus, _>::from_decision(builder.finish(limiter.clone()))?;
        let mut current = found.into_decision();
        let unsupported = || CallError::CreditUnsupported {
            policy: limiter.policies[index].policy.shared_name(),
        };
        let mut entries = current.entries.iter_mut();
        let credited = entries.find(|entry| entry.policy as usize == index);
        let entry = credited.ok_or_else(unsupported)?;
        if limiter.units_in_use(entry).is_none() {
            return Err(unsupported());
        }
        let credit = Adjustment {
            entry,
            receipt: Some(ChargeReceipt::now(self.units)),
            units: self.units,
            kind: UnitsKind::Credited,
        };
        let adjusted = limiter.adjust(credit).await;
        // Also after an error, since it may be made.
        let key = (entry.policy, entry.key);
        limiter
            .wait_queues
            .clear_rejections(limiter.generation, &[key]);
        let adjusted = adjusted?;
        entry.set_status(&adjusted);
        current.source = DecisionSource::Store;
        current.kind = match longest_wait(&limiter, &current.entries) {
            RetryAfter::Now => DecisionKind::Admitted,
            _ => DecisionKind::Rejected,
        };
        Ok(Credited {
            units: adjusted.units,
            status: LimitStatus::new(current),
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
