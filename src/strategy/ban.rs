use std::{any::TypeId, borrow::Cow, sync::Arc, time::Duration};

use super::{
    ChargeReceipt, ErasedLocalRule, LocalRule, LuaScript, QuotaStatus, RetryAfter, Rule, RuleInfo,
    Snapshot, State, Strategy, Terms,
    entry::{BuiltIn, Counts},
    window,
};
use crate::{
    clock::Timestamp,
    error::InvalidValue,
    key::Key,
    quota::{DurationText, Quota},
};

/// A strategy that blocks a key that other policies have rejected too often, for a duration that doubles with each ban.
///
/// The quota of its policy is the number of rejections within a period that leads to a ban; the period begins with the first
/// rejection. The policy has a key extractor of its own, and is evaluated together with the others in one call of the store. A
/// rejection is counted in the call that rejected or, if the keys are in several slots of a cluster, in a second one. A ban is
/// stored in the store, and so holds in all processes.
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
/// - **What counts**: each request that another policy's quota rejects, once, whatever its cost and the number of policies that
///   reject it. Rejections by a deny list, for a missing key or by an inner layer don't count, nor those of a [shadow
///   policy](crate::Policy::shadow) or of a key that is banned already. So nothing is written while a ban lasts, and its
///   `Retry-After` is as exact as a quota's. A request that [waits](crate::Limiter::wait) counts if it is rejected in the end,
///   not for waiting.
/// - **Growth**: each ban lasts twice as long as the one before, [up to](Ban::max_duration) a maximum. It starts again with the
///   first duration for a key that was not banned for as long as its last ban lasted, at least for one period.
/// - **In several limiters**: a layer's and a handler's limiter over one store may have the same ban. Each counts its own
///   rejections, and both enforce it.
/// - **By hand only**: [`Policy::block_list`](crate::Policy::block_list) counts no rejections.
/// - **By hand**: [`Limiter::block`](crate::Limiter::block), [`prolong_block`](crate::Limiter::prolong_block) and
///   [`unblock`](crate::Limiter::unblock), in all processes.
///   [`charge`](crate::Limiter::charge) under this policy's name counts rejections from elsewhere, such as wrong passwords.
///   [`reset`](crate::Limiter::reset) ends bans too.
/// - **Reported**: while it lasts, a ban counts for a decision's wait, and is listed in `violated-policies`. The number of
///   rejections left before a ban is reported by [`peek`](crate::Limiter::peek) only; clients don't see it.
/// - **Memory**: one value of about 60 bytes for each key with recent rejections.
/// - **Choose the key** with care: a client that can send requests under another client's key can get that client banned. Use
///   an address, or a verified key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    first_ban: Duration,
    max_ban: Option<Duration>,
}

/// The largest number of rejections before a ban.
const MAX_REJECTIONS: u64 = 1_000_000;

/// The longest ban.
const MAX_BAN: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The longest ban unless set.
const DEFAULT_MAX_BAN: Duration = Duration::from_secs(86_400);

impl Ban {
    /// A strategy whose first ban of a key lasts for `first`: at least a millisecond, at most ten years. Later ones grow up to
    /// [`max_duration`](Ban::max_duration), by default one day.
    pub const fn for_duration(first: Duration) -> Self {
        Self {
            first_ban: first,
            max_ban: None,
        }
    }

    /// Sets the longest ban: at least the first, at most ten years. Default: one day, or the first if that is longer. If both
    /// are equal, bans don't grow.
    #[must_use]
    pub const fn max_duration(mut self, longest: Duration) -> Self {
        self.max_ban = Some(longest);
        self
    }
}

impl Ban {
    pub(crate) const BUILT_IN: BuiltIn = BuiltIn {
        text: "ban DURATION",
        parse: |tokens| {
            let ban = Self::for_duration(tokens.take_duration("ban 10min max 1day")?);
            Ok(Arc::new(match tokens.take_word("max") {
                true => ban.max_duration(tokens.take_duration("max 1day")?),
                false => ban,
            }))
        },
        settings: "nothing more, or the longest ban: ban 10min max 1day",
        rule: TypeId::of::<BanRule>,
        state_format: "x1",
        counts: Counts::Kept(
            "counted rejections and bans stay, and the next ban follows the new settings",
        ),
    };
}

