//! The overrides that a process knows of one store.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
};

use super::{Override, PolicyKey};
use crate::{
    clock::{Clock, Timestamp},
    key::Key,
    quota::Quota,
    sync::{lock, read, write},
};

/// The overrides that a process knows of one store, by policy and key. Requests read it; the store keeps it up to date.
///
/// A [`Store`](crate::store::Store) of your own that has overrides returns one from
/// [`overrides`](crate::store::Store::overrides).
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
    policies: RwLock<Policies>,
    len: AtomicUsize,
    /// No override ends before this instant, in microseconds.
    next_end: AtomicI64,
    listeners: Mutex<Vec<Arc<Listener>>>,
}

/// The overrides of each policy that a limiter or an override needs.
#[derive(Default)]
struct Policies {
    by_name: HashMap<Arc<str>, Arc<PolicyOverrides>>,
    /// With how many of them those are removed that nothing needs any more.
    retain_at: usize,
}

/// Is called with the policies and keys whose overrides have changed. Returns whether it is to be called again.
type Listener = dyn Fn(&[PolicyKey]) -> bool + Send + Sync;

/// The overrides of one policy.
pub(crate) struct PolicyOverrides {
    clock: Arc<dyn Clock>,
    /// Whether there are any. Read by each request under the policy.
    is_used: Arc<AtomicBool>,
    by_key: RwLock<hashbrown::HashMap<Key, Arc<KnownOverride>>>,
}

/// An override that this process knows. One that replaces it is another.
#[derive(Debug)]
pub(crate) struct KnownOverride {
    /// Unique in this process.
    pub(crate) id: u64,
    pub(crate) setting: Override,
    /// Whether the store still has it.
    is_stored: AtomicBool,
}

