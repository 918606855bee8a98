//! Blocks keys by what a provider's response says about its limits.

use std::{future::Future, sync::Arc, time::Duration};

use super::{Limiter, bans::BlockEnd, bound_policy::BoundPolicy, core::LimiterRef, keys::Keys};
use crate::{
    error::{CallError, ConfigError},
    key::Key,
    provider::{Feedback, Provider},
    quota::Quota,
};

/// The shortest block: less is rounded up.
const MIN_BLOCK: Duration = Duration::from_millis(1);

impl Limiter {
    /// Blocks a key for all processes if a provider's response says that its next call would be refused: for a client that is
    /// not behind an [`OutgoingLayer`](crate::OutgoingLayer::obey), and for responses that say it in their bodies. Returns for how
    /// long the key is blocked from now on, at least; `None` if the response does not block it.
    ///
    /// The [block](Provider::block_time) is written to the [block list](crate::Policy::block_list) as
    /// [`prolong_block`](Limiter::prolong_block) does: nothing is shortened, so responses may come late, twice, or in any order.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{HeaderMap, StatusCode};
    /// use tollgate::{Limiter, Policy, Quota, provider::Provider};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("requests", Quota::requests(50).per_hour()))
    ///     .policy(Policy::block_list("refused"))
    ///     .build()?;
    /// let anthropic = Provider::anthropic();
    ///
    /// let admission = limiter.wait("our-account", Duration::from_secs(10)).await?;
    /// // The response to the call.
    /// let (status, mut fields) = (StatusCode::TOO_MANY_REQUESTS, HeaderMap::new());
    /// fields.insert("retry-after", "12".parse()?);
    /// let feedback = anthropic.read(status, &fields);
    ///
    /// let blocked_for = limiter.heed("our-account", &anthropic, &feedback).await?;
    /// assert_eq!(blocked_for, Some(Duration::from_secs(12)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`prolong_block`](Limiter::prolong_block), and [`NoBlockList`](CallError::NoBlockList) if the response blocks the key and
    /// the limiter has no block list, has several of which the provider [names](Provider::block_list) none, or `keys` has no key
    /// for it. A block that could not be sent is made once the store responds, and begins then
    /// ([`StoreError::Deferred`](crate::StoreError::Deferred)).
    ///
    /// # Cancellation
    ///
    /// If the future was polled and is dropped, the key may be blocked nevertheless.
    pub async fn heed(
        &self,
        keys: impl Into<Keys>,
        provider: &Provider,
        feedback: &Feedback,
    ) -> Result<Option<Duration>, CallError> {
        let Some(time) = provider.block_time(feedback) else {
            return Ok(None);
        };
        let blocked = self.block_by_provider(&keys.into(), provider, time);
        blocked.await.map(Some)
    }

    /// Blocks a key in a provider's block list for at least `time`, and returns for how long it is blocked.
    pub(crate) fn block_by_provider(
        &self,
        keys: &Keys,
        provider: &Provider,
        time: Duration,
    ) -> impl Future<Output = Result<Duration, CallError>> + Send + use<> {
        let limiter = self.local_ref();
        let keys = limiter.keys_to_block(keys, provider);
        let time = time.max(MIN_BLOCK);
        async move {
            limiter.block(keys?, time, BlockEnd::Prolong).await?;
            Ok(time)
        }
    }

    /// The quota of a policy, if the limiter has it.
    pub(crate) fn quota_of(&self, policy: &str) -> Option<Quota> {
        let limiter = self.local_ref();
        let index = limiter.find(policy).ok()?;
        Some(limiter.policies[index].policy.quota())
    }

    /// Checks that this limiter can do what a provider's responses may ask for. Returns the name of the block list.
    pub(crate) fn check_provider(&self, provider: &Provider) -> Result<Arc<str>, ConfigError> {
        let limiter = self.local_ref();
        let Some(list) = limiter.block_list_of(provider) else {
            let value = match provider.block_list_name() {
                Some(name) => format!("a provider's block list {name:?}"),
                None => "a provider without a block list of its own".to_owned(),
            };
            let expected = "a policy that is a block list, such as Policy::block_list(\"refused\"); if there are several, the name of one of them by Provider::block_list";
            return Err(ConfigError::new(value, expected));
        };
        for policy in provider.policies() {
            limiter.find(policy).map_err(|unknown| {
                ConfigError::new(
                    format!("a provider's limit that policy {policy:?} counts ({unknown})"),
                    "the name of a policy of the limiter",
                )
            })?;
        }
        Ok(list.policy.shared_name())
    }
}

impl LimiterRef {
    /// The block list that a provider's refusals are written to.
    fn block_list_of(&self, provider: &Provider) -> Option<&BoundPolicy> {
        let mut lists = self.policies.iter().filter(|bound| {
            let name = provider.block_list_name();
            bound.policy.is_block_list() && name.is_none_or(|name| **name == *bound.policy.name())
        });
        let list = lists.next()?;
        lists.next().is_none().then_some(list)
    }

    /// The key under the provider's block list.
    fn keys_to_block(&self, keys: &Keys, provider: &Provider) -> Result<Keys, CallError> {
        let list = self.block_list_of(provider);
        let named = list.and_then(|list| Some((list.policy.name(), list.key_of(keys)?)));
        named.map(Keys::from).ok_or(CallError::NoBlockList)
    }
}

impl BoundPolicy {
    /// The key that a call with these keys counts by under this policy.
    fn key_of(&self, keys: &Keys) -> Option<Key> {
        match keys.all() {
            Some(key) => Some(self.fixed_key.unwrap_or(*key)),
            None => keys.of(self.policy.name()).copied(),
        }
    }
}
