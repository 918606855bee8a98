use std::{
    collections::HashSet,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;

use super::file::{entries, not_from_file};
use crate::{error::ConfigError, key::Key};

/// A list of keys of one policy to [allow](crate::limiter::LimiterBuilder::allow) or [deny](crate::limiter::LimiterBuilder::deny), as its
/// extractor finds them in requests, or as a [`check`](crate::Limiter::check) sets them.
///
/// Clones share one list: [`replace`](KeyList::replace) changes it for all of them, also while requests are served. A request
/// sees the list before or after the change, never a part, and doesn't wait for it.
///
/// A client that can choose its key can choose an allowed one: allow only keys that are verified or secret.
///
/// ```
/// use tollgate::{Key, Limiter, Policy, Quota, access::KeyList, extract};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let monitoring = KeyList::new("api", [Key::secret("sk_monitoring")]);
/// let limiter = Limiter::builder()
///     .policy(Policy::new("api", Quota::requests(1).per_hour()).key(extract::bearer()))
///     .allow(monitoring.clone())
///     .build()?;
/// for _ in 0..10 {
///     assert!(limiter.check(Key::secret("sk_monitoring")).await.is_admitted());
/// }
/// # Ok::<(), tollgate::ConfigError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct KeyList {
    policy: Arc<str>,
    shared: Arc<Shared>,
}

struct Shared {
    keys: ArcSwap<HashSet<Key>>,
    file: Option<(PathBuf, ParseKey)>,
}

type ParseKey = Box<dyn Fn(&str) -> Key + Send + Sync>;

impl KeyList {
    /// A list of `keys` of the policy of that name. A name that no policy of the limiter has is a [`ConfigError`] when the
    /// limiter is built.
    pub fn new(policy: impl Into<Arc<str>>, keys: impl IntoIterator<Item = Key>) -> Self {
        Self {
            policy: policy.into(),
            shared: Arc::new(Shared {
                keys: ArcSwap::from_pointee(keys.into_iter().collect()),
                file: None,
            }),
        }
    }

    /// Reads a list from a file of at most 64 MiB: one entry per line, which `key` turns into a key as the policy's extractor does. A comment
    /// begins with a `#` at the beginning of a line or after a space. A key of which only the hash is known is written
    /// `hash:7lEM2SSxGPnYHjFZP0wx`, as in logs; the store has it as `#7lEM2SSxGPnYHjFZP0wx`.
    ///
    /// ```no_run
    /// # fn f() -> Result<(), tollgate::ConfigError> {
    /// use tollgate::{Key, access::KeyList};
    ///
    /// let stolen = KeyList::from_file("api", "stolen-tokens.txt", |token| Key::secret(token))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the file can't be read, or a `hash:` entry is invalid; it names the line.
    pub fn from_file<F>(
        policy: impl Into<Arc<str>>,
        path: impl Into<PathBuf>,
        key: F,
    ) -> Result<Self, ConfigError>
    where
        F: Fn(&str) -> Key + Send + Sync + 'static,
    {
        let path = path.into();
        let keys = read_file(&path, &key)?;
        Ok(Self {
            policy: policy.into(),
            shared: Arc::new(Shared {
                keys: ArcSwap::from_pointee(keys),
                file: Some((path, Box::new(key))),
            }),
        })
    }

    /// Replaces all keys at once.
    pub fn replace(&self, keys: impl IntoIterator<Item = Key>) {
        self.shared.keys.store(Arc::new(keys.into_iter().collect()));
    }

    /// Reads the list's file again, and replaces all keys at once. It blocks while it reads: call it from `spawn_blocking` in
    /// async code.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the list is not from a file, the file can't be read, or an entry is invalid; the list is then
    /// unchanged.
    pub fn reload(&self) -> Result<(), ConfigError> {
        let Some((path, key)) = &self.shared.file else {
            return Err(not_from_file());
        };
        self.shared.keys.store(Arc::new(read_file(path, key)?));
        Ok(())
    }

    /// Whether a key is on the list.
    pub fn contains(&self, key: &Key) -> bool {
        self.shared.keys.load().contains(key)
    }

    /// The name of the policy whose keys these are.
    pub fn policy(&self) -> &str {
        &self.policy
    }
}

impl KeyList {
    /// Whether both list the same keys of the same policy, from the same file if from any.
    pub(super) fn has_same_entries(&self, other: &Self) -> bool {
        let file = |list: &Self| list.shared.file.as_ref().map(|(path, _)| path.clone());
        self.policy == other.policy
            && file(self) == file(other)
            && *self.shared.keys.load() == *other.shared.keys.load()
    }
}

impl fmt::Debug for KeyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyList")
            .field("policy", &self.policy)
            .field("keys", &self.shared.keys.load().len())
            .finish_non_exhaustive()
    }
}

fn read_file(path: &Path, key: &dyn Fn(&str) -> Key) -> Result<HashSet<Key>, ConfigError> {
    let keys = entries(path, |entry| match entry.strip_prefix("hash:") {
        Some(hash) => Key::from_hash(hash)
            .ok_or("hash: and the 20 characters that follow the # of a key that is a hash"),
        None => Ok(key(entry)),
    })?;
    Ok(keys.into_iter().collect())
}
