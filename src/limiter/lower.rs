//! Lowering what keys have left to what another party says.

use std::{future::Future, sync::Arc, time::Duration};

use super::{
    check::{CheckOutput, CheckOverrides},
    core::LimiterRef,
    decide::{DecisionBuilder, MaybePending, PendingDecision},
    keys::CallEntry,
    mode::Mode,
    policy_decision::LimitStatus,
};
use crate::{error::CallError, store::Op};

/// What another party says is left of a key: see [`PolicyHandle::lower_to`](super::PolicyHandle::lower_to).
#[derive(Clone, Debug)]
pub(crate) struct Lowering {
    /// The policy and the key; its cost is not read.
    pub(crate) entry: CallEntry,
    pub(crate) remaining: u64,
    /// The time until the other party's window ends, if it is known.
    pub(crate) resets_in: Option<Duration>,
}

impl LimiterRef {
    /// Lowers what several keys have left, in their order, and returns how many units that charged. Each is lowered by itself: the
    /// error of one keeps no other from being lowered. All are sent before the first result is awaited, so a store that gathers
    /// operations sends them in one call.
    pub(crate) async fn lower_all(
        self: &Arc<Self>,
        lowerings: Vec<Lowering>,
    ) -> Vec<Result<u64, CallError>> {
        let begun = lowerings
            .into_iter()
            .map(|lowering| self.begin_lowering(lowering));
        let begun: Vec<_> = begun.collect();
        let mut results = Vec::with_capacity(begun.len());
        for lowering in begun {
            results.push(match lowering {
                Ok(pending) => pending.await,
                Err(error) => Err(error),
            });
        }
        results
    }

    /// Sends the operation, and returns a future of the units that it charges.
    pub(super) fn begin_lowering(
        self: &Arc<Self>,
        lowering: Lowering,
    ) -> Result<impl Future<Output = Result<u64, CallError>> + Send + use<>, CallError> {
        let index = self.index_of(&lowering.entry)?;
        let bound = &self.policies[index];
        if !bound.limit.info().can_lower() {
            let policy = bound.policy.shared_name();
            return Err(CallError::LowerUnsupported { policy });
        }
        // All quotas of a policy that counts in windows have one period.
        let slack = bound.policy.quota().period() / 10;
        let op = Op::Lower {
            window_ends_within: lowering.resets_in.map(|time| time.saturating_add(slack)),
        };
        let overrides = CheckOverrides {
            cost: Some(lowering.remaining),
            ..CheckOverrides::default()
        };
        let entry = CallEntry {
            cost: None,
            ..lowering.entry
        };
        let mut builder = DecisionBuilder::new(op, Mode::BY_HAND);
        let pending = self.decide(&mut builder, |builder| {
            self.evaluate_call(builder, &entry.into(), Some(&overrides))
        });
        let pending = match pending {
            None => MaybePending::Ready(Some(builder.finish(self.clone()))),
            Some(stage) => {
                MaybePending::Pending(PendingDecision::new(self.clone(), builder, stage))
            }
        };
        Ok(async move {
            let status = Result::<LimitStatus, CallError>::from_decision(pending.await)?;
            let decision = status.into_decision();
            let mut entries = decision.entries.iter();
            let lowered = entries.find(|entry| entry.policy as usize == index);
            Ok(lowered.map_or(0, |entry| entry.receipts.first().remaining))
        })
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use testkit::Server;

    use super::*;
    use crate::{FixedWindow, Key, Limiter, ListWindow, Policy, Quota, RedisStore};

    #[tokio::test]
    async fn several_are_lowered_by_one_call_and_the_error_of_one_keeps_no_other_from_it() {
        let server = Server::start();
        let store = RedisStore::builder().url(server.url());
        let store = store.timeout(Duration::from_secs(60)).build();
        let quota = |name| Policy::new(name, Quota::requests(10).per_day());
        let builder = Limiter::builder().store(store.expect("a store"));
        let builder = builder.policy(quota("even"));
        let builder = builder.policy(quota("list").strategy(ListWindow));
        let builder = builder.policy(quota("window").strategy(FixedWindow));
        let limiter = builder.build().expect("a limiter");
        let key = Key::new("alice");
        let lowering = |name: &str, remaining, hours: Option<u64>| Lowering {
            entry: limiter.policy(name).expect(name).entry(key).cost(7),
            remaining,
            resets_in: hours.map(|hours| Duration::from_secs(3_600 * hours)),
        };
        // The script is there.
        let _ = limiter.peek(key).await.expect("a response");
        let lowerings = vec![
            lowering("even", 4, Some(1)),
            lowering("list", 4, None),
            lowering("window", 3, Some(24)),
            lowering("window", 1, Some(1)),
            lowering("even", 5, None),
        ];
        server.reset_stats();
        let results = limiter.local_ref().lower_all(lowerings).await;
        assert_eq!(server.calls("evalsha"), 1);
        let units = |result: &Result<u64, CallError>| result.as_ref().ok().copied();
        let charged: Vec<_> = results.iter().map(units).collect();
        assert_eq!(charged, [Some(6), None, Some(7), Some(0), Some(0)]);
        let unsupported = matches!(results[1], Err(CallError::LowerUnsupported { .. }));
        assert!(unsupported, "{results:?}");
    }
}
