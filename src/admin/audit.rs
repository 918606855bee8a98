//! The log of changes.

use super::{
    api::{KeyText, Status},
    http::Failure,
    key_text,
    token::AdminUser,
};
use crate::{
    key::Key,
    limiter::{Limiter, Override},
};

/// A change, as the log names it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Reset,
    Credit { units: u64 },
    Block { seconds: u64 },
    Unblock,
    SetOverride,
    RemoveOverride,
}

impl Change {
    /// Its name, its units and its seconds.
    fn fields(self) -> (&'static str, Option<u64>, Option<u64>) {
        match self {
            Self::Reset => ("reset", None, None),
            Self::Credit { units } => ("credit", Some(units), None),
            Self::Block { seconds } => ("block", None, Some(seconds)),
            Self::Unblock => ("unblock", None, None),
            Self::SetOverride => ("set override", None, None),
            Self::RemoveOverride => ("remove override", None, None),
        }
    }
}

/// A change that is being made: its user, and the keys under each policy.
#[derive(Debug)]
pub(super) struct Audit {
    pub(super) user: AdminUser,
    pub(super) change: Change,
    keys: Vec<AuditedKey>,
}

#[derive(Debug)]
struct AuditedKey {
    policy: String,
    /// As it is shown in the log and in the answer.
    key: String,
}

impl Audit {
    pub(super) fn new(
        user: AdminUser,
        change: Change,
        text: &KeyText,
        limiter: &Limiter,
        keys: &[(String, Key)],
    ) -> Self {
        let hash = key_text::hash_of_credential(text, keys);
        let shown = keys.iter().map(|(policy, key)| AuditedKey {
            policy: policy.clone(),
            key: match &hash {
                Some(hash) if !key.has_hash() => hash.clone(),
                _ => key_text::shown(limiter, policy, key),
            },
        });
        Self {
            user,
            change,
            keys: shown.collect(),
        }
    }

    /// The statuses with the keys as the log shows them, so that no answer repeats a credential under a policy whose keys are
    /// readable.
    pub(super) fn shown(&self, mut statuses: Vec<Status>) -> Vec<Status> {
        for status in &mut statuses {
            let mut keys = self.keys.iter();
            if let Some(one) = keys.find(|one| one.policy == status.policy) {
                status.key.clone_from(&one.key);
            }
        }
        statuses
    }

    /// Logs that the change was made.
    pub(super) fn log(&self, before: &[Status], after: &[Status]) {
        let (change, units, seconds) = self.change.fields();
        for AuditedKey { policy, key } in &self.keys {
            let lifted = matches!(self.change, Change::Unblock).then(|| {
                let mut statuses = before.iter().filter(|status| status.policy == *policy);
                statuses.any(|status| status.blocked_until.is_some())
            });
            tracing::info!(
                target: "tollgate::admin",
                user = self.user.name(),
                change,
                policy = &**policy,
                key = &**key,
                units,
                seconds,
                lifted,
                before = brief(before, policy),
                after = brief(after, policy),
                "changed by the admin API"
            );
        }
    }

    /// The policy and the key of a change of one key.
    pub(super) fn key(&self) -> (&str, &str) {
        let first = self.keys.first();
        first.map_or(("", ""), |one| (&one.policy, &one.key))
    }

    /// Logs that an override was changed.
    pub(super) fn log_override(&self, before: Option<&Override>, after: Option<&Override>) {
        let [before, after] = [before, after].map(|setting| setting.map(Override::to_string));
        let ((change, ..), (policy, key)) = (self.change.fields(), self.key());
        let (user, none) = (self.user.name(), || "none".to_owned());
        let [before, after] = [before, after].map(|text| text.unwrap_or_else(none));
        tracing::info!(target: "tollgate::admin", user, change, policy, key, before, after, "changed by the admin API");
    }

    /// Logs that the change failed, and may have been made nevertheless.
    pub(super) fn log_failure(&self, failure: &Failure) {
        let (change, units, seconds) = self.change.fields();
        for AuditedKey { policy, key } in &self.keys {
            tracing::warn!(
                target: "tollgate::admin",
                user = self.user.name(),
                change,
                policy = &**policy,
                key = &**key,
                units,
                seconds,
                error = failure.detail(),
                "a change by the admin API failed, and may have been made nevertheless"
            );
        }
    }
}

/// The status under a policy in a few words.
fn brief(statuses: &[Status], policy: &str) -> Option<String> {
    let status = statuses.iter().find(|status| status.policy == policy)?;
    if let Some(end) = &status.blocked_until {
        return Some(format!("blocked until {end}"));
    }
    let (Some(remaining), Some(limit)) = (status.remaining, status.limit) else {
        return Some("not blocked".to_owned());
    };
    let wait = match status.retry_after_ms {
        Some(0) => String::new(),
        Some(wait) => format!(", retry after {wait} ms"),
        None => ", never admitted".to_owned(),
    };
    Some(format!("{remaining} of {limit} left{wait}"))
}
