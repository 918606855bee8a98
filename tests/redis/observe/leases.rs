//! Leases, as observers and statistics show them.

use tollgate::observe::{
    DecisionEvent, LeaseStats, NEAR_PERCENT, PolicyEvent, PolicyKind, PolicyResult,
};
use tollgate_tests::{hot_key::until_leased, prelude::*, stores::redis};
use tracing::Level;

use crate::observe::support::*;

const COST: u64 = 3;

/// Units of a lease are held for ten seconds, unless all are spent or the limiter is shut down.
fn leased(name: &str) -> Policy {
    let lease = Lease::max_units(600).ttl(secs(10));
    let policy = limit(name, "10000000/day").strategy(FixedWindow);
    policy.lease(lease)
}

fn on(server: &Server) -> LimiterBuilder {
    Limiter::builder().store(redis(server))
}

/// A limiter under a policy `tenant` with leases.
fn leasing(server: &Server) -> Limiter {
    stores::limiter(on(server), [leased("tenant")])
}

fn stats(limiter: &Limiter, policy: &str) -> Option<LeaseStats> {
    let leases = limiter.stats().store.leases;
    leases.into_iter().find(|stats| &*stats.policy == policy)
}

/// What an observer is called with for a request that a lease admits.
#[derive(Debug, PartialEq)]
struct ByLease {
    outcome: DecisionOutcome,
    requests: u64,
    admitted: u64,
    uncounted: bool,
    policies: Vec<UnderPolicy>,
}

/// The result under one policy.
#[derive(Debug, PartialEq)]
struct UnderPolicy {
    index: usize,
    policy: String,
    kind: PolicyKind,
    key: String,
    results: Vec<(PolicyResult, u64)>,
    cost: u64,
    charged: u64,
    over: u64,
    limit: u64,
    is_some_used: bool,
    is_some_left: bool,
}

#[derive(Debug, Default)]
struct Recorded(Mutex<Vec<ByLease>>);

impl Observer for Recorded {
    fn on_decision(&self, event: &DecisionEvent<'_>) {
        if event.source != DecisionSource::Lease {
            return;
        }
        assert!(event.error.is_none() && !event.waits, "{event:?}");
        let under_policy = |policy: PolicyEvent<'_>| {
            let (limit, remaining) = (policy.limit(), policy.status().remaining);
            UnderPolicy {
                index: policy.index,
                policy: policy.policy.to_owned(),
                kind: policy.kind,
                key: policy.key.as_str().to_owned(),
                results: policy.results(NEAR_PERCENT).collect(),
                cost: policy.cost,
                charged: policy.charged,
                over: policy.over,
                limit,
                is_some_used: remaining < limit,
                is_some_left: remaining > 0,
            }
        };
        let by_lease = ByLease {
            outcome: event.outcome,
            requests: event.requests,
            admitted: event.admitted,
            uncounted: event.uncounted,
            policies: event.policies.into_iter().map(under_policy).collect(),
        };
        self.0.lock().expect("a lock").push(by_lease);
    }
}

#[tokio::test]
async fn a_request_that_a_lease_admits_is_reported_like_others() {
    let server = Server::start();
    let recorded = Arc::new(Recorded::default());
    let ban = limit("abuse", "1000/day").strategy(Ban::for_duration(secs(60)));
    let builder = on(&server).observe(recorded.clone());
    let (limiter, recorder) = recorded_by(builder, [leased("tenant"), leased("all"), ban]);
    until_leased(&limiter, KEY, COST).await;
    assert!(limiter.check(KEY).cost(COST).await.is_admitted());

    let under = |index, policy: &str| UnderPolicy {
        index,
        policy: policy.to_owned(),
        kind: PolicyKind::Live,
        key: KEY.as_str().to_owned(),
        results: vec![(PolicyResult::Within, 1)],
        cost: COST,
        charged: COST,
        over: 0,
        limit: 10_000_000,
        is_some_used: true,
        is_some_left: true,
    };
    let expected = ByLease {
        outcome: DecisionOutcome::Admitted,
        requests: 1,
        admitted: 1,
        uncounted: false,
        policies: vec![under(0, "tenant"), under(1, "all")],
    };
    let recorded = recorded.0.lock().expect("a lock");
    assert!(!recorded.is_empty());
    for event in recorded.iter() {
        assert_eq!(*event, expected);
    }
    // Units that are leased and not spent yet are charged for no request.
    let record = recorder.record();
    assert_eq!(record.charged("tenant"), COST * record.requests());
    let by_lease = record.sources[&DecisionSource::Lease];
    assert_eq!(by_lease, recorded.len() as u64);
    assert_eq!(record.units, [].into());
    for policy in ["tenant", "all"] {
        let leases = stats(&limiter, policy).expect(policy);
        assert_eq!(leases.spent, COST * by_lease, "{leases:?}");
    }
    assert!(stats(&limiter, "abuse").is_none());
}

