//! What a new configuration changes.

use std::{cmp::Ordering, collections::HashMap, fmt, sync::Arc};

use crate::{
    policy::Policy,
    quota::Quota,
    setting::{Difference, to_text},
    strategy::{
        TierRefills,
        entry::{BuiltIn, Counts},
    },
};

/// What a new configuration changes in a running limiter: each policy, and the settings of the limiter and its layer.
///
/// It is displayed with one line for each policy and for each other setting that has changed:
///
/// ```text
/// on_store_error: admit -> reject
/// api: altered: quota 10/min -> 20/min (the used share stays: 6 of 10 are 12 of 20)
/// login: kept
/// uploads: removed (its counts expire by themselves)
/// ```
#[derive(Clone, Debug)]
pub struct Changes {
    policies: Vec<PolicyChange>,
    settings: Vec<SettingChange>,
}

/// What a new configuration changes in one policy.
///
/// Policies are matched by their names: another name is one policy removed and one added. Their order is not compared.
#[derive(Clone, Debug)]
pub struct PolicyChange {
    name: Arc<str>,
    kind: PolicyChangeKind,
    settings: Vec<SettingChange>,
    counts: Option<String>,
}

/// Whether a policy is in the old configuration, in the new one, or in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyChangeKind {
    /// In both, with the same settings.
    Kept,
    /// In both, with other settings.
    Altered,
    /// In the new one only.
    Added,
    /// In the old one only.
    Removed,
}

/// A setting that a new configuration changes.
///
/// Code of the application that has no name in a configuration document, such as a closure that is passed to
/// [`Policy::cost_with`], is `code`. It has changed unless it is the same closure without captured values, or the same value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChange {
    setting: &'static str,
    from: String,
    to: String,
}

impl Changes {
    /// Compares two sets of policies, each in its order.
    ///
    /// Called while the policies of both sets exist: code without a name is compared by its address.
    pub(crate) fn between<'a>(
        before: impl IntoIterator<Item = &'a Policy>,
        after: impl IntoIterator<Item = &'a Policy>,
    ) -> Self {
        let before: Vec<_> = before.into_iter().collect();
        let mut old: HashMap<_, _> = before.iter().map(|old| (old.name(), *old)).collect();
        let after = after.into_iter();
        let mut policies: Vec<_> = after
            .map(|policy| match old.remove(policy.name()) {
                Some(old) => PolicyChange::between(old, policy),
                None => PolicyChange::added(policy),
            })
            .collect();
        let removed = before
            .into_iter()
            .filter(|policy| old.contains_key(policy.name()));
        policies.extend(removed.map(PolicyChange::removed));
        Self {
            policies,
            settings: Vec::new(),
        }
    }

    /// Adds the settings outside of policies that differ.
    pub(crate) fn with_settings(mut self, differences: Vec<Difference>) -> Self {
        self.settings
            .extend(differences.into_iter().map(Difference::change));
        self
    }

    /// Adds that the store, in these settings, has other credentials in the document than its connections have.
    #[cfg(feature = "config")]
    pub(crate) fn with_unused_credentials(mut self, settings: &[&str]) -> Self {
        if !settings.is_empty() {
            let change = SettingChange {
                setting: "store",
                from: format!("credentials in {}", settings.join(", ")),
                to: "others, in force when the process is restarted".to_owned(),
            };
            self.settings.insert(0, change);
        }
        self
    }

    /// The policies: those of the new configuration in its order, kept ones too, then the removed ones.
    pub fn policies(&self) -> impl ExactSizeIterator<Item = &PolicyChange> {
        self.policies.iter()
    }

    /// The policy of this name, if it was or is in the configuration.
    pub fn policy(&self, name: &str) -> Option<&PolicyChange> {
        self.policies.iter().find(|policy| policy.name() == name)
    }

    /// The settings of the limiter and the layer that have changed.
    pub fn settings(&self) -> &[SettingChange] {
        &self.settings
    }

    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        let kept = |policy: &PolicyChange| policy.kind == PolicyChangeKind::Kept;
        self.settings.is_empty() && self.policies.iter().all(kept)
    }
}

