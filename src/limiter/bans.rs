//! Bans by hand, and reports of the bans that begin. How rejections are counted and bans grow is in `strategy/ban.rs`.

use std::{
    slice,
    sync::{Arc, Mutex},
    time::Duration,
    vec,
};

use smallvec::SmallVec;
use tokio::task::coop::consume_budget;

use super::{
    Limiter,
    bound_policy::BoundPolicy,
    check::CheckOutput,
    core::LimiterRef,
    decide::{DecisionBuilder, PendingDecision},
    entry::PolicyRole,
    handle::PolicyHandle,
    keys::Keys,
    mode::Mode,
    policy_decision::LimitStatus,
    resolve::RequestQuota,
};
use crate::{
    clock::Timestamp,
    error::{CallError, StoreError, UnknownPolicy},
    key::Key,
    observe::{DecisionSource, Event},
    store::{BlockedKey, CounterOp, Incomplete, LimitHandle, Op, OpResult, Units},
    strategy::RetryAfter,
    sync::lock,
};

/// What a block by hand does to the end of a ban in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockEnd {
    /// It is replaced.
    Set,
    /// It becomes the later of both.
    Prolong,
}

impl LimiterRef {
    /// Blocks a key, or prolongs its block: see [`Limiter::block`](crate::Limiter::block) and
    /// [`prolong_block`](crate::Limiter::prolong_block).
    pub(super) async fn block(
        &self,
        keys: Keys,
        time: Duration,
        end: BlockEnd,
    ) -> Result<(), CallError> {
        let bans = self.bans_of(&keys)?;
        let limits = bans.iter().map(|(policy, key)| {
            let limit = self.manual_ban(self.bound(*policy), time, end)?;
            Ok((limit, *key))
        });
        let limits: SmallVec<[(LimitHandle, Key); 1]> =
            limits.collect::<Result<_, StoreError>>()?;
        let counters = limits.iter();
        let counters = counters.map(|(limit, key)| CounterOp::new(limit, *key));
        let counters: SmallVec<[CounterOp<'_>; 1]> = counters.collect();
        let response = self.store.execute(Op::Adjust, &counters);
        let result = response.result().await?;
        // A ban that was longer already goes on, and none begins.
        let begun = bans.into_iter().zip(&limits).zip(&result.counters);
        let begun = begun.filter(|((_, (limit, _)), counter)| {
            let status = limit.status(&counter.snapshot, result.time_of(counter), Units::ONE);
            end == BlockEnd::Set || status.retry_after <= RetryAfter::In(time)
        });
        self.report_manual_bans(begun.map(|((ban, _), _)| ban), time);
        Ok(())
    }

    /// Ends the bans of a key: see [`Limiter::unblock`](crate::Limiter::unblock).
    pub(super) async fn unblock(self: Arc<Self>, keys: Keys) -> Result<LimitStatus, CallError> {
        let mut builder = DecisionBuilder::new(Op::Reset, Mode::BY_HAND);
        for (policy, key) in self.bans_of(&keys)? {
            let bound = self.bound(policy);
            let cost = bound.cost_of(None);
            self.add_entry(
                &mut builder,
                (policy as usize, bound),
                key,
                cost,
                None,
                RequestQuota::Own,
            );
        }
        let decision = match self.call_store(&mut builder) {
            None => builder.finish(self),
            Some(stage) => PendingDecision::new(self, builder, stage).await,
        };
        Result::from_decision(decision)
    }

    /// The bans that a call is about, by index, and the key under each.
    fn bans_of(&self, keys: &Keys) -> Result<SmallVec<[(u32, Key); 1]>, CallError> {
        for name in keys.names() {
            self.find(name)?;
        }
        let entries = keys.entries().unwrap_or_default();
        let entries = entries
            .iter()
            .map(|entry| Ok((self.index_of(entry)? as u32, entry.key)));
        let mut entries: Vec<_> = entries.collect::<Result<_, UnknownPolicy>>()?;
        entries.sort_unstable();
        entries.dedup();
        let bounds = (0..).zip(&self.policies);
        let bans = bounds.filter(|(_, bound)| bound.is_ban());
        let bans = bans.filter_map(|(policy, bound)| {
            // A single key does not name a ban that counts all requests by a key of its own.
            let key = keys.of(bound.policy.name()).filter(|key| {
                keys.all().is_none() || bound.fixed_key.is_none_or(|fixed| fixed == **key)
            });
            Some((policy, *key?))
        });
        let bans: SmallVec<[_; 1]> = match keys.entries() {
            Some(_) => entries
                .into_iter()
                .filter(|(policy, _)| self.bound(*policy).is_ban())
                .collect(),
            None => bans.collect(),
        };
        if bans.is_empty() {
            let named = self.policies.iter().filter(|bound| !bound.is_ban());
            let named = named.map(|bound| &bound.policy);
            let named = named.filter(|policy| keys.of(policy.name()).is_some());
            let policies = named.map(|policy| policy.shared_name()).collect();
            return Err(CallError::NotABan { policies });
        }
        Ok(bans)
    }

    /// The limit of a ban whose every charge bans a key for `time`.
    fn manual_ban(
        &self,
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
        let rule = rule.ok_or(NO_BAN)?;
        let rule = rule.map_err(|_| NO_TIME)?;
        let registered = self.store.register(bound.policy.name(), rule);
        registered.map_err(|_| NO_TIME)
    }

    /// Reports the bans that began with a request, or with a charge of rejections.
    pub(crate) fn report_bans_begun(&self, builder: &DecisionBuilder, result: &OpResult) {
        let Some(observers) = &self.observers else {
            return;
        };
        if !matches!(builder.op, Op::Acquire(_) | Op::Adjust)
            || result.source != DecisionSource::Store
        {
            return;
        }
        let counted = builder.entries.iter().zip(&result.counters);
        for (entry, counter) in counted.filter(|(entry, _)| entry.role == PolicyRole::Ban) {
            let (bound, at) = (self.bound(entry.policy), result.time_of(counter));
            let begun = self.limit(entry).rule().ban_begun(&counter.snapshot, at);
            if let Some(lasts) = begun.filter(|_| bound.bans_begun.add(entry.key, at)) {
                observers.on_event(&Event::BanBegan {
                    policy: bound.policy.name(),
                    key: &entry.key,
                    lasts,
                    by_hand: false,
                });
            }
        }
    }

    /// Reports bans that were begun by hand.
    fn report_manual_bans(&self, bans: impl Iterator<Item = (u32, Key)>, lasts: Duration) {
        let Some(observers) = &self.observers else {
            return;
        };
        for (policy, key) in bans {
            observers.on_event(&Event::BanBegan {
                policy: self.bound(policy).policy.name(),
                key: &key,
                lasts,
                by_hand: true,
            });
        }
    }
}

/// How many recent bans are kept. Equal requests that were rejected by one call of the store see the same ban begin.
const MAX_RECENT: usize = 64;

/// The bans that have begun last under one policy.
#[derive(Debug, Default)]
pub(crate) struct RecentBans(Mutex<Vec<(Key, Timestamp)>>);

impl RecentBans {
    /// Adds a ban; returns false if it is among them.
    pub(crate) fn add(&self, key: Key, began: Timestamp) -> bool {
        let mut recent = lock(&self.0);
        if recent.contains(&(key, began)) {
            return false;
        }
        if recent.len() >= MAX_RECENT {
            recent.remove(0);
        }
        recent.push((key, began));
        true
    }
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
        let mut found = core.admin()?.blocked_keys(&limits, max).await?;
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
