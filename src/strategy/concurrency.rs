use std::{any::TypeId, borrow::Cow, sync::Arc, time::Duration};

use super::{
    ChargeReceipt, ErasedLocalRule, LocalRule, LuaScript, QuotaStatus, RetryAfter, Rule, RuleInfo,
    Snapshot, State, Strategy, Terms,
    entry::{BuiltIn, Counts},
};
use crate::{
    clock::Timestamp,
    error::InvalidValue,
    key::Key,
    quota::{DurationText, Quota},
};

/// A strategy that limits the number of requests in flight at once, for [`Quota::concurrent`].
///
/// A request takes a permit per unit on arrival. It is released when the response's body has been sent or dropped, the handler
/// panics or the client disconnects; that of an [outgoing call](crate::outgoing#when-a-call-has-ended) when its response's body
/// has been read or dropped. In process a permit does not expire while it is held. On Redis it is renewed three times in
/// each shortest TTL of the store's limits, and a failed renewal is repeated; the permits of a process that dies expire after one TTL.
///
/// - **Rule**: a request of n units is admitted if, including them, no more units than the quota are in flight.
/// - **Exact** in process; on Redis with a TTL of 20 s or more, as long as no process is paused, and no outage of the store lasts, for
///   longer than half a TTL, and the store loses no writes (a failover of an asynchronously replicated Redis may). After a longer pause
///   the permits of the process have expired, and other requests may hold permits in addition; the same holds for all processes if
///   the server's clock steps forward by more than a TTL.
/// - **By hand** the permit belongs to the admission: bind it to a name for as long as the work takes. A
///   [`check`](crate::Limiter::check), which returns none, is refused. A permit that is dropped at once limits nothing:
///
///   ```
///   # use tollgate::{Limiter, Rejected};
///   # async fn export() {}
///   # async fn f(limiter: Limiter, user: &str) -> Result<(), Rejected> {
///   // Wrong: the admission is dropped before the block, and its permit with it.
///   if limiter.admit(user).await.is_ok() {
///       export().await;
///   }
///   // Right: the permit is held until the end of the scope.
///   let _admission = limiter.admit(user).await?;
///   export().await;
///   # Ok(())
///   # }
///   ```
/// - **Charges by a handler** ([`PolicyAdmission::charge`](crate::limiter::PolicyAdmission::charge), [`settle`](crate::limiter::PolicyAdmission::settle)) are
///   for policies that count: they take and release no permits.
/// - **Retry-After** is only a hint: one second.
/// - **Memory**: one entry for each request in flight, whatever it costs: up to 100 bytes on Redis, as many again if it costs several
///   units, and 40 in process. Quotas are limited to 10,000 for that reason.
/// - **Choose it** for slow, expensive requests: exports, calls to a model, connections that stay open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    ttl: Duration,
}

/// The largest quota: each unit may be an entry of the state.
const MAX_PERMITS: u64 = 10_000;

/// The `Retry-After` of a rejection: when a permit will be released is not known.
const RETRY_HINT: Duration = Duration::from_secs(1);

const MIN_TTL: Duration = Duration::from_millis(100);
const MAX_TTL: Duration = Duration::from_secs(86_400);

impl Concurrency {
    /// Permits with a TTL of 30 seconds.
    pub const fn new() -> Self {
        Self {
            ttl: Duration::from_secs(30),
        }
    }

    /// Permits with this TTL, after which those of a process that died expire: at least 100 ms, at most a day. A duration
    /// outside of that is a [`ConfigError`](crate::ConfigError) when the limiter is built.
    #[must_use]
    pub const fn with_ttl(ttl: Duration) -> Self {
        Self { ttl }
    }
}

impl Default for Concurrency {
    fn default() -> Self {
        Self::new()
    }
}

impl Concurrency {
    pub(crate) const BUILT_IN: BuiltIn = BuiltIn {
        text: "concurrency",
        parse: |tokens| {
            Ok(Arc::new(match tokens.take_word("ttl") {
                true => Self::with_ttl(tokens.take_duration("ttl 30s")?),
                false => Self::new(),
            }))
        },
        settings: "nothing more, or a permit TTL: concurrency ttl 30s",
        rule: TypeId::of::<ConcurrencyRule>,
        state_format: "p2",
        counts: Counts::Kept("requests in flight keep their permits"),
    };
}

