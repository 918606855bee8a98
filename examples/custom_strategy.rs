//! A strategy of one's own: so many units, and then never again. A trial: five requests for each client, for ever (for a
//! year, in truth: no key lives for ever).
//!
//! Both halves are here, in Rust and in Lua; batches, merged requests and all-or-nothing over several policies come for
//! free. Runs in process, and on Redis if `REDIS_URL` is set.
//!
//! ```text
//! cargo run --example custom_strategy
//! ```

use std::{env, error::Error, sync::Arc, time::Duration};

use tollgate::{
    Key, Limiter, Policy, Quota, RetryAfter,
    clock::Timestamp,
    error::InvalidValue,
    strategy::{
        ChargeReceipt, ErasedLocalRule, LocalRule, LuaScript, QuotaStatus, Rule, RuleInfo,
        Snapshot, State, Strategy, Terms,
    },
};

/// So many units, which are free again once no request has come for a period.
#[derive(Clone, Copy, Debug)]
pub struct Trial;

impl Strategy for Trial {
    fn bind(&self, quota: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        if quota.amount() > 1_000_000 || quota.period() < Duration::from_secs(1) {
            return Err(InvalidValue::new(
                format!("{quota} as a trial"),
                "at most 1,000,000 units, over at least a second",
            ));
        }
        Ok(Arc::new(Once {
            units: quota.amount(),
            kept: quota.period(),
        }))
    }
}

#[derive(Clone, Debug)]
struct Once {
    units: u64,
    /// How long a key is kept after its last use.
    kept: Duration,
}

/// What was used, and until when that is known.
#[derive(Debug, Default)]
struct Used {
    used: u64,
    kept_until: Timestamp,
}

impl State for Used {
    fn expires_at(&self) -> Timestamp {
        self.kept_until
    }
}

impl Once {
    fn used(&self, state: &Used, now: Timestamp) -> u64 {
        if state.kept_until > now {
            state.used
        } else {
            0
        }
    }
}

impl LocalRule for Once {
    type State = Used;

    fn available(&self, state: &mut Used, now: Timestamp) -> i64 {
        self.units as i64 - self.used(state, now) as i64
    }

    fn charge(&self, state: &mut Used, now: Timestamp, units: u64, _caller: &Key) {
        *state = Used {
            used: self.used(state, now) + units,
            kept_until: now + self.kept,
        };
    }

    fn refund(
        &self,
        state: &mut Used,
        now: Timestamp,
        _: &ChargeReceipt,
        want: u64,
        _caller: &Key,
    ) -> u64 {
        let used = self.used(state, now);
        let back = want.min(used);
        state.used = used - back;
        back
    }

    fn snapshot(&self, state: &Used, now: Timestamp, _cost: u64) -> Snapshot {
        // A clock that stepped back makes no wait longer.
        let kept = state.kept_until.since(now).min(self.kept).as_micros();
        Snapshot::new([self.used(state, now) as i64, kept as i64])
    }
}

impl Rule for Once {
    /// The state format, which is in every key, and the capacity. No built-in strategy's format begins with an `o`.
    fn info(&self) -> RuleInfo {
        RuleInfo::new("o1", self.units)
    }

    fn status(&self, snapshot: &Snapshot, _now: Timestamp, cost: u64) -> QuotaStatus {
        let [used, kept] = snapshot.values();
        let left = self.units.saturating_sub(used as u64);
        let forgotten = Duration::from_micros(kept.max(0) as u64);
        let retry_after = match () {
            () if cost > self.units => RetryAfter::Never,
            () if cost <= left => RetryAfter::Now,
            () => RetryAfter::In(forgotten),
        };
        QuotaStatus::new(left, retry_after, forgotten)
    }

    fn script(&self) -> Option<LuaScript> {
        let source = r"
                -- p: 1 units, 2 how long a key is kept, in ms
                local function available(key, p)
                  local value = call('GET', key)
                  local used = value and number(key, value, 8) or 0
                  local kept = value and max(0, min(p[2] * 1000, (expiry(key) + 1) * 1000 - now)) or 0
                  return p[1] - used, used, kept
                end

                local function write(key, p, used)
                  call('SET', key, format('%d', used), 'PXAT', format('%d', ceil(now / 1000) + p[2] - 1))
                  return used, p[2] * 1000
                end

                local function charge(key, p, used, kept, _, units)
                  return write(key, p, used + units)
                end

                local function refund(key, p, used, kept, _, charged_at, window_id, remaining, want)
                  local back = min(want, remaining, used)
                  if back > 0 then
                    used, kept = write(key, p, used - back)
                  end
                  return back, used, kept
                end

                local function repair(key, p)
                  cap_ttl(key, p[2])
                end

                return { available = available, charge = charge, refund = refund, repair = repair }
            ";
        let params = [self.units as i64, self.kept.as_millis() as i64];
        Some(LuaScript::new(source, params).snapshot_len(2))
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}

/// A trial beside a rate, in process or on Redis: all or nothing.
pub fn limiter() -> Result<Limiter, Box<dyn Error>> {
    let limiter = Limiter::builder()
        .policy(Policy::new("burst", Quota::requests(100).per_second()))
        .policy(
            Policy::new(
                "trial",
                Quota::requests(5).per(Duration::from_secs(365 * 86_400)),
            )
            .strategy(Trial),
        );
    if let Ok(url) = env::var("REDIS_URL") {
        return Ok(limiter.store(tollgate::RedisStore::open(url)?).build()?);
    }
    let _ = env::var("REDIS_URL");
    Ok(limiter.build()?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = limiter()?;
    let client = Key::new(env::args().nth(1).unwrap_or_else(|| "alice".to_owned()));
    for request in 1..=7 {
        match limiter.admit(client).await {
            Ok(admission) => println!(
                "request {request}: admitted, {} left of the trial",
                admission.remaining("trial").unwrap_or_default()
            ),
            Err(rejected) => println!("request {request}: {rejected}"),
        }
    }
    Ok(())
}
