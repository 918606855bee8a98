use std::{sync::Arc, time::Duration};

use super::{
    ChargeReceipt, ErasedLocalRule, LocalRule, LuaScript, QuotaStatus, RetryAfter, Rule, Snapshot,
    State, Strategy,
};
use crate::{clock::Timestamp, error::InvalidValue, key::Key, quota::Quota};

/// At most so many requests in flight at once, for [`Quota::concurrent`].
///
/// A request takes a permit on arrival. It is released when the response's body has been sent or dropped, when the
/// handler panics or the client hangs up. While a long request runs, its permit is renewed three times within its TTL, and a
/// renewal that fails is repeated. The permits of a process that dies expire after one TTL.
///
/// - **Rule**: a request of n units is admitted if, with them, no more than the quota are in flight.
/// - **Exact** while no process is stopped, and no outage of the store lasts, for longer than half a TTL, and the store loses
///   no writes (a failover of an asynchronously replicated Redis may). After a longer stop the permits of a process have
///   expired, and other requests may hold theirs in addition; so it is for all processes if the server's clock steps forward
///   by more than a TTL.
/// - **By hand** the permit is the admission's: bind it for as long as the work takes. A permit that is dropped at once
///   limits nothing:
///
///   ```
///   # use tollgate::{Limiter, Rejected};
///   # async fn export() {}
///   # async fn f(limiter: Limiter, user: &str) -> Result<(), Rejected> {
///   // Wrong: the decision is dropped before the block, and its permit with it.
///   if limiter.check(user).await.is_admitted() {
///       export().await;
///   }
///   // Right: the permit is held until the end of the scope.
///   let _admission = limiter.admit(user).await?;
///   export().await;
///   # Ok(())
///   # }
///   ```
/// - **Charges by a handler** ([`PolicyAdmission::charge`](crate::PolicyAdmission::charge), [`settle`](crate::PolicyAdmission::settle)) are
///   for policies that count: they take and release no permits.
/// - **Retry-After** can only be a hint: one second.
/// - **Memory**: O(concurrent) a key, some 100 bytes a permit. Quotas are limited to 10,000 for that reason.
/// - **Choose it** for slow, expensive requests: exports, calls to a model, connections that stay open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    life: Duration,
}

/// The most permits.
const MOST: u64 = 10_000;

/// When to come back is not known; this is soon enough, and not too soon.
const HINT: Duration = Duration::from_secs(1);

impl Concurrency {
    /// Permits with a TTL of 30 seconds, after which those of a process that died expire.
    pub const fn new() -> Self {
        Self {
            life: Duration::from_secs(30),
        }
    }

    /// Permits with another TTL, after which those of a process that died expire: at least 100 ms, at most a day.
    #[must_use]
    pub const fn with_ttl(ttl: Duration) -> Self {
        Self { life: ttl }
    }
}

impl Default for Concurrency {
    fn default() -> Self {
        Self::new()
    }
}

impl Strategy for Concurrency {
    fn bind(&self, quota: &Quota) -> Result<Arc<dyn Rule>, InvalidValue> {
        let concurrent = quota.checked_concurrent()?;
        if concurrent > MOST {
            return Err(InvalidValue::new(
                format!("{quota}, past what is counted one by one"),
                format!("at most {MOST} concurrent"),
            ));
        }
        let (least, most) = (Duration::from_millis(100), Duration::from_secs(86_400));
        if self.life < least || self.life > most {
            return Err(InvalidValue::new(
                format!("permits that live for {:?}", self.life),
                "from 100 ms to a day",
            ));
        }
        Ok(Arc::new(Places {
            concurrent,
            life: self.life,
        }))
    }
}

/// Places for requests in flight, for one quota.
#[derive(Clone, Debug)]
struct Places {
    concurrent: u64,
    life: Duration,
}

/// Permits, in no order.
#[derive(Debug, Default)]
struct Permits(Vec<Permit>);

#[derive(Debug)]
struct Permit {
    caller: Key,
    units: u64,
    expires: Timestamp,
}

impl State for Permits {
    fn expires_at(&self) -> Timestamp {
        let permits = self.0.iter().map(|permit| permit.expires);
        permits.max().unwrap_or_default()
    }
}

impl LocalRule for Places {
    type State = Permits;

    fn available(&self, state: &mut Permits, now: Timestamp) -> i64 {
        for permit in &mut state.0 {
            // The clock stepped back: what would live for longer than a life lives for one.
            permit.expires = permit.expires.min(now + self.life);
        }
        let [used] = LocalRule::snapshot(self, state, now, 0).values();
        self.concurrent as i64 - used
    }

    fn charge(&self, state: &mut Permits, now: Timestamp, units: u64, caller: &Key) {
        state.0.retain(|permit| permit.expires > now);
        state.0.push(Permit {
            caller: *caller,
            units,
            expires: now + self.life,
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
        let Some(place) = state.0.iter().position(|permit| permit.caller == *caller) else {
            return 0;
        };
        let permit = &mut state.0[place];
        let (back, expired) = (want.min(permit.units), permit.expires <= now);
        permit.units -= back;
        if permit.units == 0 {
            state.0.swap_remove(place);
        }
        if expired { 0 } else { back }
    }

    fn renew(&self, state: &mut Permits, now: Timestamp, caller: &Key) -> u64 {
        let mut live = state.0.iter_mut().filter(|permit| permit.expires > now);
        live.find(|permit| permit.caller == *caller)
            .map_or(0, |permit| {
                permit.expires = now + self.life;
                permit.units
            })
    }

    fn snapshot(&self, state: &Permits, now: Timestamp, _cost: u64) -> Snapshot {
        let live = state.0.iter().filter(|permit| permit.expires > now);
        let used: u64 = live.map(|permit| permit.units).sum();
        Snapshot::new([used as i64])
    }
}

impl Rule for Places {
    fn state_format(&self) -> &'static str {
        "p1"
    }

    fn capacity(&self) -> u64 {
        self.concurrent
    }

    fn status(&self, &Snapshot([used, ..]): &Snapshot, _now: Timestamp, cost: u64) -> QuotaStatus {
        let left = self.concurrent as i64 - used;
        QuotaStatus {
            remaining: left.max(0) as u64,
            retry_after: match () {
                () if cost > self.concurrent => RetryAfter::Never,
                () if left >= cost as i64 => RetryAfter::Now,
                () => RetryAfter::In(HINT),
            },
            reset_after: if used > 0 { HINT } else { Duration::ZERO },
        }
    }

    fn records_caller(&self) -> bool {
        true
    }

    fn permit_ttl(&self) -> Option<Duration> {
        Some(self.life)
    }

    fn stores_each_unit(&self) -> bool {
        true
    }

    fn script(&self) -> Option<LuaScript> {
        Some(
            LuaScript::new(
                include_str!("concurrency.lua"),
                [self.concurrent as i64, self.life.as_micros() as i64],
            )
            .snapshot_len(1),
        )
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}
