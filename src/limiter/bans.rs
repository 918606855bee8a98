//! Bans by hand: keys are blocked and unblocked, and blocked keys are listed.

use std::{slice, sync::Arc, time::Duration, vec};

use smallvec::SmallVec;
use tokio::task::coop::consume_budget;

use super::{
    adjust::reset,
    current::Limiter,
    decision::{Decision, LimitStatus},
    entry::Entry,
    keys::Keys,
    policy_set::{BoundPolicy, PolicySet},
};
use crate::{
    clock::Timestamp,
    error::{CallError, StoreError},
    key::Key,
    observe::Event,
    policy::Policy,
    store::{BlockedKey, CounterOp, Incomplete, LimitHandle, Op, Units},
    strategy::RetryAfter,
};

/// The end of a block by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockEnd {
    /// Replaces that of a ban in force.
    Set,
    /// The later of the two.
    Prolong,
}

/// Blocks the keys under the bans that they name.
pub(super) async fn block(
    set: &PolicySet,
    keys: &Keys,
    time: Duration,
    end: BlockEnd,
) -> Result<(), CallError> {
    let bans = bans_of(set, keys)?;
    let mut limits: SmallVec<[(LimitHandle, Key); 1]> = SmallVec::new();
    for (policy, key) in &bans {
        let limit = manual_ban(set, set.bound(*policy), time, end)?;
        limits.push((limit, *key));
    }
    let counters = limits
        .iter()
        .map(|(limit, key)| CounterOp::new(limit, *key));
    let counters: SmallVec<[CounterOp<'_>; 1]> = counters.collect();
    let result = set.store.execute(Op::Adjust, &counters).result().await?;
    let blocked = bans.iter().zip(&limits).zip(&result.counters);
    for (((policy, key), (limit, _)), counter) in blocked {
        let status = limit.status(&counter.snapshot, result.time_of(counter), Units::ONE);
        // A ban that was longer already goes on, and none begins.
        if end == BlockEnd::Set || status.retry_after <= RetryAfter::In(time) {
            set.listener.on_event(&Event::BanBegan {
                policy: set.bound(*policy).policy.name(),
                key,
                lasts: time,
                by_hand: true,
            });
        }
    }
    Ok(())
}

/// Ends the bans of the keys, and removes their counts of rejections. Returns the status before.
pub(super) async fn unblock(set: Arc<PolicySet>, keys: &Keys) -> Result<LimitStatus, CallError> {
    let mut status = Decision::begin(set.clone());
    for (policy, key) in bans_of(&set, keys)? {
        let role = set.bound(policy).role;
        let entry = Entry::new((policy, role), key, 1, None, None);
        status.entries.push(entry);
    }
    reset(&mut status).await?;
    LimitStatus::of(status)
}

/// The bans that the keys name, with the key of each.
fn bans_of(set: &PolicySet, keys: &Keys) -> Result<SmallVec<[(u32, Key); 1]>, CallError> {
    for name in keys.names() {
        set.find(name)?;
    }
    let mut bans: SmallVec<[(u32, Key); 1]> = SmallVec::new();
    for entry in keys.entries().unwrap_or_default() {
        let index = set.index_of(entry)? as u32;
        if set.bound(index).is_ban() {
            bans.push((index, entry.key));
        }
    }
    bans.sort_unstable();
    bans.dedup();
    if keys.entries().is_none() {
        for (index, bound) in (0..).zip(&set.policies) {
            // A single key does not name a ban that counts all requests by a key of its own.
            let is_of_all = |key: &&Key| bound.fixed_key.is_some_and(|fixed| fixed != **key);
            let key = keys.of(bound.policy.name());
            let key = key.filter(|key| keys.all().is_none() || !is_of_all(key));
            if let (true, Some(key)) = (bound.is_ban(), key) {
                bans.push((index, *key));
            }
        }
    }
    if bans.is_empty() {
        let others = set.policies.iter().filter(|bound| !bound.is_ban());
        let named = others.filter(|bound| keys.of(bound.policy.name()).is_some());
        let policies = named.map(|bound| bound.policy.shared_name()).collect();
        return Err(CallError::NotABan { policies });
    }
    Ok(bans)
}

/// The limit by which a ban of so long is written.
fn manual_ban(
    set: &PolicySet,
    bound: &BoundPolicy,
    time: Duration,
    end: BlockEnd,
) -> Result<LimitHandle, StoreError> {
    const NO_BAN: StoreError = StoreError::Unsupported("blocking a key under this strategy");
    const NO_TIME: StoreError =
        StoreError::Unsupported("a ban shorter than a millisecond or longer than ten years");
    let rule = match end {
        BlockEnd::Set => bound.limit.rule().manual_ban(time),
        BlockEnd::Prolong => bound.limit.rule().prolonged_ban(time),
    };
    let rule = rule.ok_or(NO_BAN)?.map_err(|_| NO_TIME)?;
    let registered = set.store.register(bound.policy.name(), rule);
    registered.map_err(|_| NO_TIME)
}

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
        let set = limiter.policy_set();
        let policies = set.policies.iter().enumerate();
        let bans: Vec<_> = policies.filter(|(_, bound)| concerns(bound)).collect();
        if bans.is_empty() {
            return Ok(Self {
                blocks: Vec::new(),
                incomplete: None,
            });
        }
        let limits: Vec<LimitHandle> = bans.iter().map(|(_, bound)| bound.limit.clone()).collect();
        let mut found = set.admin()?.blocked_keys(&limits, max).await?;
        found
            .keys
            .sort_by_key(|found| (found.limit, found.ends_at, found.key));
        let block = |found: BlockedKey| {
            let (_, bound) = bans.get(found.limit)?;
            Some(Block {
                policy: bound.policy.clone(),
                key: found.key,
                ends_at: set.store.wall(found.ends_at),
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
    policy: Policy,
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

    /// The key as operators write it: see [`PolicyHandle::key_text`](crate::limiter::PolicyHandle::key_text).
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
