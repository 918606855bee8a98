use std::{sync::Arc, time::Duration};

use super::{
    ChargeReceipt, ErasedLocalRule, LocalRule, LuaScript, QuotaStatus, RetryAfter, Rule, Snapshot,
    State, Strategy, window,
};
use crate::{clock::Timestamp, error::InvalidValue, key::Key, quota::Quota};

/// Blocks a key that other policies have rejected too often, for a time that doubles with each ban.
///
/// The quota of such a policy is the number of rejections within a period that leads to a ban; the period begins with the
/// first of them. It is a policy like others, with a key extractor of its own, and is evaluated with them in one call of the
/// store. A rejection is counted in the call that rejected or, where the keys are in several slots of a cluster, in the next
/// one. A ban holds in all processes, since it is in the store.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Ban, Key, Limiter, Policy, Quota, RetryAfter};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let limiter = Limiter::builder()
///     .policy(Policy::new("burst", Quota::requests(1).per_second()))
///     // Three rejections within a minute block a key for ten minutes, then for twenty, up to a day.
///     .policy(
///         Policy::new("abuse", Quota::requests(3).per_minute())
///             .strategy(Ban::for_duration(Duration::from_secs(600))),
///     )
///     .build()?;
/// for _ in 0..4 {
///     let _ = limiter.check(Key::new("alice")).await;
/// }
/// let rejected = limiter.admit(Key::new("alice")).await.unwrap_err();
/// assert!(rejected.retry_after() > RetryAfter::In(Duration::from_secs(599)));
/// assert!(limiter.unblock(Key::new("alice")).await.is_ok());
/// # Ok::<(), tollgate::ConfigError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// - **What counts**: each request that another policy's quota rejects, once, whatever it costs and however many
///   policies reject it. Not: what a deny list, a missing key or an inner layer rejects, what is admitted because the store
///   failed, what a [shadow](crate::Policy::shadow) would reject, and what is rejected because the key is banned
///   already. So nothing is written while a ban lasts, and its `Retry-After` is as exact as a quota's. A request that
///   [waits](crate::Limiter::wait) counts if it is rejected in the end, and not for waiting.
/// - **Growth**: each ban lasts twice as long as the one before, [up to](Ban::max_duration) a bound. It begins anew for a key
///   that was not banned again for as long as its last ban lasted, one period at least.
/// - **In several limiters**: a layer's and a handler's limiter over one store may name the same ban. Each counts its own
///   rejections, and both enforce it.
/// - **By hand alone**: [`Policy::block_list`](crate::Policy::block_list) counts no rejections.
/// - **By hand**: [`Limiter::block`](crate::Limiter::block) and [`unblock`](crate::Limiter::unblock), in all processes.
///   [`charge`](crate::Limiter::charge) under this policy's name counts rejections from elsewhere, such as wrong
///   passwords. [`reset`](crate::Limiter::reset) lifts bans too.
/// - **Reported**: while it lasts, a ban is the longest wait of a decision, and in `violated-policies`. How many rejections
///   are left before a ban is reported by [`peek`](crate::Limiter::peek) alone; clients don't see it.
/// - **Memory**: one value of some 60 bytes for each key that was rejected lately.
/// - **Choose the key** with care: a client that can send requests under the key of another can have that one banned. Take an
///   address, or a key that was verified.
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
    /// The first ban of a key lasts for `first`: at least a millisecond, at most ten years. Later ones grow to a day, unless
    /// [`max_duration`](Ban::max_duration) is set.
    pub const fn for_duration(first: Duration) -> Self {
        Self {
            first,
            longest: None,
        }
    }

    /// The longest ban: at least the first, at most ten years. With the first itself, bans don't grow.
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
            max_rejections: quota.amount(),
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

/// Bans for one quota of rejections. Times are in microseconds.
#[derive(Clone, Debug)]
struct Bans {
    max_rejections: u64,
    period: i64,
    first: i64,
    longest: i64,
    /// Bans for so long at once, if it isn't 0.
    manual_ban: i64,
}

/// Rejections and bans of a key. Times are in microseconds since the epoch, 0 for none.
#[derive(Clone, Copy, Debug, Default)]
struct BanState {
    /// When it was written.
    updated_at: i64,
    /// Until when the key is banned.
    banned_until: i64,
    /// When the window of rejections ends.
    window_ends: i64,
    /// How many rejections the window holds.
    rejections: i64,
    /// How often the key was banned.
    bans: i64,
    expires_at: i64,
}

impl State for BanState {
    fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros(self.expires_at)
    }
}

impl Bans {
    fn ban_length(&self, bans: i64) -> i64 {
        let mut us = self.first;
        for _ in 1..bans {
            if us >= self.longest {
                break;
            }
            us *= 2;
        }
        us.min(self.longest)
    }

