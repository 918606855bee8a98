//! What becomes of a policy's counts when the policy changes: the table of `docs/changing-policies.md`, in words.

use std::{cmp::Ordering, fmt};

use crate::{
    policy::Policy,
    quota::Quota,
    strategy::{
        TierRefills,
        entry::{BuiltIn, Counts},
    },
};

/// What becomes of the counts of `before` under `after`, a policy of the same name. `differs` says whether one of the named
/// settings has changed.
pub(super) fn after_change(
    before: &Policy,
    after: &Policy,
    differs: impl Fn(&[&str]) -> bool,
) -> String {
    let mut effects = Vec::new();
    let mut burst = None;
    let rules = [before, after].map(|policy| policy.bind(&policy.quota(), &TierRefills::default()));
    if let [Ok(old), Ok(new)] = rules {
        let (old_info, new_info) = (old.info(), new.info());
        if old_info.state_format != new_info.state_format {
            return "another strategy: the counts start afresh, and the old ones expire by themselves"
                .to_owned();
        }
        let change = Change {
            from: before.quota(),
            to: after.quota(),
            capacities: [old_info.capacity, new_info.capacity],
            same_strategy: !differs(&["strategy"]),
        };
        if change.from != change.to || !change.same_strategy {
            match BuiltIn::of(&*new) {
                Some(strategy) => change.describe(strategy.counts, after, &mut effects),
                None => effects.push("the strategy's own code reads the counts".to_owned()),
            }
        }
        let [from, to] = change.capacities;
        let same_quota = change.from.capacity() == change.to.capacity();
        if differs(&["lease"]) && same_quota && from != to {
            burst = Some(format!("the burst in force is {to} rather than {from}"));
        }
    }
    if differs(&["key", "by_hand"]) {
        effects.push("a request that has another key now is counted afresh".to_owned());
    }
    if effects.is_empty() {
        effects.push("the counts stay".to_owned());
    }
    effects.extend(burst);
    effects.join("; ")
}

/// A change of a quota or of a strategy's settings.
struct Change {
    from: Quota,
    to: Quota,
    /// The most units that can be charged at once under each: fewer than the quota's burst, if it has leases.
    capacities: [u64; 2],
    same_strategy: bool,
}

impl Change {
    fn describe(&self, counts: Counts, after: &Policy, effects: &mut Vec<String>) {
        let also = match counts {
            Counts::Time => {
                effects.extend(self.even_rate(after));
                ""
            }
            Counts::Units([longer_period, shorter_period, other_settings]) => {
                effects.push(self.count_stays());
                match self.to.period().cmp(&self.from.period()) {
                    Ordering::Greater => longer_period,
                    Ordering::Less => shorter_period,
                    Ordering::Equal if self.same_strategy => "",
                    Ordering::Equal => other_settings,
                }
            }
            Counts::Permits => {
                let (permits, left) = ("requests in flight keep their permits", self.to.amount());
                effects.push(match left < self.from.amount() {
                    true => {
                        format!("{permits}, and none is admitted until there are fewer than {left}")
                    }
                    false => permits.to_owned(),
                });
                match self.same_strategy {
                    true => "",
                    false => "a permit has the new TTL from its next renewal on",
                }
            }
            Counts::Other(text) => text,
        };
        if !also.is_empty() {
            effects.push(also.to_owned());
        }
    }

    /// The count of a strategy that counts units stays.
    fn count_stays(&self) -> String {
        match self.from.amount() == self.to.amount() {
            true => "the count stays".to_owned(),
            false => format!("the count stays: {}", self.example(|used| used)),
        }
    }

    /// What a strategy that counts time does; `None` for the same quota.
    fn even_rate(&self, after: &Policy) -> Option<String> {
        let interval = |quota: &Quota| {
            let ticks = quota.period().as_micros().saturating_mul(20);
            ticks.div_ceil(u128::from(quota.amount().max(1)))
        };
        let tolerance = |quota: &Quota| interval(quota).saturating_mul(quota.capacity().into());
        let (from, to) = (&self.from, &self.to);
        if interval(from) == interval(to) && from.capacity() == to.capacity() {
            return None;
        }
        let ratio = |capacity: &Quota, amount: &Quota| {
            u128::from(capacity.capacity()) * u128::from(amount.amount())
        };
        let kept = if interval(from) == interval(to) {
            "the used units stay"
        } else if from.period() == to.period() && ratio(from, to) == ratio(to, from) {
            "the used share stays"
        } else {
            "the time until the used units are free stays"
        };
        let tiers = after.declared_quotas().chain([to]);
        let max_debt = 2 * tiers.map(tolerance).max().unwrap_or_default();
        let example = self.example(|used| {
            let ticks = u128::from(used) * interval(from);
            let units = match ticks > max_debt {
                true => self.capacities[1].into(),
                false => ticks.div_ceil(interval(to).max(1)),
            };
            u64::try_from(units).unwrap_or(u64::MAX)
        });
        let cut = match tolerance(to) < tolerance(from) {
            true => ", up to a debt of one burst",
            false => "",
        };
        Some(format!("{kept}{cut}: {example}"))
    }

    /// An example: of so many used units under the old quota, how many `becomes` says are used under the new one.
    fn example(&self, becomes: impl Fn(u64) -> u64) -> Example {
        let [capacity, of] = self.capacities;
        let used = (u128::from(capacity) * 3).div_ceil(5) as u64;
        Example {
            used,
            capacity,
            becomes: becomes(used),
            of,
        }
    }
}

/// `6 of 10 are 12 of 20`.
struct Example {
    used: u64,
    capacity: u64,
    becomes: u64,
    of: u64,
}

impl fmt::Display for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            used,
            capacity,
            becomes,
            of,
        } = self;
        write!(f, "{used} of {capacity} are ")?;
        match becomes.checked_sub(*of) {
            Some(0) => write!(f, "all {of}"),
            Some(_) => write!(f, "more than all {of}"),
            None => write!(f, "{becomes} of {of}"),
        }
    }
}
