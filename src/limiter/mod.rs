//! Policies over a store, with or without HTTP.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::request::Parts;
use smallvec::SmallVec;

use crate::{
    clock::Timestamp,
    decision::{Books, Counted, Decision, Outcome, Source},
    error::StoreError,
    key::Key,
    log::Seldom,
    policy::{MissingKey, Policy},
    store::{Account, Answer, Ask, Line, Reply, Store},
    strategy::{Receipt, Retry},
};

mod builder;
mod check;
mod keys;
mod permit;

pub use builder::LimiterBuilder;
pub use check::{Check, Checking};
pub use keys::Keys;
pub(crate) use permit::Permit;

/// Policies over a store. Cheap to clone; clones share everything.
///
/// A [`RateLimitLayer`](crate::RateLimitLayer) asks it about each request that passes. It can be asked without HTTP
/// too, about keys that only a handler knows.
///
/// ```
/// use tollgate::{Key, Limiter, Policy, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("account", Quota::requests(5).per_minute()))
///     .build()?;
/// for left in (0..5).rev() {
///     let decision = limiter.check(Key::new("alice")).await;
///     assert!(decision.is_admitted());
///     assert_eq!(decision.verdict("account").unwrap().remaining(), left);
/// }
/// let refused = limiter.check(Key::new("alice")).await.into_result().unwrap_err();
/// assert_eq!(refused.retry_after().unwrap().as_secs(), 11);
/// # Ok::<(), tollgate::ConfigError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    store: Arc<dyn Store>,
    policies: Box<[Bound]>,
    on_store_error: OnStoreError,
    faults: Seldom,
    held: permit::Held,
    /// How long permits live that aren't renewed: the shortest life of any policy's.
    life: Duration,
}

/// A policy, and its account in the store.
struct Bound {
    policy: Policy,
    account: Account,
    no_key: Seldom,
}

/// What to answer when the store can't.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreError {
    /// Let the request pass, uncounted: an outage of the store is none of the service.
    #[default]
    Admit,
    /// Refuse it: 503 Service Unavailable. For logins, and for what costs money.
    Refuse,
}

/// A question for the store, one item for each policy that applies.
pub(crate) type Items = SmallVec<[Item; 2]>;

#[derive(Debug)]
pub(crate) struct Item {
    policy: usize,
    key: Key,
    cost: u64,
    receipt: Receipt,
    by: Key,
}

/// A decision, at once or later.
pub(crate) enum Judged {
    Now(Decision),
    Later(Pending),
}

/// A decision that the store is being asked for.
pub(crate) struct Pending {
    limiter: Limiter,
    ask: Ask,
    items: Items,
    answer: Pin<Box<dyn Future<Output = Result<Answer, StoreError>> + Send>>,
}

impl Limiter {
    /// Starts to build a limiter.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    /// Asks whether a request may pass, and charges it if so: under every policy, or under none.
    ///
    /// `keys` is one [`Key`] for all policies, or pairs of a policy's name and its key. A policy that gets no key does
    /// what its [missing key](Policy::missing_key) says. The cost is each policy's own unless set:
    ///
    /// ```no_run
    /// # async fn f(limiter: tollgate::Limiter) {
    /// # use tollgate::Key;
    /// let address = Key::ip("192.0.2.1".parse().unwrap());
    /// let decision = limiter
    ///     .check([("address", address), ("account", Key::new("alice"))])
    ///     .cost(3)
    ///     .await;
    /// # }
    /// ```
    pub fn check(&self, keys: impl Into<Keys>) -> Check {
        Check::new(self.clone(), Ask::Take(1), keys.into())
    }

    /// Tells how a request stands, and charges nothing. The decision is to admit if it would pass now.
    pub fn peek(&self, keys: impl Into<Keys>) -> Check {
        Check::new(self.clone(), Ask::Peek, keys.into())
    }

    /// Charges `units` under every policy, past what is left if need be: down to a debt of at most one capacity, which
    /// later requests wait for. For costs that are known only afterwards.
    pub fn charge(&self, keys: impl Into<Keys>, units: u64) -> Check {
        Check::new(self.clone(), Ask::Force, keys.into()).cost(units)
    }

    /// Forgets what was used; the decision tells how it stood.
    pub fn reset(&self, keys: impl Into<Keys>) -> Check {
        Check::new(self.clone(), Ask::Reset, keys.into())
    }

