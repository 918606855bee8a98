//! Judging in process what the store can't.

use std::{mem, sync::Arc, time::Duration};

use super::{Desk, Inner, OnStoreError, Role, draft::Draft, tiers::Known};
use crate::{
    decision::{Counted, Ruling},
    error::{StoreError, Unfit},
    on_store_error::Fallback,
    policy::Policy,
    store::{Ask, Reply, Source, Store, memory::MemoryStore},
    strategy::{Retry, TierRefills},
    tier::{Terms, Tier},
};

/// What somebody is to wait whose request costs more than a process's share: the store may be back by then.
const BACK: Duration = Duration::from_secs(1);

/// This process's share of a policy, for when the store is at fault.
#[derive(Debug)]
pub(super) struct Share {
    fallback: Fallback,
    own: Tier,
    tiers: Known,
}

impl Share {
    pub(super) fn open(
        store: &MemoryStore,
        policy: &Policy,
        fallback: Fallback,
    ) -> Result<Self, Unfit> {
        let tiers = Known::default();
        let own = open(store, policy, &tiers, fallback, policy.quota())?;
        Ok(Self {
            fallback,
            own: Arc::new(own),
            tiers,
        })
    }

    /// The share of a request's own quota, or else of the policy's.
    fn of(&self, store: &MemoryStore, policy: &Policy, tier: Option<&Tier>) -> Tier {
        let tier = tier.and_then(|tier| {
            let quota = tier.quota;
            let open = || open(store, policy, &self.tiers, self.fallback, quota);
            self.tiers.tier(policy, quota, open)
        });
        tier.unwrap_or_else(|| self.own.clone())
    }
}

fn open(
    store: &MemoryStore,
    policy: &Policy,
    tiers: &Known,
    fallback: Fallback,
    quota: crate::quota::Quota,
) -> Result<Terms, Unfit> {
    let whole = policy.bind(&quota, &TierRefills::default())?.capacity();
    let quota = fallback.share(quota);
    let rule = tiers.bind(policy, quota)?;
    Ok(Terms {
        quota,
        account: store.open(policy.name(), rule)?,
        share_of: Some(whole),
    })
}

impl Desk {
    /// The answer to a request that the store has none for.
    #[cold]
    pub(super) fn fault(&self, draft: &mut Draft, error: StoreError) {
        let answer = self.answer_to_faults(&draft.items);
        self.faults.then(|unsaid| {
            tracing::warn!(%error, ?answer, unsaid, "the store of the rate limits is at fault");
        });
        match answer {
            OnStoreError::Admit => draft.rule(Ruling::Admitted, Source::Fallback),
            OnStoreError::Refuse => draft.rule(Ruling::Fault(error), Source::Fallback),
            OnStoreError::Fallback(_) => self.fall_back(draft, error),
        }
    }

    /// One policy that refuses is enough; else one that falls back is.
    fn answer_to_faults(&self, items: &[Counted]) -> OnStoreError {
        let bound = items.iter().map(|item| self.bound(item.policy));
        let enforced = bound.filter(|bound| !matches!(bound.role, Role::Shadow { .. }));
        let strictness = |answer: &OnStoreError| match answer {
            OnStoreError::Admit => 0,
            OnStoreError::Fallback(_) => 1,
            OnStoreError::Refuse => 2,
        };
        let answers = enforced.map(|bound| bound.on_store_error);
        answers.max_by_key(strictness).unwrap_or_default()
    }

    /// Judges in process by the policies that are to be.
    fn fall_back(&self, draft: &mut Draft, error: StoreError) {
        let Some(store) = &self.in_process else {
            draft.rule(Ruling::Fault(error), Source::Fallback);
            return;
        };
        let items = mem::take(&mut draft.items).into_iter();
        draft.items = items.filter_map(|item| self.shared(store, item)).collect();
        let Reply::Now(Ok(answer)) = self.ask_in(store, draft) else {
            draft.rule(Ruling::Fault(error), Source::Fallback);
            return;
        };
        self.note(draft, &answer);
        draft.source = Source::Fallback;
        for counted in &mut draft.items {
            let whole = counted.tier.as_ref().and_then(|tier| tier.share_of);
            let fits = whole.is_some_and(|whole| counted.cost <= whole);
            if fits && counted.outlook(self).retry == Retry::Never {
                counted.amend(self, |outlook| outlook.retry = Retry::After(BACK));
            }
        }
    }

    /// The same item, to be counted by this process's share; `None` if it isn't to be.
    fn shared(&self, store: &MemoryStore, mut item: Counted) -> Option<Counted> {
        let bound = self.bound(item.policy);
        let share = bound.share.as_ref()?;
        let tier = share.of(store, &bound.policy, item.tier.as_ref());
        if share.fallback.writes_back() && !bound.is_permit() && !bound.is_ban() {
            self.owed.note(&item, &tier);
        }
        item.tier = Some(tier);
        Some(item)
    }

    /// Forgets what was used in process, too.
    pub(super) fn forget_shares(&self, items: &[Counted]) {
        let Some(store) = &self.in_process else {
            return;
        };
        let shared = items
            .iter()
            .filter_map(|item| self.shared(store, item.clone()));
        for item in shared {
            store.tell(Ask::Reset, &[self.line(&item)]);
        }
    }
}

impl Inner {
    /// Where something was charged, and so where it is given back, renewed and settled.
    pub(super) fn store_of(&self, counted: &Counted) -> &dyn Store {
        let shares = |tier: &Tier| tier.share_of.is_some();
        match &self.in_process {
            Some(store) if counted.tier.as_ref().is_some_and(shares) => store,
            _ => &*self.store,
        }
    }
}
