//! What operators ask of a store.

use std::{
    future::{Future, ready},
    pin::Pin,
};

use super::{
    BlockedKeysFuture, HealthReport, LimitHandle, OverrideFuture, OverrideListFuture,
    OverrideTable, overrides::Override,
};
use crate::{error::StoreError, key::Key};

/// Operators' calls of a store: health checks, overrides, and lists of callers and blocked keys. From
/// [`Store::admin`](super::Store::admin).
///
/// No method is called on a request path. Dropping a future is harmless, except where a method says otherwise.
pub trait StoreAdmin: Send + Sync {
    /// Returns the callers whose charges under a key count now, oldest first, one for each unit; none if the rule doesn't
    /// [record them](crate::strategy::RuleInfo::records_caller). Changes nothing.
    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture;

    /// Returns up to `max` keys that these limits, which are bans, block now: those whose status is a wait. Changes nothing. It may
    /// look through all keys. Default: [`StoreError::Unsupported`].
    fn blocked_keys(&self, limits: &[LimitHandle], max: usize) -> BlockedKeysFuture {
        let _ = (limits, max);
        Box::pin(ready(Err(StoreError::Unsupported("listing blocked keys"))))
    }

    /// Returns the table of overrides in this process: the store keeps it up to date, and requests read it. Called when a limiter is
    /// built or reconfigured; each time it is the same table. See
    /// [`PolicyHandle::set_override`](crate::limiter::PolicyHandle::set_override). Default: `None`, for a store without overrides.
    fn overrides(&self) -> Option<&OverrideTable> {
        None
    }

    /// Sets (`Some`) or removes (`None`) the override of a key under the policy of that name: for all processes with this store,
    /// then in the [table](Self::overrides) of this one. Returns the override that was in force before. The limiter has
    /// checked that the policy can count by it. An override that has ended, or one more than the store may have, is an error.
    ///
    /// Dropping the future does not undo the change. Default: [`StoreError::Unsupported`].
    fn set_override(&self, policy: &str, key: &Key, setting: Option<Override>) -> OverrideFuture {
        let _ = (policy, key, setting);
        Box::pin(ready(Err(NO_OVERRIDES.into())))
    }

    /// Lists the overrides that have not ended, also those of policies that this process does not have. Default: those of the
    /// [table](Self::overrides), for a store in process; [`StoreError::Unsupported`] without one.
    fn list_overrides(&self) -> OverrideListFuture {
        let all = self.overrides().map(OverrideTable::all);
        Box::pin(ready(all.ok_or(NO_OVERRIDES.into())))
    }

    /// Checks whether the store can be reached and is configured correctly, and tries each limit under a key of its own, which it
    /// then removes. Default: a report without issues.
    fn health_check(&self, limits: &[LimitHandle]) -> HealthFuture {
        let _ = limits;
        Box::pin(ready(HealthReport::default()))
    }
}

/// The error of a store without overrides.
const NO_OVERRIDES: StoreError = StoreError::Unsupported("overrides");

/// A future of the callers under a key: see [`StoreAdmin::callers`].
pub type CallersFuture = Pin<Box<dyn Future<Output = Result<Vec<Key>, StoreError>> + Send>>;

/// A future of a store's health: see [`StoreAdmin::health_check`].
pub type HealthFuture = Pin<Box<dyn Future<Output = HealthReport> + Send>>;