    /// Gives back up to `units` of what `decision` charged under each policy: only what time has not already given
    /// back, never into a later window, and no unit twice. Returns how many that were, by policy in the order of the
    /// decision's verdicts.
    ///
    /// # Errors
    ///
    /// If the store can't answer.
    pub async fn refund(
        &self,
        decision: &mut Decision,
        units: u64,
    ) -> Result<Vec<u64>, StoreError> {
        let items: Items = decision
            .counted
            .iter()
            .map(|counted| Item {
                policy: counted.policy,
                key: counted.key,
                cost: units.min(counted.receipt.left),
                receipt: counted.receipt,
                by: counted.by,
            })
            .collect();
        // Marked before it is asked for: should this future be dropped, nothing is given twice.
        let asked: Vec<_> = items.iter().map(|item| item.cost).collect();
        for (counted, asked) in decision.counted.iter_mut().zip(&asked) {
            counted.receipt.left -= asked;
        }
        let answer = match self.ask(Ask::Give, &items) {
            Reply::Now(answer) => answer?,
            Reply::Later(answer) => answer.await?,
        };
        let given: Vec<_> = answer.lines.iter().map(|line| line.units).collect();
        for ((counted, asked), given) in decision.counted.iter_mut().zip(asked).zip(&given) {
            counted.receipt.left += asked.saturating_sub(*given);
        }
        Ok(given)
    }

    /// Who called under the policy of that name with that key, in order, one entry for each unit that counts now: the
    /// keys that the policy's [caller](Policy::caller) extractor found. Empty if its strategy doesn't remember callers
    /// ([`ListWindow`](crate::ListWindow) does), or there is no such policy.
    ///
    /// # Errors
    ///
    /// If the store can't answer.
    pub async fn callers(&self, policy: &str, key: Key) -> Result<Vec<Key>, StoreError> {
        let mut policies = self.inner.policies.iter();
        match policies.find(|bound| bound.policy.name() == policy) {
            Some(bound) => self.inner.store.callers(&bound.account, &key).await,
            None => Ok(Vec::new()),
        }
    }

    /// The policies, in order.
    pub fn policies(&self) -> impl ExactSizeIterator<Item = &Policy> {
        self.inner.policies.iter().map(|bound| &bound.policy)
    }

    /// Judges a request by what its head says.
    pub(crate) fn judge_request(&self, parts: &Parts) -> Judged {
        let mut items = Items::new();
        for (index, bound) in self.inner.policies.iter().enumerate() {
            let found = bound.policy.extractor().key(parts);
            let Some(key) = found.or_else(|| bound.missing_key()) else {
                match bound.policy.when_missing() {
                    MissingKey::Refuse => return Judged::Now(self.no_key(index)),
                    _ => continue,
                }
            };
            items.push(Item {
                policy: index,
                key,
                cost: bound.policy.cost_of(parts),
                receipt: Receipt::NONE,
                by: bound.by(key, || bound.policy.caller_of(parts)),
            });
        }
        self.judge(Ask::Take(1), items)
    }

    /// Judges a request by keys that were found elsewhere; `cost` in place of the policies' own.
    fn judge_keys(
        &self,
        ask: Ask,
        keys: &Keys,
        cost: Option<u64>,
        costs: &[(String, u64)],
    ) -> Judged {
        keys.warn_of_strangers(|name| self.policies().any(|policy| policy.name() == name));
        let mut items = Items::new();
        for (index, bound) in self.inner.policies.iter().enumerate() {
            let name = bound.policy.name();
            let Some(key) = keys.of(name).or_else(|| bound.missing_key()) else {
                match bound.policy.when_missing() {
                    MissingKey::Refuse => return Judged::Now(self.no_key(index)),
                    _ => continue,
                }
            };
            let own = costs.iter().find(|(policy, _)| policy == name);
            let cost = own.map(|(_, cost)| *cost).or(cost);
            items.push(Item {
                policy: index,
                key,
                cost: cost.unwrap_or_else(|| bound.policy.plain_cost()),
                receipt: Receipt::NONE,
                by: bound.by(key, || keys.caller()),
            });
        }
        self.judge(ask, items)
    }

    fn judge(&self, ask: Ask, items: Items) -> Judged {
        if items.is_empty() {
            return Judged::Now(self.decision(Outcome::Admitted, Source::Unasked));
        }
        match self.ask(ask, &items) {
            Reply::Now(answer) => Judged::Now(self.decide(ask, &items, answer)),
            Reply::Later(answer) => Judged::Later(Pending {
                limiter: self.clone(),
                ask,
                items,
                answer,
            }),
        }
    }

