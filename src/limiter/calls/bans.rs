//! Bans by hand.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    error::{CallError, StoreError},
    key::Key,
    limiter::{
        Limiter,
        check::CheckOutput,
        core::{BoundPolicy, LimiterRef},
        evaluate::decision_builder::{DecisionBuilder, PendingDecision},
        keys::Keys,
        status::LimitStatus,
    },
    store::{CounterOp, LimitHandle, Op},
};

impl Limiter {
    /// Blocks a key for `time` from now on, in all processes, under every [ban](crate::Ban), or under the bans that `keys`
    /// name. A ban by [`extract::global`](crate::extract::global), which would block all requests, has to be named. Replaces a
    /// ban in force, also a longer one, and does not count towards the doubling of later ones.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Ban, Key, Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let ban = Ban::for_duration(Duration::from_secs(600));
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
    ///     .policy(Policy::new("abuse", Quota::requests(20).per_minute()).strategy(ban))
    ///     .build()?;
    /// let mallory = Key::new("mallory");
    /// limiter.block(mallory, Duration::from_secs(3_600)).await?;
    /// assert!(!limiter.check(mallory).await.is_admitted());
    /// let before = limiter.unblock(mallory).await?;
    /// assert!(!before.would_admit());
    /// assert!(limiter.check(mallory).await.is_admitted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, a name is unknown, or none of the policies is a ban ([`NotABan`](CallError::NotABan));
    /// [`StoreError::Unsupported`] in it if `time` is not between a millisecond and ten years. A store error is returned
    /// whatever [`OnStoreError`](crate::OnStoreError) says. After [`StoreError::Deferred`] the key is blocked once the store
    /// responds.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the key may or may not be blocked.
    pub async fn block(&self, keys: impl Into<Keys>, time: Duration) -> Result<(), CallError> {
        let (limiter, keys) = (self.local_ref(), keys.into());
        let bans = limiter.bans_of(&keys)?;
        let limits = bans.iter().map(|(policy, key)| {
            let limit = limiter.manual_ban(limiter.bound(*policy), time)?;
            Ok((limit, *key))
        });
        let limits: SmallVec<[(LimitHandle, Key); 1]> =
            limits.collect::<Result<_, StoreError>>()?;
        let counters = limits.iter();
        let counters = counters.map(|(limit, key)| CounterOp::new(limit, *key));
        let counters: SmallVec<[CounterOp<'_>; 1]> = counters.collect();
        let response = limiter.store.execute(Op::ForceAcquire, &counters);
        response.result().await?;
        limiter.report_manual_bans(&bans, time);
        Ok(())
    }

    /// Ends the bans of a key in all processes, under every [ban](crate::Ban) or under the bans that `keys` name, and removes
    /// its counts of rejections and of earlier bans. Another process may reject the key from its cache for up to
    /// `RedisStoreBuilder::rejection_cache_staleness`.
    ///
    /// Returns the status before, under each of these bans, as the store had it when it ended them: if it
    /// [would admit](LimitStatus::would_admit) a request, no ban was in force.
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, a name is unknown, or none of the policies is a ban ([`NotABan`](CallError::NotABan)).
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the bans may or may not have ended.
    pub async fn unblock(&self, keys: impl Into<Keys>) -> Result<LimitStatus, CallError> {
        let limiter = self.local_ref();
        let mut builder = DecisionBuilder::of_call(Op::Reset, None);
        for (policy, key) in limiter.bans_of(&keys.into())? {
            let bound = limiter.bound(policy);
            let cost = bound.cost_of(None);
            limiter.add_entry(
                &mut builder,
                (policy as usize, bound),
                key,
                cost,
                None,
                None,
            );
        }
        let decision = match limiter.call_store(&mut builder) {
            None => builder.finish(limiter),
            Some(stage) => PendingDecision::new(limiter, builder, stage).await,
        };
        Result::from_decision(decision)
    }
}

impl LimiterRef {
    /// The bans that a call is about, by index, and the key under each.
    fn bans_of(&self, keys: &Keys) -> Result<SmallVec<[(u32, Key); 1]>, CallError> {
        for name in keys.names() {
            self.find(name)?;
        }
        let bounds = (0..).zip(&self.policies);
        let bans = bounds.filter(|(_, bound)| bound.is_ban());
        let bans = bans.filter_map(|(policy, bound)| {
            // A single key does not name a ban that counts all requests by a key of its own.
            let key = keys.of(bound.policy.name()).filter(|key| {
                keys.all().is_none() || bound.fixed_key.is_none_or(|fixed| fixed == **key)
            });
            Some((policy, *key?))
        });
        let bans: SmallVec<[_; 1]> = bans.collect();
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
    fn manual_ban(&self, bound: &BoundPolicy, time: Duration) -> Result<LimitHandle, StoreError> {
        const NO_BAN: StoreError = StoreError::Unsupported("blocking a key under this strategy");
        const NO_TIME: StoreError =
            StoreError::Unsupported("a ban shorter than a millisecond or longer than ten years");
        let rule = bound.limit.rule().manual_ban(time).ok_or(NO_BAN)?;
        let rule = rule.map_err(|_| NO_TIME)?;
        let registered = self.store.register(bound.policy.name(), rule);
        registered.map_err(|_| NO_TIME)
    }
}
