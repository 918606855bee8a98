//! Lists of blocked keys.

use std::{slice, time::Duration, vec};

use tokio::task::coop::consume_budget;

use super::{Limiter, bound_policy::BoundPolicy, handle::PolicyHandle};
use crate::{
    clock::Timestamp,
    error::CallError,
    key::Key,
    store::{BlockedKey, Incomplete, LimitHandle},
};

/// Keys that are blocked: from [`Limiter::blocks`]. Ordered by policy, then by the end of the ban.
#[derive(Clone, Debug)]
pub struct Blocks {
    blocks: Vec<Block>,
    incomplete: Option<Incomplete>,
}

impl Blocks {
    /// The keys that are blocked under the bans that `concerns` selects.
    pub(super) async fn find(
        limiter: &Limiter,
        max: usize,
        concerns: impl Fn(&BoundPolicy) -> bool,
    ) -> Result<Self, CallError> {
        consume_budget().await;
        let core = limiter.local_ref();
        let policies = core.policies.iter().enumerate();
        let bans: Vec<_> = policies.filter(|(_, bound)| concerns(bound)).collect();
        if bans.is_empty() {
            return Ok(Self {
                blocks: Vec::new(),
                incomplete: None,
            });
        }
        let limits: Vec<LimitHandle> = bans.iter().map(|(_, bound)| bound.limit.clone()).collect();
        let mut found = core.store.blocked_keys(&limits, max).await?;
        found
            .keys
            .sort_by_key(|found| (found.limit, found.ends_at, found.key));
        let handle = |limit: &usize| {
            let (index, bound) = bans.get(*limit)?;
            Some(PolicyHandle::new(limiter, *index, bound))
        };
        let block = |found: BlockedKey| {
            Some(Block {
                policy: handle(&found.limit)?,
                key: found.key,
                ends_at: core.store.wall(found.ends_at),
                ends_in: found.ends_in,
            })
        };
        Ok(Self {
            blocks: found.keys.into_iter().filter_map(block).collect(),
            incomplete: found.incomplete,
        })
    }

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
