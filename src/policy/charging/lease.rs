//! Leases of a policy.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{policy::Policy, setting::values::duration, strategy::Lease};

impl Policy {
    /// Lets each process lease units of hot keys: it charges them in the store before they are needed, in the same batches as
    /// everything else, and admits requests by them in process. Default: no leases.
    ///
    /// A request that a lease admits takes well under a microsecond, and no call of Redis: one call charges the units of
    /// many requests, 250 at 10,000 per second with a TTL of 50 ms. The quota still holds exactly. A unit is charged before a request is admitted by it, and spent
    /// within the lease's [TTL](Lease::ttl), or not at all; the documentation of each strategy says what that means for the quota.
    /// Unlike limiters that count locally and synchronize later, leases cannot exceed the quota.
    ///
    /// - **Which requests**: those of a key that has at least 100 requests per second in this process, or 4 per TTL if that is more
    ///   (400 per second with a TTL of 10 ms), if each of their policies has leases or is a [ban](crate::Ban). On a
    ///   [cluster](crate::store::RedisStoreBuilder::cluster) the request's keys must be in one slot. All others are counted one by one, and so
    ///   is a request that costs more than each of the held leases has left.
    /// - **Size**: the units that the key's requests in this process use in half a TTL, under each policy. At most
    ///   [`Lease::max_units`], and at most a quarter of the process's share of what remains, by an estimate of how many processes charge
    ///   the key. So the last units of a quota are charged one by one, by the processes that need them. Together, a key's leases hold
    ///   at most what its requests use in 5/8 of a TTL, and no more than four times
    ///   [`Lease::max_units`]. From 200,000 requests per second in this process, each of
    ///   up to 16 groups of threads has leases of its own, as if it were a process.
    /// - **What is left** when traffic stops is refunded within the TTL. If a process is killed, or the reply with a lease is lost, its
    ///   units lapse: they can be used again when they have refilled.
    /// - **[`remaining`](crate::limiter::PolicyDecision::remaining)** is the store's number at its last response plus what this process holds, or
    ///   this group of threads. Units that others hold count as used, as in [`Limiter::peek`](crate::Limiter::peek).
    /// - **[`Limiter::reset`](crate::Limiter::reset), [`block`](crate::Limiter::block) and bans** take effect in other processes within
    ///   the TTL. After a reset, or a restart that loses counts, what was leased before is spent in addition to the fresh quota: at
    ///   most one more burst.
    /// - **When the store fails**, leases are spent first; then [`on_store_error`](Policy::on_store_error) applies.
    ///
    /// Under [`Gcra`](crate::Gcra) and [`TokenBucket`](crate::TokenBucket) the burst is smaller by what refills within a TTL, in
    /// headers too: 100 per second with leases of 50 ms have a burst of 94. While processes of the same policy without leases
    /// still run, that many more units may be admitted in a burst.
    ///
    /// A [quota of a request](Policy::quota_with) whose burst is at most what refills within a TTL, rounded up to whole units,
    /// such as one per minute, is counted without leases. A declared quota ([`tier_quotas`](Policy::tier_quotas)) of this kind is an
    /// error.
    ///
    /// A [`MemoryStore`](crate::MemoryStore) needs no leases and makes none, but counts by the same burst.
    ///
    /// These are a [`ConfigError`](crate::ConfigError) when the limiter is built:
    ///
    /// - [`max_units`](Lease::max_units) or a [TTL](Lease::ttl) out of range;
    /// - a strategy that can't be leased: [`Concurrency`](crate::Concurrency), [`Ban`](crate::Ban);
    /// - leases together with [`charge_rejected`](Policy::charge_rejected) or [`charge_after`](Policy::charge_after), or of a
    ///   [shadow policy](Policy::shadow);
    /// - a burst that is at most what refills within a TTL, rounded up to whole units;
    /// - a [`SlidingLog`](crate::SlidingLog) with a TTL above a hundredth of its period.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Lease, Limiter, Policy, Quota, extract};
    ///
    /// let limiter = Limiter::builder()
    ///     .policy(
    ///         Policy::new("tenant", Quota::requests(10_000).per_second())
    ///             .key(extract::header("x-tenant"))
    ///             .lease(Lease::max_units(64).ttl(Duration::from_millis(50))),
    ///     )
    ///     .build()?;
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn lease(mut self, lease: Lease) -> Self {
        self.settings.lease = Some(lease);
        self
    }

    /// The settings of its leases.
    pub(crate) fn lease_setting(&self) -> Option<&Lease> {
        self.settings.lease.as_ref()
    }

    /// The policy without leases.
    pub(crate) fn without_lease(mut self) -> Self {
        self.settings.lease = None;
        self
    }
}

/// A lease as a document has it: the units of a hot key that a process charges ahead of need.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct LeaseForm {
    /// The most units of one lease, from 2 to 1,000,000.
    #[cfg_attr(feature = "config-schema", schemars(range(min = 2, max = 1_000_000)))]
    max_units: u64,
    /// For how long the units of a lease may be spent, such as `"50ms"`: from 5 ms to 10 s. Default: 50 ms.
    #[serde(default, with = "duration", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "config-schema",
        schemars(with = "Option<crate::setting::values::DurationSchema>")
    )]
    ttl: Option<Duration>,
}

impl Serialize for Lease {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = LeaseForm {
            max_units: self.most(),
            ttl: Some(self.lifetime()),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Lease {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let LeaseForm { max_units, ttl } = LeaseForm::deserialize(deserializer)?;
        let lease = Self::max_units(max_units);
        Ok(ttl.map_or(lease, |ttl| lease.ttl(ttl)))
    }
}

#[cfg(feature = "config-schema")]
impl schemars::JsonSchema for Lease {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Lease".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        LeaseForm::json_schema(generator)
    }
}