    fn ask(&self, ask: Ask, items: &[Item]) -> Reply {
        let lines: SmallVec<[Line<'_>; 2]> = items
            .iter()
            .map(|item| Line {
                account: &self.inner.policies[item.policy].account,
                key: item.key,
                units: item.cost,
                receipt: item.receipt,
                by: item.by,
            })
            .collect();
        self.inner.store.ask(ask, &lines)
    }

    fn decide(&self, ask: Ask, items: &[Item], answer: Result<Answer, StoreError>) -> Decision {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.fault(error),
        };
        let mut decision = self.decision(Outcome::Admitted, answer.source);
        decision.at = answer.at;
        decision.admitted = answer.admitted;
        for (item, line) in items.iter().zip(&answer.lines) {
            let bound = &self.inner.policies[item.policy];
            let rule = bound.account.rule();
            let mut outlook = rule.outlook(&line.seen, answer.at, item.cost);
            // `later` is 0 for whoever was refused among equals.
            if answer.later > 0 {
                // Equal requests were admitted after this one, so there was room for them.
                outlook.remaining += answer.later * item.cost;
                outlook.retry = Retry::Now;
            }
            decision.counted.push(Counted {
                policy: item.policy,
                key: item.key,
                by: item.by,
                quota: bound.policy.quota(),
                limit: rule.capacity(),
                cost: item.cost,
                outlook,
                receipt: Receipt {
                    at: answer.at,
                    left: line.units,
                    mark: rule.mark(&line.seen, answer.at),
                },
            });
        }
        let passes = match ask {
            Ask::Take(_) => answer.admitted > 0,
            Ask::Peek => decision.retry() == Retry::Now,
            Ask::Force | Ask::Give | Ask::Reset | Ask::Renew => true,
        };
        if !passes {
            decision.outcome = Outcome::Exhausted;
        }
        if matches!(ask, Ask::Take(_)) && passes && self.inner.life < Duration::MAX {
            let counted = decision.counted.iter();
            let places = counted.filter(|counted| self.inner.policies[counted.policy].is_permit());
            let places = places.filter(|counted| counted.receipt.left > 0).cloned();
            decision.permit = Permit::hold(&self.inner, places.collect(), self.inner.life);
        }
        decision
    }

    fn fault(&self, error: StoreError) -> Decision {
        let answer = self.inner.on_store_error;
        self.inner.faults.then(|unsaid| {
            tracing::warn!(%error, ?answer, unsaid, "the store of the rate limits is at fault");
        });
        let outcome = match answer {
            OnStoreError::Admit => Outcome::Admitted,
            OnStoreError::Refuse => Outcome::Fault(error),
        };
        self.decision(outcome, Source::Fallback)
    }

    fn no_key(&self, policy: usize) -> Decision {
        let policy = self.inner.policies[policy].policy.shared_name();
        self.decision(Outcome::MissingKey { policy }, Source::Unasked)
    }

    fn decision(&self, outcome: Outcome, source: Source) -> Decision {
        Decision {
            books: self.inner.clone(),
            outcome,
            source,
            admitted: 0,
            permit: None,
            at: Timestamp::default(),
            counted: SmallVec::new(),
        }
    }
}

impl Bound {
    fn is_permit(&self) -> bool {
        self.account.rule().life().is_some()
    }

    /// Who signs a charge: the caller, or else the key; a permit is told from all others.
    fn by(&self, key: Key, caller: impl FnOnce() -> Option<Key>) -> Key {
        let rule = self.account.rule();
        match rule.life() {
            Some(_) => Key::unique(),
            None if rule.signs() => caller().unwrap_or(key),
            None => key,
        }
    }

    /// The key of those who have none, if they share one.
    fn missing_key(&self) -> Option<Key> {
        let missing = self.policy.when_missing();
        self.no_key.then(|unsaid| {
            let policy = self.policy.name();
            let hint = self.policy.extractor().hint();
            if hint.is_empty() {
                tracing::debug!(policy, ?missing, unsaid, "a request has no key");
            } else {
                tracing::error!(policy, ?missing, unsaid, "a request has no key: {hint}");
            }
        });
        (missing == MissingKey::Shared).then(Key::missing)
    }
}

impl Books for Inner {
    fn name(&self, policy: usize) -> &str {
        self.policies
            .get(policy)
            .map_or("", |bound| bound.policy.name())
    }

    fn give_back(&self, counted: &[Counted]) {
        let lines: SmallVec<[Line<'_>; 2]> = counted.iter().map(|c| self.line(c)).collect();
        if lines.iter().any(|line| line.units > 0) {
            self.store.tell(Ask::Give, &lines);
        }
    }
}

impl Future for Pending {
    type Output = Decision;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        let this = &mut *self;
        let answer = ready!(this.answer.as_mut().poll(cx));
        Poll::Ready(this.limiter.decide(this.ask, &this.items, answer))
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("store", &self.inner.store)
            .field("policies", &self.policies().collect::<Vec<_>>())
            .field("on_store_error", &self.inner.on_store_error)
            .finish()
    }
}
