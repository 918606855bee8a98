//! The keys of a call.

use std::{net::IpAddr, sync::Arc};

use smallvec::{SmallVec, smallvec};

use crate::{key::Key, quota::Quota};

/// The keys of a call: one [`Key`] for all policies, pairs of a policy's name and its key, or [entries](CallEntry) of policies'
/// handles.
///
/// A single key identifies the caller under all policies, except those that count all requests together, by
/// [`extract::global`](crate::extract::global), which keep their own key. Policies that count by something other than the
/// caller, such as an address or a path, have to be named, each with its key. A policy that is named twice, other than by entries,
/// makes the call [invalid](crate::CallError::DuplicatePolicy).
///
/// ```
/// use tollgate::{Key, Limiter, Policy, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("user", Quota::requests(5).per_minute()))
///     .policy(Policy::new("address", Quota::requests(9).per_minute()))
///     .build()?;
/// // A key for each policy,
/// let address = Key::ip([192, 0, 2, 1].into());
/// let admission = limiter.admit([("user", Key::new("alice")), ("address", address)]).await?;
/// assert_eq!(admission.remaining("address"), Some(8));
/// // for one of them,
/// let admission = limiter.admit(("user", "alice")).await?;
/// assert_eq!((admission.remaining("user"), admission.remaining("address")), (Some(3), None));
/// // or one key for all.
/// let admission = limiter.admit("alice").await?;
/// assert_eq!((admission.remaining("user"), admission.remaining("address")), (Some(2), Some(8)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Keys {
    spec: KeySpec,
    caller: Option<Key>,
}

/// What a call waits for: its keys, whatever policies there are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey(SmallVec<[(Option<Arc<str>>, Key); 1]>);

#[derive(Clone, Debug)]
enum KeySpec {
    All(Key),
    Each(Vec<(String, Key)>),
    Entries(Vec<CallEntry>),
}

/// The most entries of a call, each of which may be one key of a script's call.
pub(super) const MAX_ENTRIES: usize = 128;

/// An entry of a call: a policy, a key under it, and what the call sets for them. It is made by a handle to the policy
/// ([`PolicyHandle::entry`](crate::limiter::PolicyHandle::entry)), by which the policy is found without looking for its name: the time
/// of a call depends on its entries, not on the policies that the limiter has.
///
/// A call takes up to 128 entries, of the policies that apply and of no others, and admits and charges them together or not at all. A
/// policy may have several entries with different keys. Entries of one policy and key are one charge of the sum of their costs. If they
/// set different quotas, the call is [invalid](crate::CallError::DuplicatePolicy), and so is one with an entry of a policy that the
/// limiter [no longer has](crate::CallError::UnknownPolicy), or with [more entries](crate::CallError::TooManyEntries).
///
/// The decision has a policy's keys in the order of their texts. [`Decision::policy`](crate::Decision::policy) is that of the first;
/// charges, refunds and settlements that name a policy are made for each of its keys. Header fields and bodies show one key of a policy,
/// that with the fewest units left. A key on an
/// allow list admits the whole call, and nothing is charged.
///
/// ```
/// use tollgate::{Limiter, Policy, Quota};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("user", Quota::units(10).per_day()))
///     .policy(Policy::new("model", Quota::units(1_000).per_day()))
///     .build()?;
/// let (user, model) = (limiter.policy("user")?, limiter.policy("model")?);
/// // A conversation of two users with one model: all three are charged, or none.
/// let call = || [user.entry("alice").cost(4), user.entry("bob").cost(4), model.entry("large").cost(8)];
/// assert!(limiter.check(call()).await.is_admitted());
/// assert!(limiter.check(call()).await.is_admitted());
/// let decision = limiter.check(call()).await;
/// assert!(!decision.is_admitted());
/// let left: Vec<_> = decision.policies().map(|policy| policy.remaining()).collect();
/// assert_eq!(left, [2, 2, 984]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CallEntry {
    pub(super) policy: Arc<str>,
    /// Where the policy was when its handle was made.
    pub(super) index: u32,
    pub(super) key: Key,
    pub(super) cost: Option<u64>,
    pub(super) quota: Option<Quota>,
}

impl CallEntry {
    /// Sets the cost to `units`, in place of the policy's own and of [`Check::cost`](crate::limiter::Check::cost).
    #[must_use]
    pub fn cost(mut self, units: u64) -> Self {
        self.cost = Some(units);
        self
    }

    /// Sets the quota, in place of the policy's own: see [`Check::quota_for`](crate::limiter::Check::quota_for).
    #[must_use]
    pub fn quota(mut self, quota: Quota) -> Self {
        self.quota = Some(quota);
        self
    }
}

