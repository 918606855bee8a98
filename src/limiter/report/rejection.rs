//! The event that is logged for each rejection.

use super::results::rejects;
use crate::{
    decision::{DecisionKind, PolicyEntry, longest_wait},
    limiter::{core::LimiterRef, evaluate::decision_builder::DecisionBuilder},
    store::Op,
};

impl LimiterRef {
    /// Logs a request that was rejected. One that waits is logged when it is rejected finally.
    #[cold]
    pub(crate) fn log_rejected(&self, builder: &DecisionBuilder) {
        if matches!(builder.op, Op::Acquire(_)) && !builder.will_retry && !builder.is_admitted() {
            self.log_rejection(&builder.kind, &builder.entries);
        }
    }

    /// Logs a rejection, with the first policy that rejected, and the longest wait.
    #[cold]
    pub(crate) fn log_rejection(&self, kind: &DecisionKind, entries: &[PolicyEntry]) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let mut enforced = entries.iter().filter(|entry| !entry.is_shadow());
        let by = enforced
            .find(|entry| rejects(self, entry))
            .filter(|_| matches!(kind, DecisionKind::Rejected));
        let by_policy = by.map(|entry| (&self.bound(entry.policy).policy, entry));
        let policy = by_policy.map(|(policy, _)| policy.name());
        // As the admin API and lists take it.
        let key = by_policy.map(|(policy, entry)| policy.key_text(&entry.key));
        let key = key.as_deref().map(tracing::field::display);
        let retry_after = by.and_then(|_| longest_wait(self, entries).duration());
        let outcome = kind.outcome(false, false).as_str();
        tracing::debug!(
            outcome,
            policy,
            key,
            retry_after = retry_after.map(tracing::field::debug),
            "a request was rejected"
        );
    }
}
