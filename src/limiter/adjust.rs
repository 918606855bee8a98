//! Adjustments by hand: units of known policies and keys are charged, credited or reset. All of them or an error; access lists,
//! conditions and exemptions don't apply.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use http::request::Parts;
use tokio::task::coop::consume_budget;

use super::{
    adjust_call::{AdjustCall, Adjustment, charge_entries},
    decide::{apply_counter, reset_shares},
    decision::{Decision, DecisionKind, LimitStatus},
    entry::longest_wait,
    keys::Keys,
    policy_set::PolicySet,
    request::CallSettings,
    resolve::{Adjusting, resolve_known},
};
use crate::{
    background::{block_on, runtime_to_block_on},
    error::{CallError, NotNow, StoreError},
    observe::{DecisionSource, UnitsKind},
    quota::Quota,
    store::{CounterOp, Op, TOO_FEW_RESULTS},
    strategy::{ChargeReceipt, LazyStatus, RetryAfter},
};

/// A charge or a reset by hand, from [`Limiter::charge`](crate::Limiter::charge) and [`Limiter::reset`](crate::Limiter::reset). It is
/// made when it is awaited, or by [`now`](Adjust::now) or [`blocking`](Adjust::blocking) outside of async code.
///
/// The result is the status of each key afterwards, or for a reset before it. An error says whether the store
/// [may have done it](StoreError::may_have_run).
#[must_use = "nothing is done until this is awaited, or `now` or `blocking` is called"]
#[derive(Clone)]
pub struct Adjust {
    pub(super) set: Arc<PolicySet>,
    pub(super) keys: Keys,
    pub(super) adjusting: Adjusting,
    pub(super) settings: CallSettings,
}

impl Adjust {
    pub(super) fn new(set: Arc<PolicySet>, keys: Keys, adjusting: Adjusting) -> Self {
        Self {
            set,
            keys,
            adjusting,
            settings: CallSettings::default(),
        }
    }

    /// Sets the units to charge under the policy of that name, in place of the call's.
    pub fn cost_for(mut self, policy: impl Into<String>, units: u64) -> Self {
        self.settings.costs.push((policy.into(), units));
        self
    }

    /// Sets the quota under the policy of that name, such as that of the caller's tier, in place of the policy's own. Required for a
    /// policy that takes its [quota from requests](crate::Policy::quota_with), unless the call has [`parts`](Adjust::parts).
    pub fn quota_for(mut self, policy: impl Into<String>, quota: Quota) -> Self {
        self.settings.quotas.push((policy.into(), quota));
        self
    }

    /// Sets the head of the request from which policies take their [quota](crate::Policy::quota_with) and
    /// [caller](crate::Policy::caller).
    pub fn parts(mut self, parts: &Parts) -> Self {
        self.settings.parts = Some(Arc::new(parts.clone()));
        self
    }

    /// Makes the adjustment without waiting: in process always. It needs no tokio runtime.
    ///
    /// # Errors
    ///
    /// [`NotNow`] if the store has to be called. Nothing is done then.
    pub fn now(self) -> Result<Result<LimitStatus, CallError>, NotNow> {
        if !self.set.is_in_process() {
            return Err(NotNow::Store);
        }
        let mut made = Box::pin(self.run());
        match made.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Ok(result),
            Poll::Pending => Err(NotNow::Store),
        }
    }

    /// Makes the adjustment and blocks this thread until it is made: see [`Check::blocking`](crate::limiter::Check::blocking).
    pub fn blocking(self) -> Result<LimitStatus, CallError> {
        if self.set.is_in_process()
            && let Ok(result) = self.clone().now()
        {
            return result;
        }
        match runtime_to_block_on() {
            Some(background) => block_on(&background, self.run()),
            None => Err(StoreError::NoRuntime(
                "`blocking` needs the thread `tollgate`, and does not work on it",
            )
            .into()),
        }
    }

    async fn run(self) -> Result<LimitStatus, CallError> {
        let mut status = self.resolve()?;
        match self.adjusting {
            Adjusting::Charge(_) => charge(&mut status).await?,
            Adjusting::Reset => reset(&mut status).await?,
            Adjusting::Nothing => read(&mut status).await?,
        }
        LimitStatus::of(status)
    }

    /// A status whose entries the store has not answered.
    fn resolve(&self) -> Result<Decision, CallError> {
        let mut status = Decision::begin(self.set.clone());
        let settings = Some(&self.settings);
        status.entries = resolve_known(&self.set, &self.keys, settings, self.adjusting)?;
        Ok(status)
    }
}

/// Charges each entry its cost, and sets its status.
async fn charge(status: &mut Decision) -> Result<(), StoreError> {
    if status.entries.is_empty() {
        return Ok(());
    }
    let kind = Some(UnitsKind::Charged);
    charge_entries(&status.set, &mut status.entries, kind).await?;
    set_kind(status);
    Ok(())
}

