//! The metrics of leases.

use std::sync::atomic::Ordering::Relaxed;

use tollgate::observe::{LeaseStats, StoreStats};
use tollgate_tests::{hot_key::until_leased, prelude::*, stores::limiter};

use crate::metrics::support::*;

const KINDS: [&str; 4] = ["granted", "spent", "refunded", "lapsed"];

fn policy(name: &str) -> Policy {
    Policy::new(name, Quota::requests(10_000_000).per_day()).strategy(FixedWindow)
}

/// The units of a policy's leases by kind, and those that are held.
fn units(exposition: &Exposition, policy: &str) -> ([f64; 4], f64) {
    let by_kind = KINDS.map(|kind| {
        let series = format!("lease_units_total policy={policy} kind={kind}");
        value(exposition, &series)
    });
    let held = value(exposition, &format!("lease_units_held policy={policy}"));
    (by_kind, held)
}

/// Requests of one key, until many of them were admitted by leases. Meanwhile no counter falls.
async fn make_hot(limiter: &Limiter, observed: &Observed) {
    let mut before = [0.0; 4];
    until("leases admit requests", async || {
        until_leased(limiter, "hot", 1).await;
        let exposition = observed.exposition();
        let (now, _) = units(&exposition, "api");
        let fell = before.iter().zip(now).any(|(before, now)| *before > now);
        assert!(!fell, "{before:?}, then {now:?}");
        before = now;
        value(&exposition, "requests_total source=lease") >= 500.0
    })
    .await;
}

#[tokio::test]
async fn units_of_leases_add_up_and_requests_by_them_have_a_source_of_their_own() {
    let (server, observed) = (Server::start(), Observed::default());
    let lease = Lease::max_units(64).ttl(secs(10));
    let limiter = on(&server, &observed, [policy("api").lease(lease)]);
    assert_eq!(units(&observed.exposition(), "api"), ([0.0; 4], 0.0));

    make_hot(&limiter, &observed).await;
    let refunded = limiter.shutdown(TEST_TIMEOUT).await;
    refunded.expect("a refund of what is left");
    until("what is left is refunded", async || {
        let ([granted, spent, refunded, lapsed], held) = units(&observed.exposition(), "api");
        held == 0.0 && granted == spent + refunded + lapsed
    })
    .await;

    let exposition = observed.exposition();
    let ([_, spent, _, lapsed], _) = units(&exposition, "api");
    let admitted = |source| {
        let series = format!("requests_total outcome=admitted source={source}");
        value(&exposition, &series)
    };
    assert_eq!(spent, admitted("lease"));
    let charged = value(&exposition, "policy_units_total policy=api kind=charged");
    assert_eq!(charged, admitted("lease") + admitted("store"));
    // Under a fixed window, whatever is not refunded is used.
    let status = limiter.peek("hot").await.expect("a status");
    let used = status.used("api") as f64;
    assert_eq!(used, admitted("store") + spent + lapsed);
    let timed = value(&exposition, "decision_seconds_count source=lease");
    assert!(timed <= admitted("lease"), "{timed}");
}

#[tokio::test]
async fn policies_without_leases_have_the_value_0() {
    let (server, observed) = (Server::start(), Observed::default());
    let limiter = on(&server, &observed, [policy("api")]);
    for _ in 0..500 {
        assert!(limiter.check("hot").await.is_admitted());
    }
    let exposition = observed.exposition();
    assert_eq!(units(&exposition, "api"), ([0.0; 4], 0.0));
    assert_eq!(value(&exposition, "requests_total source=lease"), 0.0);
}

/// The state of a store whose leases under the policies of these names have had so many units.
fn state(policies: &[&str], units: u64) -> StoreStats {
    let leases = policies.iter().map(|policy| {
        let mut stats = LeaseStats::new(Arc::from(*policy));
        (stats.granted, stats.spent, stats.refunded) = (10 * units, 6 * units, 2 * units);
        (stats.lapsed, stats.held) = (units, units);
        stats
    });
    let mut state = StoreStats::default();
    state.leases = leases.collect();
    state
}

#[tokio::test]
async fn units_go_on_in_a_limiter_with_another_store() {
    let observed = Observed::default();
    let policies = || ["api", "other"].map(policy);
    let on = |store| limiter(observed.limiter().store(store), policies());
    let first = on(StubStore::with_stats(|| state(&["api"], 7)));
    let api = || units(&observed.exposition(), "api");
    assert_eq!(api(), ([70.0, 42.0, 14.0, 7.0], 7.0));
    assert_eq!(units(&observed.exposition(), "other"), ([0.0; 4], 0.0));

    // The counts of the next store begin anew.
    let second = on(StubStore::with_stats(|| state(&["api"], 2)));
    assert_eq!(api(), ([90.0, 54.0, 18.0, 9.0], 2.0));
    drop(first);
    assert_eq!(api(), ([90.0, 54.0, 18.0, 9.0], 2.0));

    // Those of one that has leased nothing yet, too, and soon has leased more than the one before.
    let leased = Arc::new(AtomicBool::new(false));
    let leases = leased.clone();
    let third = on(StubStore::with_stats(move || match leases.load(Relaxed) {
        true => state(&["api"], 9),
        false => StoreStats::default(),
    }));
    drop(second);
    leased.store(true, Relaxed);
    assert_eq!(api(), ([180.0, 108.0, 36.0, 18.0], 9.0));
    drop(third);
    assert_eq!(api(), ([180.0, 108.0, 36.0, 18.0], 0.0));
}

#[tokio::test]
async fn policies_of_another_limiter_on_the_store_have_no_series() {
    let observed = Observed::default();
    let store = StubStore::with_stats(|| state(&["api", "of another limiter"], 7));
    let _limiter = limiter(observed.limiter().store(store), [policy("api")]);
    let exposition = observed.exposition();
    let series = exposition.find("tollgate_lease_units_held", &[]).count();
    assert_eq!((series, units(&exposition, "api").1), (1, 7.0));
}
