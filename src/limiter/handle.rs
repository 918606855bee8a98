//! A handle to one policy of a limiter.

use std::{sync::Arc, time::Duration};

use tokio::task::coop::consume_budget;

use super::{
    adjust::{Adjust, Credit},
    bans::Blocks,
    check::Check,
    current::Limiter,
    decision::LimitStatus,
    keys::CallEntry,
    policy_set::BoundPolicy,
};
use crate::{
    error::{CallError, UnknownPolicy},
    key::Key,
    policy::{Policy, stored_text},
};

/// A handle to one policy of a [`Limiter`], from [`Limiter::policy`]. Cheap to clone.
///
/// It follows the policy of its name when the limiter is [reconfigured](Limiter::reconfigure). If there is none any more, its
/// calls return [`UnknownPolicy`].
#[derive(Clone, Debug)]
pub struct PolicyHandle {
    limiter: Limiter,
    name: Arc<str>,
    /// The policy's index when this was made.
    index: u32,
}

impl PolicyHandle {
    /// A handle to a policy of a limiter.
    pub(super) fn new(limiter: &Limiter, index: usize, bound: &BoundPolicy) -> Self {
        Self {
            limiter: limiter.clone(),
            name: bound.policy.shared_name(),
            index: index as u32,
        }
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An entry of a call for a key under this policy: see [`CallEntry`].
    pub fn entry(&self, key: impl Into<Key>) -> CallEntry {
        CallEntry {
            policy: self.name.clone(),
            index: self.index,
            key: key.into(),
            cost: None,
            quota: None,
        }
    }

    /// The policy in force.
    ///
    /// # Errors
    ///
    /// [`UnknownPolicy`] if the limiter no longer has it.
    pub fn policy(&self) -> Result<Policy, UnknownPolicy> {
        let set = self.limiter.policy_set();
        Ok(set.named(&self.name)?.policy.clone())
    }

    /// The key of a request that has `text` where the policy's extractor looks for it: for an API key its hash, for an address
    /// its network. `None` if the extractor can't make a key of this text, or the limiter no longer has the policy: see
    /// [`KeyExtractor::key_from_text`](crate::extract::KeyExtractor::key_from_text).
    pub fn key(&self, text: &str) -> Option<Key> {
        self.keys([text])
    }

    /// Does what [`key`](PolicyHandle::key) does for extractors that take several texts, or none: a tuple takes one for each of
    /// its parts, `or_else` the number of one of its extractors followed by the texts of that one.
    ///
    /// ```
    /// use tollgate::{Key, KeyExtractor, Limiter, Policy, Quota, extract};
    ///
    /// let by = extract::header("x-api-key").or_else(extract::peer());
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("p", Quota::requests(1).per_hour()).key(by))
    ///     .build()?;
    /// let policy = limiter.policy("p")?;
    /// let address = Key::ip("192.0.2.1".parse()?);
    /// assert_eq!(policy.keys(["2", "192.0.2.1"]), Some(Key::tuple([Key::new("2"), address])));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keys<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> Option<Key> {
        let texts: Vec<&str> = texts.into_iter().collect();
        self.policy().ok()?.extractor().key_from_text(&texts)
    }

    /// Reports the status of a key without charging it: see [`Limiter::peek`].
    pub fn peek(&self, key: impl Into<Key>) -> Check<Result<LimitStatus, CallError>> {
        self.limiter.peek(self.named(key))
    }

    /// Charges `units` under this policy, into debt if need be: see [`Limiter::charge`].
    pub fn charge(&self, key: impl Into<Key>, units: u64) -> Adjust {
        self.limiter.charge(self.named(key), units)
    }

    /// Removes the usage of a key under this policy only: see [`Limiter::reset`]. A [ban](crate::Ban) is a policy of its own
    /// and stays.
    pub fn reset(&self, key: impl Into<Key>) -> Adjust {
        self.limiter.reset(self.named(key))
    }

    /// Blocks a key under this policy, a [ban](crate::Ban), for `time`: see [`Limiter::block`].
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::block`], which also describes cancellation.
    pub async fn block(&self, key: impl Into<Key>, time: Duration) -> Result<(), CallError> {
        self.limiter.block(self.named(key), time).await
    }

    /// Blocks a key under this policy, a [ban](crate::Ban), for at least `time`: see [`Limiter::prolong_block`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Key, Limiter, Policy};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder().policy(Policy::block_list("refused")).build()?;
    /// let refused = limiter.policy("refused")?;
    /// refused.prolong_block(Key::new("api"), Duration::from_secs(60)).await?;
    /// assert!(!limiter.check(Key::new("api")).await.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::block`], which also describes cancellation.
    pub async fn prolong_block(
        &self,
        key: impl Into<Key>,
        time: Duration,
    ) -> Result<(), CallError> {
        self.limiter.prolong_block(self.named(key), time).await
    }

    /// Ends the ban of a key under this policy, and returns the status before: see [`Limiter::unblock`].
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::unblock`], which also describes cancellation.
    pub async fn unblock(&self, key: impl Into<Key>) -> Result<LimitStatus, CallError> {
        self.limiter.unblock(self.named(key)).await
    }

    /// The callers whose charges under a key count now, oldest first, one entry per unit: the keys that the policy's
    /// [caller](Policy::caller) extractor found. Empty if the strategy doesn't record callers
    /// ([`ListWindow`](crate::ListWindow) does). Nothing is charged, and dropping the future is harmless.
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, or the limiter no longer has the policy.
    pub async fn callers(&self, key: impl Into<Key>) -> Result<Vec<Key>, CallError> {
        let key = key.into();
        consume_budget().await;
        let set = self.limiter.policy_set();
        let limit = &set.named(&self.name)?.limit;
        Ok(set.admin()?.callers(limit, &key).await?)
    }

    /// Adds `units` to what a key has left, up to the full quota: a caller that has used 100 units is credited 100 of 500.
    /// [`Credited`](crate::limiter::Credited) has the number of units that were added and the status afterwards. For goodwill; to undo a
    /// charge, [refund](crate::Admission::refund) it.
    ///
    /// The units are counted by the caller's quota: under a policy with [`quota_with`](crate::Policy::quota_with) or
    /// [`tier_quotas`](crate::Policy::tier_quotas), set the quota of the
    /// caller's tier by [`quota_for`](Credit::quota_for), or pass a request of the caller by [`parts`](Credit::parts). Access
    /// lists don't apply.
    ///
    /// Under [`Gcra`](crate::Gcra) and [`TokenBucket`](crate::TokenBucket) all units in use can be credited, under
    /// [`FixedWindow`](crate::FixedWindow) and [`CalendarWindow`](crate::CalendarWindow) those of the current window.
    /// [`SlidingLog`](crate::SlidingLog), [`SlidingWindow`](crate::SlidingWindow), [`ListWindow`](crate::ListWindow),
    /// [`Concurrency`](crate::Concurrency) and [`Ban`](crate::Ban) store each charge separately and can't credit:
    /// [`reset`](PolicyHandle::reset) returns all units. A strategy of your own can if its rule implements
    /// [`units_in_use`](crate::strategy::Rule::units_in_use).
    ///
    /// ```
    /// use tollgate::{Key, Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let pro = Quota::units(20_000).per_month();
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("tokens", Quota::units(1_000).per_month()).tier_quotas([pro]))
    ///     .build()?;
    /// let (tokens, alice) = (limiter.policy("tokens")?, Key::new("alice"));
    /// let charged = tokens.charge(alice, 15_000).quota_for("tokens", pro).await?;
    /// assert_eq!(charged.policy("tokens").unwrap().remaining(), 5_000);
    /// let credited = tokens.credit(alice, 500).quota_for("tokens", pro).await?;
    /// assert_eq!(credited.units(), 500);
    /// assert_eq!(credited.status().policy("tokens").unwrap().remaining(), 5_500);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, the strategy can't credit ([`CallError::CreditUnsupported`]), or the policy takes its
    /// quota from requests and the call sets neither `quota_for` nor `parts` ([`CallError::PartsRequired`]). If the credit
    /// [may have been made](crate::StoreError::may_have_run), a repetition could credit twice; else nothing was credited.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the units may or may not be credited.
    pub fn credit(&self, key: impl Into<Key>, units: u64) -> Credit {
        Credit::new(self.limiter.policy_set(), self.named(key).into(), units)
    }

    /// Lists up to `max` keys that are blocked now under this policy, a [ban](crate::Ban): see [`Limiter::blocks`].
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::blocks`]; [`NotABan`](CallError::NotABan) if the policy is none, or an unknown policy if the limiter no
    /// longer has it.
    pub async fn blocks(&self, max: usize) -> Result<Blocks, CallError> {
        let (limiter, name) = (&self.limiter, self.name());
        let set = limiter.policy_set();
        let bound = set.named(name)?;
        if !bound.is_ban() {
            let policies = vec![bound.policy.shared_name()];
            return Err(CallError::NotABan { policies });
        }
        let is_named = |bound: &BoundPolicy| bound.is_ban() && bound.policy.name() == name;
        Blocks::find(limiter, max, is_named).await
    }

    /// Reads a key as operators write it: what [`key_text`](Self::key_text) returns, or any text that [`key`](Self::key) takes.
    ///
    /// `hash:` and 20 characters are the key of that hash, and `key:` and a key's text in the store is that key. Parts of a tuple
    /// have `+` between them. Any other text is read as in a request, by [`key`](Self::key), or by [`Key::new`] if code of the
    /// application makes the keys. For the text of a request use `key`: a client could send another client's hash.
    ///
    /// ```
    /// use tollgate::{Key, Limiter, Policy, Quota, extract};
    ///
    /// let policy = Policy::new("daily", Quota::requests(100).per_day()).key(extract::header("x-api-key"));
    /// let limiter = Limiter::builder().policy(policy).build()?;
    /// let daily = limiter.policy("daily")?;
    /// let key = daily.parse_key("sk_live_abc").ok_or("no key")?;
    /// assert_eq!(daily.key_text(&key), "hash:7lEM2SSxGPnYHjFZP0wx");
    /// assert_eq!(daily.parse_key("hash:7lEM2SSxGPnYHjFZP0wx"), Some(key));
    /// assert_eq!(daily.parse_key("key:tenant-7+/ocr"), Some(Key::tuple(["tenant-7", "/ocr"].map(Key::new))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse_key(&self, text: &str) -> Option<Key> {
        self.policy().ok()?.parse_key(text)
    }

    /// The text of a key for operators, which [`parse_key`](Self::parse_key) reads: `hash:` and the hash of a key that is hashed,
    /// the key's own text if requests under this policy can have that key, or else `key:` and the key's text in the store.
    pub fn key_text(&self, key: &Key) -> String {
        match self.policy() {
            Ok(policy) => policy.key_text(key),
            Err(_) => stored_text(key),
        }
    }

    pub(super) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    pub(super) fn named(&self, key: impl Into<Key>) -> [(String, Key); 1] {
        [(self.name.to_string(), key.into())]
    }
}