#[tokio::test]
async fn leases_are_in_the_state_of_the_store() {
    let server = Server::start();
    let limiter = stores::limiter(on(&server), [leased("tenant"), limit("cold", "9000/day")]);
    assert!(limiter.stats().store.leases.is_empty());
    // A policy without leases beside it: all requests are counted in the store.
    for _ in 0..100 {
        assert_eq!(limiter.check(KEY).await.source(), DecisionSource::Store);
    }
    assert!(limiter.stats().store.leases.is_empty());

    let limiter = leasing(&server);
    until_leased(&limiter, KEY, COST).await;
    let leases = stats(&limiter, "tenant").expect("leases");
    let spent = leases.spent;
    assert!(spent >= COST && spent.is_multiple_of(COST), "{leases:?}");
    let sent = limiter.shutdown(TEST_TIMEOUT).await;
    sent.expect("all is sent");
    until_settled(&limiter).await;
}

#[tokio::test]
async fn leases_log_nothing_and_a_store_that_fails_is_logged_as_without_them() {
    let (log, start) = (Log::default(), Instant::now());
    let _guard = log.at(Level::DEBUG);
    let server = Server::start();
    let limiter = leasing(&server);
    until_leased(&limiter, KEY, COST).await;
    server.kill();
    // The units that are held are spent first.
    until("the store fails", async || {
        let decision = limiter.check(KEY).cost(COST).await;
        assert!(decision.is_admitted());
        decision.source() == DecisionSource::Fallback
    })
    .await;
    log.throttled("rate limit store failed", start);
    assert!(!log.text().contains("lease"), "{}", log.text());
}

/// Waits until no units are held, and what became of all of them is known; returns how many lapsed.
async fn until_settled(limiter: &Limiter) -> u64 {
    let mut lapsed = 0;
    until("all units are accounted for", async || {
        let leases = stats(limiter, "tenant").expect("leases");
        lapsed = leases.lapsed;
        leases.held == 0 && leases.granted == leases.spent + leases.refunded + lapsed
    })
    .await;
    lapsed
}

#[tokio::test]
async fn units_of_a_key_that_is_reset_lapse() {
    let server = Server::start();
    let limiter = leasing(&server);
    // Where the machine is slow, no unit may be held any more.
    until("units that are held are reset", async || {
        until_leased(&limiter, KEY, COST).await;
        assert!(limiter.reset(KEY).await.is_ok());
        stats(&limiter, "tenant").is_some_and(|leases| leases.lapsed > 0)
    })
    .await;
    until_settled(&limiter).await;
}

#[tokio::test]
async fn units_whose_refund_fails_lapse() {
    let server = Server::start();
    let limiter = leasing(&server);
    // From then on no refund succeeds.
    let are_held = async || {
        server.resume();
        until_leased(&limiter, KEY, COST).await;
        server.pause();
        stats(&limiter, "tenant").is_some_and(|leases| leases.held > 0)
    };
    until("units are held when the server stops responding", are_held).await;
    server.kill();
    // Refunds of leases are sent once.
    let _ = limiter.shutdown(TEST_TIMEOUT).await;
    assert!(until_settled(&limiter).await > 0);
}
