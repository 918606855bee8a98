//! Decisions while the store fails: admit, reject, wait, or limit in process.

use std::{mem, sync::Arc, time::Duration};

use super::{
    bound_policy::{BoundPolicy, Enforcement},
    core::LimiterRef,
    decide::DecisionBuilder,
    decision::{Decision, DecisionKind},
    entry::PolicyEntry,
    mode::OnFailure,
    other_quotas::{OtherQuota, OtherQuotas, QuotaLimit},
};
use crate::{
    error::{InvalidValue, StoreError},
    policy::{
        Policy,
        on_store_error::{LocalFallback, OnMisconfiguration, OnStoreError},
    },
    quota::Quota,
    store::{DecisionSource, LimitHandle, Op, Store, StoreResponse, memory::MemoryStore},
    strategy::RetryAfter,
};

/// Retry-After of a request that costs more than the local share's capacity: the store may be back by then.
const RETRY_AFTER_OUTAGE: Duration = Duration::from_secs(1);

/// What is done with a request when the store fails. Of several policies, the greatest applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureAction {
    Admit,
    LocalFallback,
    /// Reject it now, and retry until its timeout.
    Wait,
    Reject,
    /// Return the error, since the call is not a request's check.
    Error,
}

impl LimiterRef {
    /// Decides a request that the store failed to decide.
    #[cold]
    pub(crate) fn handle_store_error(&self, builder: &mut DecisionBuilder, error: StoreError) {
        let on_failure = builder.mode.on_failure;
        let action = if on_failure == OnFailure::Return {
            FailureAction::Error
        } else {
            let entries = &builder.entries;
            let may_wait =
                on_failure == OnFailure::Wait && entries.iter().any(|entry| entry.cost > 0);
            let policies = entries.iter().map(|entry| self.bound(entry.policy));
            self.failure_action(policies, &error, may_wait)
        };
        self.log_failure(&error, action);
        match action {
            FailureAction::Admit => {
                builder.decide_without_store(DecisionKind::Admitted, DecisionSource::Fallback)
            }
            FailureAction::LocalFallback => self.evaluate_locally(builder, error),
            FailureAction::Wait | FailureAction::Reject | FailureAction::Error => {
                self.report_failed_charge(builder, &error);
                let kind = DecisionKind::StoreFailed(error);
                builder.decide_without_store(kind, DecisionSource::Fallback);
            }
        }
        self.log_rejected(builder);
    }