impl Strategy for Ban {
    fn bind(&self, quota: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        let period = window::validated_period_us(quota, "ban", MAX_REJECTIONS)?;
        let max_ban = self.max_ban.unwrap_or(self.first_ban.max(DEFAULT_MAX_BAN));
        if max_ban < self.first_ban {
            return Err(InvalidValue::new(
                format!("bans of {:?} that grow to {max_ban:?}", self.first_ban),
                "a bound that is no shorter than the first ban",
            ));
        }
        Ok(Arc::new(BanRule {
            max_rejections: quota.amount(),
            period,
            first_ban: validated_ban_us(self.first_ban)?,
            max_ban: validated_ban_us(max_ban)?,
            manual_ban: 0,
        }))
    }

    fn config_text(&self) -> Option<Cow<'_, str>> {
        let first = DurationText(self.first_ban);
        Some(match self.max_ban {
            Some(longest) => format!("ban {first} max {}", DurationText(longest)).into(),
            None => format!("ban {first}").into(),
        })
    }
}

/// The length of a ban in microseconds, if it is one that a rule can count.
fn validated_ban_us(ban: Duration) -> Result<i64, InvalidValue> {
    if ban < Duration::from_millis(1) || ban > MAX_BAN {
        let value = format!("a ban of {ban:?}");
        return Err(InvalidValue::new(value, "from a millisecond to ten years"));
    }
    Ok(ban.as_micros() as i64)
}

/// Bans for one quota of rejections. Times are in microseconds.
#[derive(Clone, Debug)]
struct BanRule {
    max_rejections: u64,
    period: i64,
    /// The length of the first ban.
    first_ban: i64,
    /// The length that doubling ends at.
    max_ban: i64,
    /// If positive, each charge bans the key for so long; if negative, for at least so long. 0 for none.
    manual_ban: i64,
}

/// The rejections and bans of a key. Times are in microseconds since the epoch, 0 for none.
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
    bans: i32,
    /// Whether it was banned by hand last.
    by_hand: bool,
    expires_at: i64,
}

impl State for BanState {
    fn expires_at(&self) -> Timestamp {
        Timestamp::from_micros(self.expires_at)
    }

    /// First keys that were never banned, by their rejections; then those that were; then bans, the one that ends first.
    fn eviction_order(&self, now: Timestamp) -> Option<u64> {
        let left = Timestamp::from_micros(self.banned_until).since(now);
        match left.as_micros() as u64 {
            // A ban that has ended makes the next one longer.
            0 if self.bans > 0 => Some(MAX_REJECTIONS),
            0 => Some(self.rejections as u64),
            _ if self.by_hand => None,
            left => Some(MAX_REJECTIONS.saturating_add(left)),
        }
    }
}

impl BanRule {
    fn with_manual_ban(&self, manual_ban: i64) -> Arc<dyn Rule> {
        Arc::new(Self {
            manual_ban,
            ..self.clone()
        })
    }

    /// How long the last of so many bans lasts.
    fn ban_length(&self, bans: i32) -> i64 {
        let mut length = self.first_ban;
        for _ in 1..bans {
            if length >= self.max_ban {
                break;
            }
            length = length.saturating_mul(2);
        }
        length.min(self.max_ban)
    }

    /// When a key expires.
    fn expires_at(&self, banned_until: i64, bans: i32, window_ends: i64) -> i64 {
        if banned_until == 0 {
            return window_ends;
        }
        let ban_length = if bans > 0 { self.ban_length(bans) } else { 0 };
        window_ends.max(banned_until.saturating_add(ban_length.max(self.period)))
    }

