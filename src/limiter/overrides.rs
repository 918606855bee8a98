//! Overrides, as the policies of a limiter apply them: another quota for one key, or none. The store keeps them
//! (`store/overrides`); here their quotas are bound to limits, and they are listed.

use std::{
    fmt, slice,
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
    vec,
};

use hashbrown::HashMap;
use smallvec::SmallVec;
use tokio::task::coop::consume_budget;

use super::{
    Limiter,
    bound_policy::BoundPolicy,
    core::{LimiterCore, LimiterRef},
    handle::PolicyHandle,
    keys::Keys,
    quota_overrides::{OverridingQuota, QuotaOverride},
};
use crate::{
    clock::Timestamp,
    error::{ConfigError, InvalidValue, StoreError, overrides::OverrideError},
    key::Key,
    log::LogThrottle,
    policy::stored_text,
    quota::Quota,
    store::{
        OverrideTable, Store,
        overrides::{
            Override,
            table::{KnownOverride, PolicyOverrides},
        },
    },
    sync::{read, write},
};

/// The overrides of a policy. Each of their quotas is bound to a limit of the store when a request first needs it.
#[derive(Debug)]
pub(crate) struct BoundOverrides {
    known: Arc<PolicyOverrides>,
    quotas: RwLock<OpenQuotas>,
    log: LogThrottle,
}

/// The quotas that requests have needed.
#[derive(Debug, Default)]
struct OpenQuotas {
    /// `None` for one that the policy can't count.
    limits: HashMap<Quota, Option<Arc<OverridingQuota>>>,
    /// With how many of them those are removed that no override has any more.
    retain_at: usize,
}

/// An override that is in force for a key.
pub(crate) enum AppliedOverride {
    Quota(QuotaOverride),
    Exempt(Arc<KnownOverride>),
}

/// The overrides that were in force for the keys of a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverridesInForce {
    /// The index of the policy, and the override's id.
    pub(crate) ids: SmallVec<[(u32, u64); 1]>,
    /// When the first of them ends.
    pub(crate) ends_in: Option<Duration>,
}

impl BoundOverrides {
    pub(crate) fn new(table: &OverrideTable, policy: &str) -> Self {
        Self {
            known: table.policy(policy),
            quotas: RwLock::default(),
            log: LogThrottle::default(),
        }
    }

    /// Whether any key of the policy has an override.
    pub(crate) fn used_flag(&self) -> Arc<AtomicBool> {
        self.known.used_flag()
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// The quota of an override with its limit, which `open` opens unless it is open; `None` if it can't be counted.
    fn quota(
        &self,
        quota: Quota,
        open: impl FnOnce() -> Option<OverridingQuota>,
    ) -> Option<Arc<OverridingQuota>> {
        if let Some(opened) = read(&self.quotas).limits.get(&quota) {
            return opened.clone();
        }
        let opened = open().map(Arc::new);
        let OpenQuotas { limits, retain_at } = &mut *write(&self.quotas);
        if limits.len() >= *retain_at {
            let known = self.known.quotas();
            limits.retain(|quota, _| known.contains(quota));
            *retain_at = 2 * limits.len() + 16;
        }
        limits.entry(quota).or_insert(opened).clone()
    }

    /// Closes all quotas if the policy has no overrides any more.
    pub(super) fn close_unused(&self) {
        if !self.known.is_used() {
            write(&self.quotas).limits.clear();
        }
    }
}

impl BoundPolicy {
    /// The override that is in force for a key, if there is one that the policy can count.
    #[inline]
    pub(crate) fn override_of(&self, store: &dyn Store, key: &Key) -> Option<AppliedOverride> {
        if !self.has_overrides.load(Ordering::Relaxed) {
            return None;
        }
        self.find_override(store, key)
    }

