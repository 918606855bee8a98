//! The final rejection of a waiting request: counted once by bans and shadows, and not at each call of the store.

use super::request::{WaitRequest, await_decision};
use crate::{
    decision::{Decision, DecisionKind, PolicyRole},
    key::Key,
    limiter::{evaluate::decision_builder::MaybePending, keys::Keys, overrides::CheckOverrides},
    store::Op,
    strategy::RetryAfter,
};

impl WaitRequest {
    /// Records a final rejection. An admission needs no record.
    pub(super) async fn finish(&self, mut decision: Decision) -> Decision {
        if matches!(decision.kind, DecisionKind::Rejected) {
            self.limiter.record_shadows_after_wait(&mut decision).await;
            self.count_rejection_for_bans(&mut decision).await;
        }
        if !decision.is_admitted() {
            self.limiter
                .log_rejection(&decision.kind, &decision.entries);
        }
        decision
    }

    /// Counts the rejection towards bans, unless a ban rejected. A ban that begins with it is part of the decision.
    async fn count_rejection_for_bans(&self, rejected: &mut Decision) {
        let is_banned = rejected
            .entries
            .iter()
            .any(|entry| entry.role == PolicyRole::Ban);
        let bans: Vec<(String, Key)> = if is_banned { Vec::new() } else { self.bans() };
        if bans.is_empty() {
            return;
        }
        let mut keys: Keys = bans.into();
        if let Some(caller) = self.keys.caller_override() {
            keys = keys.caller(caller);
        }
        let once = CheckOverrides {
            cost: Some(1),
            in_check: true,
            quotas: self.overrides.quotas.clone(),
            ..CheckOverrides::default()
        };
        let counted = match self
            .limiter
            .clone()
            .decide_keys(Op::ForceAcquire, &keys, &once)
        {
            MaybePending::Ready(decision) => decision,
            MaybePending::Pending(mut pending) => await_decision(&mut pending).await,
        };
        let banned = counted.entries.into_iter();
        let banned =
            banned.filter(|entry| entry.status(&*counted.backend).retry_after != RetryAfter::Now);
        let shadows = rejected.entries.partition_point(|entry| !entry.is_shadow());
        rejected.entries.insert_many(shadows, banned);
    }

    /// The bans, and the request's key under each.
    fn bans(&self) -> Vec<(String, Key)> {
        let bans = self.limiter.policies.iter();
        let bans = bans.filter(|bound| bound.is_ban() && !bound.policy.is_block_list());
        let named = bans.filter_map(|bound| {
            let key = self.limiter.key_of(bound, &self.keys)?;
            Some((bound.policy.name().to_owned(), *key))
        });
        named.collect()
    }
}
