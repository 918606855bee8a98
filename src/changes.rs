//! What a new configuration changes.

use std::{borrow::Cow, collections::HashMap, fmt, sync::Arc};

use crate::{
    policy::Policy,
    quota::Quota,
    strategy::{
        TierRefills,
        entry::{BuiltIn, Counts},
    },
};

/// What a new configuration changes in a running limiter: which policies are kept, altered, added or removed, and which settings
/// of the limiter and its layer are others.
///
/// It is displayed with one line for each other setting and for each policy:
///
/// ```text
/// on_store_error: altered
/// api: altered: quota 10/min -> 20/min (the used share stays)
/// login: kept
/// uploads: removed (its counts expire by themselves)
/// ```
#[derive(Clone, Debug)]
pub struct Changes {
    policies: Vec<PolicyChange>,
    /// The names of settings, and what is to say of each.
    settings: Vec<(&'static str, Cow<'static, str>)>,
}

/// What a new configuration changes in one policy.
///
/// Policies are matched by their names: another name is one policy removed and one added. Their order is not compared.
#[derive(Clone, Debug)]
pub struct PolicyChange {
    name: Arc<str>,
    kind: PolicyChangeKind,
    quota_before: Option<Quota>,
    quota_after: Option<Quota>,
    counts: Option<&'static str>,
}

/// Whether a policy is in the old configuration, in the new one, or in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyChangeKind {
    /// In both, with the same settings.
    Kept,
    /// In both, with other settings. A closure is another setting unless both policies share it.
    Altered,
    /// In the new one only.
    Added,
    /// In the old one only.
    Removed,
}

impl Changes {
    /// Compares two sets of policies, each in its order.
    ///
    /// Called while the policies of both sets exist: functions are compared by their address.
    pub(crate) fn between<'a>(
        before: impl IntoIterator<Item = &'a Policy>,
        after: impl IntoIterator<Item = &'a Policy>,
    ) -> Self {
        let before: Vec<_> = before.into_iter().collect();
        let mut old: HashMap<_, _> = before.iter().map(|old| (old.name(), *old)).collect();
        let after = after.into_iter();
        let mut policies: Vec<_> = after
            .map(|policy| PolicyChange::between(old.remove(policy.name()), policy))
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
    pub(crate) fn with_settings(mut self, names: Vec<&'static str>) -> Self {
        let altered = PolicyChangeKind::Altered.as_str();
        let settings = names.into_iter().map(|name| (name, altered.into()));
        self.settings.extend(settings);
        self
    }

    /// Adds that the store, in these settings, has other credentials in the document than its connections have.
    #[cfg(feature = "config")]
    pub(crate) fn with_unused_credentials(mut self, settings: &[&str]) -> Self {
        if !settings.is_empty() {
            let settings = settings.join(", ");
            let text =
                format!("other credentials in {settings}, in force when the process is restarted");
            self.settings.insert(0, ("store", text.into()));
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

    /// The names of the settings of the limiter and the layer that have changed, those of the builders' methods.
    pub fn settings(&self) -> impl ExactSizeIterator<Item = &str> {
        self.settings.iter().map(|(name, _)| *name)
    }

    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        let kept = |policy: &PolicyChange| policy.kind == PolicyChangeKind::Kept;
        self.settings.is_empty() && self.policies.iter().all(kept)
    }

    /// One line for each change, and for each policy that `lists` accepts.
    pub(crate) fn lines(&self, lists: impl Fn(&PolicyChange) -> bool) -> Vec<String> {
        let settings = self.settings.iter();
        let settings = settings.map(|(name, text)| format!("{name}: {text}"));
        let policies = self.policies.iter().filter(|policy| lists(policy));
        settings.chain(policies.map(ToString::to_string)).collect()
    }
}

impl PolicyChange {
    fn between(before: Option<&Policy>, after: &Policy) -> Self {
        let (kind, counts) = match before {
            None => (PolicyChangeKind::Added, None),
            Some(before) if before.is_same(after) => (PolicyChangeKind::Kept, None),
            Some(before) => (PolicyChangeKind::Altered, Some(counts_after(before, after))),
        };
        Self {
            name: after.shared_name(),
            kind,
            quota_before: before.and_then(Policy::own_quota),
            quota_after: after.own_quota(),
            counts,
        }
    }

    fn removed(policy: &Policy) -> Self {
        Self {
            name: policy.shared_name(),
            kind: PolicyChangeKind::Removed,
            quota_before: policy.own_quota(),
            quota_after: None,
            counts: Some("its counts expire by themselves"),
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

    /// The quota before; `None` for an added policy, and for a block list.
    pub fn quota_before(&self) -> Option<Quota> {
        self.quota_before
    }

    /// The quota now; `None` for a removed policy, and for a block list.
    pub fn quota_after(&self) -> Option<Quota> {
        self.quota_after
    }

    /// What becomes of the policy's counts, by the [table of strategies](crate::strategy#changing-a-live-policy), in words such
    /// as "the used share stays". `None` for a policy that was kept or added.
    pub fn counts(&self) -> Option<&str> {
        self.counts
    }
}

impl PolicyChangeKind {
    /// Its name: `kept`, `altered`, `added` or `removed`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Altered => "altered",
            Self::Added => "added",
            Self::Removed => "removed",
        }
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines(|_| true).join("\n"))
    }
}

