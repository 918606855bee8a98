use std::{sync::Arc, time::Duration};

use super::{
    ChargeReceipt, ErasedLocalRule, LocalRule, LuaScript, QuotaStatus, RetryAfter, Rule, Snapshot,
    State, Strategy, window,
};
use crate::{clock::Timestamp, error::InvalidValue, key::Key, quota::Quota};

/// Blocks a key that the other policies have refused too often, for a while that doubles each time.
///
/// The quota of such a policy is how many refusals are too many within which period; the period opens with the first of
/// them. It is a policy like others, with a key of its own, and is judged with them in the same call. A rejection that it
/// counts is charged in the call that rejected or, where the keys are in several slots of a cluster, in the next one. All
/// processes know of a ban, since it is in the store.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Ban, Key, Limiter, Policy, Quota, RetryAfter};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("burst", Quota::requests(1).per_second()))
///     // Who is refused three times within a minute is blocked for ten, then for twenty, up to a day.
///     .policy(
///         Policy::new("abuse", Quota::requests(3).per_minute())
///             .strategy(Ban::for_duration(Duration::from_secs(600))),
///     )
///     .build()?;
/// for _ in 0..4 {
///     let _ = limiter.check(Key::new("alice")).await;
/// }
/// let refused = limiter.admit(Key::new("alice")).await.unwrap_err();
/// assert!(refused.retry_after() > RetryAfter::In(Duration::from_secs(599)));
/// assert!(limiter.unblock(Key::new("alice")).await.is_ok());
/// # Ok::<(), tollgate::ConfigError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// - **What counts**: each request that another policy's quota refuses, once, whatever it costs and however many
///   policies refuse it. Not: what a deny list, a missing key or a layer further in refuses, what passes since the store
///   is at fault, what a [shadow](crate::Policy::shadow) would refuse, and what is refused because a key is banned
///   already. So nothing is written while a ban lasts, and `Retry-After` is as true of bans as of quotas. Who
///   [waits](crate::Limiter::wait) is counted if he is refused in the end, and not for waiting.
/// - **Growth**: each ban lasts twice as long as the one before, [up to](Ban::max_duration) a bound. A key starts over when it
///   hasn't been banned again for as long as its last ban lasted, one period at least.
/// - **By hand**: [`Limiter::block`](crate::Limiter::block) and [`unblock`](crate::Limiter::unblock), in all processes.
///   [`charge`](crate::Limiter::charge) under this policy's name counts refusals that were made elsewhere, such as wrong
///   passwords. [`reset`](crate::Limiter::reset) lifts bans too.
/// - **Told**: while it lasts a ban is the longest wait of a decision, and in `violated-policies`. Of a key that isn't
///   banned only a [`peek`](crate::Limiter::peek) tells how many refusals are left; clients aren't shown that.
/// - **Memory**: one value of some 60 bytes for each key that was refused of late.
/// - **Choose the key** with care: who can be refused in another's name can have him banned. An address, or a key that
///   was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    first: Duration,
    longest: Option<Duration>,
}

/// The most refusals that are counted.
const MOST: u64 = 1_000_000;

/// The longest ban.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

/// What doubling ends at unless set.
const DAY: Duration = Duration::from_secs(86_400);

impl Ban {
    /// Bans that last so long at first: at least a millisecond, at most ten years. They grow to a day, unless
    /// [`up_to`](Ban::max_duration) says otherwise.
    pub const fn for_duration(first: Duration) -> Self {
        Self {
            first,
            longest: None,
        }
    }

    /// The longest that bans grow to: at least the first, at most ten years. The first itself, and they don't grow.
    #[must_use]
    pub const fn max_duration(mut self, longest: Duration) -> Self {
        self.longest = Some(longest);
        self
    }
}

impl Strategy for Ban {
    fn bind(&self, quota: &Quota) -> Result<Arc<dyn Rule>, InvalidValue> {
        let period = window::checked(quota, "ban", MOST)?;
        let longest = self.longest.unwrap_or(self.first.max(DAY));
        if longest < self.first {
            return Err(InvalidValue::new(
                format!("bans of {:?} that grow to {longest:?}", self.first),
                "a bound that is no shorter than the first ban",
            ));
        }
        Ok(Arc::new(Bans {
            refusals: quota.amount(),
            period,
            first: micros(self.first)?,
            longest: micros(longest)?,
            manual_ban: 0,
        }))
    }
}

fn micros(ban: Duration) -> Result<i64, InvalidValue> {
    if ban < Duration::from_millis(1) || ban > LONGEST {
        let value = format!("a ban of {ban:?}");
        return Err(InvalidValue::new(value, "from a millisecond to ten years"));
    }
    Ok(ban.as_micros() as i64)
}

/// Bans for one quota of refusals. Times are in microseconds.
#[derive(Clone, Debug)]
struct Bans {
    refusals: u64,
    period: i64,
    first: i64,
    longest: i64,
    /// Bans for so long at once, if it isn't 0.
    manual_ban: i64,
}