    /// The action for a request under these policies, which may wait for its retry or not.
    pub(crate) fn failure_action<'a>(
        &self,
        policies: impl Iterator<Item = &'a BoundPolicy>,
        error: &StoreError,
        may_wait: bool,
    ) -> FailureAction {
        let rejects = self.on_misconfiguration == OnMisconfiguration::Reject;
        let misconfigured = rejects && error.is_misconfiguration();
        let enforced =
            policies.filter(|bound| !matches!(bound.enforcement, Enforcement::Shadow(_)));
        let actions = enforced.map(|bound| match bound.on_store_error {
            _ if misconfigured => FailureAction::Reject,
            Some(OnStoreError::Reject) => FailureAction::Reject,
            Some(OnStoreError::LocalFallback(_)) => FailureAction::LocalFallback,
            Some(OnStoreError::Admit) => FailureAction::Admit,
            None if may_wait => FailureAction::Wait,
            None => FailureAction::Admit,
        });
        actions.max().unwrap_or(FailureAction::Admit)
    }

    fn log_failure(&self, error: &StoreError, action: FailureAction) {
        match error.remedy() {
            Some(remedy) => self.misconfiguration_log.log_with(|suppressed| {
                tracing::error!(%error, remedy, ?action, suppressed, "rate limit store is misconfigured");
            }),
            None => self.outage_log.log_with(|suppressed| {
                tracing::warn!(%error, ?action, suppressed, "rate limit store failed");
            }),
        }
    }

    /// Rejects a request that would have to wait outside of a tokio runtime with timers.
    #[cold]
    pub(crate) fn reject_without_runtime(self: Arc<Self>) -> Decision {
        let error = StoreError::NoRuntime("waiting needs the timers of a runtime");
        self.log_failure(&error, FailureAction::Reject);
        let mut builder = DecisionBuilder::check();
        builder.decide_without_store(DecisionKind::StoreFailed(error), DecisionSource::NotChecked);
        builder.finish(self)
    }

    /// Evaluates in process the policies that have a local share.
    fn evaluate_locally(&self, builder: &mut DecisionBuilder, error: StoreError) {
        let Some(shares) = &self.local_shares else {
            builder
                .decide_without_store(DecisionKind::StoreFailed(error), DecisionSource::Fallback);
            return;
        };
        let entries = mem::take(&mut builder.entries).into_iter();
        builder.entries = entries
            .filter_map(|entry| self.to_local_entry(shares, entry))
            .collect();
        let StoreResponse::Ready(Ok(result)) = self.execute_on(&**shares, builder) else {
            builder
                .decide_without_store(DecisionKind::StoreFailed(error), DecisionSource::Fallback);
            return;
        };
        let _ = self.apply_result(builder, &result);
        builder.source = DecisionSource::Fallback;
        for entry in &mut builder.entries {
            let share = entry.other_quota.as_ref();
            let full_capacity = share.and_then(|share| share.full_capacity);
            let fits = full_capacity.is_some_and(|capacity| entry.cost <= capacity);
            if fits && entry.status(self).retry_after == RetryAfter::Never {
                entry.update_status(self, |status| {
                    status.retry_after = RetryAfter::In(RETRY_AFTER_OUTAGE)
                });
            }
        }
    }

    /// The same entry under the policy's local share; `None` if it has none.
    fn to_local_entry(&self, shares: &MemoryStore, mut entry: PolicyEntry) -> Option<PolicyEntry> {
        let bound = self.bound(entry.policy);
        let share = bound.local_share.as_ref()?;
        entry.other_quota = Some(share.of(shares, &bound.policy, entry.other_quota.as_ref()));
        Some(entry)
    }

    /// Resets the local shares of these entries.
    pub(crate) fn reset_local_shares(&self, entries: &[PolicyEntry]) {
        let Some(shares) = &self.local_shares else {
            return;
        };
        for entry in entries {
            if let Some(entry) = self.to_local_entry(shares, entry.clone()) {
                shares.execute_detached(Op::Reset, &[self.counter_op(&entry)], None);
            }
        }
    }
}

/// This process's share of a policy's quota, which limits requests while the store fails.
#[derive(Debug)]
pub(crate) struct LocalShare {
    fallback: LocalFallback,
    /// Of the policy's own quota.
    default: OtherQuota,
    quotas: OtherQuotas,
}

impl LocalShare {
    pub(crate) fn open(
        shares: &MemoryStore,
        policy: &Policy,
        fallback: LocalFallback,
        full: &LimitHandle,
    ) -> Result<Self, InvalidValue> {
        let quotas = OtherQuotas::default();
        let default = open(shares, policy, &quotas, fallback, policy.quota(), full)?;
        Ok(Self {
            fallback,
            default: default.into(),
            quotas,
        })
    }

    /// The share of a request's own quota, or else of the policy's.
    pub(crate) fn of(
        &self,
        shares: &MemoryStore,
        policy: &Policy,
        full: Option<&OtherQuota>,
    ) -> OtherQuota {
        let share = full.and_then(|full| {
            let (quota, quotas) = (full.quota, &self.quotas);
            let open = || open(shares, policy, quotas, self.fallback, quota, &full.limit);
            let counted = quotas.get(policy, quota, open);
            let action = "the share of the policy's own quota is used";
            let log = |invalid| quotas.log_uncountable(policy, quota, invalid, action);
            counted.map_err(log).ok()
        });
        share.unwrap_or_else(|| self.default.clone())
    }
}

/// Opens the share of a quota, which the store counts under the limit `full`.
fn open(
    shares: &MemoryStore,
    policy: &Policy,
    quotas: &OtherQuotas,
    fallback: LocalFallback,
    quota: Quota,
    full: &LimitHandle,
) -> Result<QuotaLimit, InvalidValue> {
    let quota = fallback.share(quota);
    // It counts in process, where units are spent as they are charged.
    let rule = quotas.bind(&policy.clone().without_lease(), quota)?;
    Ok(QuotaLimit {
        quota,
        limit: shares.register(policy.name(), rule)?,
        full_capacity: Some(full.info().capacity),
    })
}
