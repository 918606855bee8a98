//! Judging in process what the store can't.

use std::{mem, sync::Arc, time::Duration};

use super::draft::Draft;
pub(crate) use crate::limiter::core::share::Share;
use crate::{
    decision::{Counted, Decision, DecisionKind, quota_override::Tier},
    error::StoreError,
    limiter::{Bound, Desk, Inner, OnMisconfiguration, OnStoreError, Role, write_back::Shares},
    store::{DecisionSource, Op, Store, StoreResponse},
    strategy::RetryAfter,
};

/// The wait of a request that costs more than a process's share: the store may be back by then.
const BACK: Duration = Duration::from_secs(1);

/// What is done about a request that the store has no answer for. Of its policies, the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FailureAction {
    Admit,
    LocalFallback,
    /// Rejected now, and asked again until the timeout.
    Wait,
    Reject,
    /// The call returns the error: it is no request's check.
    Error,
}

impl Desk {
    /// The answer to a request that the store has none for.
    #[cold]
    pub(crate) fn fault(&self, draft: &mut Draft, error: StoreError) {
        let action = match draft.in_check {
            true => {
                let policies = draft.items.iter().map(|item| self.bound(item.policy));
                let waits = draft.waits && draft.items.iter().any(|item| item.cost > 0);
                self.failure_action(policies, &error, waits)
            }
            false => FailureAction::Error,
        };
        self.log_failure(&error, action);
        match action {
            FailureAction::Admit => draft.rule(DecisionKind::Admitted, DecisionSource::Fallback),
            FailureAction::LocalFallback => self.fall_back(draft, error),
            FailureAction::Wait | FailureAction::Reject | FailureAction::Error => {
                draft.rule(DecisionKind::StoreFailed(error), DecisionSource::Fallback)
            }
        }
    }

    /// What is done about a request under these policies, one that `waits` for its turn or not.
    pub(crate) fn failure_action<'a>(
        &self,
        policies: impl Iterator<Item = &'a Bound>,
        error: &StoreError,
        waits: bool,
    ) -> FailureAction {
        let rejects = self.on_misconfiguration == OnMisconfiguration::Reject;
        let misconfigured = rejects && error.is_misconfiguration();
        let enforced = policies.filter(|bound| !matches!(bound.role, Role::Shadow { .. }));
        let actions = enforced.map(|bound| match bound.on_store_error {
            _ if misconfigured => FailureAction::Reject,
            Some(OnStoreError::Reject) => FailureAction::Reject,
            Some(OnStoreError::LocalFallback(_)) => FailureAction::LocalFallback,
            Some(OnStoreError::Admit) => FailureAction::Admit,
            None if waits => FailureAction::Wait,
            None => FailureAction::Admit,
        });
        actions.max().unwrap_or(FailureAction::Admit)
    }

    fn log_failure(&self, error: &StoreError, action: FailureAction) {
        match error.remedy() {
            Some(remedy) => self.misconfigurations.then(|suppressed| {
                tracing::error!(%error, remedy, ?action, suppressed, "rate limit store is misconfigured");
            }),
            None => self.outages.then(|suppressed| {
                tracing::warn!(%error, ?action, suppressed, "rate limit store failed");
            }),
        }
    }

    /// The rejection of a request that would have to wait where there is no runtime.
    #[cold]
    pub(crate) fn reject_without_runtime(self: Arc<Self>) -> Decision {
        let error = StoreError::NoRuntime("waiting needs the timers of a runtime");
        self.log_failure(&error, FailureAction::Reject);
        let mut draft = Draft::new(Op::Acquire(1), false);
        draft.rule(DecisionKind::StoreFailed(error), DecisionSource::NotChecked);
        draft.finish(self)
    }

    /// Judges in process by the policies that are to be.
    fn fall_back(&self, draft: &mut Draft, error: StoreError) {
        let Some(shares) = &self.shares else {
            draft.rule(DecisionKind::StoreFailed(error), DecisionSource::Fallback);
            return;
        };
        let items = mem::take(&mut draft.items).into_iter();
        draft.items = items.filter_map(|item| self.shared(shares, item)).collect();
        let StoreResponse::Ready(Ok(answer)) = self.ask_in(shares, draft) else {
            draft.rule(DecisionKind::StoreFailed(error), DecisionSource::Fallback);
            return;
        };
        self.note(draft, &answer);
        draft.source = DecisionSource::Fallback;
        for counted in &mut draft.items {
            let whole = counted.tier.as_ref().and_then(|tier| tier.share_of);
            let fits = whole.is_some_and(|whole| counted.cost <= whole);
            if fits && counted.status(self).retry_after == RetryAfter::Never {
                counted.amend(self, |status| status.retry_after = RetryAfter::In(BACK));
            }
        }
    }

    /// The same item, to be counted by this process's share; `None` if it isn't to be.
    fn shared(&self, shares: &Shares, mut item: Counted) -> Option<Counted> {
        let bound = self.bound(item.policy);
        let share = bound.share.as_ref()?;
        item.tier = Some(share.of(shares, &bound.policy, item.tier.as_ref()));
        Some(item)
    }

    /// Forgets what was used in process, too.
    pub(crate) fn forget_shares(&self, items: &[Counted]) {
        let Some(shares) = &self.shares else {
            return;
        };
        let shared = items
            .iter()
            .filter_map(|item| self.shared(shares, item.clone()));
        for item in shared {
            shares.execute_detached(Op::Reset, &[self.line(&item)]);
        }
    }
}

impl Inner {
    /// Where something was charged, and so where it is given back, renewed and settled.
    pub(crate) fn store_of(&self, counted: &Counted) -> &dyn Store {
        match &self.shares {
            Some(shares) if self.is_share(counted) => shares,
            _ => &*self.store,
        }
    }

    /// Whether it is counted by this process's share.
    pub(crate) fn is_share(&self, counted: &Counted) -> bool {
        let is_share = |tier: &Tier| tier.share_of.is_some();
        counted.tier.as_ref().is_some_and(is_share)
    }
}