    /// The state at `now`.
    fn current(&self, state: &BanState, now: Timestamp) -> BanState {
        let now = now.as_micros();
        // The clock stepped back: what was still to come then is still to come.
        let ahead = state.updated_at.saturating_sub(now).max(0);
        let mut current = BanState {
            updated_at: now,
            banned_until: state.banned_until.saturating_sub(ahead).max(0),
            window_ends: state
                .window_ends
                .saturating_sub(ahead)
                .min(now.saturating_add(self.period)),
            ..*state
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

impl LocalRule for BanRule {
    type State = BanState;

    fn available(&self, state: &mut BanState, now: Timestamp) -> i64 {
        let mut current = self.current(state, now);
        current.expires_at =
            self.expires_at(current.banned_until, current.bans, current.window_ends);
        let (banned_until, rejections) = (current.banned_until, current.rejections);
        // As on Redis, the state is rewritten only if the clock stepped back or the quota changed: `updated_at` stays the instant
        // of the last write.
        if state.updated_at > now.as_micros() || state.expires_at != current.expires_at {
            *state = current;
        }
        if banned_until > now.as_micros() {
            return 0;
        }
        (self.max_rejections as i64 - rejections).max(1)
    }

    fn charge(&self, state: &mut BanState, now: Timestamp, units: u64, _caller: &Key) {
        let mut current = self.current(state, now);
        let now = now.as_micros();
        current.rejections = current.rejections.saturating_add(units as i64);
        // A ban that is only prolonged may be evicted: hosts that answer calls may be made up.
        current.by_hand = self.manual_ban > 0
            || self.manual_ban < 0 && current.by_hand && current.banned_until > now;
        if self.manual_ban != 0 {
            let until = now.saturating_add(self.manual_ban.saturating_abs());
            current.banned_until = match self.manual_ban {
                ..0 => until.max(current.banned_until),
                _ => until,
            };
            (current.rejections, current.window_ends) = (0, 0);
        } else if current.banned_until > now {
            return;
        } else if current.rejections < self.max_rejections as i64 {
            if current.window_ends == 0 {
                current.window_ends = now.saturating_add(self.period);
            }
        } else {
            if current.bans == 0 || self.ban_length(current.bans) < self.max_ban {
                current.bans += 1;
            }
            current.banned_until = now.saturating_add(self.ban_length(current.bans));
            (current.rejections, current.window_ends) = (0, 0);
        }
        current.expires_at =
            self.expires_at(current.banned_until, current.bans, current.window_ends);
        *state = current;
    }

    fn refund(
        &self,
        state: &mut BanState,
        now: Timestamp,
        _receipt: &ChargeReceipt,
        want: u64,
        _caller: &Key,
    ) -> u64 {
        let mut current = self.current(state, now);
        // A key that is banned holds no rejections: only a reset ends a ban.
        let refunded = (want as i64).min(current.rejections);
        if refunded > 0 {
            current.rejections -= refunded;
            *state = current;
        }
        refunded as u64
    }

    fn snapshot(&self, state: &BanState, now: Timestamp, _cost: u64) -> Snapshot {
        let current = self.current(state, now);
        Snapshot::new([
            current.banned_until,
            current.rejections * 100 + i64::from(current.bans),
            current.window_ends,
        ])
    }
}

impl Rule for BanRule {
    fn info(&self) -> RuleInfo {
        RuleInfo {
            counts_rejections: true,
            ..RuleInfo::new(Ban::BUILT_IN.state_format, self.max_rejections)
        }
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

    fn manual_ban(&self, ban: Duration) -> Option<Result<Arc<dyn Rule>, InvalidValue>> {
        Some(validated_ban_us(ban).map(|ban| self.with_manual_ban(ban)))
    }

    fn prolonged_ban(&self, ban: Duration) -> Option<Result<Arc<dyn Rule>, InvalidValue>> {
        Some(validated_ban_us(ban).map(|ban| self.with_manual_ban(-ban)))
    }

    fn ban_begun(
        &self,
        &Snapshot([banned_until, packed_counts, _]): &Snapshot,
        now: Timestamp,
    ) -> Option<Duration> {
        let bans = packed_counts % 100;
        let left = banned_until.saturating_sub(now.as_micros());
        // A later instant of the same ban has less left.
        (bans > 0 && left == self.ban_length(bans as i32))
            .then(|| Timestamp::from_micros(banned_until).since(now))
    }

    fn script(&self) -> Option<LuaScript> {
        let max_rejections = self.max_rejections as i64;
        let bans = [self.first_ban, self.max_ban, self.manual_ban];
        Some(LuaScript::new(
            include_str!("ban.lua"),
            [&[max_rejections, self.period][..], &bans].concat(),
        ))
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        Some(ErasedLocalRule::new(self))
    }
}
