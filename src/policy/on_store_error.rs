//! What happens to a request when the store fails: in an outage, or because it is misconfigured.

use crate::{error::InvalidValue, quota::Quota};

/// What happens to a request in an outage of the store: for all policies of a limiter
/// ([`LimiterBuilder::on_store_error`](crate::limiter::LimiterBuilder::on_store_error)), or for one
/// ([`Policy::on_store_error`](crate::Policy::on_store_error)).
///
/// If one of a request's policies is set to `Reject`, the request is rejected. Otherwise the policies with a local fallback are
/// evaluated in process, all or nothing, and those set to `Admit` are not evaluated. The setting of a [shadow
/// policy](crate::Policy::shadow) has no effect.
///
/// Access lists are evaluated before all policies, also in an outage: a request on an [allow
/// list](crate::limiter::LimiterBuilder::allow) is admitted even if every policy rejects.
///
/// An outage is a call without a response, or an error that ends by itself, such as a [full](crate::StoreError::Full) store. For a
/// [misconfiguration](crate::StoreError::is_misconfiguration), [`OnMisconfiguration`] applies.
///
/// By default [`check`](crate::Limiter::check) and layers admit, and [`wait`](crate::Limiter::wait) and an
/// [`OutgoingLayer`](crate::OutgoingLayer) wait for the store to come back: until their timeout, after which they reject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreError {
    /// Admits the request without counting it, so that an outage of the store is no outage of the service. Set explicitly, it
    /// also admits outgoing calls, at once.
    #[default]
    Admit,
    /// Rejects the request with 503 Service Unavailable: for logins, and for work that costs money.
    Reject,
    /// Evaluates the request in process, by a share of the quota, and rejects it beyond that with 429 Too Many Requests.
    LocalFallback(LocalFallback),
}

/// What happens to a request when the store is [misconfigured](crate::StoreError::is_misconfiguration):
/// [`LimiterBuilder::on_misconfiguration`](crate::limiter::LimiterBuilder::on_misconfiguration).
///
/// A missing permission, a wrong password, a server that is too old, a cluster that is used as a single server, a foreign value
/// under a key or a missing runtime does not end by itself: a service that admitted requests meanwhile would have no limit. It
/// is logged as an error with its remedy, at most every ten seconds.
///
/// ```
/// use tollgate::{Limiter, Policy, Quota, limiter::OnMisconfiguration};
///
/// let limiter = Limiter::builder()
///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
///     // Requests pass as in an outage.
///     .on_misconfiguration(OnMisconfiguration::AsStoreError)
///     .build()?;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMisconfiguration {
    /// Rejects the request with 503 Service Unavailable.
    #[default]
    Reject,
    /// Handles the request as in an outage: as [`OnStoreError`] says.
    AsStoreError,
}

/// Limits in process while the store fails, by the same policies, each with a share of its quota.
///
/// The share is the quota divided by the number of processes, rounded up, and at least one unit; the burst is divided likewise,
/// and so are [quotas by request](crate::Policy::quota_with) and [in-flight limits](Quota::concurrent). A request that costs
/// more than the share is rejected until the store is back.
///
/// # What holds over which interval
///
/// A limiter counts its shares for as long as it lives, through all outages: they are not reset when the store is back. So in
/// any interval, whatever the number of outages in it, a process admits in process at most what the policy's
/// [strategy](crate::strategy) admits in that interval under the share: once the share in any period under
/// [`SlidingLog`](crate::SlidingLog), once in each window under [`FixedWindow`](crate::FixedWindow), and so on. All processes
/// together admit in process at most what the strategy admits under the sum of their shares. Shares are rounded up: where the
/// number of processes does not divide the quota, that is more than the quota, such as 4 requests in flight of 3 by two
/// processes. Choose a quota that divides where the limit is another service's.
///
/// Requests that the store admits before, between and after outages are counted in the store, in addition: a period with
/// outages has at most what the strategy admits under the quota and under all shares together. The store never counts what was
/// admitted in process.
///
/// Charges in process are refunded, renewed and settled in process. Each limiter counts them by itself: where a process has
/// several limiters over the same policies, count each as a process.
///
/// ```
/// use tollgate::{LocalFallback, OnStoreError, Policy, Quota, RateLimitLayer};
///
/// let layer = RateLimitLayer::builder()
///     // While the store fails, each of four processes admits 25 a minute,
///     .policy(Policy::new("read", Quota::requests(100).per_minute()))
///     // and logins are rejected.
///     .policy(
///         Policy::new("login", Quota::requests(5).per_minute())
///             .only_path("/login")
///             .on_store_error(OnStoreError::Reject),
///     )
///     .on_store_error(LocalFallback::shared_by(4))
///     .build()?;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalFallback {
    /// The number of processes that share the store; at least 1.
    processes: u32,
}

impl LocalFallback {
    /// A fallback with the share of one of `processes`, the number of processes that share the store. If fewer run, less is
    /// admitted while the store fails; if more run, more.
    ///
    /// Zero is a [`ConfigError`](crate::ConfigError) when the limiter is built.
    pub const fn shared_by(processes: u32) -> Self {
        Self { processes }
    }

    /// The share of one process of a quota.
    pub(crate) fn share(self, quota: Quota) -> Quota {
        let share = |units: u64| units.div_ceil(u64::from(self.processes.max(1)));
        let units = share(quota.amount());
        if quota.is_concurrent() {
            return Quota::concurrent(units);
        }
        let whole = Quota::requests(units).per(quota.period());
        match quota.capacity() {
            burst if burst == quota.amount() => whole,
            burst => whole.burst(share(burst)),
        }
    }
}

impl From<LocalFallback> for OnStoreError {
    fn from(fallback: LocalFallback) -> Self {
        Self::LocalFallback(fallback)
    }
}

impl OnStoreError {
    /// An error for a fallback that is shared by no process.
    pub(crate) fn validate(self) -> Result<(), InvalidValue> {
        match self {
            Self::LocalFallback(LocalFallback { processes: 0 }) => Err(InvalidValue::new(
                "a local fallback shared by 0 processes",
                "at least 1: as many as share the store",
            )
            .in_field("on_store_error.local_fallback.processes")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_up_and_so_is_its_burst() {
        for (quota, processes, share) in [
            ("100/min", 4, "25/min"),
            ("10/min", 4, "3/min"),
            ("1/day", 4, "1/day"),
            ("10/s burst 21", 4, "3/s burst 6"),
            ("10/s burst 1", 4, "3/s burst 1"),
            ("7 concurrent", 2, "4 concurrent"),
            ("100/min", 1, "100/min"),
        ] {
            let share: Quota = share.parse().expect(share);
            let quota = quota.parse().expect(quota);
            assert_eq!(LocalFallback::shared_by(processes).share(quota), share);
        }
    }
}
