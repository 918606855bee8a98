//! The reported outcomes and units of random requests are, in sum, those that their callers see.

use std::pin::pin;

use tollgate::observe::{PolicyResult, UnitsKind};
use tollgate_tests::prelude::*;

use crate::observe::support::*;

/// What callers see.
#[derive(Debug, Default)]
struct Seen {
    outcomes: BTreeMap<DecisionOutcome, u64>,
    /// Units that were charged and not refunded, under each key.
    used: BTreeMap<Key, u64>,
}

impl Seen {
    fn add(&mut self, outcome: DecisionOutcome, requests: u64) {
        if requests > 0 {
            *self.outcomes.entry(outcome).or_default() += requests;
        }
    }

    /// The outcome of `requests` by their decision.
    fn decided(&mut self, decision: &Decision, requests: u64) {
        let outcome = match decision.kind() {
            DecisionKind::Admitted if decision.source() == DecisionSource::NotChecked => {
                DecisionOutcome::AllowListed
            }
            DecisionKind::Admitted => DecisionOutcome::Admitted,
            DecisionKind::Rejected => DecisionOutcome::Rejected,
            DecisionKind::DenyListed => DecisionOutcome::DenyListed,
            DecisionKind::UnknownPolicy(_) => DecisionOutcome::Invalid,
            other => panic!("{other:?}"),
        };
        if outcome == DecisionOutcome::Admitted {
            self.add(outcome, decision.admitted());
            self.add(DecisionOutcome::Rejected, requests - decision.admitted());
        } else {
            self.add(outcome, requests);
        }
    }
}

/// A limit, a shadow that is stricter, and a ban that is out of reach for most keys.
fn policies(builder: LimiterBuilder, quota: u64) -> LimiterBuilder {
    let ban = Ban::for_duration(secs(600));
    let policy = |name: &str, quota: &str| Policy::new(name, quota.parse().expect(quota));
    builder
        .policy(policy("p", &format!("{quota}/month")))
        .policy(limit("all", "100000/month"))
        .policy(policy("abuse", "20/h").strategy(ban))
        .policy(policy("shadow", "9/month").shadow())
        .allow(KeyList::new("p", [Key::new("friend")]))
        .deny(KeyList::new("p", [Key::new("mallory")]))
}

async fn request(limiter: &Limiter, rng: &mut Rng, seen: &mut Seen) {
    let keys = ["a", "b", "c", "d", "friend", "mallory"];
    let key = Key::new(keys[rng.below(6) as usize]);
    match rng.below(10) {
        0..4 => {
            let decision = limiter.check(key).await;
            seen.decided(&decision, 1);
        }
        4 | 5 => {
            let times = rng.below(9);
            let decision = limiter.check(key).times(times).await;
            seen.decided(&decision, times);
        }
        6 => {
            let waited = limiter.wait(key, Duration::ZERO).await;
            let decision = match &waited {
                Ok(admission) => admission.decisions().remove(0),
                Err(rejected) => rejected.decision().clone(),
            };
            seen.decided(&decision, 1);
        }
        7 => {
            let decision = limiter.check(("no-such-policy", key)).await;
            seen.decided(&decision, 1);
        }
        8 => {
            // Dropped after it was sent; in process it is decided by then.
            let times = 1 + rng.below(3);
            // With a full budget of tokio's, the first poll evaluates it.
            tokio::task::yield_now().await;
            let pending = pin!(limiter.check(key).times(times).into_future());
            match pending.now_or_never() {
                Some(decision) => seen.decided(&decision, times),
                None => seen.add(DecisionOutcome::Cancelled, times),
            }
        }
        _ => {
            let admission = match limiter.admit(key).await {
                Ok(admission) => admission,
                Err(rejected) => return seen.decided(rejected.decision(), 1),
            };
            seen.decided(&admission.decisions()[0], 1);
            let p = admission.policy("p").expect("known");
            let refunded = p.refund(1).await.expect("a response");
            let units = refunded.first().map_or(0, |refund| refund.units());
            *seen.used.entry(key).or_default() += units;
        }
    }
}