    #[inline(never)]
    fn find_override(&self, store: &dyn Store, key: &Key) -> Option<AppliedOverride> {
        let overrides = self.overrides.as_ref()?;
        let known = overrides.known.find(key)?;
        let Some(quota) = known.setting.own_quota() else {
            return Some(AppliedOverride::Exempt(known));
        };
        let shared = overrides.quota(quota, || {
            let checked = self.check_override(store, quota);
            let opened = checked.and_then(|()| {
                let opened = self.open_quota(store, quota);
                opened.map_err(|invalid| ConfigError::of(self.policy.name(), invalid))
            });
            let opened = opened.inspect_err(|error| {
                overrides.log.log_with(|suppressed| {
                    tracing::error!(%error, suppressed, "an override's quota can't be counted; the policy's own quota is used");
                });
            });
            opened.ok()
        })?;
        Some(AppliedOverride::Quota(QuotaOverride {
            shared,
            by_operator: Some(known),
        }))
    }

    /// Whether the policy can count the quota of an override, which is not registered.
    fn check_override(&self, store: &dyn Store, quota: Quota) -> Result<(), ConfigError> {
        let checked = match self.policy.is_block_list() {
            true => Err(InvalidValue::new(
                format!("the quota {quota} under a block list"),
                "an exemption: a block list has no quota",
            )),
            false => self.policy.validate_other_quota(quota, store),
        };
        checked.map_err(|invalid| ConfigError::of(self.policy.name(), invalid))
    }
}

impl LimiterCore {
    /// The store's overrides.
    fn override_table(&self) -> Result<&OverrideTable, StoreError> {
        let table = self.store.overrides();
        table.ok_or(StoreError::Unsupported("overrides"))
    }
}

impl OverridesInForce {
    /// Adds the override of a key under a policy, if there is one.
    fn add(&mut self, policy: usize, bound: &BoundPolicy, key: &Key) {
        let overrides = bound.overrides.as_ref();
        let overrides = overrides.filter(|overrides| overrides.known.is_used());
        if let Some(overrides) = overrides
            && let Some(known) = overrides.known.find(key)
        {
            self.ids.push((policy as u32, known.id));
            let ends_in = overrides.known.ends_in(&known);
            self.ends_in = match (self.ends_in, ends_in) {
                (Some(first), Some(other)) => Some(first.min(other)),
                (first, other) => first.or(other),
            };
        }
    }
}

impl LimiterRef {
    /// The overrides that are in force for the keys of a call.
    pub(super) fn overrides_of_call(&self, keys: &Keys) -> OverridesInForce {
        let mut in_force = OverridesInForce::default();
        match keys.entries() {
            Some(entries) => {
                for (index, entry) in self.entries_of_policies(entries) {
                    in_force.add(index, &self.policies[index], &entry.key);
                }
            }
            None => {
                for (index, bound) in self.policies.iter().enumerate() {
                    if let Some(key) = self.key_of(bound, keys) {
                        in_force.add(index, bound, key);
                    }
                }
            }
        }
        in_force
    }
}

impl PolicyHandle {
    /// Sets the limit of one key under this policy, for all processes with the store: another quota, or none, until an instant or
    /// until it is [removed](Self::remove_override). Returns the override that it replaces.
    ///
    /// It holds in this process when the call returns, and in all others within two seconds; in between, the key gets no more than
    /// the larger of both quotas. What the key has used stays used, as when the policy's own quota
    /// [changes](crate::strategy#changing-a-live-policy). Requests of the key that [wait](Limiter::wait) are decided anew.
    ///
    /// The override's quota is used in place of the policy's own, of a [tier](crate::Policy::tier_quotas), of a
    /// [look-up](crate::Policy::quota_lookup), which is then not called, and of [`quota_for`](crate::limiter::Check::quota_for). Under
    /// [`Override::exempt`] the policy does not apply to requests of the key, as by an allow list of this policy alone; other
    /// policies do. [Charges by hand](Limiter::charge) and [resets](Limiter::reset) ignore the exemption.
    ///
    /// Overrides belong to the policy's name: they stay when the limiter is [reconfigured](Limiter::reconfigure). One that the
    /// policy can no longer count has no effect until it can, and is [listed](Self::overrides) with the reason.
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
        let limiter = self.limiter().local_ref();
        let bound = &limiter.policies[limiter.find(self.name())?];
        limiter.override_table()?;
        if setting.until.is_some() && setting.has_ended(self.limiter().override_time().await?) {
            return Err(OverrideError::Ended);
        }
        if let Some(quota) = setting.own_quota() {
            let checked = bound.check_override(&*limiter.store, quota);
            checked.map_err(OverrideError::Uncountable)?;
        }
        let set = limiter.store.set_override(self.name(), &key, Some(setting));
        set.await
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

