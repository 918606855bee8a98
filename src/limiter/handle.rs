//! A handle to one policy of a limiter.

use std::{sync::Arc, time::Duration};

use tokio::task::coop::consume_budget;

use super::{Limiter, check::Check, core::BoundPolicy, status::LimitStatus};
use crate::{
    error::{CallError, UnknownPolicy},
    key::Key,
    policy::Policy,
};

/// A handle to one policy of a [`Limiter`], from [`Limiter::policy`]. Cheap to clone.
///
/// It follows the policy of its name when the limiter is [reconfigured](Limiter::reconfigure). If there is none any more, its
/// calls return [`UnknownPolicy`].
#[derive(Clone, Debug)]
pub struct PolicyHandle {
    limiter: Limiter,
    name: Arc<str>,
}

impl Limiter {
    /// Returns a handle to the policy of that name, for calls by operators. Get it once, when the application starts, so that a
    /// mistyped name is an error there.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Policy, Quota, extract};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("daily", Quota::requests(100).per_day()).key(extract::header("x-api-key")))
    ///     .build()?;
    /// let daily = limiter.policy("daily")?;
    /// // The key that requests with this header are counted by: a hash.
    /// let key = daily.key("sk_live_1").ok_or("no key")?;
    /// assert_eq!(daily.charge(key, 30).await?.policies().next().unwrap().remaining(), 70);
    /// daily.credit(key, 10).await?;
    /// let before = daily.reset(key).await?;
    /// assert_eq!(before.policies().next().unwrap().remaining(), 80);
    /// assert!(limiter.policy("dayly").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`UnknownPolicy`] if the limiter has no policy of that name.
    pub fn policy(&self, name: &str) -> Result<PolicyHandle, UnknownPolicy> {
        let limiter = self.local_ref();
        let index = limiter.find(name)?;
        Ok(PolicyHandle::new(self, &limiter.policies[index]))
    }
}

impl PolicyHandle {
    /// A handle to a policy of a limiter.
    pub(super) fn new(limiter: &Limiter, bound: &BoundPolicy) -> Self {
        Self {
            limiter: limiter.clone(),
            name: bound.policy.shared_name(),
        }
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The policy in force.
    ///
    /// # Errors
    ///
    /// [`UnknownPolicy`] if the limiter no longer has it.
    pub fn policy(&self) -> Result<Policy, UnknownPolicy> {
        let limiter = self.limiter.local_ref();
        let index = limiter.find(&self.name)?;
        Ok(limiter.policies[index].policy.clone())
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
    /// use tollgate::{Key, Limiter, Policy, Quota, extract::{self, KeyExtractor}};
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
    pub fn charge(&self, key: impl Into<Key>, units: u64) -> Check<Result<LimitStatus, CallError>> {
        self.limiter.charge(self.named(key), units)
    }

    /// Removes the usage of a key under this policy only: see [`Limiter::reset`]. A [ban](crate::Ban) is a policy of its own
    /// and stays.
    pub fn reset(&self, key: impl Into<Key>) -> Check<Result<LimitStatus, CallError>> {
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
        let limiter = self.limiter.local_ref();
        let bound = &limiter.policies[limiter.find(&self.name)?];
        Ok(limiter.store.callers(&bound.limit, &key).await?)
    }

    pub(super) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    pub(super) fn named(&self, key: impl Into<Key>) -> [(String, Key); 1] {
        [(self.name.to_string(), key.into())]
    }
}
