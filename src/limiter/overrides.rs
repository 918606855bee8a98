//! Overrides by operators: another quota for one key, or none. The store keeps them (`store/overrides`); `resolve` applies them.

use std::{fmt, sync::Arc};

use tokio::task::coop::consume_budget;

use super::{
    current::Limiter,
    handle::PolicyHandle,
    policy_set::{BoundPolicy, PolicySet},
};
use crate::{
    error::{ConfigError, InvalidValue, overrides::OverrideError},
    key::Key,
    policy::stored_text,
    quota::Quota,
    store::{Store, overrides::Override},
};

/// Whether the policy can count the quota of an override, which is not registered.
fn check_override(bound: &BoundPolicy, store: &dyn Store, quota: Quota) -> Result<(), ConfigError> {
    let checked = if bound.policy.is_block_list() {
        Err(InvalidValue::new(
            format!("the quota {quota} under a block list"),
            "an exemption: a block list has no quota",
        ))
    } else {
        bound.policy.validate_other_quota(quota, store)
    };
    checked.map_err(|invalid| ConfigError::of(bound.policy.name(), invalid))
}

fn list_override(set: &PolicySet, policy: Arc<str>, key: Key, setting: Override) -> ListedOverride {
    let bound = set.named(&policy).ok();
    let key_text = bound.map_or_else(|| stored_text(&key), |bound| bound.policy.key_text(&key));
    let unused = match (bound, setting.own_quota()) {
        (None, _) => Some(format!("the limiter has no policy {policy:?}")),
        (Some(bound), Some(quota)) => {
            let checked = check_override(bound, &*set.store, quota);
            checked.err().map(|error| error.to_string())
        }
        (Some(_), None) => None,
    };
    ListedOverride {
        policy,
        key,
        key_text,
        setting,
        unused,
    }
}

impl PolicyHandle {
    /// Sets the limit of one key under this policy, for all processes with the store: another quota, or none, until an instant or
    /// until it is [removed](Self::remove_override). Returns the override that it replaces.
    ///
    /// It holds in this process when the call returns, and in all others within two seconds; in between, the key gets no more than
    /// the larger of both quotas. A process begins to read overrides with its first request, which is decided without them. What the key has used stays used, as when the policy's own quota
    /// [changes](crate::strategy#changing-a-live-policy). Requests of the key that [wait](Limiter::wait) are decided anew.
    ///
    /// The override's quota is used in place of the policy's own, of a [tier](crate::Policy::tier_quotas), and of
    /// [`quota_for`](crate::limiter::Check::quota_for). Under
    /// [`Override::exempt`] the policy does not apply to requests of the key, as by an allow list of this policy alone; other
    /// policies do. [Charges by hand](Limiter::charge) and [resets](Limiter::reset) ignore the exemption.
    ///
    /// Overrides belong to the policy's name: they stay when the limiter is [reconfigured](Limiter::reconfigure). One that the
    /// policy can no longer count has no effect until it can, and is [listed](Limiter::overrides) with the reason.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tollgate::{FixedWindow, Key, Limiter, Policy, Quota, limiter::Override};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("api", Quota::requests(1).per_hour()).strategy(FixedWindow))
    ///     .build()?;
    /// let (api, alice) = (limiter.policy("api")?, Key::new("alice"));
    /// assert!(limiter.check(alice).await.is_admitted());
    /// assert!(!limiter.check(alice).await.is_admitted());
    /// let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
    /// let raised = Override::quota(Quota::requests(10).per_hour()).until(tomorrow).note("ticket 4711");
    /// assert_eq!(api.set_override(alice, raised.clone()).await?, None);
    /// assert!(limiter.check(alice).await.is_admitted());
    /// assert_eq!(api.remove_override(alice).await?, Some(raised));
    /// assert!(!limiter.check(alice).await.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`OverrideError`] if the policy can't count the quota, as a [tier](crate::Policy::tier_quotas) of another period under windows; a
    /// text is too long, the end has passed, or the store has as many overrides as it may have; the store fails, or has none; or
    /// the limiter no longer has the policy.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the override may or may not be set.
    pub async fn set_override(
        &self,
        key: impl Into<Key>,
        setting: Override,
    ) -> Result<Option<Override>, OverrideError> {
        let key = key.into();
        consume_budget().await;
        setting.validate()?;
        let set = self.limiter().policy_set();
        let bound = set.named(self.name())?;
        if let Some(quota) = setting.own_quota() {
            let checked = check_override(bound, &*set.store, quota);
            checked.map_err(OverrideError::Uncountable)?;
        }
        let admin = set.admin()?;
        admin.set_override(self.name(), &key, Some(setting)).await
    }

    /// Removes the override of a key under this policy, for all processes with the store, as soon as
    /// [`set_override`](Self::set_override) sets one. Returns the override that was in force; `None` if there was none.
    ///
    /// # Errors
    ///
    /// [`OverrideError`] if the store fails, or has no overrides.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the override may or may not be removed.
    pub async fn remove_override(
        &self,
        key: impl Into<Key>,
    ) -> Result<Option<Override>, OverrideError> {
        self.limiter().remove_override(self.name(), key).await
    }
}

impl Limiter {
    /// Lists the overrides of the store, ordered by policy and key: those of this limiter's policies, and those of policies that it
    /// doesn't have. The list is read from the store, and what was read is in force in this process from then on.
    ///
    /// # Errors
    ///
    /// [`OverrideError`] if the store fails, or has no overrides. Dropping the future is harmless.
    pub async fn overrides(&self) -> Result<Vec<ListedOverride>, OverrideError> {
        consume_budget().await;
        let set = self.policy_set();
        let found = set.admin()?.list_overrides().await?.into_iter();
        let listed = found.map(|(policy, key, setting)| list_override(&set, policy, key, setting));
        Ok(listed.collect())
    }

    /// The instant by which overrides end.
    #[cfg(feature = "admin")]
    pub(crate) fn override_time(&self) -> Result<crate::clock::Timestamp, OverrideError> {
        let set = self.policy_set();
        let table = set.admin()?.overrides();
        Ok(table
            .ok_or(crate::error::StoreError::Unsupported("overrides"))?
            .now())
    }

    /// Removes an override as [`PolicyHandle::remove_override`] does, also of a policy that this limiter does not have.
    ///
    /// # Errors
    ///
    /// [`OverrideError`] if the store fails, or has no overrides.
    pub async fn remove_override(
        &self,
        policy: &str,
        key: impl Into<Key>,
    ) -> Result<Option<Override>, OverrideError> {
        let key = key.into();
        consume_budget().await;
        let set = self.policy_set();
        set.admin()?.set_override(policy, &key, None).await
    }
}

/// An override of a store: from [`Limiter::overrides`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListedOverride {
    /// The policy's name.
    pub policy: Arc<str>,
    /// The key.
    pub key: Key,
    /// The key as operators write it: see [`PolicyHandle::key_text`].
    pub key_text: String,
    /// What was set.
    pub setting: Override,
    /// Why it has no effect; `None` if it has: the policy can't count its quota, or the limiter does not have the policy.
    pub unused: Option<String>,
}

/// In one line: `api alice: 1000/min`.
impl fmt::Display for ListedOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.policy, self.key_text, self.setting)
    }
}
