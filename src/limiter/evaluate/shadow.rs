//! Policies that are evaluated and not enforced, beside those that are.

use super::{draft::Draft, judge::Own};
pub(crate) use crate::limiter::core::comparison::Comparison;
pub use crate::limiter::core::comparison::ShadowStats;
use crate::{
    charge::When,
    decision::{Books, Counted, Decision, Part},
    error::{ConfigError, InvalidValue},
    extract::MissingKey,
    key::Key,
    limiter::{Bound, Desk, Keys, Limiter, Role},
    log::Seldom,
    policy::Policy,
    store::{CounterMode, Op, StoreResponse},
    strategy::RetryAfter,
};

impl Limiter {
    /// Counts how the decisions of the [shadow policy](crate::Policy::shadow) of that name differ from those that were made;
    /// `None` if the limiter has no such shadow policy. See [`Policy::shadow`](crate::Policy::shadow) for an example.
    pub fn shadow_stats(&self, policy: &str) -> Option<ShadowStats> {
        let mut policies = self.desks.inner().policies.iter();
        match &policies.find(|bound| bound.policy.name() == policy)?.role {
            Role::Live | Role::Ban => None,
            Role::Shadow { compared, .. } => Some(compared.stats()),
        }
    }
}

/// The policies; what is not set on a candidate is as on the policy that it would take the place of.
pub(crate) fn with_live_settings(policies: Vec<Policy>) -> Vec<Policy> {
    let completed = policies.iter().map(|policy| {
        let mut policy = policy.clone();
        let live = policy.shadowed().and_then(|shadow| shadow.of.as_deref());
        let mut others = policies.iter();
        // `find_live` names a live policy that is none.
        let live = others.find(|other| Some(other.name()) == live && other.shadowed().is_none());
        if let Some(live) = live {
            policy.inherit(live);
        }
        policy
    });
    completed.collect()
}

/// Finds the policies that shadows would take the place of.
pub(crate) fn find_live(policies: &mut [Bound]) -> Result<(), ConfigError> {
    for place in 0..policies.len() {
        let policy = &policies[place].policy;
        let Some(live) = policy.shadowed().and_then(|shadow| shadow.of.clone()) else {
            continue;
        };
        let mut others = policies.iter();
        let found = others
            .position(|other| other.policy.name() == &*live && matches!(other.role, Role::Live));
        let Some(found) = found else {
            let unfit = InvalidValue::new(
                format!("a shadow of {live:?}"),
                "the name of one of the limiter's policies that is enforced and no ban",
            );
            return Err(ConfigError::of(policy.name(), unfit));
        };
        if let Role::Shadow { of, .. } = &mut policies[place].role {
            *of = Some(found as u32);
        }
    }
    Ok(())
}

impl Bound {
    /// Whether it refuses requests without a key.
    pub(crate) fn refuses_missing(&self) -> bool {
        let refuses = self.policy.on_missing_key() == MissingKey::Reject;
        refuses && !matches!(self.role, Role::Shadow { .. })
    }

    /// Whether a shadow charges by itself, and doesn't wait for the response.
    fn charges_on_arrival(&self) -> bool {
        self.policy.charges().when != When::Response
    }

    /// Notes that of so many requests `admitted` were, and with this shadow `would` have been.
    fn note(&self, compared: &Comparison, evaluated: u64, admitted: u64, would: u64) {
        compared.note(evaluated, admitted, would);
        if would != admitted {
            let policy = self.policy.name();
            static DIFFERS: Seldom = Seldom::new();
            DIFFERS.then(|suppressed| {
                tracing::debug!(
                    policy,
                    admitted,
                    would,
                    suppressed,
                    "a shadow policy would decide differently"
                );
            });
        }
    }
}

impl Counted {
    /// What a shadow says of the `i`th of those who were admitted together: it charged as many of the first as it would
    /// have let in.
    pub(crate) fn divide_shadow(&mut self, books: &dyn Books, i: u64) {
        let charged = self.receipts.first().remaining;
        let charged = charged.checked_div(self.cost).unwrap_or(0);
        if charged == 0 {
            return;
        }
        let refuses = i >= charged;
        self.part = Part::Shadow { refuses };
        let units = if refuses { 0 } else { self.cost };
        self.receipts = self.receipts.part(units);
        if i + 1 < charged {
            let later = (charged - 1 - i) * self.cost;
            self.amend(books, |status| {
                status.retry_after = RetryAfter::Now;
                status.remaining += later;
            });
        }
    }

    /// What a shadow says of the next one, as it stands.
    pub(crate) fn shadow_stands(&mut self, books: &dyn Books) {
        if self.is_shadow() {
            let refuses = self.cost > 0 && self.status(books).retry_after != RetryAfter::Now;
            self.part = Part::Shadow { refuses };
        }
    }
}

