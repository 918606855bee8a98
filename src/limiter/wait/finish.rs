//! The final rejection of a waiting request: counted once by bans and shadows, and not at each call of the store.

use super::request::{WaitRequest, answer};
use crate::{
    decision::{Decision, DecisionKind, Part},
    key::Key,
    limiter::{Judged, Keys, evaluate::judge::Own},
    store::Op,
    strategy::RetryAfter,
};

impl WaitRequest {
    /// Records a final rejection. An admission needs no record.
    pub(super) async fn finish(&self, mut decision: Decision) -> Decision {
        if matches!(decision.kind, DecisionKind::Rejected) {
            self.desk.compare_refused(&mut decision).await;
            self.count_rejection_for_bans(&mut decision).await;
        }
        decision
    }

    /// Counts the rejection towards bans, unless a ban rejected. A ban that begins with it is part of the decision.
    async fn count_rejection_for_bans(&self, rejected: &mut Decision) {
        let is_banned = rejected.counted.iter().any(|item| item.part == Part::Ban);
        let bans: Vec<(String, Key)> = if is_banned { Vec::new() } else { self.bans() };
        if bans.is_empty() {
            return;
        }
        let mut keys: Keys = bans.into();
        if let Some(caller) = self.keys.own_caller() {
            keys = keys.caller(caller);
        }
        let once = Own {
            cost: Some(1),
            in_check: true,
            quotas: self.own.quotas.clone(),
            ..Own::default()
        };
        let counted = match self
            .desk
            .clone()
            .judge_keys(Op::ForceAcquire, &keys, Some(&once))
        {
            Judged::Now(counted) => counted,
            Judged::Later(mut pending) => answer(&mut pending).await,
        };
        let banned = counted.counted.into_iter();
        let banned =
            banned.filter(|item| item.status(&*counted.books).retry_after != RetryAfter::Now);
        let shadows = rejected.counted.partition_point(|item| !item.is_shadow());
        rejected.counted.insert_many(shadows, banned);
    }

    /// The bans, and the request's key under each.
    fn bans(&self) -> Vec<(String, Key)> {
        let bans = self.desk.policies.iter();
        let bans = bans.filter(|bound| bound.is_ban() && !bound.policy.is_block_list());
        let named = bans.filter_map(|bound| {
            let key = self.desk.key_of(bound, &self.keys)?;
            Some((bound.policy.name().to_owned(), *key))
        });
        named.collect()
    }
}
