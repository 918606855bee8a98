//! Blocks and lowers keys by what a provider's response says about its limits.

use std::{borrow::Cow, future::Future, sync::Arc, time::Duration};

use super::{
    Limiter, bans::BlockEnd, bound_policy::BoundPolicy, core::LimiterRef, handle::PolicyHandle,
    keys::Keys, lower::Lowering,
};
use crate::{
    error::{CallError, ConfigError},
    key::Key,
    provider::{Feedback, Provider},
    quota::Quota,
};

/// The shortest block: less is rounded up.
const MIN_BLOCK: Duration = Duration::from_millis(1);

/// What a response has changed: from [`Limiter::heed`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Heeded {
    /// How long the key is blocked from now on, at least. `None`: the response does not block it.
    pub blocked_for: Option<Duration>,
    /// A policy for each limit of the response that has one and says what remains, in the order of the response.
    pub lowered: Vec<HeededLimit>,
}

/// What a limit of a response has changed: of [`Heeded`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeededLimit {
    /// The provider's name of the limit, such as `requests`.
    pub limit: Cow<'static, str>,
    /// What the provider says is left.
    pub remaining: u64,
    /// The policy's name.
    pub policy: Arc<str>,
    /// The units that were charged: 0 if no more were left than the provider says, or if the policy's window is not the provider's.
    pub units: u64,
}

impl Limiter {
    /// Counts and blocks a key by what a provider's response says about its limits, for all processes: for a client that is not
    /// behind an [`OutgoingLayer`](crate::OutgoingLayer::obey), and for responses that say it in their bodies.
    ///
    /// What [blocks](Provider::block_time) the key is written to the [block list](crate::Policy::block_list) as
    /// [`prolong_block`](Limiter::prolong_block) does. Each limit that has a [policy](Provider::limit) and a remaining number lowers
    /// what that policy has left, as [`PolicyHandle::lower_to`](crate::limiter::PolicyHandle::lower_to) does. Nothing is
    /// shortened or given back, so responses may come late, twice, or in any order.
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
    /// let anthropic = Provider::anthropic().limit("requests", "requests");
    ///
    /// let admission = limiter.wait("our-account", Duration::from_secs(10)).await?;
    /// // The response to the call.
    /// let (status, mut fields) = (StatusCode::TOO_MANY_REQUESTS, HeaderMap::new());
    /// fields.insert("retry-after", "12".parse()?);
    /// fields.insert("anthropic-ratelimit-requests-remaining", "0".parse()?);
    /// let feedback = anthropic.read(status, &fields);
    ///
    /// let heeded = limiter.heed("our-account", &anthropic, &feedback).await?;
    /// assert_eq!(heeded.blocked_for, Some(Duration::from_secs(12)));
    /// assert_eq!(heeded.lowered[0].units, 49);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The [`CallError`] of the block, or else of the first lowering that failed; the others were tried.
    /// [`NoBlockList`](CallError::NoBlockList) if the response blocks the key and the limiter has no block list, has several of which the
    /// provider [names](Provider::block_list) none, or `keys` has no key for it. A policy that the limiter does not have, or that
    /// `keys` has no key for, is skipped. A block that could not be
    /// sent is made once the store responds, and begins then ([`StoreError::Deferred`](crate::StoreError::Deferred)); nothing else is sent
    /// again: the next response says what holds then.
    ///
    /// # Cancellation
    ///
    /// If the future was polled and is dropped, the key may be blocked and lowered nevertheless.
    pub async fn heed(
        &self,
        keys: impl Into<Keys>,
        provider: &Provider,
        feedback: &Feedback,
    ) -> Result<Heeded, CallError> {
        let block = provider.block_time(feedback);
        let applied = self.apply_feedback(&keys.into(), provider, feedback, block);
        applied.await
    }

    /// Blocks a key for `block`, and lowers it by the limits of a response.
    pub(crate) fn apply_feedback(
        &self,
        keys: &Keys,
        provider: &Provider,
        feedback: &Feedback,
        block: Option<Duration>,
    ) -> impl Future<Output = Result<Heeded, CallError>> + Send + use<> {
        let limiter = self.local_ref();
        let block = block.map(|time| time.max(MIN_BLOCK));
        let blocked =
            block.map(|time| Ok::<_, CallError>((limiter.keys_to_block(keys, provider)?, time)));
        let lowerings = feedback.limits.iter().filter_map(|limit| {
            let policy = provider.policy_of(&limit.name)?;
            // A policy that is gone is no reason not to block.
            let index = limiter.find(policy).ok()?;
            let key = limiter.policies[index].key_of(keys)?;
            let remaining = limit.remaining?;
            let heeded = HeededLimit {
                limit: limit.name.clone(),
                remaining,
                policy: policy.clone(),
                units: 0,
            };
            let lowering = Lowering {
                entry: PolicyHandle::new(self, index, &limiter.policies[index]).entry(key),
                remaining,
                // Without a reset, only a window that is about to end is lowered.
                resets_in: Some(limit.reset.map_or(Duration::ZERO, |reset| reset.time())),
            };
            Some((heeded, lowering))
        });
        let (lowered, lowerings): (Vec<_>, Vec<_>) = lowerings.unzip();
        async move {
            let block_keys = async {
                match blocked.transpose()? {
                    Some((keys, time)) => limiter.block(keys, time, BlockEnd::Prolong).await,
                    None => Ok(()),
                }
            };
            let (is_blocked, units) = tokio::join!(block_keys, limiter.lower_all(lowerings));
            is_blocked?;
            let mut heeded = Heeded {
                blocked_for: block,
                lowered: Vec::new(),
            };
            for (limit, units) in lowered.into_iter().zip(units) {
                let units = units?;
                heeded.lowered.push(HeededLimit { units, ..limit });
            }
            Ok(heeded)
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
            let index = limiter.find(policy).map_err(|unknown| {
                ConfigError::new(
                    format!("a provider's limit that policy {policy:?} counts ({unknown})"),
                    "the name of a policy of the limiter",
                )
            })?;
            if !limiter.policies[index].limit.info().can_lower() {
                return Err(ConfigError::new(
                    format!("a provider's limit that policy {policy:?} counts"),
                    "a policy that counts by Gcra, TokenBucket, FixedWindow or CalendarWindow",
                ));
            }
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