impl PolicyChange {
    fn between(before: &Policy, after: &Policy) -> Self {
        let differences = before.differences(after).into_iter();
        let settings: Vec<_> = differences.map(Difference::change).collect();
        let (kind, counts) = match settings.is_empty() {
            true => (PolicyChangeKind::Kept, None),
            false => {
                let differs = |names: &[&str]| {
                    let mut settings = settings.iter();
                    settings.any(|change| names.contains(&change.setting))
                };
                let counts = after_change(before, after, differs);
                (PolicyChangeKind::Altered, Some(counts))
            }
        };
        Self {
            name: after.shared_name(),
            kind,
            settings,
            counts,
        }
    }

    fn added(policy: &Policy) -> Self {
        let settings = policy.setting_texts().into_iter();
        Self {
            name: policy.shared_name(),
            kind: PolicyChangeKind::Added,
            settings: settings
                .map(|(setting, to)| SettingChange {
                    setting,
                    from: to_text(&()),
                    to,
                })
                .collect(),
            counts: None,
        }
    }

    fn removed(policy: &Policy) -> Self {
        Self {
            name: policy.shared_name(),
            kind: PolicyChangeKind::Removed,
            settings: Vec::new(),
            counts: Some("its counts expire by themselves".to_owned()),
        }
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the policy was kept, altered, added or removed.
    pub fn kind(&self) -> PolicyChangeKind {
        self.kind
    }

    /// The settings that have changed; of an added policy, all that are no defaults.
    pub fn settings(&self) -> &[SettingChange] {
        &self.settings
    }

    /// What becomes of the policy's counts, by the [table of strategies](crate::strategy#changing-a-live-policy), in words:
    /// "the used share stays: 6 of 10 are 12 of 20". `None` for a policy that was kept or added.
    pub fn counts(&self) -> Option<&str> {
        self.counts.as_deref()
    }
}

impl SettingChange {
    /// The setting's name, that of the builder's method and in a configuration document.
    pub fn setting(&self) -> &str {
        self.setting
    }

    /// The value before, as a configuration document has it; `none` if it was not set.
    pub fn from(&self) -> &str {
        &self.from
    }

    /// The value now, as a configuration document has it; `none` if it is not set.
    pub fn to(&self) -> &str {
        &self.to
    }
}

impl Difference {
    fn change(self) -> SettingChange {
        let Self { setting, from, to } = self;
        SettingChange { setting, from, to }
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = self.settings.iter().map(|change| {
            let SettingChange { setting, from, to } = change;
            match from == to {
                true => format!("{setting}: other {to}"),
                false => format!("{setting}: {from} -> {to}"),
            }
        });
        let lines: Vec<_> = settings
            .chain(self.policies.iter().map(PolicyChange::to_string))
            .collect();
        f.write_str(&lines.join("\n"))
    }
}

impl fmt::Display for PolicyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.kind)?;
        for (index, change) in self.settings.iter().enumerate() {
            f.write_str(if index == 0 { ": " } else { ", " })?;
            match self.kind {
                PolicyChangeKind::Added => write!(f, "{} {}", change.setting, change.to)?,
                _ => change.fmt(f)?,
            }
        }
        match &self.counts {
            Some(counts) => write!(f, " ({counts})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for PolicyChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kept => "kept",
            Self::Altered => "altered",
            Self::Added => "added",
            Self::Removed => "removed",
        })
    }
}

/// `quota 10/min -> 20/min`.
impl fmt::Display for SettingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, from, to } = self;
        match from == to {
            // Code that is displayed alike.
            true => write!(f, "{setting} other {to}"),
            false => write!(f, "{setting} {from} -> {to}"),
        }
    }
}

/// What becomes of the counts of `before` under `after`, a policy of the same name: the table of `docs/changing-policies.md`, in
/// words. `differs` says whether one of the named settings has changed.
fn after_change(before: &Policy, after: &Policy, differs: impl Fn(&[&str]) -> bool) -> String {
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

#[cfg(test)]
mod tests;
