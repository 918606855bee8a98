//! Bans by hand.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    error::{CallError, StoreError},
    key::Key,
    limiter::{
        Limiter,
        core::{BoundPolicy, LimiterRef},
        keys::Keys,
    },
    store::{CounterOp, LimitHandle, Op, StoreResponse},
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
    /// limiter.unblock(mallory).await?;
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
    /// whatever [`OnStoreError`](crate::OnStoreError) says.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the key may or may not be blocked.
    pub async fn block(&self, keys: impl Into<Keys>, time: Duration) -> Result<(), CallError> {
        let limiter = self.local_ref();
        let manual_ban = |bound: &BoundPolicy| {
            const NO_BAN: StoreError =
                StoreError::Unsupported("blocking a key under this strategy");
            let rule = bound.limit.rule().manual_ban(time).ok_or(NO_BAN)?;
            let invalid = |_| {
                StoreError::Unsupported("a ban shorter than a millisecond or longer than ten years")
            };
            limiter
                .store
                .register(bound.policy.name(), rule.map_err(invalid)?)
                .map_err(invalid)
        };
        let keys = keys.into();
        let under = limiter.apply_to_bans(Op::ForceAcquire, &keys, manual_ban);
        let under = under.await?;
        limiter.report_manual_bans(&under, time);
        Ok(())
    }

    /// Ends the bans of a key in all processes, under every [ban](crate::Ban) or under the bans that `keys` name, and removes
    /// its counts of rejections and of earlier bans. Another process may reject the key from its cache for up to
    /// `RedisStoreBuilder::rejection_cache_staleness`.
    ///
    /// # Errors
    ///
    /// [`CallError`] if the store fails, a name is unknown, or none of the policies is a ban ([`NotABan`](CallError::NotABan)).
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the bans may or may not have ended.
    pub async fn unblock(&self, keys: impl Into<Keys>) -> Result<(), CallError> {
        let limit = |bound: &BoundPolicy| Ok(bound.limit.clone());
        let limiter = self.local_ref();
        limiter
            .apply_to_bans(Op::Reset, &keys.into(), limit)
            .await?;
        Ok(())
    }
}

impl LimiterRef {
    /// Returns the bans, and the key under each.
    async fn apply_to_bans(
        &self,
        op: Op,
        keys: &Keys,
        limit: impl Fn(&BoundPolicy) -> Result<LimitHandle, StoreError>,
    ) -> Result<SmallVec<[(u32, Key); 1]>, CallError> {
        for name in keys.names() {
            self.find(name)?;
        }
        let mut limits: SmallVec<[(LimitHandle, Key); 1]> = SmallVec::new();
        let mut under: SmallVec<[(u32, Key); 1]> = SmallVec::new();
        let bounds = (0..).zip(&self.policies);
        for (policy, bound) in bounds.filter(|(_, bound)| bound.is_ban()) {
            // A single key does not name a ban that counts all requests by a key of its own.
            let key = keys.of(bound.policy.name()).filter(|key| {
                keys.all().is_none() || bound.fixed_key.is_none_or(|fixed| fixed == **key)
            });
            if let Some(key) = key {
                limits.push((limit(bound)?, *key));
                under.push((policy, *key));
            }
        }
        if limits.is_empty() {
            let named = self.policies.iter().filter(|bound| !bound.is_ban());
            let named = named.map(|bound| &bound.policy);
            let named = named.filter(|policy| keys.of(policy.name()).is_some());
            let policies = named.map(|policy| policy.shared_name()).collect();
            return Err(CallError::NotABan { policies });
        }
        let counters = limits.iter();
        let counters = counters.map(|(limit, key)| CounterOp::new(limit, *key));
        let response = self
            .store
            .execute(op, &counters.collect::<SmallVec<[_; 1]>>());
        match response {
            StoreResponse::Ready(result) => result?,
            StoreResponse::Pending(result) => result.await?,
        };
        if op == Op::Reset {
            self.wait_queues.clear_rejections(self.generation, &under);
        }
        Ok(under)
    }
}
