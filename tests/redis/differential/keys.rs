//! The keys on Redis: each has a time to live, which covers its state and is within what is documented.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tollgate_tests::{prelude::*, strategy_kind::StrategyKind as Plain};

use crate::differential::{
    generate::MAX_PERIOD,
    history::{PolicySpec, StrategyKind},
    response::Under,
};

/// A GCRA key lasts at most this much longer than its state.
const LAP: u64 = 60_000_000;

/// A day, in microseconds.
const DAY: u64 = 86_400_000_000;

/// A policy, and a key.
pub(crate) type PolicyKey = (usize, usize);

/// What is expected of the keys.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// Those that there are, and when each ends, in microseconds since 1970; `None`, never.
    present: BTreeMap<PolicyKey, Option<u64>>,
    expected: HashMap<PolicyKey, Expected>,
    /// Those that lost their time to live, and what was not repaired yet.
    spoiled: HashSet<PolicyKey>,
}

#[derive(Clone, Copy, Debug)]
struct Expected {
    /// It lasts until then.
    covers: u64,
    /// The same, unless something was refunded since.
    over: u64,
    /// It ends by then.
    ends: u64,
    /// There is no such key.
    absent: bool,
    /// When it was first changed in a way that no result shows.
    changed: Option<u64>,
}

/// Each key's name and time to live. A scan removes what is expired.
const KEYS_SCRIPT: &str = "local seen = {}
    for _, key in ipairs(redis.call('SCAN', 0, 'COUNT', 10000)[2]) do
        seen[#seen + 1], seen[#seen + 2] = key, redis.call('PTTL', key)
    end
    return seen";

impl Keys {
    /// Compares the server's keys, and returns those that are gone since the last time.
    pub(crate) fn check_keys(
        &mut self,
        server: &Server,
        now: u64,
    ) -> Result<Vec<PolicyKey>, String> {
        let seen = server.command(&["EVAL", KEYS_SCRIPT, "0"]).list();
        let mut present = BTreeMap::new();
        for pair in seen.chunks(2) {
            let (name, ttl) = (pair[0].clone().text(), pair[1].clone().int());
            let end = u64::try_from(ttl).ok();
            let end = end.map(|ttl| (now / 1_000 + ttl) * 1_000);
            match place(&name) {
                Some(place) => drop(present.insert(place, end)),
                None if end.is_some() || name.starts_with("tg:#overrides") => {}
                None => return Err(format!("{name} never ends")),
            }
        }
        let before = std::mem::replace(&mut self.present, present);
        for (place, end) in &self.present {
            self.check(*place, *end)?;
        }
        let gone = before
            .into_keys()
            .filter(|place| !self.present.contains_key(place));
        let mut gone: Vec<_> = gone.collect();
        // Those that came and went since.
        let expected = self.expected.keys();
        gone.extend(expected.filter(|place| !self.present.contains_key(place)));
        gone.sort_unstable();
        gone.dedup();
        for place in &gone {
            if let Some(expected) = self.expected.remove(place)
                && expected.covers > now
            {
                let covers = expected.covers;
                return Err(format!(
                    "{place:?} has no key at {now}, and its state lasts until {covers}"
                ));
            }
            self.spoiled.remove(place);
        }
        Ok(gone)
    }

    fn check(&self, place: PolicyKey, end: Option<u64>) -> Result<(), String> {
        if self.spoiled.contains(&place) {
            return Ok(());
        }
        let Some(end) = end else {
            return Err(format!("{place:?} never ends"));
        };
        let Some(expected) = self.expected.get(&place) else {
            return Ok(());
        };
        if expected.absent {
            return Err(format!(
                "{place:?} has a key, and nothing was charged under it"
            ));
        }
        if end + 1_000 <= expected.covers || end > expected.ends {
            return Err(format!("{place:?} ends at {end}: {expected:?}"));
        }
        Ok(())
    }

    /// Records what a result shows of a key; `repairs` if it repairs a lost TTL.
    pub(crate) fn record(
        &mut self,
        place: PolicyKey,
        policy: &PolicySpec,
        tier: usize,
        under: &Under,
        (now, repairs, charges): (u64, bool, bool),
    ) {
        let micros = |time: Duration| time.as_micros() as u64;
        let rate = policy.quotas[tier];
        let (reset, period) = (micros(under.reset), rate.period());
        let (covers, longest) = match policy.strategy {
            StrategyKind::Plain(Plain::Gcra) => (reset, reset + LAP),
            StrategyKind::Plain(strategy) => {
                let longest = match strategy.counting() {
                    Counting::EvenRate => reset,
                    Counting::OpenedWindows | Counting::CalendarWindows => period,
                    Counting::Log => period + policy.spread(),
                    Counting::Buckets(buckets) => period + period / u64::from(buckets),
                };
                (reset, longest)
            }
            // The window that ended is kept for an hour at most. If the clock stepped back, it is the next one.
            StrategyKind::Calendar(_) | StrategyKind::Zone(_) | StrategyKind::Epoch
                if reset == 0 =>
            {
                (0, 2 * (period + DAY).max(32 * DAY) + DAY / 24)
            }
            StrategyKind::Calendar(_) | StrategyKind::Zone(_) | StrategyKind::Epoch => {
                (reset, reset + DAY / 24)
            }
            StrategyKind::SmallLog => (reset, period),
            StrategyKind::Permits(life) => (0, life * 1_000),
            StrategyKind::Ban(first, longest) => {
                let longest = longest.max(first) * 1_000;
                // Whatever quota it was banned under.
                let shortest = policy.quotas.iter().map(|rate| rate.period()).min();
                let covers = if under.remaining == 0 {
                    reset + shortest.unwrap_or(0)
                } else {
                    reset
                };
                (covers, covers + 2 * longest.max(MAX_PERIOD))
            }
        };
        if repairs {
            self.spoiled.remove(&place);
        }
        let full = under.remaining == under.limit && under.reset.is_zero();
        let absent = repairs && !charges && full && !self.present.contains_key(&place);
        // The end of permits is not in the result.
        let over = if let StrategyKind::Permits(life) = policy.strategy
            && !full
        {
            life * 1_000
        } else {
            covers
        };
        let expected = Expected {
            covers: if reset == 0 { 0 } else { now + covers },
            over: now + over,
            ends: now + longest + 3_000,
            absent: absent && !policy.is_ban(),
            changed: None,
        };
        self.expected.insert(place, expected);
    }

    /// Records that a key was changed in a way that no result shows.
    pub(crate) fn change(&mut self, place: PolicyKey, now: u64) {
        let before = self.expected.get(&place);
        let unknown = Expected {
            covers: 0,
            over: before.map_or(0, |before| before.over),
            ends: u64::MAX,
            absent: false,
            changed: before.map_or(Some(0), |before| before.changed.or(Some(now))),
        };
        self.expected.insert(place, unknown);
    }

    /// Notes that a key was removed.
    pub(crate) fn remove(&mut self, place: PolicyKey) {
        self.expected.remove(&place);
        self.spoiled.remove(&place);
    }

    /// The `of`th key of those under the policies that are marked.
    pub(crate) fn pick(&self, of: usize, policies: &[bool]) -> Option<PolicyKey> {
        let marked = self.present.keys().filter(|(policy, _)| policies[*policy]);
        let marked: Vec<_> = marked.collect();
        (!marked.is_empty()).then(|| *marked[of % marked.len()])
    }

    /// Removes a key's TTL, or makes it longer by this many milliseconds.
    pub(crate) fn spoil(&mut self, server: &Server, place: PolicyKey, ms: Option<u64>) {
        let end = self.present.get(&place).copied().flatten();
        let end = end.zip(ms).map(|(end, ms)| (end / 1_000 + ms).to_string());
        for name in server.keys() {
            if self::place(&name) == Some(place) {
                match &end {
                    Some(end) => server.command(&["PEXPIREAT", &name, end]).ok(),
                    None => server.command(&["PERSIST", &name]).ok(),
                };
                self.spoiled.insert(place);
            }
        }
    }

    /// Removes keys of GCRA on the server that lost their time to live, and whose state is over for longer than it can be distinguished
    /// from one that lies ahead.
    pub(crate) fn remove_stale(
        &self,
        server: &Server,
        policies: &[PolicySpec],
        now: u64,
        idle: u64,
    ) {
        for place in &self.spoiled {
            let expected = self.expected.get(place);
            let over = expected.map_or(u64::MAX, |expected| expected.over);
            if policies[place.0].strategy == Plain::Gcra.into() && now > over.saturating_add(idle) {
                remove_key(server, *place);
            }
        }
    }

    /// Keys that were changed in a way that no result shows, and may be over by now. What was in use and changed at this very
    /// instant is not: whatever a refund left of it counts alike everywhere.
    pub(crate) fn unknown(&self, now: u64) -> Vec<usize> {
        let places = self.expected.iter();
        let is_old = |expected: &Expected| expected.over <= now || expected.changed != Some(now);
        let places = places.filter(|(_, expected)| expected.ends == u64::MAX && is_old(expected));
        let keys: BTreeSet<_> = places.map(|((_, key), _)| *key).collect();
        keys.into_iter().collect()
    }

    /// Removes keys on the server whose state is over, or that end in this millisecond, and returns them.
    pub(crate) fn remove_over(&mut self, server: &Server, now: u64) -> Vec<PolicyKey> {
        let places = self.expected.iter();
        let known = places.filter(|(_, expected)| expected.ends < u64::MAX);
        let over = known.filter(|(_, expected)| expected.over <= now);
        let mut over: BTreeSet<_> = over.map(|(place, _)| *place).collect();
        let ends_now = |end: &Option<u64>| end.is_some_and(|end| end <= now + 1_000);
        let ending = self.present.iter().filter(|(_, end)| ends_now(end));
        over.extend(ending.map(|(place, _)| *place));
        for place in &over {
            if self.present.remove(place).is_some() {
                remove_key(server, *place);
            }
            self.remove(*place);
        }
        over.into_iter().collect()
    }
}

fn remove_key(server: &Server, place: PolicyKey) {
    for name in server.keys() {
        if self::place(&name) == Some(place) {
            server.command(&["DEL", &name]).ok();
        }
    }
}

/// Whose key it is: `tg:g2:p0:k1` is the second under the first policy.
fn place(name: &str) -> Option<PolicyKey> {
    let mut parts = name.rsplit(':');
    let (key, policy) = (parts.next()?, parts.next()?);
    Some((number(policy, "p")?, number(key, "k")?))
}

fn number(text: &str, letter: &str) -> Option<usize> {
    text.strip_prefix(letter)?.parse().ok()
}