/// Resets each entry's key, with its share. The statuses are those before.
pub(super) async fn reset(status: &mut Decision) -> Result<(), StoreError> {
    call_store(status, Op::Reset).await?;
    let set = &*status.set;
    reset_shares(set, &status.entries);
    for entry in &status.entries {
        let policy = set.bound(entry.policy).policy.name();
        set.listener.released(policy, &entry.key);
    }
    Ok(())
}

/// Reads the statuses.
async fn read(status: &mut Decision) -> Result<(), StoreError> {
    call_store(status, Op::Peek).await
}

async fn call_store(status: &mut Decision, op: Op) -> Result<(), StoreError> {
    if status.entries.is_empty() {
        return Ok(());
    }
    let set = &*status.set;
    let ops = status.entries.iter().map(|entry| CounterOp {
        units: entry.units(),
        mode: set.bound(entry.policy).mode,
        ..entry.counter_op(set)
    });
    let response = set.store.execute(op, &ops.collect::<Vec<_>>());
    let result = response.result().await?;
    if result.counters.len() < status.entries.len() {
        return Err(TOO_FEW_RESULTS);
    }
    for (entry, counter) in status.entries.iter_mut().zip(&result.counters) {
        apply_counter(set, entry, counter, &result);
    }
    set_kind(status);
    Ok(())
}

/// Sets whether a request would be admitted.
fn set_kind(status: &mut Decision) {
    status.source = DecisionSource::Store;
    status.kind = match longest_wait(&status.set, &status.entries) {
        RetryAfter::Now => DecisionKind::Admitted,
        _ => DecisionKind::Rejected,
    };
}

impl IntoFuture for Adjust {
    type Output = Result<LimitStatus, CallError>;
    type IntoFuture = AdjustFuture<LimitStatus>;

    fn into_future(self) -> AdjustFuture<LimitStatus> {
        AdjustFuture(Box::pin(async {
            // An in-process store responds at once: without this, a loop of charges would starve other tasks.
            consume_budget().await;
            self.run().await
        }))
    }
}

impl fmt::Debug for Adjust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adjust")
            .field("adjusting", &self.adjusting)
            .field("keys", &self.keys)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// The future of an [`Adjust`] or a [`Credit`].
///
/// # Cancellation
///
/// An adjustment whose future was polled may be made nevertheless.
#[must_use = "futures do nothing unless polled"]
pub struct AdjustFuture<T>(Pin<Box<dyn Future<Output = Result<T, CallError>> + Send>>);

impl<T> Future for AdjustFuture<T> {
    type Output = Result<T, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<T> fmt::Debug for AdjustFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdjustFuture")
    }
}

/// A call of [`PolicyHandle::credit`](crate::limiter::PolicyHandle::credit), which is sent when it is awaited.
#[must_use = "nothing is credited until this is awaited"]
#[derive(Clone, Debug)]
pub struct Credit {
    units: u64,
    call: Adjust,
}

/// The result of a [credit](crate::limiter::PolicyHandle::credit).
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
    /// A credit under one policy.
    pub(super) fn new(set: Arc<PolicySet>, keys: Keys, units: u64) -> Self {
        Self {
            units,
            call: Adjust::new(set, keys, Adjusting::Nothing),
        }
    }

    /// Sets the quota of the caller's tier under the policy of that name, in place of the policy's own: see
    /// [`Check::quota_for`](crate::limiter::Check::quota_for).
    pub fn quota_for(mut self, policy: impl Into<String>, quota: Quota) -> Self {
        self.call = self.call.quota_for(policy, quota);
        self
    }

    /// Sets the head of a request of the caller, from which the policy takes its quota: see
    /// [`Check::parts`](crate::limiter::Check::parts). The policy's conditions and costs are not evaluated.
    pub fn parts(mut self, parts: &Parts) -> Self {
        self.call = self.call.parts(parts);
        self
    }

    async fn run(self) -> Result<Credited, CallError> {
        let mut status = self.call.resolve()?;
        let set = status.set.clone();
        let Some(entry) = status.entries.first_mut() else {
            return Err(TOO_FEW_RESULTS.into());
        };
        if entry.units_in_use(&set).is_none() {
            let policy = set.bound(entry.policy).policy.shared_name();
            return Err(CallError::CreditUnsupported { policy });
        }
        let credit = Adjustment::refund(
            entry,
            self.units,
            ChargeReceipt::now(self.units),
            Some(UnitsKind::Credited),
        );
        let call = AdjustCall::new(&set, [credit]);
        let adjusted = call.send().await?;
        let adjusted = adjusted.first().ok_or(TOO_FEW_RESULTS)?;
        entry.receipt.charged_at = adjusted.receipt.charged_at;
        entry.status = LazyStatus::Snapshot(adjusted.snapshot);
        let units = adjusted.units;
        set_kind(&mut status);
        let status = LimitStatus::of(status)?;
        Ok(Credited { units, status })
    }
}

impl IntoFuture for Credit {
    type Output = Result<Credited, CallError>;
    type IntoFuture = AdjustFuture<Credited>;

    fn into_future(self) -> AdjustFuture<Credited> {
        AdjustFuture(Box::pin(async {
            // As for an adjustment.
            consume_budget().await;
            self.run().await
        }))
    }
}