    /// When a key expires.
    fn expires_at(&self, banned_until: i64, bans: i64, window_ends: i64) -> i64 {
        if banned_until == 0 {
            return window_ends;
        }
        let ban_length = if bans > 0 { self.ban_length(bans) } else { 0 };
        window_ends.max(banned_until + ban_length.max(self.period))
    }

    /// A record as it stands now.
    fn current(&self, record: &BanState, now: Timestamp) -> BanState {
        let now = now.as_micros();
        // The clock stepped back: what was still to come then is so now.
        let ahead = (record.updated_at - now).max(0);
        let mut current = BanState {
            updated_at: now,
            banned_until: (record.banned_until - ahead).max(0),
            window_ends: (record.window_ends - ahead).min(now + self.period),
            ..*record
        };
        if current.banned_until > now {
            (current.rejections, current.window_ends) = (0, 0);
            return current;
        }
        if current.window_ends <= now {
            (current.rejections, current.window_ends) = (0, 0);
        }
        if self.expires_at(current.banned_until, current.bans, 0) <= now {
            (current.banned_until, current.bans) = (0, 0);
        }
        current
    }
}

impl LocalRule for Bans {
    type State = BanState;

    fn available(&self, state: &mut BanState, now: Timestamp) -> i64 {
        let mut current = self.current(state, now);
        current.expires_at =
            self.expires_at(current.banned_until, current.bans, current.window_ends);
        let (banned_until, rejections) = (current.banned_until, current.rejections);
        // What is still to come is counted from when it was written, unless the clock stepped back or the quota is another.
        if state.updated_at > now.as_micros() || state.expires_at != current.expires_at {
            *state = current;
        }
        if banned_until > now.as_micros() {
            return 0;
        }
        (self.max_rejections as i64 - rejections).max(1)
    }

    fn charge(&self, state: &mut BanState, now: Timestamp, units: u64, _caller: &Key) {
        let mut record = self.current(state, now);
        let now = now.as_micros();
        record.rejections += units as i64;
        if self.manual_ban > 0 {
            (record.banned_until, record.rejections, record.window_ends) =
                (now + self.manual_ban, 0, 0);
        } else if record.banned_until > now {
            return;
        } else if record.rejections < self.max_rejections as i64 {
            if record.window_ends == 0 {
                record.window_ends = now + self.period;
            }
        } else {
            if record.bans == 0 || self.ban_length(record.bans) < self.longest {
                record.bans += 1;
            }
            record.banned_until = now + self.ban_length(record.bans);
            (record.rejections, record.window_ends) = (0, 0);
        }
        record.expires_at = self.expires_at(record.banned_until, record.bans, record.window_ends);
        *state = record;
    }

    fn refund(
        &self,
        state: &mut BanState,
        now: Timestamp,
        _receipt: &ChargeReceipt,
        want: u64,
        _caller: &Key,
    ) -> u64 {
        let mut record = self.current(state, now);
        // Only a reset ends a ban that has begun: it holds no rejections.
        let back = (want as i64).min(record.rejections);
        if back > 0 {
            record.rejections -= back;
            *state = record;
        }
        back as u64
    }

    fn snapshot(&self, state: &BanState, now: Timestamp, _cost: u64) -> Snapshot {
        let record = self.current(state, now);
        Snapshot::new([
            record.banned_until,
            record.rejections * 100 + record.bans,
            record.window_ends,
        ])
    }
}

impl Rule for Bans {
    fn state_format(&self) -> &'static str {
        "x1"
    }

    fn capacity(&self) -> u64 {
        self.max_rejections
    }

    fn status(
        &self,
        &Snapshot([banned_until, packed_counts, window_ends]): &Snapshot,
        now: Timestamp,
        _cost: u64,
    ) -> QuotaStatus {
        let banned = banned_until > now.as_micros();
        let wait = |at: i64| Timestamp::from_micros(at).since(now);
        if banned {
            return QuotaStatus {
                remaining: 0,
                retry_after: RetryAfter::In(wait(banned_until)),
                reset_after: wait(banned_until),
            };
        }
        QuotaStatus {
            remaining: (self.max_rejections as i64 - packed_counts / 100).max(1) as u64,
            retry_after: RetryAfter::Now,
            reset_after: if window_ends > 0 {
                wait(window_ends)
            } else {
                Duration::ZERO
            },
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
        let max_rejections = self.max_rejections as i64;
        let bans = [self.first, self.longest, self.manual_ban];
        Some(LuaScript::new(
            include_str!("ban.lua"),
            [&[max_rejections, self.period][..], &bans].concat(),
        ))
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}