#[tokio::test]
async fn outcomes_and_units_of_random_requests_are_those_that_callers_see() {
    for world in World::both() {
        for seed in 1..=6 {
            let (mut rng, mut seen) = (Rng::new(seed), Seen::default());
            let (limiter, recorder) = recorded_by(policies(world.builder(), 20), []);
            for key in ["a", "b", "c", "d"] {
                limiter.reset(key).await.expect("a response");
            }
            let all = limiter.policy("all").expect("known");
            all.reset(KEY).await.expect("a response");
            for n in 0..300 {
                if n % 100 == 99 {
                    // What was admitted stays charged.
                    let next = policies(Limiter::builder(), 20 + n);
                    limiter.reconfigure(next).expect("valid");
                }
                request(&limiter, &mut rng, &mut seen).await;
            }
            let case = format!("{}, seed {seed}", world.name());
            // Refunds of cancelled requests are sent when their batch is answered.
            until("cancelled requests are refunded", async || {
                let status = all.peek(KEY).await.expect("a response");
                let used = status.used("all");
                used == recorder.record().charged("all")
            })
            .await;
            let record = recorder.record();
            assert_eq!(record.outcomes, seen.outcomes, "{case}");
            let refunded: u64 = seen.used.values().sum();
            assert_eq!(record.units("p", UnitsKind::Refunded), refunded, "{case}");
            // Each request that was counted has one result under the policy, and one under its shadow.
            let counted = record.outcome(DecisionOutcome::Admitted)
                + record.outcome(DecisionOutcome::Rejected);
            for (policy, over) in [
                ("p", PolicyResult::Over),
                ("shadow", PolicyResult::ShadowOver),
            ] {
                let results = [PolicyResult::Within, PolicyResult::Near, over];
                let results = results.map(|result| record.result(policy, result));
                assert_eq!(results.iter().sum::<u64>(), counted, "{case}");
            }
            let admitted = record.outcome(DecisionOutcome::Admitted);
            assert_eq!(record.charged("p"), admitted, "{case}");
            assert!(recorder.record().generations() > 2, "{case}");
            let stats = limiter.shadow_stats("shadow").expect("a shadow");
            assert!(stats.evaluated > 0);
        }
    }
}

#[tokio::test]
async fn requests_in_an_outage_are_reported_as_counted_in_process_or_not_at_all() {
    let build = |action: OnStoreError| {
        let builder = Limiter::builder().store(StubStore::unreachable());
        recorded_by(builder.on_store_error(action), [limit("p", "5/month")])
    };
    let local = LocalFallback::shared_by(1).into();
    let limiters = [OnStoreError::Admit, OnStoreError::Reject, local].map(build);
    for (limiter, _) in &limiters {
        for _ in 0..4 {
            let _ = limiter.check(KEY).times(2).await;
        }
    }
    let [admitting, rejecting, local] = limiters.map(|(_, recorder)| recorder.record());
    let fallback = |requests| BTreeMap::from([(DecisionSource::Fallback, requests)]);
    for record in [&admitting, &rejecting, &local] {
        assert_eq!((record.requests(), &record.sources), (8, &fallback(8)));
    }
    assert_eq!(admitting.outcome(DecisionOutcome::Admitted), 8);
    assert_eq!(admitting.uncounted, 8);
    assert_eq!(rejecting.outcome(DecisionOutcome::StoreFailed), 8);
    assert_eq!((rejecting.uncounted, local.uncounted), (0, 0));
    assert_eq!(local.outcome(DecisionOutcome::Admitted), 5);
    assert_eq!(local.outcome(DecisionOutcome::Rejected), 3);
    assert_eq!(local.charged("p"), 5);
}
