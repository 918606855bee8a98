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

/// What operators ask of a store: its health, the callers and the blocked keys that it has recorded, and overrides. From
/// [`Store::admin`](super::Store::admin).
///
/// Nothing is called on request paths. Dropping a future is harmless, except where a method says otherwise.
pub trait StoreAdmin: Send + Sync {
    /// Returns the callers whose charges under a key count now, oldest first, one for each unit; none if the rule doesn't
    /// [record them](crate::strategy::RuleInfo::records_caller). Charges nothing.
    fn callers(&self, limit: &LimitHandle, key: &Key) -> CallersFuture;

    /// Returns up to `max` keys that these limits block now: the keys of bans whose status is a wait. Charges nothing, and changes
    /// nothing. It may look through all keys. Default: [`StoreError::Unsupported`].
    fn blocked_keys(&self, limits: &[LimitHandle], max: usize) -> BlockedKeysFuture {
        let _ = (limits, max);
        Box::pin(ready(Err(StoreError::Unsupported("listing blocked keys"))))
    }

    /// Returns the overrides that this process knows, which the store keeps up to date: see
    /// [`PolicyHandle::set_override`](crate::limiter::PolicyHandle::set_override). It is called when a limiter is built or
    /// reconfigured, and returns the same table each time, which requests read. Default: `None`, for a store without overrides.
    fn overrides(&self) -> Option<&OverrideTable> {
        None
    }

    /// Sets (`Some`) or removes (`None`) the override of a key under the policy of that name, for all processes with this store,
    /// and then in the [table](Self::overrides) of this one. Returns the override that was in force before. The limiter has
    /// checked that the policy can count it. One that has ended already, or one more than the store may have, is an error.
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

    /// Checks whether the store is reachable and correctly configured, and tries each limit under a key of its own, which it
    /// removes again. Default: a report without issues.
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