    /// Lists up to `max` overrides of this policy, ordered by key: see [`Limiter::overrides`].
    ///
    /// # Errors
    ///
    /// [`OverrideError`] if the store has no overrides.
    pub async fn overrides(&self, max: usize) -> Result<Overrides, OverrideError> {
        Overrides::find(self.limiter(), max, |policy| policy == self.name()).await
    }
}

impl Limiter {
    /// Lists up to `max` overrides of the store, ordered by policy and key: those of this limiter's policies, and those of policies
    /// that it doesn't have. The list is read from the store; while the store fails, it has what this process knows, which is in
    /// force, and [`store_error`](Overrides::store_error) says why.
    ///
    /// # Errors
    ///
    /// [`OverrideError`] if the store has no overrides. Dropping the future is harmless.
    pub async fn overrides(&self, max: usize) -> Result<Overrides, OverrideError> {
        Overrides::find(self, max, |_| true).await
    }

    /// The instant by which overrides end, also before this process has learned the store's time.
    pub(crate) async fn override_time(&self) -> Result<Timestamp, OverrideError> {
        let limiter = self.local_ref();
        let table = limiter.override_table()?;
        limiter.store.sync_overrides().await?;
        Ok(table.now())
    }

    /// Writes the overrides back that the store has lost, as after a restart without its data, and that this process still knows.
    /// Returns them, each with its policy and key. One that was set or removed meanwhile stays as it is.
    ///
    /// # Errors
    ///
    /// [`OverrideError`] if the store fails, or has no overrides. What was written by then stays.
    pub async fn restore_overrides(&self) -> Result<Vec<(Arc<str>, Key, Override)>, OverrideError> {
        consume_budget().await;
        let limiter = self.local_ref();
        limiter.override_table()?;
        limiter.store.restore_overrides().await
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
        let limiter = self.local_ref();
        limiter.override_table()?;
        limiter.store.set_override(policy, &key, None).await
    }
}

/// Overrides of a store: from [`Limiter::overrides`].
#[derive(Clone, Debug)]
pub struct Overrides {
    overrides: Vec<ListedOverride>,
    total: usize,
    store_error: Option<Arc<OverrideError>>,
}

/// An override of a store: from [`Limiter::overrides`].
#[derive(Clone, Debug)]
pub struct ListedOverride {
    policy: Arc<str>,
    key: Key,
    key_text: String,
    known: Arc<KnownOverride>,
    unused: Option<String>,
    is_stored: bool,
}

impl Overrides {
    async fn find(
        limiter: &Limiter,
        max: usize,
        is_listed: impl Fn(&str) -> bool,
    ) -> Result<Self, OverrideError> {
        consume_budget().await;
        let core = limiter.local_ref();
        let table = core.override_table()?;
        let store_error = core.store.sync_overrides().await.err();
        let now = table.now();
        let mut found = table.all();
        found.retain(|(policy, _, known)| is_listed(policy) && !known.setting.has_ended(now));
        let total = found.len();
        let listed = found.into_iter().take(max).map(|(policy, key, known)| {
            let bound = core.find(&policy).ok().map(|index| &core.policies[index]);
            let unused = match (bound, known.setting.own_quota()) {
                (None, _) => Some(format!("the limiter has no policy {policy:?}")),
                (Some(bound), Some(quota)) => {
                    let checked = bound.check_override(&*core.store, quota);
                    checked.err().map(|error| error.to_string())
                }
                (Some(_), None) => None,
            };
            ListedOverride {
                key_text: match bound {
                    Some(bound) => bound.policy.key_text(&key),
                    None => stored_text(&key),
                },
                policy,
                key,
                is_stored: known.is_stored(),
                known,
                unused,
            }
        });
        Ok(Self {
            overrides: listed.collect(),
            total,
            store_error: store_error.map(Arc::new),
        })
    }

