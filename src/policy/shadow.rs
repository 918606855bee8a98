//! Policies that are evaluated and not enforced.

use std::sync::Arc;

use super::Policy;

impl Policy {
    /// Evaluates this policy without enforcing it: a request that it would reject is not rejected by it, and its result is
    /// among the decision's [shadows](crate::Decision::shadows). It charges the requests that it would admit, as if it were
    /// enforced. Responses don't mention it, and it is skipped for a request without a key.
    /// [`Limiter::shadow_stats`](crate::Limiter::shadow_stats) counts how often it would have changed the decision.
    ///
    /// ```
    /// use tollgate::{Key, Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("live", Quota::requests(100).per_minute()))
    ///     .policy(Policy::new("stricter", Quota::requests(1).per_minute()).shadow())
    ///     .build()?;
    /// for _ in 0..3 {
    ///     assert!(limiter.check(Key::new("alice")).await.is_admitted());
    /// }
    /// let stats = limiter.shadow_stats("stricter").unwrap();
    /// assert_eq!((stats.evaluated, stats.stricter, stats.looser), (3, 2, 0));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.settings.shadow = Some(true);
        self.settings.shadow_of = None;
        self
    }

    /// Makes this policy a candidate for the policy named `live`: a [`shadow`](Policy::shadow) that is evaluated in place of
    /// the live policy. It charges the requests that it would admit, also where the live policy rejects them, and may be looser
    /// as well as stricter.
    ///
    /// Unless set on the candidate, these are the live policy's: key, [`missing_key`](Policy::missing_key), cost,
    /// [`caller`](Policy::caller), [`label_with`](Policy::label_with), strategy, and [conditions](Policy::skip_path), all of them or none. Its quota,
    /// [`quota_with`](Policy::quota_with), [`quota_lookup`](Policy::quota_lookup) and [when it charges](Policy::charge_after)
    /// are its own. A key or cost that a call by hand sets for the live policy applies to the candidate too, unless the call
    /// names the candidate.
    ///
    /// ```
    /// use http::Request;
    /// use tollgate::{Limiter, Policy, Quota, extract};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(
    ///         Policy::new("tokens", Quota::units(1_000).per_minute())
    ///             .key(extract::bearer())
    ///             .cost_with(|parts| if parts.method == "POST" { 10 } else { 1 }),
    ///     )
    ///     // By the same key, at the same cost.
    ///     .policy(Policy::new("tokens-next", Quota::units(500).per_minute()).shadow_of("tokens"))
    ///     .build()?;
    /// let request = Request::post("/").header("authorization", "Bearer sk_1").body(())?;
    /// let status = limiter.peek_request(&request.into_parts().0).await?;
    /// let (live, next) = (status.policy("tokens").unwrap(), status.policy("tokens-next").unwrap());
    /// assert_eq!((next.key(), next.cost()), (live.key(), 10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Promoting a candidate
    ///
    /// [`Limiter::shadow_stats`](crate::Limiter::shadow_stats) counts in one process, from its start; to sum over processes,
    /// count the [`shadows`](crate::Decision::shadows) of each [`Decision`](crate::Decision) that
    /// [`would_reject`](crate::limiter::PolicyDecision::would_reject). To promote the candidate, set its quota on the live policy and
    /// remove the candidate: counts belong to the policy's name, so those of the live policy stay ([how they are
    /// read](crate::strategy#changing-a-live-policy)).
    ///
    /// # Equal requests
    ///
    /// Equal requests may be evaluated together: in one call, by [`times`](crate::limiter::Check::times), or merged on their way to
    /// Redis. Where the live policy rejects some of them, the candidate charges as many as it and the other policies have room
    /// for.
    #[must_use]
    pub fn shadow_of(mut self, live: impl Into<Arc<str>>) -> Self {
        self.settings.shadow_of = Some(live.into().as_ref().to_owned());
        self.settings.shadow = None;
        self
    }

    /// Whether it is evaluated and not enforced.
    pub(crate) fn is_shadow(&self) -> bool {
        self.settings.shadow == Some(true) || self.settings.shadow_of.is_some()
    }

    /// The name of the policy that this one is a candidate for.
    pub(crate) fn live_policy(&self) -> Option<&str> {
        self.settings.shadow_of.as_deref()
    }

    /// Takes the settings that are not set on this candidate from the live policy.
    pub(crate) fn inherit(&mut self, live: &Self) {
        let in_flight = [&*self, live].map(|policy| policy.quota().is_concurrent());
        let (own, live) = (&mut self.settings, &live.settings);
        if own.key.is_none() && own.by_hand != Some(true) {
            own.key = live.key.clone();
            own.missing_key = own.missing_key.or(live.missing_key);
            own.by_hand = live.by_hand;
        }
        if own.cost.is_none() {
            own.cost = live.cost.clone();
        }
        if own.caller.is_none() {
            own.caller = live.caller.clone();
        }
        if own.label_with.is_none() {
            own.label_with = live.label_with.clone();
        }
        // In-flight limits and block lists have strategies of their own.
        if own.strategy.is_none() && own.block_list != Some(true) && in_flight[0] == in_flight[1] {
            own.strategy = live.strategy.clone();
        }
        if own.skip.is_empty() && own.only.is_empty() {
            own.skip = live.skip.clone();
            own.only = live.only.clone();
        }
    }
}