impl KnownOverride {
    fn new(setting: Override) -> Arc<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            setting,
            is_stored: AtomicBool::new(true),
        })
    }

    /// Whether the store still has it: false after the store has lost it.
    pub(crate) fn is_stored(&self) -> bool {
        self.is_stored.load(Ordering::Relaxed)
    }
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
            len: AtomicUsize::new(0),
            next_end: AtomicI64::new(i64::MAX),
            listeners: Mutex::default(),
        }
    }

    /// Sets the override of a key under a policy. Returns the one that it replaces, if that has not ended.
    pub fn set(&self, policy: &str, key: Key, setting: Override) -> Option<Override> {
        self.apply([(policy.into(), key, Some(setting))])
    }

    /// Removes the override of a key under a policy, and returns it, if it has not ended.
    pub fn remove(&self, policy: &str, key: &Key) -> Option<Override> {
        self.apply([(policy.into(), *key, None)])
    }

    /// The override of a key under a policy, if there is one that has not ended.
    pub fn get(&self, policy: &str, key: &Key) -> Option<Override> {
        let known = read(&self.policies).by_name.get(policy)?.find(key)?;
        Some(known.setting.clone())
    }

    /// The number of overrides, with those that have ended and are not removed yet.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
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
        if let Some(known) = read(&self.policies).by_name.get(name) {
            return known.clone();
        }
        let Policies { by_name, retain_at } = &mut *write(&self.policies);
        if by_name.len() >= *retain_at {
            by_name.retain(|_, known| known.is_used() || Arc::strong_count(known) > 1);
            *retain_at = 2 * by_name.len() + 16;
        }
        let new = || {
            Arc::new(PolicyOverrides {
                clock: self.clock.clone(),
                is_used: Arc::default(),
                by_key: RwLock::default(),
            })
        };
        by_name.entry(name.into()).or_insert_with(new).clone()
    }

    /// Sets (`Some`) and removes (`None`) overrides. Returns the last one that was replaced or removed and had not ended.
    pub(crate) fn apply(
        &self,
        changes: impl IntoIterator<Item = (Arc<str>, Key, Option<Override>)>,
    ) -> Option<Override> {
        let (mut changed, mut before) = (Vec::new(), None);
        for (policy, key, setting) in changes {
            let overrides = self.policy(&policy);
            let mut by_key = write(&overrides.by_key);
            let replaced = match setting {
                Some(setting) => match by_key.get(&key) {
                    // It keeps its id, so requests that wait are not decided anew.
                    Some(known) if known.setting == setting => {
                        known.is_stored.store(true, Ordering::Relaxed);
                        before = Some(setting);
                        continue;
                    }
                    _ => {
                        let known = KnownOverride::new(setting);
                        if let Some(end) = known.setting.ends_at() {
                            self.next_end.fetch_min(end.as_micros(), Ordering::Relaxed);
                        }
                        by_key.insert(key, known)
                    }
                },
                None => match by_key.remove(&key) {
                    None => continue,
                    removed => removed,
                },
            };
            overrides
                .is_used
                .store(!by_key.is_empty(), Ordering::Relaxed);
            let is_set = by_key.contains_key(&key);
            drop(by_key);
            match (is_set, &replaced) {
                (true, None) => self.len.fetch_add(1, Ordering::Relaxed),
                (false, Some(_)) => self.len.fetch_sub(1, Ordering::Relaxed),
                _ => 0,
            };
            let now = self.now();
            let replaced = replaced.filter(|known| !known.setting.has_ended(now));
            before = replaced.map(|known| known.setting.clone());
            changed.push((policy, key));
        }
        self.notify(&changed);
        before
    }

    /// Marks all overrides as those that the store has lost, but these. Returns how many were not marked before.
    #[cfg(feature = "redis")]
    pub(crate) fn mark_lost_except(&self, is_stored: impl Fn(&str, &Key) -> bool) -> usize {
        let all = self.all().into_iter();
        let lost = all.filter(|(policy, key, known)| {
            !is_stored(policy, key) && known.is_stored.swap(false, Ordering::Relaxed)
        });
        lost.count()
    }

    /// Removes and returns up to `max` overrides that have ended.
    pub(crate) fn take_ended(&self, max: usize) -> Vec<(Arc<str>, Key, Override)> {
        let now = self.now();
        if now.as_micros() < self.next_end.load(Ordering::Relaxed) {
            return Vec::new();
        }
        // Before the search: what is set meanwhile is not missed.
        self.next_end.store(i64::MAX, Ordering::Relaxed);
        let (mut ended, mut changed) = (Vec::new(), Vec::new());
        for (policy, key, known) in self.all() {
            match known.setting.ends_at() {
                Some(end) if end <= now && ended.len() >= max => {
                    self.next_end.fetch_min(end.as_micros(), Ordering::Relaxed);
                }
                Some(end) if end <= now && self.remove_known(&policy, &key, &known) => {
                    changed.push((policy.clone(), key));
                    ended.push((policy, key, known.setting.clone()));
                }
                Some(end) if end > now => {
                    self.next_end.fetch_min(end.as_micros(), Ordering::Relaxed);
                }
                _ => {}
            }
        }
        self.notify(&changed);
        ended
    }

    /// Removes an override, unless another one has replaced it.
    fn remove_known(&self, policy: &str, key: &Key, known: &KnownOverride) -> bool {
        let overrides = self.policy(policy);
        let mut by_key = write(&overrides.by_key);
        let is_known = by_key.get(key).is_some_and(|own| own.id == known.id);
        if is_known {
            by_key.remove(key);
            overrides
                .is_used
                .store(!by_key.is_empty(), Ordering::Relaxed);
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
        is_known
    }

    /// All overrides, ordered by policy and key.
    pub(crate) fn all(&self) -> Vec<(Arc<str>, Key, Arc<KnownOverride>)> {
        let mut all = Vec::with_capacity(self.len());
        for (policy, overrides) in &read(&self.policies).by_name {
            let by_key = read(&overrides.by_key);
            let entries = by_key.iter();
            all.extend(entries.map(|(key, known)| (policy.clone(), *key, known.clone())));
        }
        all.sort_unstable_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        all
    }

    /// The number of overrides that the store has lost.
    #[cfg(feature = "redis")]
    pub(crate) fn lost(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        let all = self.all();
        let lost = all.iter().filter(|(_, _, known)| !known.is_stored());
        lost.count()
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

    /// The number of overrides.
    pub(crate) fn len(&self) -> usize {
        match self.is_used() {
            true => read(&self.by_key).len(),
            false => 0,
        }
    }

    /// The quotas of the overrides.
    pub(crate) fn quotas(&self) -> HashSet<Quota> {
        let by_key = read(&self.by_key);
        let quotas = by_key
            .values()
            .filter_map(|known| known.setting.own_quota());
        quotas.collect()
    }

    /// The override of a key, if there is one that has not ended.
    pub(crate) fn find(&self, key: &Key) -> Option<Arc<KnownOverride>> {
        let known = read(&self.by_key).get(key)?.clone();
        let holds = known.setting.until.is_none() || !known.setting.has_ended(self.clock.wall());
        holds.then_some(known)
    }

    /// How long an override holds from now on; `None` for good.
    pub(crate) fn ends_in(&self, known: &KnownOverride) -> Option<std::time::Duration> {
        Some(known.setting.ends_at()?.since(self.clock.wall()))
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
    use super::*;
    use crate::clock::ManualClock;

    fn of(requests: u64) -> Override {
        Override::quota(Quota::requests(requests).per_hour())
    }

    #[test]
    fn an_override_that_is_set_again_keeps_its_id_and_another_one_has_its_own() {
        let table = OverrideTable::new(ManualClock::default());
        let (key, policy) = (Key::new("alice"), table.policy("api"));
        assert!(!policy.is_used());
        let id = |setting: Override| {
            table.set("api", key, setting);
            policy.find(&key).map(|known| known.id)
        };
        let first = id(of(1));
        assert_eq!((id(of(1)), table.len()), (first, 1));
        assert_ne!(id(of(2)), first);
        assert!(policy.is_used() && table.remove("api", &key).is_some());
        assert_eq!((policy.is_used(), table.len()), (false, 0));
    }

    #[test]
    fn what_has_ended_is_taken_once_and_the_rest_stays() {
        let clock = ManualClock::default();
        let table = OverrideTable::new(clock.clone());
        let after = |secs| (clock.wall() + std::time::Duration::from_secs(secs)).to_system_time();
        table.set("api", Key::new("a"), of(1).until(after(10)));
        table.set("api", Key::new("b"), of(1).until(after(20)));
        table.set("api", Key::new("c"), of(1));
        assert!(table.take_ended(9).is_empty());
        for key in ["a", "b"] {
            clock.advance(std::time::Duration::from_secs(10));
            assert_eq!(table.get("api", &Key::new(key)), None);
            let ended = table.take_ended(9);
            let keys: Vec<_> = ended.iter().map(|(_, key, _)| *key).collect();
            assert_eq!(keys, [Key::new(key)]);
        }
        assert_eq!((table.take_ended(9).len(), table.len()), (0, 1));
        table.set("api", Key::new("a"), of(1).until(after(10)));
        clock.advance(std::time::Duration::from_secs(10));
        assert_eq!(table.set("api", Key::new("a"), of(2)), None);
    }

    #[test]
    fn a_listener_is_called_with_changes_until_it_is_not_used_any_more() {
        let table = OverrideTable::new(ManualClock::default());
        let (calls, used) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(true)),
        );
        let listener = (calls.clone(), used.clone());
        table.on_change(move |changed| {
            listener.0.fetch_add(changed.len(), Ordering::Relaxed);
            listener.1.load(Ordering::Relaxed)
        });
        table.set("api", Key::new("a"), of(1));
        table.set("api", Key::new("a"), of(1));
        table.remove("api", &Key::new("b"));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        used.store(false, Ordering::Relaxed);
        table.on_change(|_| true);
        assert_eq!(lock(&table.listeners).len(), 1);
    }
}
