//! Leases: the requests that they admit are told like others, and each unit has one fate.

use tollgate::observe::{LeaseStats, PolicyResult};
use tollgate_tests::{prelude::*, stores::redis, world::until_leased};

use crate::{admin::support::under, metrics::support::value, observe::support::*};

const COST: u64 = 3;

const LIMIT: u64 = 10_000_000;

/// Units of a lease are held for ten seconds, unless all are spent or the limiter is shut down.
fn leased(name: &str) -> Policy {
    let lease = Lease::max_units(600).ttl(secs(10));
    let policy = Policy::new(name, Quota::requests(LIMIT).per_day()).key(extract::global());
    policy.strategy(FixedWindow).lease(lease)
}

fn stats(limiter: &Limiter, policy: &str) -> Option<LeaseStats> {
    let leases = limiter.stats().store.leases;
    leases.into_iter().find(|stats| &*stats.policy == policy)
}

#[tokio::test]
async fn requests_that_leases_admit_are_told_like_others_and_each_leased_unit_once() {
    let server = Server::start();
    let ban = limit("abuse", "1000/day").strategy(Ban::for_duration(secs(60)));
    let policies = [leased("tenant"), leased("all"), ban];
    let watched = watched(Limiter::builder().store(redis(&server)), policies);
    let limiter = &watched.limiter;
    let before = watched.api.get("/activity").await.json;
    assert!(before["store"].get("leases").is_none(), "{before}");
    until_leased(limiter, KEY, COST).await;
    assert!(limiter.check(KEY).cost(COST).await.is_admitted());

    let (record, exposition) = watched.figures().await;
    let (requests, by_lease) = (record.requests(), record.sources[&DecisionSource::Lease]);
    assert_eq!(
        record.outcomes,
        [(DecisionOutcome::Admitted, requests)].into()
    );
    assert_eq!((record.uncounted, record.waits), (0, 0));
    for policy in ["tenant", "all"] {
        assert_eq!(record.result(policy, PolicyResult::Within), requests);
        // Units that are leased and not spent yet are charged for no request.
        assert_eq!(record.charged(policy), COST * requests);
        let leases = stats(limiter, policy).expect(policy);
        assert_eq!(leases.spent, COST * by_lease, "{leases:?}");
    }
    assert_eq!(record.units, [].into());
    assert!(stats(limiter, "abuse").is_none());
    assert_eq!(value(&exposition, "lease_units_total policy=abuse"), 0.0);
    let timed = value(&exposition, "decision_seconds_count source=lease");
    assert!(timed <= by_lease as f64, "{timed}");

    let refunded = limiter.shutdown(TEST_TIMEOUT).await;
    refunded.expect("a refund of what is left");
    until_accounted_for(limiter).await;
    let exposition = watched.metrics.exposition();
    let activity = watched.api.get("/activity").await.json;
    let status = limiter.peek(KEY).await.expect("a status");
    for policy in ["tenant", "all"] {
        let leases = stats(limiter, policy).expect(policy);
        let told = under(&activity["store"]["leases"], policy);
        for (kind, units) in [
            ("granted", leases.granted),
            ("spent", leases.spent),
            ("refunded", leases.refunded),
            ("lapsed", leases.lapsed),
        ] {
            let series = format!("lease_units_total policy={policy} kind={kind}");
            assert_eq!(value(&exposition, &series), units as f64, "{series}");
            assert_eq!(told[kind], units, "{kind}");
        }
        // Under a fixed window, whatever is not refunded is used.
        assert_eq!(status.used(policy), COST * requests + leases.lapsed);
    }
}

/// Waits until no units are held, and what became of all of them is known.
async fn until_accounted_for(limiter: &Limiter) {
    until("all units are accounted for", async || {
        let mut leases = limiter.stats().store.leases.into_iter();
        leases.all(|leases| {
            let ended = leases.spent + leases.refunded + leases.lapsed;
            leases.held == 0 && leases.granted == ended
        })
    })
    .await;
}