    /// Whether these are all.
    pub fn is_complete(&self) -> bool {
        self.overrides.len() == self.total
    }

    /// The number of all overrides, also of those beyond `max`.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Why the store could not be read; `None` if the list is the store's.
    pub fn store_error(&self) -> Option<&OverrideError> {
        self.store_error.as_deref()
    }

    /// The number of overrides in the list.
    pub fn len(&self) -> usize {
        self.overrides.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.overrides.is_empty()
    }

    /// The overrides.
    pub fn iter(&self) -> slice::Iter<'_, ListedOverride> {
        self.overrides.iter()
    }
}

impl IntoIterator for Overrides {
    type Item = ListedOverride;
    type IntoIter = vec::IntoIter<ListedOverride>;

    fn into_iter(self) -> Self::IntoIter {
        self.overrides.into_iter()
    }
}

impl<'a> IntoIterator for &'a Overrides {
    type Item = &'a ListedOverride;
    type IntoIter = slice::Iter<'a, ListedOverride>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl ListedOverride {
    /// The policy's name.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The key as operators write it: see [`PolicyHandle::key_text`].
    pub fn key_text(&self) -> &str {
        &self.key_text
    }

    /// What was set.
    pub fn setting(&self) -> &Override {
        &self.known.setting
    }

    /// Why it has no effect; `None` if it has: the policy can't count its quota, or the limiter does not have the policy.
    pub fn unused(&self) -> Option<&str> {
        self.unused.as_deref()
    }

    /// Whether the store has it. If not, the store has lost it, and it holds in the processes that still know it:
    /// [`restore_overrides`](Limiter::restore_overrides) writes it back.
    pub fn is_stored(&self) -> bool {
        self.is_stored
    }
}

/// In one line: `api alice: 1000/min`.
impl fmt::Display for ListedOverride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.policy, self.key_text, self.setting())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[tokio::test]
    async fn quotas_of_overrides_that_were_replaced_are_not_kept() {
        let policy = Policy::new("api", Quota::requests(1).per_hour());
        let limiter = Limiter::builder().policy(policy).build();
        let limiter = limiter.expect("a limiter");
        let api = limiter.policy("api").expect("a policy");
        for requests in 1..=1_000 {
            let setting = Override::quota(Quota::requests(requests).per_hour());
            api.set_override("alice", setting).await.expect("it is set");
            let decision = limiter.check("alice").await;
            let limit = decision.policy("api").map(|api| api.limit());
            assert_eq!(limit, Some(requests));
            let core = limiter.local_ref();
            let overrides = core.policies[0].overrides.as_ref().expect("overrides");
            let kept = read(&overrides.quotas).limits.len();
            assert!(kept <= 19, "{kept}");
        }
    }

    #[tokio::test]
    async fn quotas_in_force_are_kept_until_the_last_override_is_removed() {
        let policy = Policy::new("api", Quota::requests(1).per_hour());
        let limiter = Limiter::builder().policy(policy).build();
        let limiter = limiter.expect("a limiter");
        let api = limiter.policy("api").expect("a policy");
        let core = limiter.local_ref();
        let overrides = core.policies[0].overrides.as_ref().expect("overrides");
        let set = async |key: &str, requests: u64| {
            let quota = Quota::requests(requests).per_hour();
            let setting = Override::quota(quota);
            api.set_override(key, setting).await.expect("it is set");
            drop(limiter.check(key).await);
            let opened = read(&overrides.quotas).limits.get(&quota).cloned();
            opened.flatten().expect("it is open")
        };
        let first = set("alice", 7).await;
        for requests in 10..100 {
            set("bob", requests).await;
        }
        assert!(Arc::ptr_eq(&set("carol", 7).await, &first));
        for key in ["alice", "bob", "carol"] {
            assert!(!read(&overrides.quotas).limits.is_empty());
            let removed = api.remove_override(key).await;
            assert!(removed.expect("it is removed").is_some());
        }
        assert!(read(&overrides.quotas).limits.is_empty());
    }
}