impl Strategy for Concurrency {
    fn bind(&self, quota: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        let concurrent = quota.validated_concurrent()?;
        if concurrent > MAX_PERMITS {
            return Err(InvalidValue::new(
                format!("{quota}, more permits than are stored for one key"),
                format!("at most {MAX_PERMITS} concurrent"),
            ));
        }
        if self.ttl < MIN_TTL || self.ttl > MAX_TTL {
            return Err(InvalidValue::new(
                format!("a permit TTL of {:?}", self.ttl),
                "from 100 ms to a day",
            ));
        }
        Ok(Arc::new(ConcurrencyRule {
            concurrent,
            ttl: self.ttl,
        }))
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        Some(match *self == Self::new() {
            true => "concurrency".into(),
            false => format!("concurrency ttl {}", DurationText(self.ttl)).into(),
        })
    }
}

/// An in-flight limit for one quota.
#[derive(Clone, Debug)]
struct ConcurrencyRule {
    concurrent: u64,
    ttl: Duration,
}

/// Permits, in no order.
#[derive(Debug, Default)]
struct Permits(Vec<Permit>);

#[derive(Debug)]
struct Permit {
    caller: Key,
    units: u64,
    /// [`HELD`] while a request of this process holds it.
    expires_at: Timestamp,
}

const HELD: Timestamp = Timestamp::from_micros(i64::MAX);

impl State for Permits {
    fn expires_at(&self) -> Timestamp {
        let permits = self.0.iter().map(|permit| permit.expires_at);
        permits.max().unwrap_or_default()
    }

    /// Permits are held until they are released.
    fn eviction_order(&self, _now: Timestamp) -> Option<u64> {
        None
    }
}

impl LocalRule for ConcurrencyRule {
    type State = Permits;

    fn available(&self, state: &mut Permits, now: Timestamp) -> i64 {
        state.0.retain_mut(|permit| {
            if permit.expires_at != HELD {
                // The clock stepped back: permits that would live for longer than one TTL live for one.
                permit.expires_at = permit.expires_at.min(now + self.ttl);
            }
            permit.expires_at > now
        });
        let [used] = LocalRule::snapshot(self, state, now, 0).values();
        self.concurrent as i64 - used
    }

    fn charge(&self, state: &mut Permits, now: Timestamp, units: u64, caller: &Key) {
        state.0.push(Permit {
            caller: *caller,
            units,
            expires_at: now + self.ttl,
        });
    }

    fn refund(
        &self,
        state: &mut Permits,
        now: Timestamp,
        _receipt: &ChargeReceipt,
        want: u64,
        caller: &Key,
    ) -> u64 {
        let Some(index) = state.0.iter().position(|permit| permit.caller == *caller) else {
            return 0;
        };
        let permit = &mut state.0[index];
        let (refunded, expired) = (want.min(permit.units), permit.expires_at <= now);
        permit.units -= refunded;
        if permit.units == 0 {
            state.0.swap_remove(index);
        }
        if expired { 0 } else { refunded }
    }

    fn renew(&self, state: &mut Permits, now: Timestamp, caller: &Key) -> u64 {
        let mut live = state.0.iter_mut().filter(|permit| permit.expires_at > now);
        live.find(|permit| permit.caller == *caller)
            .map_or(0, |permit| {
                permit.expires_at = permit.expires_at.max(now + self.ttl);
                permit.units
            })
    }

    fn hold(&self, state: &mut Permits, now: Timestamp, caller: &Key, is_held: bool) {
        let mut permits = state.0.iter_mut();
        if let Some(permit) = permits.find(|permit| permit.caller == *caller) {
            permit.expires_at = if is_held { HELD } else { now + self.ttl };
        }
    }

    fn snapshot(&self, state: &Permits, now: Timestamp, _cost: u64) -> Snapshot {
        let live = state.0.iter().filter(|permit| permit.expires_at > now);
        let used: u64 = live.map(|permit| permit.units).sum();
        Snapshot::new([used as i64])
    }
}

impl Rule for ConcurrencyRule {
    fn info(&self) -> RuleInfo {
        RuleInfo {
            records_caller: true,
            stores_each_unit: true,
            permit_ttl: Some(self.ttl),
            ..RuleInfo::new(Concurrency::BUILT_IN.state_format, self.concurrent)
        }
    }

    fn status(&self, &Snapshot([used, ..]): &Snapshot, _now: Timestamp, cost: u64) -> QuotaStatus {
        let left = self.concurrent as i64 - used;
        QuotaStatus {
            remaining: left.max(0) as u64,
            retry_after: match () {
                () if cost > self.concurrent => RetryAfter::Never,
                () if left >= cost as i64 => RetryAfter::Now,
                () => RetryAfter::In(RETRY_HINT),
            },
            reset_after: if used > 0 { RETRY_HINT } else { Duration::ZERO },
        }
    }

    fn script(&self) -> Option<LuaScript> {
        Some(
            LuaScript::new(
                include_str!("concurrency.lua"),
                [self.concurrent as i64, self.ttl.as_micros() as i64],
            )
            .snapshot_len(1),
        )
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}
