//! The keys of a call.

use std::net::IpAddr;

use smallvec::SmallVec;

use crate::key::Key;

/// The keys of a call: one [`Key`] for all policies, or pairs of a policy's name and its key.
///
/// A single key identifies the caller under all policies, except those that count all requests together, by
/// [`extract::global`](crate::extract::global), which keep their own key. Policies that count by something other than the
/// caller, such as an address or a path, have to be named, each with its key. A policy that is named twice makes the call
/// [invalid](crate::CallError::DuplicatePolicy).
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

#[derive(Clone, Debug)]
enum KeySpec {
    All(Key),
    Each(Vec<(String, Key)>),
}

impl Keys {
    /// Records `caller` as the caller of the charges, in place of each policy's key: see
    /// [`Policy::caller`](crate::Policy::caller).
    #[must_use]
    pub fn caller(mut self, caller: Key) -> Self {
        self.caller = Some(caller);
        self
    }

    pub(super) fn caller_override(&self) -> Option<Key> {
        self.caller
    }

    /// The key, if it is one for all policies.
    #[inline]
    pub(super) fn all(&self) -> Option<&Key> {
        match &self.spec {
            KeySpec::All(key) => Some(key),
            KeySpec::Each(_) => None,
        }
    }

    #[inline]
    pub(super) fn of(&self, policy: &str) -> Option<&Key> {
        match &self.spec {
            KeySpec::All(key) => Some(key),
            KeySpec::Each(keys) => {
                let mut named = keys.iter().filter(|(name, _)| name == policy);
                named.next().map(|(_, key)| key)
            }
        }
    }

    /// Whether the policy is named, rather than one of all.
    pub(super) fn names_policy(&self, policy: &str) -> bool {
        matches!(self.spec, KeySpec::Each(_)) && self.of(policy).is_some()
    }

    /// A policy that is named more than once.
    pub(super) fn duplicate(&self) -> Option<&str> {
        let names: SmallVec<[&str; 8]> = self.names().collect();
        let mut indexed = names.iter().enumerate();
        let (_, name) = indexed.find(|(index, name)| names[..*index].contains(name))?;
        Some(name)
    }

    /// The policies that are named.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let named = match &self.spec {
            KeySpec::All(_) => &[][..],
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