/// Refusals and bans of a key. Times are in microseconds since the epoch, 0 for none.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Since when it stands so.
    since: i64,
    /// Until when it is banned.
    till: i64,
    /// When the window of refusals ends.
    ends: i64,
    /// How many refusals it holds.
    count: i64,
    /// How often it was banned.
    times: i64,
    gone: i64,
}

impl State for Record {
    fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros(self.gone)
    }
}

impl Bans {
    fn length(&self, times: i64) -> i64 {
        let mut us = self.first;
        for _ in 1..times {
            if us >= self.longest {
                break;
            }
            us *= 2;
        }
        us.min(self.longest)
    }

    /// When nothing is left to be known of a key.
    fn gone(&self, till: i64, times: i64, ends: i64) -> i64 {
        if till == 0 {
            return ends;
        }
        let length = if times > 0 { self.length(times) } else { 0 };
        ends.max(till + length.max(self.period))
    }

    /// A record as it stands now.
    fn current(&self, record: &Record, now: Timestamp) -> Record {
        let now = now.as_micros();
        // The clock stepped back: what was still to come then is so now.
        let ahead = (record.since - now).max(0);
        let mut current = Record {
            since: now,
            till: (record.till - ahead).max(0),
            ends: (record.ends - ahead).min(now + self.period),
            ..*record
        };
        if current.till > now {
            (current.count, current.ends) = (0, 0);
            return current;
        }
        if current.ends <= now {
            (current.count, current.ends) = (0, 0);
        }
        if self.gone(current.till, current.times, 0) <= now {
            (current.till, current.times) = (0, 0);
        }
        current
    }
}

impl LocalRule for Bans {
    type State = Record;

    fn available(&self, state: &mut Record, now: Timestamp) -> i64 {
        let mut current = self.current(state, now);
        current.gone = self.gone(current.till, current.times, current.ends);
        let (till, count) = (current.till, current.count);
        // What is still to come is counted from when it was written, unless the clock stepped back or the quota is another.
        if state.since > now.as_micros() || state.gone != current.gone {
            *state = current;
        }
        if till > now.as_micros() {
            return 0;
        }
        (self.refusals as i64 - count).max(1)
    }

    fn charge(&self, state: &mut Record, now: Timestamp, units: u64, _caller: &Key) {
        let mut record = self.current(state, now);
        let now = now.as_micros();
        record.count += units as i64;
        if self.manual_ban > 0 {
            (record.till, record.count, record.ends) = (now + self.manual_ban, 0, 0);
        } else if record.till > now {
            return;
        } else if record.count < self.refusals as i64 {
            if record.ends == 0 {
                record.ends = now + self.period;
            }
        } else {
            if record.times == 0 || self.length(record.times) < self.longest {
                record.times += 1;
            }
            record.till = now + self.length(record.times);
            (record.count, record.ends) = (0, 0);
        }
        record.gone = self.gone(record.till, record.times, record.ends);
        *state = record;
    }

    fn refund(
        &self,
        state: &mut Record,
        now: Timestamp,
        _receipt: &ChargeReceipt,
        want: u64,
        _caller: &Key,
    ) -> u64 {
        let mut record = self.current(state, now);
        // A ban that has begun is lifted by a reset alone: it holds no refusals.
        let back = (want as i64).min(record.count);
        if back > 0 {
            record.count -= back;
            *state = record;
        }
        back as u64
    }

    fn snapshot(&self, state: &Record, now: Timestamp, _cost: u64) -> Snapshot {
        let record = self.current(state, now);
        Snapshot::new([record.till, record.count * 100 + record.times, record.ends])
    }
}

impl Rule for Bans {
    fn state_format(&self) -> &'static str {
        "x1"
    }

    fn capacity(&self) -> u64 {
        self.refusals
    }

    fn status(
        &self,
        &Snapshot([till, marks, ends]): &Snapshot,
        now: Timestamp,
        _cost: u64,
    ) -> QuotaStatus {
        let banned = till > now.as_micros();
        let wait = |at: i64| Timestamp::from_micros(at).since(now);
        if banned {
            return QuotaStatus {
                remaining: 0,
                retry_after: RetryAfter::In(wait(till)),
                reset_after: wait(till),
            };
        }
        QuotaStatus {
            remaining: (self.refusals as i64 - marks / 100).max(1) as u64,
            retry_after: RetryAfter::Now,
            reset_after: if ends > 0 { wait(ends) } else { Duration::ZERO },
        }
    }

    fn counts_rejections(&self) -> bool {
        true
    }

    fn manual_ban(&self, ban: Duration) -> Option<Result<Arc<dyn Rule>, InvalidValue>> {
        Some(micros(ban).map(|manual_ban| -> Arc<dyn Rule> {
            Arc::new(Self {
                manual_ban,
                ..self.clone()
            })
        }))
    }

    fn script(&self) -> Option<LuaScript> {
        let refusals = self.refusals as i64;
        let bans = [self.first, self.longest, self.manual_ban];
        Some(LuaScript::new(
            include_str!("ban.lua"),
            [&[refusals, self.period][..], &bans].concat(),
        ))
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}