impl Desk {
    /// What a request's arrival does under a policy. If it is asked about again when it's refused, a shadow charges it when
    /// it is admitted, not each time that it might have been.
    #[inline]
    pub(crate) fn mode(&self, item: &Counted, items: &[Counted], retries: bool) -> CounterMode {
        let bound = self.bound(item.policy);
        match bound.role {
            Role::Live => bound.policy.mode(),
            Role::Ban => CounterMode::CountRejections,
            Role::Shadow { of, .. } => CounterMode::Shadow {
                replaces: of
                    .filter(|_| !retries)
                    .and_then(|live| items.iter().position(|item| item.policy == live)),
                charges: bound.charges_on_arrival(),
            },
        }
    }

    /// The name of the policy that a shadow would take the place of.
    #[inline]
    fn live_of(&self, bound: &Bound) -> Option<&str> {
        match bound.role {
            Role::Shadow { of: Some(live), .. } => Some(self.bound(live).policy.name()),
            _ => None,
        }
    }

    /// The key of the policy that a shadow would take the place of.
    #[inline]
    pub(crate) fn key_of_live<'a>(&self, bound: &Bound, keys: &'a Keys) -> Option<&'a Key> {
        keys.of(self.live_of(bound)?)
    }

    /// Whether a call names a policy, or the one that it would take the place of.
    pub(crate) fn is_named(&self, bound: &Bound, keys: &Keys) -> bool {
        let named = |name: &str| keys.name(name);
        named(bound.policy.name()) || self.live_of(bound).is_some_and(named)
    }

    /// What a call says that a request costs under a policy, or under the one that it would take the place of.
    #[inline]
    pub(crate) fn cost_in_call(&self, bound: &Bound, own: Option<&Own>) -> Option<u64> {
        own?.cost(bound.policy.name(), self.live_of(bound))
    }

    /// Says of each shadow whether it would have refused, and counts how often it would have changed the answer: of those
    /// who are asked about again when they are refused, only for those who are not.
    pub(crate) fn compare(&self, draft: &mut Draft) {
        for place in 0..draft.items.len() {
            let item = &draft.items[place];
            let bound = self.bound(item.policy);
            let Role::Shadow { of, compared } = &bound.role else {
                continue;
            };
            let charges = item.cost > 0 && bound.charges_on_arrival();
            let charged = if charges {
                item.receipts.first().remaining / item.cost
            } else {
                0
            };
            let refuses =
                charged == 0 && item.cost > 0 && item.status(self).retry_after != RetryAfter::Now;
            if let Op::Acquire(times) = draft.ask {
                let admitted = draft.admitted;
                let times = if draft.retries {
                    admitted
                } else {
                    times.into()
                };
                let others = admitted == 0 && self.others_refuse(&draft.items, *of);
                let would = match (charges, refuses || others) {
                    (true, _) => charged,
                    (false, true) => 0,
                    (false, false) => admitted.max(1),
                };
                let would = would.min(times);
                bound.note(compared, times, admitted, would);
                // Nothing is in flight that a permit would be of.
                if admitted == 0 && charged > 0 && bound.is_permit() {
                    self.take_back(&mut draft.items[place..=place]);
                }
            }
            draft.items[place].part = Part::Shadow { refuses };
        }
    }

    /// Compares each shadow with the final rejection of a waiting request: the shadow is asked whether it would
    /// admit the request now, and charges it then.
    pub(crate) async fn compare_refused(&self, refused: &mut Decision) {
        for place in 0..refused.counted.len() {
            let item = &refused.counted[place];
            let bound = self.bound(item.policy);
            let Role::Shadow { of, compared } = &bound.role else {
                continue;
            };
            let others = refused.admitted == 0 && self.others_refuse(&refused.counted, *of);
            let lets_in = match others {
                true => false,
                false => self.shadow_lets_in(bound, item).await,
            };
            bound.note(compared, 1, 0, u64::from(lets_in));
            if lets_in {
                refused.counted[place].part = Part::Shadow { refuses: false };
            }
        }
    }

    async fn shadow_lets_in(&self, bound: &Bound, item: &Counted) -> bool {
        let mut line = self.line(item);
        line.units = item.units();
        // Nothing is in flight that a permit would be of.
        if !bound.charges_on_arrival() || bound.is_permit() {
            line.mode = CounterMode::Check;
        }
        let answer = match self.store.execute(Op::Acquire(1), &[line]) {
            StoreResponse::Ready(answer) => answer,
            StoreResponse::Pending(answer) => answer.await,
        };
        answer.is_ok_and(|answer| answer.admitted > 0)
    }

    /// Whether a request that was refused would have been without the policy that a shadow would take the place of.
    fn others_refuse(&self, counted: &[Counted], of: Option<u32>) -> bool {
        let refuses =
            |item: &Counted| item.cost > 0 && item.status(self).retry_after != RetryAfter::Now;
        let enforced = counted.iter().filter(|item| !item.is_shadow());
        let mut others = enforced.filter(|item| of != Some(item.policy));
        of.is_none() || others.any(refuses)
    }
}
