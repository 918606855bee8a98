//! Those who waited in vain: what is noted of their refusal, once, and not each time that the store was asked.

use super::{
    Judged, Keys,
    judge::Own,
    wait::request::{Question, answer},
};
use crate::{
    decision::{Decision, DecisionKind, Part},
    key::Key,
    store::Op,
    strategy::RetryAfter,
};

impl Question {
    /// Notes how the waiting ended. Of those who were let in there is nothing left to note.
    pub(super) async fn conclude(&self, mut decision: Decision) -> Decision {
        if matches!(decision.kind, DecisionKind::Rejected) {
            self.desk.compare_refused(&mut decision).await;
            self.count_refusal(&mut decision).await;
        }
        decision
    }

    /// Counts the refusal towards bans, unless it was a ban that refused. Whoever is banned for it is told so.
    async fn count_refusal(&self, refused: &mut Decision) {
        let is_banned = refused.counted.iter().any(|item| item.part == Part::Ban);
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
        let shadows = refused.counted.partition_point(|item| !item.is_shadow());
        refused.counted.insert_many(shadows, banned);
    }

    /// The bans, and the key under each.
    fn bans(&self) -> Vec<(String, Key)> {
        let bans = self.desk.policies.iter().filter(|bound| bound.is_ban());
        let named = bans.filter_map(|bound| {
            let key = self.desk.key_of(bound, &self.keys)?;
            Some((bound.policy.name().to_owned(), *key))
        });
        named.collect()
    }
}
