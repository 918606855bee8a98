//! The overrides that a process knows of one store.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{Override, PolicyKey};
use crate::{
    clock::{Clock, Timestamp},
    key::Key,
    sync::{lock, read, write},
};

/// The overrides that a process knows of one store, by policy and key. Requests read it; the store keeps it up to date.
///
/// A [`Store`](crate::store::Store) of your own that has overrides returns one from
/// [`StoreAdmin::overrides`](crate::store::StoreAdmin::overrides).
///
/// ```
/// use tollgate::{Key, ManualClock, Quota, limiter::Override, store::OverrideTable};
///
/// let table = OverrideTable::new(ManualClock::default());
/// let (alice, raised) = (Key::new("alice"), Override::quota(Quota::requests(100).per_minute()));
/// assert_eq!(table.set("api", alice, raised.clone()), None);
/// assert_eq!(table.get("api", &alice), Some(raised.clone()));
/// assert_eq!(table.remove("api", &alice), Some(raised));
/// assert!(table.is_empty());
/// ```
pub struct OverrideTable {
    /// By whose wall clock overrides end.
    clock: Arc<dyn Clock>,
    /// The overrides of each policy that a limiter or an override needs.
    policies: RwLock<HashMap<Arc<str>, Arc<PolicyOverrides>>>,
    listeners: Mutex<Vec<Arc<Listener>>>,
}

/// Is called with the policies and keys whose overrides have changed. Returns whether it is to be called again.
type Listener = dyn Fn(&[PolicyKey]) -> bool + Send + Sync;

/// The overrides of one policy.
pub(crate) struct PolicyOverrides {
    clock: Arc<dyn Clock>,
    /// Whether there are any. Read by each request under the policy.
    is_used: Arc<AtomicBool>,
    by_key: RwLock<hashbrown::HashMap<Key, Arc<Override>>>,
}

impl OverrideTable {
    /// An empty table, whose overrides end by the [wall clock](Clock::wall) of `clock`, that of the store.
    pub fn new(clock: impl Clock) -> Self {
        Self::by(Arc::new(clock))
    }

    pub(crate) fn by(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            policies: RwLock::default(),
            listeners: Mutex::default(),
        }
    }

    /// Sets the override of a key under a policy. Returns the one that it replaces, if that has not ended.
    pub fn set(&self, policy: &str, key: Key, setting: Override) -> Option<Override> {
        let before = self.get(policy, &key);
        self.apply([(policy.into(), key, Some(setting))]);
        before
    }

    /// Removes the override of a key under a policy, and returns it, if it has not ended.
    pub fn remove(&self, policy: &str, key: &Key) -> Option<Override> {
        let before = self.get(policy, key);
        self.apply([(policy.into(), *key, None)]);
        before
    }

    /// The override of a key under a policy, if there is one that has not ended.
    pub fn get(&self, policy: &str, key: &Key) -> Option<Override> {
        let known = read(&self.policies).get(policy)?.find(key)?;
        Some((*known).clone())
    }

    /// The number of overrides, with those that have ended and are not removed yet.
    pub fn len(&self) -> usize {
        let policies = read(&self.policies);
        let numbers = policies.values().map(|known| read(&known.by_key).len());
        numbers.sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The instant by which overrides end.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.wall()
    }

    /// The overrides of a policy, now and later.
    pub(crate) fn policy(&self, name: &str) -> Arc<PolicyOverrides> {
        if let Some(known) = read(&self.policies).get(name) {
            return known.clone();
        }
        let mut policies = write(&self.policies);
        // Before the map grows, so that the work for each of many policies does not grow with their number.
        if policies.len() == policies.capacity() {
            policies.retain(|_, known| known.is_used() || Arc::strong_count(known) > 1);
        }
        let new = || {
            Arc::new(PolicyOverrides {
                clock: self.clock.clone(),
                is_used: Arc::default(),
                by_key: RwLock::default(),
            })
        };
        policies.entry(name.into()).or_insert_with(new).clone()
    }

    /// Sets (`Some`) and removes (`None`) overrides.
    pub(crate) fn apply(
        &self,
        changes: impl IntoIterator<Item = (Arc<str>, Key, Option<Override>)>,
    ) {
        let mut changed = Vec::new();
        for (policy, key, setting) in changes {
            let overrides = self.policy(&policy);
            let mut by_key = write(&overrides.by_key);
            match setting {
                // It keeps its id, so requests that wait are not decided anew.
                Some(setting) if by_key.get(&key).is_some_and(|known| **known == setting) => {
                    continue;
                }
                Some(setting) => drop(by_key.insert(key, Arc::new(setting))),
                None if by_key.remove(&key).is_none() => continue,
                None => {}
            }
            overrides
                .is_used
                .store(!by_key.is_empty(), Ordering::Relaxed);
            changed.push((policy, key));
        }
        self.notify(&changed);
    }

    /// Sets these overrides, and removes all others.
    #[cfg(feature = "redis")]
    pub(crate) fn replace(&self, stored: HashMap<PolicyKey, Override>) {
        let mut changes = Vec::new();
        for (policy, overrides) in &*read(&self.policies) {
            let by_key = read(&overrides.by_key);
            let known = by_key.keys().map(|key| (policy.clone(), *key));
            let removed = known.filter(|known| !stored.contains_key(known));
            changes.extend(removed.map(|(policy, key)| (policy, key, None)));
        }
        let set = stored.into_iter();
        changes.extend(set.map(|((policy, key), setting)| (policy, key, Some(setting))));
        self.apply(changes);
    }

    /// Removes the overrides that have ended.
    pub(crate) fn remove_ended(&self) {
        let now = self.now();
        for overrides in read(&self.policies).values() {
            let mut by_key = write(&overrides.by_key);
            by_key.retain(|_, known| !known.has_ended(now));
            overrides
                .is_used
                .store(!by_key.is_empty(), Ordering::Relaxed);
        }
    }

    /// The overrides that have not ended, ordered by policy and key.
    pub(crate) fn all(&self) -> Vec<(Arc<str>, Key, Override)> {
        let (now, mut all) = (self.now(), Vec::new());
        for (policy, overrides) in &*read(&self.policies) {
            let by_key = read(&overrides.by_key);
            let in_force = by_key.iter().filter(|(_, known)| !known.has_ended(now));
            all.extend(in_force.map(|(key, known)| (policy.clone(), *key, known.as_ref().clone())));
        }
        all.sort_unstable_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        all
    }

    /// Calls `listener` with each change from now on, until it returns false. No lock is held meanwhile, but when it is called with
    /// no change, to find out whether it is still used.
    pub(crate) fn on_change(
        &self,
        listener: impl Fn(&[PolicyKey]) -> bool + Send + Sync + 'static,
    ) {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|listener| listener(&[]));
        listeners.push(Arc::new(listener));
    }

    fn notify(&self, changed: &[PolicyKey]) {
        if changed.is_empty() {
            return;
        }
        let listeners = lock(&self.listeners).clone();
        for listener in listeners {
            if !listener(changed) {
                lock(&self.listeners).retain(|other| !Arc::ptr_eq(other, &listener));
            }
        }
    }
}