impl fmt::Display for PolicyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.kind.as_str())?;
        match (self.quota_before, self.quota_after) {
            (None, Some(quota)) => write!(f, ": quota {quota}")?,
            (Some(from), Some(to)) if from != to => write!(f, ": quota {from} -> {to}")?,
            _ => {}
        }
        match self.counts {
            Some(counts) => write!(f, " ({counts})"),
            None => Ok(()),
        }
    }
}

/// What becomes of the counts of `before` under `after`, a policy of the same name: the table of `docs/changing-policies.md`, in
/// words.
fn counts_after(before: &Policy, after: &Policy) -> &'static str {
    let rules = [before, after].map(|policy| policy.bind(&policy.quota(), &TierRefills::default()));
    match rules {
        [Ok(from), Ok(to)] if from.info().state_format != to.info().state_format => {
            "another strategy: the counts start afresh, and the old ones expire by themselves"
        }
        _ if !before.finds_keys_like(after) => {
            "a request that has another key now is counted afresh"
        }
        [_, Ok(to)] if before.quota() != after.quota() || !before.has_same_strategy(after) => {
            match BuiltIn::of(&*to).map(|strategy| strategy.counts) {
                Some(Counts::Time) => time_after(before.quota(), after.quota()),
                Some(Counts::Kept(text)) => text,
                None => "the strategy's own code reads the counts",
            }
        }
        _ => "the counts stay",
    }
}

/// What becomes of the counts of a strategy that stores the time until all units are back.
fn time_after(from: Quota, to: Quota) -> &'static str {
    let units_within = |quota: Quota, of: Quota| {
        u128::from(quota.amount()).saturating_mul(of.period().as_micros())
    };
    let burst = |of: Quota, quota: Quota| u128::from(of.capacity()) * u128::from(quota.amount());
    if units_within(from, to) == units_within(to, from) {
        "the used units stay"
    } else if from.period() == to.period() && burst(from, to) == burst(to, from) {
        "the used share stays"
    } else {
        "the time until the used units are free stays"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FixedWindow;

    fn policy(name: &str, quota: &str) -> Policy {
        Policy::new(name, quota.parse::<Quota>().expect(quota))
    }

    /// What becomes of the counts of one policy.
    fn counts(before: &Policy, after: &Policy) -> String {
        let changes = Changes::between([before], [after]);
        let change = changes.policies().next().expect("a policy");
        change.counts().unwrap_or_default().to_owned()
    }

    #[test]
    fn a_policy_is_kept_altered_added_or_removed() {
        let before = [
            policy("api", "10/min"),
            policy("login", "5/h"),
            policy("uploads", "1/s"),
        ];
        let after = [
            policy("new", "7/day").strategy(FixedWindow),
            policy("login", "5/h"),
            policy("api", "20/min").cost(2),
        ];
        let changes = Changes::between(&before, &after).with_settings(vec!["headers"]);
        assert_eq!(
            changes.to_string(),
            "headers: altered\n\
             new: added: quota 7/day\n\
             login: kept\n\
             api: altered: quota 10/min -> 20/min (the used share stays)\n\
             uploads: removed (its counts expire by themselves)"
        );
        assert!(!changes.is_empty());
        assert!(Changes::between(&before, &before).is_empty());
    }

    #[test]
    fn an_even_rate_keeps_the_share_the_time_or_the_units() {
        for (from, to, expected) in [
            ("10/min", "20/min", "the used share stays"),
            ("10/s burst 20", "20/s burst 40", "the used share stays"),
            (
                "10/min",
                "10/h",
                "the time until the used units are free stays",
            ),
            ("10/min", "10/min burst 20", "the used units stay"),
            ("10/min", "600/h", "the used units stay"),
        ] {
            let [from, to] = [from, to].map(|quota| policy("api", quota));
            assert_eq!(counts(&from, &to), expected, "{from:?} {to:?}");
        }
    }
}
