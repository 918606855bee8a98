//! Replacing the policies of a limiter while it runs.

use std::sync::PoisonError;

use super::{Limiter, builder::LimiterBuilder, core::LimiterRefs};
use crate::{changes::Changes, error::ConfigError, setting::Setting};

impl Limiter {
    /// Replaces the policies, access lists and other settings by those of `builder`, for the limiter, its clones, and all layers
    /// over it. [`Changes`] says what has changed, policy by policy, and what becomes of the counts: see [changing a live
    /// policy](crate::strategy#changing-a-live-policy).
    ///
    /// All is replaced at once: a request is decided under the old settings or under the new ones, and each [`check`](Limiter::check)
    /// that is created after the return is decided under the new ones. Requests that are decided already finish under the old ones: their
    /// permits, settlements and refunds too. Those that [wait](Limiter::wait) are decided, and wait, under the new ones, until
    /// their own timeout.
    ///
    /// The store stays, with its connections, circuit breaker and counts, so `builder` needs none. What is kept of a policy
    /// that has not changed: its cached rejections, its local [fallback](crate::LocalFallback)'s counts, and its
    /// [shadow statistics](Limiter::shadow_stats). Charges that wait to be [written
    /// back](crate::LocalFallback::write_back) are written back.
    ///
    /// ```
    /// use tollgate::{Limiter, Policy, Quota};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let limiter = Limiter::builder()
    ///     .policy(Policy::new("api", Quota::requests(10).per_minute()))
    ///     .build()?;
    /// assert!(limiter.check("alice").times(5).await.is_admitted());
    /// let api = Policy::new("api", Quota::requests(20).per_minute());
    /// let changes = limiter.reconfigure(Limiter::builder().policy(api))?;
    /// println!("{changes}");
    /// // The used share stays.
    /// assert_eq!(limiter.peek("alice").await?.policy("api").unwrap().remaining(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Calls from several threads are made one after the other. The call does not block on the store, and needs no runtime.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] as by [`build`](LimiterBuilder::build), or if `builder` has another store. Nothing is changed then.
    pub fn reconfigure(&self, builder: LimiterBuilder) -> Result<Changes, ConfigError> {
        self.replace(builder, <[Vec<Setting>; 2]>::default, |_| ())
    }

    /// Replaces the policies. `layer_settings` returns the settings of a layer before and after, and `publish` puts the latter
    /// in force with the new policies, which it does just before these are in force for others.
    pub(crate) fn replace<T>(
        &self,
        builder: LimiterBuilder<T>,
        layer_settings: impl FnOnce() -> [Vec<Setting>; 2],
        publish: impl FnOnce(&LimiterRefs),
    ) -> Result<Changes, ConfigError> {
        let replacing = self.shared.replacing.lock();
        let _replacing = replacing.unwrap_or_else(PoisonError::into_inner);
        let old = self.local_ref();
        let new = LimiterRefs::of(builder.build_core(Some(old.core()))?);
        let new_core = new.first().core().clone();
        let [before, after] = layer_settings();
        let changes = Changes::between(old.policies(), new_core.policies())
            .with_settings(&old.settings(), &new_core.settings())
            .with_settings(&before, &after);
        self.report_policies(&new_core);
        // From here on nothing calls code of the application.
        publish(&new);
        self.shared.refs.replace(new);
        old.permit_ttl_in_force.send_replace(new_core.permit_ttl);
        old.wait_queues.replaced_by(new_core.generation);
        Ok(changes)
    }
}