impl PolicyOverrides {
    /// Whether any key of the policy has an override.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// What [`is_used`](Self::is_used) reads.
    pub(crate) fn used_flag(&self) -> Arc<AtomicBool> {
        self.is_used.clone()
    }

    /// The number of overrides that have not ended.
    pub(crate) fn len(&self) -> usize {
        let now = self.clock.wall();
        let by_key = read(&self.by_key);
        let in_force = |known: &&Arc<Override>| !known.has_ended(now);
        by_key.values().filter(in_force).count()
    }

    /// The override of a key, if there is one that has not ended.
    pub(crate) fn find(&self, key: &Key) -> Option<Arc<Override>> {
        let known = read(&self.by_key).get(key)?.clone();
        let holds = known.until.is_none() || !known.has_ended(self.clock.wall());
        holds.then_some(known)
    }

    /// How long an override holds from now on; `None` for good.
    pub(crate) fn ends_in(&self, known: &Override) -> Option<std::time::Duration> {
        Some(known.ends_at()?.since(self.clock.wall()))
    }
}

impl fmt::Debug for OverrideTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OverrideTable")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PolicyOverrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyOverrides")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{clock::ManualClock, quota::Quota};

    fn of(requests: u64) -> Override {
        Override::quota(Quota::requests(requests).per_hour())
    }

    #[test]
    fn what_has_ended_is_removed_and_the_rest_stays() {
        let clock = ManualClock::default();
        let table = OverrideTable::new(clock.clone());
        let after = |secs| (clock.wall() + Duration::from_secs(secs)).to_system_time();
        table.set("api", Key::new("a"), of(1).until(after(10)));
        table.set("api", Key::new("b"), of(1).until(after(20)));
        table.set("api", Key::new("c"), of(1));
        for (key, left) in [("a", 2), ("b", 1)] {
            clock.advance(Duration::from_secs(10));
            assert_eq!(table.get("api", &Key::new(key)), None);
            assert_eq!((table.len(), table.policy("api").len()), (left + 1, left));
            table.remove_ended();
            assert_eq!(table.len(), left);
        }
        table.set("api", Key::new("a"), of(1).until(after(10)));
        clock.advance(Duration::from_secs(10));
        assert_eq!(table.set("api", Key::new("a"), of(2)), None);
    }
}
