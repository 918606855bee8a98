//! Lists of blocked keys.

use std::{slice, time::Duration, vec};

use tokio::task::coop::consume_budget;

use super::{Limiter, core::BoundPolicy, handle::PolicyHandle};
use crate::{
    clock::Timestamp,
    error::CallError,
    key::Key,
    policy::stored_text,
    store::{Incomplete, LimitHandle},
};

impl Limiter {
    /// Lists up to `max` keys that are blocked now under any [ban](crate::Ban), by hand or by rejections, in any process.
    ///
    /// On Redis it looks through the names of all keys of the server, or of each node of a cluster, by `SCAN`: for operators,
    /// not for requests. It needs the permission `+scan`, as
    /// [`HealthReport::unchecked`](crate::HealthReport::unchecked) says, and ends after ten seconds. The server serves other
    /// calls in between.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Key, Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
    ///     .policy(Policy::block_list("locked"))
    ///     .build()?;
    /// let locked = limiter.policy("locked")?;
    /// locked.block(Key::secret("sk_live_1"), Duration::from_secs(600)).await?;
    /// let blocks = limiter.blocks(100).await?;
    /// assert!(blocks.is_complete());
    /// for block in &blocks {
    ///     // The key is shown by its hash: `hash:` and 20 characters.
    ///     println!("{} {} {:?}", block.policy(), block.key_text(), block.ends_in());
    ///     let key = locked.parse_key(&block.key_text()).ok_or("no key")?;
    ///     locked.unblock(key).await?;
    /// }
    /// assert!(limiter.blocks(100).await?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, or can't list keys. Dropping the future is harmless.
    pub async fn blocks(&self, max: usize) -> Result<Blocks, CallError> {
        self.blocks_under(max, BoundPolicy::is_ban).await
    }

    async fn blocks_under(
        &self,
        max: usize,
        concerns: impl Fn(&BoundPolicy) -> bool,
    ) -> Result<Blocks, CallError> {
        consume_budget().await;
        let core = self.local_ref();
        let bans: Vec<_> = core
            .policies
            .iter()
            .filter(|bound| concerns(bound))
            .collect();
        if bans.is_empty() {
            return Ok(Blocks {
                blocks: Vec::new(),
                incomplete: None,
            });
        }
        let limits: Vec<LimitHandle> = bans.iter().map(|bound| bound.limit.clone()).collect();
        let mut found = core.store.blocked_keys(&limits, max).await?;
        found
            .keys
            .sort_by_key(|found| (found.limit, found.ends_at, found.key));
        let handle = |limit: &usize| Some(PolicyHandle::new(self, bans.get(*limit)?));
        let block = |found: crate::store::BlockedKey| {
            Some(Block {
                policy: handle(&found.limit)?,
                key: found.key,
                ends_at: core.store.wall(found.ends_at),
                ends_in: found.ends_in,
            })
        };
        Ok(Blocks {
            blocks: found.keys.into_iter().filter_map(block).collect(),
            incomplete: found.incomplete,
        })
    }
}

impl PolicyHandle {
    /// Lists up to `max` keys that are blocked now under this policy, a [ban](crate::Ban): see [`Limiter::blocks`].
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::blocks`]; [`NotABan`](CallError::NotABan) if the policy is none, or an unknown policy if the limiter no
    /// longer has it.
    pub async fn blocks(&self, max: usize) -> Result<Blocks, CallError> {
        let (limiter, name) = (self.limiter(), self.name());
        let core = limiter.local_ref();
        let bound = &core.policies[core.find(name)?];
        if !bound.is_ban() {
            let policies = vec![bound.policy.shared_name()];
            return Err(CallError::NotABan { policies });
        }
        let is_named = |bound: &BoundPolicy| bound.is_ban() && bound.policy.name() == name;
        limiter.blocks_under(max, is_named).await
    }

    /// Reads a key as operators write it: what [`key_text`](Self::key_text) returns, or any text that [`key`](Self::key) takes.
    ///
    /// `hash:` and 20 characters are the key of that hash, and `key:` and a key's text in the store is that key. Parts of a tuple
    /// have `+` between them. Any other text is read as in a request, by [`key`](Self::key), or by [`Key::new`] if code of the
    /// application makes the keys. For the text of a request use `key`: a client could send another client's hash.
    ///
    /// ```
    /// use tollgate::{Key, Limiter, Policy, Quota, extract};
    ///
    /// let policy = Policy::new("daily", Quota::requests(100).per_day()).key(extract::header("x-api-key"));
    /// let limiter = Limiter::builder().policy(policy).build()?;
    /// let daily = limiter.policy("daily")?;
    /// let key = daily.parse_key("sk_live_abc").ok_or("no key")?;
    /// assert_eq!(daily.key_text(&key), "hash:7lEM2SSxGPnYHjFZP0wx");
    /// assert_eq!(daily.parse_key("hash:7lEM2SSxGPnYHjFZP0wx"), Some(key));
    /// assert_eq!(daily.parse_key("key:tenant-7+/ocr"), Some(Key::tuple(["tenant-7", "/ocr"].map(Key::new))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse_key(&self, text: &str) -> Option<Key> {
        self.policy().ok()?.parse_key(text)
    }

    /// The text of a key for operators, which [`parse_key`](Self::parse_key) reads: `hash:` and the hash of a key that is hashed,
    /// the key's own text if requests under this policy can have that key, or else `key:` and the key's text in the store.
    pub fn key_text(&self, key: &Key) -> String {
        match self.policy() {
            Ok(policy) => policy.key_text(key),
            Err(_) => stored_text(key),
        }
    }
}

/// Keys that are blocked: from [`Limiter::blocks`]. Ordered by policy, then by the end of the ban.
#[derive(Clone, Debug)]
pub struct Blocks {
    blocks: Vec<Block>,
    incomplete: Option<Incomplete>,
}

impl Blocks {
    /// Whether these are all.
    pub fn is_complete(&self) -> bool {
        self.incomplete.is_none()
    }

    /// Why these are not all, if they are not: there are more than were asked for, or the search ended early.
    pub fn incomplete(&self) -> Option<Incomplete> {
        self.incomplete
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether no key was found.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The keys.
    pub fn iter(&self) -> slice::Iter<'_, Block> {
        self.blocks.iter()
    }
}

impl IntoIterator for Blocks {
    type Item = Block;
    type IntoIter = vec::IntoIter<Block>;

    fn into_iter(self) -> Self::IntoIter {
        self.blocks.into_iter()
    }
}

impl<'a> IntoIterator for &'a Blocks {
    type Item = &'a Block;
    type IntoIter = slice::Iter<'a, Block>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// A key that a ban blocks: from [`Limiter::blocks`].
#[derive(Clone, Debug)]
pub struct Block {
    policy: PolicyHandle,
    key: Key,
    ends_at: Timestamp,
    ends_in: Duration,
}

impl Block {
    /// The name of the policy, a [ban](crate::Ban).
    pub fn policy(&self) -> &str {
        self.policy.name()
    }

    /// The key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The key as operators write it: see [`PolicyHandle::key_text`].
    pub fn key_text(&self) -> String {
        self.policy.key_text(&self.key)
    }

    /// When the ban ends, by the store's clock as a wall clock.
    pub fn ends_at(&self) -> Timestamp {
        self.ends_at
    }

    /// How long the ban lasts from the time of the list on.
    pub fn ends_in(&self) -> Duration {
        self.ends_in
    }
}
