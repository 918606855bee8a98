//! What a new configuration changes.

use std::{collections::HashMap, fmt, sync::Arc};

use crate::{
    policy::Policy,
    setting::{Difference, to_text},
};

mod counts;

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
    /// Compares two sets of policies, each in its order and with what candidates inherit from their live policies.
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
                let counts = counts::after_change(before, after, differs);
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

#[cfg(test)]
mod tests;
