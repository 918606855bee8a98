//! Judging in process what the store can't.

use std::{mem, sync::Arc, time::Duration};

use super::{Desk, Inner, OnStoreError, Role, draft::Draft, tiers::Known, write_back::Shares};
use crate::{
    decision::{Counted, DecisionKind},
    error::{InvalidValue, StoreError},
    on_store_error::LocalFallback,
    policy::Policy,
    quota::Quota,
    store::{DecisionSource, LimitHandle, Op, Store, StoreResponse},
    strategy::RetryAfter,
    tier::{Terms, Tier},
};

/// What somebody is to wait whose request costs more than a process's share: the store may be back by then.
const BACK: Duration = Duration::from_secs(1);

/// This process's share of a policy, for when the store is at fault.
#[derive(Debug)]
pub(super) struct Share {
    fallback: LocalFallback,
    own: Tier,
    tiers: Known,
}

impl Share {
    pub(super) fn open(
        shares: &Shares,
        policy: &Policy,
        fallback: LocalFallback,
        whole: &LimitHandle,
    ) -> Result<Self, InvalidValue> {
        let tiers = Known::default();
        let own = open(shares, policy, &tiers, fallback, policy.quota(), whole)?;
        Ok(Self {
            fallback,
            own: Arc::new(own),
            tiers,
        })
    }

    /// The share of a request's own quota, or else of the policy's.
    fn of(&self, shares: &Shares, policy: &Policy, tier: Option<&Tier>) -> Tier {
        let tier = tier.and_then(|tier| {
            let quota = tier.quota;
            let (tiers, whole) = (&self.tiers, &tier.account);
            let open = || open(shares, policy, tiers, self.fallback, quota, whole);
            self.tiers.tier(policy, quota, open)
        });
        tier.unwrap_or_else(|| self.own.clone())
    }
}

/// Opens the share of a quota, which is counted in the store under the account `whole`.
fn open(
    shares: &Shares,
    policy: &Policy,
    tiers: &Known,
    fallback: LocalFallback,
    quota: Quota,
    whole: &LimitHandle,
) -> Result<Terms, InvalidValue> {
    let quota = fallback.share(quota);
    let rule = tiers.bind(policy, quota)?;
    let written_to = fallback.writes_back().then_some(whole);
    Ok(Terms {
        quota,
        account: shares.open_share(policy.name(), rule, written_to)?,
        share_of: Some(whole.rule().capacity()),
    })
}

impl Desk {
    /// The answer to a request that the store has none for.
    #[cold]
    pub(super) fn fault(&self, draft: &mut Draft, error: StoreError) {
        let answer = self.answer_to_faults(&draft.items);
        self.faults.then(|suppressed| {
            tracing::warn!(%error, action = ?answer, suppressed, "rate limit store failed");
        });
        match answer {
            OnStoreError::Admit => draft.rule(DecisionKind::Admitted, DecisionSource::Fallback),
            OnStoreError::Reject => {
                draft.rule(DecisionKind::StoreFailed(error), DecisionSource::Fallback)
            }
            OnStoreError::LocalFallback(_) => self.fall_back(draft, error),
        }
    }

    /// One policy that refuses is enough; else one that falls back is.
    fn answer_to_faults(&self, items: &[Counted]) -> OnStoreError {
        let bound = items.iter().map(|item| self.bound(item.policy));
        let enforced = bound.filter(|bound| !matches!(bound.role, Role::Shadow { .. }));
        let strictness = |answer: &OnStoreError| match answer {
            OnStoreError::Admit => 0,
            OnStoreError::LocalFallback(_) => 1,
            OnStoreError::Reject => 2,
        };
        let answers = enforced.map(|bound| bound.on_store_error);
        answers.max_by_key(strictness).unwrap_or_default()
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
            if fits && counted.status(self).retry == RetryAfter::Never {
                counted.amend(self, |status| status.retry = RetryAfter::In(BACK));
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
    pub(super) fn forget_shares(&self, items: &[Counted]) {
        let Some(shares) = &self.shares else {
            return;
        };
        let shared = items
            .iter()
            .filter_map(|item| self.shared(shares, item.clone()));
        for item in shared {
            shares.tell(Op::Reset, &[self.line(&item)]);
        }
    }
}

impl Inner {
    /// Where something was charged, and so where it is given back, renewed and settled.
    pub(super) fn store_of(&self, counted: &Counted) -> &dyn Store {
        let is_share = |tier: &Tier| tier.share_of.is_some();
        match &self.shares {
            Some(shares) if counted.tier.as_ref().is_some_and(is_share) => shares,
            _ => &*self.store,
        }
    }
}
