use std::{
    collections::HashSet,
    sync::{Arc, RwLock},
    time::Duration,
};

use super::{Bound, Desks, Inner, Limiter, OnStoreError, permit::Held, queue::Queues};
use crate::{
    error::ConfigError,
    log::Seldom,
    policy::Policy,
    store::{Store, memory::MemoryStore},
};

/// Builds a [`Limiter`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct LimiterBuilder {
    store: Option<Arc<dyn Store>>,
    policies: Vec<Policy>,
    on_store_error: OnStoreError,
}

impl LimiterBuilder {
    /// Counts in `store`: in a [`MemoryStore`] of its own unless set.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Adds a policy. A request must pass them all; it is charged under all of them, or under none.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// What to answer when the store can't: [`OnStoreError::Admit`] unless set.
    pub fn on_store_error(mut self, answer: OnStoreError) -> Self {
        self.on_store_error = answer;
        self
    }

    /// The limiter.
    ///
    /// # Errors
    ///
    /// If there is no policy, a name is empty, unprintable or used twice, a quota is past what its strategy counts, or
    /// a strategy can't count in the store. Nothing is asked of the store.
    pub fn build(self) -> Result<Limiter, ConfigError> {
        if self.policies.is_empty() {
            return Err(ConfigError::new(
                "a limiter without a policy",
                "at least one",
            ));
        }
        let store = self.store.unwrap_or_else(|| Arc::new(MemoryStore::new()));
        let mut names = HashSet::new();
        let mut policies = Vec::with_capacity(self.policies.len());
        for policy in self.policies {
            let name = policy.shared_name();
            let of = |unfit| ConfigError::of(&name, unfit);
            policy.check_name().map_err(of)?;
            if !names.insert(name.clone()) {
                return Err(of(crate::error::Unfit::new(
                    "a second policy of this name",
                    "each policy of a limiter has a name of its own",
                )));
            }
            policy.check_parts().map_err(of)?;
            let rule = policy.counted_by().bind(&policy.quota()).map_err(of)?;
            let account = store.open(&name, rule).map_err(of)?;
            policies.push(Bound {
                policy,
                account,
                tiers: RwLock::default(),
                no_key: Seldom::default(),
            });
        }
        let lives = policies
            .iter()
            .filter_map(|bound| bound.account.rule().life());
        let life = lives.min().unwrap_or(Duration::MAX);
        Ok(Limiter {
            desks: Arc::new(Desks::new(Inner {
                store,
                policies: policies.into(),
                on_store_error: self.on_store_error,
                faults: Seldom::default(),
                held: Held::default(),
                queues: Queues::default(),
                life,
            })),
        })
    }
}