impl Keys {
    /// What a call with these keys waits for.
    pub(super) fn queue_key(&self) -> QueueKey {
        let mut keys: SmallVec<[(Option<Arc<str>>, Key); 1]> = match &self.spec {
            KeySpec::All(key) => smallvec![(None, *key)],
            KeySpec::Each(keys) => {
                let keys = keys.iter();
                keys.map(|(name, key)| (Some(Arc::from(&**name)), *key))
                    .collect()
            }
            KeySpec::Entries(entries) => {
                let entries = entries.iter();
                entries
                    .map(|entry| (Some(entry.policy.clone()), entry.key))
                    .collect()
            }
        };
        keys.sort_unstable();
        keys.dedup();
        QueueKey(keys)
    }

    /// Records `caller` as the caller of the charges, in place of each policy's key: see
    /// [`Policy::caller`](crate::Policy::caller).
    #[must_use]
    pub fn caller(mut self, caller: Key) -> Self {
        self.caller = Some(caller);
        self
    }

    pub(super) fn given_caller(&self) -> Option<Key> {
        self.caller
    }

    /// The key, if it is one for all policies.
    #[inline]
    pub(super) fn all(&self) -> Option<&Key> {
        match &self.spec {
            KeySpec::All(key) => Some(key),
            KeySpec::Each(_) | KeySpec::Entries(_) => None,
        }
    }

    /// The entries, if it has such.
    #[inline]
    pub(super) fn entries(&self) -> Option<&[CallEntry]> {
        match &self.spec {
            KeySpec::Entries(entries) => Some(entries),
            KeySpec::All(_) | KeySpec::Each(_) => None,
        }
    }

    /// The key under a policy, or the first of several.
    #[inline]
    pub(super) fn of(&self, policy: &str) -> Option<&Key> {
        match &self.spec {
            KeySpec::All(key) => Some(key),
            KeySpec::Each(keys) => {
                let mut named = keys.iter().filter(|(name, _)| name == policy);
                named.next().map(|(_, key)| key)
            }
            KeySpec::Entries(entries) => {
                let mut named = entries.iter().filter(|entry| &*entry.policy == policy);
                named.next().map(|entry| &entry.key)
            }
        }
    }

    /// Whether the policy is named, rather than one of all.
    pub(super) fn names_policy(&self, policy: &str) -> bool {
        self.all().is_none() && self.of(policy).is_some()
    }

    /// A policy that is named more than once, other than by entries.
    pub(super) fn duplicate(&self) -> Option<&str> {
        let names: SmallVec<[&str; 8]> = self.names().collect();
        let mut indexed = names.iter().enumerate();
        let (_, name) = indexed.find(|(index, name)| names[..*index].contains(name))?;
        Some(name)
    }

    /// The policies that are named, other than by entries.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let named = match &self.spec {
            KeySpec::All(_) | KeySpec::Entries(_) => &[][..],
            KeySpec::Each(keys) => keys,
        };
        named.iter().map(|(name, _)| &**name)
    }
}

impl From<Key> for Keys {
    fn from(key: Key) -> Self {
        Self {
            spec: KeySpec::All(key),
            caller: None,
        }
    }
}

/// One key for all policies.
macro_rules! one_key_for_all {
    ($($from:ty),*) => {$(
        impl From<$from> for Keys {
            fn from(key: $from) -> Self {
                Key::from(key).into()
            }
        }
    )*};
}

one_key_for_all!(&str, String, &String, u64, IpAddr);

impl<S: Into<String>> From<Vec<(S, Key)>> for Keys {
    fn from(keys: Vec<(S, Key)>) -> Self {
        keys.into_iter().collect()
    }
}

impl<S: Into<String>, K: Into<Key>, const N: usize> From<[(S, K); N]> for Keys {
    fn from(keys: [(S, K); N]) -> Self {
        let keys = keys.into_iter().map(|(name, key)| (name, key.into()));
        keys.collect()
    }
}

/// The key of one policy, and of no other: `(name, key)`.
impl<S: Into<String>, K: Into<Key>> From<(S, K)> for Keys {
    fn from(key: (S, K)) -> Self {
        [key].into()
    }
}

impl<S: Into<String>> FromIterator<(S, Key)> for Keys {
    fn from_iter<I: IntoIterator<Item = (S, Key)>>(keys: I) -> Self {
        let keys = keys.into_iter().map(|(name, key)| (name.into(), key));
        Self {
            spec: KeySpec::Each(keys.collect()),
            caller: None,
        }
    }
}

impl From<Vec<CallEntry>> for Keys {
    fn from(entries: Vec<CallEntry>) -> Self {
        Self {
            spec: KeySpec::Entries(entries),
            caller: None,
        }
    }
}

impl<const N: usize> From<[CallEntry; N]> for Keys {
    fn from(entries: [CallEntry; N]) -> Self {
        Vec::from(entries).into()
    }
}

impl From<CallEntry> for Keys {
    fn from(entry: CallEntry) -> Self {
        vec![entry].into()
    }
}

impl FromIterator<CallEntry> for Keys {
    fn from_iter<I: IntoIterator<Item = CallEntry>>(entries: I) -> Self {
        entries.into_iter().collect::<Vec<_>>().into()
    }
}
