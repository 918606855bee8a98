//! The outcomes and units that are told of random requests are, in sum, those that their callers see.

use tollgate::observe::{PolicyResult, UnitsKind};
use tollgate_tests::prelude::*;

use crate::observe::support::*;

/// What callers see: requests by outcome, and the units that were refunded to them.
#[derive(Debug, Default)]
struct Seen {
    outcomes: BTreeMap<DecisionOutcome, u64>,
    refunded: u64,
}

impl Seen {
    fn add(&mut self, outcome: DecisionOutcome, requests: u64) {
        if requests > 0 {
            *self.outcomes.entry(outcome).or_default() += requests;
        }
    }

    /// The outcome of `requests` by their decision.
    fn decided(&mut self, decision: &Decision, requests: u64) {
        let admitted = decision.admitted();
        self.add(DecisionOutcome::Admitted, admitted);
        self.add(DecisionOutcome::Rejected, requests - admitted);
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
}

async fn request(limiter: &Limiter, rng: &mut Rng, seen: &mut Seen) {
    let key = Key::new(["a", "b", "c", "d"][rng.below(4) as usize]);
    let times = 1 + rng.below(8);
    match rng.below(4) {
        0 => {
            let decision = limiter.check(key).times(times).await;
            seen.decided(&decision, times);
        }
        1 => {
            let waited = limiter.wait(key, Duration::ZERO).await;
            let decision = match &waited {
                Ok(admission) => admission.decisions().remove(0),
                Err(rejected) => rejected.decision().clone(),
            };
            seen.decided(&decision, 1);
        }
        2 => {
            // Dropped after it was sent; in process it is decided by then. With a full budget of tokio's, the first poll evaluates it.
            tokio::task::yield_now().await;
            match limiter.check(key).times(times).into_future().now_or_never() {
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
            seen.refunded += refunded.first().map_or(0, |refund| refund.units());
        }
    }
}

#[tokio::test]
async fn outcomes_and_units_of_random_requests_are_those_that_callers_see() {
    for world in World::both() {
        for seed in 1..=6 {
            let _case = Case(format!("{}, seed {seed}", world.name()));
            let (mut rng, mut seen) = (Rng::new(seed), Seen::default());
            let watched = watched(policies(world.builder(), 20), []);
            let (limiter, recorder) = (&watched.limiter, &watched.recorder);
            let all = limiter.policy("all").expect("known");
            for n in 0..300 {
                if n % 100 == 99 {
                    // What was admitted stays charged.
                    let next = policies(Limiter::builder(), 20 + n);
                    limiter.reconfigure(next).expect("valid");
                }
                request(limiter, &mut rng, &mut seen).await;
            }
            // Refunds of cancelled requests are sent when their batch is answered.
            until("cancelled requests are refunded", async || {
                let status = all.peek(KEY).await.expect("a response");
                status.used("all") == recorder.record().charged("all")
            })
            .await;
            let (record, _) = watched.figures().await;
            assert_eq!(record.outcomes, seen.outcomes);
            assert_eq!(record.units("p", UnitsKind::Refunded), seen.refunded);
            // Each request that was counted has one result under the policy, and one under its shadow.
            let admitted = record.outcome(DecisionOutcome::Admitted);
            let counted = admitted + record.outcome(DecisionOutcome::Rejected);
            for (policy, over) in [
                ("p", PolicyResult::Over),
                ("shadow", PolicyResult::ShadowOver),
            ] {
                let results = [PolicyResult::Within, PolicyResult::Near, over];
                let results = results.map(|result| record.result(policy, result));
                assert_eq!(results.iter().sum::<u64>(), counted);
            }
            assert_eq!(record.charged("p"), admitted);
            let last = record.policies.iter().map(|(generation, ..)| *generation);
            assert!(last.max() > Some(1), "generations");
            for key in ["a", "b", "c", "d"] {
                limiter.reset(key).await.expect("a response");
            }
            all.reset(KEY).await.expect("a response");
        }
    }
}
