//! The metrics of leases.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use testkit::Server;
use tokio::task::JoinSet;
use tollgate::{
    FixedWindow, Lease, Limiter, LimiterBuilder, Policy, Quota, RedisStore,
    observe::{LeaseStats, StoreStats},
};

use crate::metrics::{
    collect::Stub,
    support::{Exposition, Observed},
    until::{TEST_TIMEOUT, until},
};

const KINDS: [&str; 4] = ["granted", "spent", "refunded", "lapsed"];

fn policy(name: &str) -> Policy {
    Policy::new(name, Quota::requests(10_000_000).per_day()).strategy(FixedWindow)
}

/// The units of a policy's leases by kind, and those that are held.
fn units(exposition: &Exposition, policy: &str) -> ([f64; 4], f64) {
    let by_kind = KINDS.map(|kind| {
        let labels = [("policy", policy), ("kind", kind)];
        exposition.value("tollgate_lease_units_total", &labels)
    });
    let held = exposition.value("tollgate_lease_units_held", &[("policy", policy)]);
    (by_kind, held)
}

/// Requests of one key, until enough of them were admitted by leases. Meanwhile no counter falls.
async fn make_hot(limiter: &Limiter, observed: &Observed) {
    let ends = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (limiter, ends) = (limiter.clone(), ends.clone());
        tasks.spawn(async move {
            while !ends.load(Relaxed) {
                assert!(limiter.check("hot").await.is_admitted());
                tokio::task::yield_now().await;
            }
        });
    }
    let mut before = [0.0; 4];
    until("leases admit requests", async || {
        let exposition = observed.exposition();
        let (now, _) = units(&exposition, "api");
        let fell = before.iter().zip(now).any(|(before, now)| *before > now);
        assert!(!fell, "{before:?}, then {now:?}");
        before = now;
        exposition.value("tollgate_requests_total", &[("source", "lease")]) >= 2_000.0
    })
    .await;
    ends.store(true, Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("a task");
    }
}

#[tokio::test]
async fn units_of_leases_add_up_and_requests_by_them_have_a_source_of_their_own() {
    let server = Server::start();
    let observed = Observed::new();
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    let builder = observed.limiter().store(store.build().expect("a store"));
    let lease = Lease::max_units(64).ttl(Duration::from_millis(50));
    let builder = builder.policy(policy("api").lease(lease));
    let limiter = builder.build().expect("a limiter");
    assert_eq!(units(&observed.exposition(), "api"), ([0.0; 4], 0.0));

    make_hot(&limiter, &observed).await;
    until("what is left is refunded", async || {
        let ([granted, spent, refunded, lapsed], held) = units(&observed.exposition(), "api");
        held == 0.0 && granted == spent + refunded + lapsed
    })
    .await;

    let exposition = observed.exposition();
    let ([_, spent, _, lapsed], _) = units(&exposition, "api");
    let admitted = |source| {
        let labels = [("outcome", "admitted"), ("source", source)];
        exposition.value("tollgate_requests_total", &labels)
    };
    assert_eq!(spent, admitted("lease"));
    let charged = [("policy", "api"), ("kind", "charged")];
    assert_eq!(
        exposition.value("tollgate_policy_units_total", &charged),
        admitted("lease") + admitted("store")
    );
    // Under a fixed window, whatever is not refunded is used.
    let status = limiter.peek("hot").await.expect("a status");
    let api = status.policy("api").expect("the policy");
    let used = (api.limit() - api.remaining()) as f64;
    assert_eq!(used, admitted("store") + spent + lapsed);
    let timed = exposition.value("tollgate_decision_seconds_count", &[("source", "lease")]);
    assert!(timed <= admitted("lease"), "{timed}");
}

#[tokio::test]
async fn policies_without_leases_have_the_value_0() {
    let server = Server::start();
    let observed = Observed::new();
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    let builder = observed.limiter().store(store.build().expect("a store"));
    let limiter = builder.policy(policy("api")).build().expect("a limiter");
    for _ in 0..500 {
        assert!(limiter.check("hot").await.is_admitted());
    }
    let exposition = observed.exposition();
    assert_eq!(units(&exposition, "api"), ([0.0; 4], 0.0));
    let by_lease = [("source", "lease")];
    assert_eq!(exposition.value("tollgate_requests_total", &by_lease), 0.0);
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

fn with_policies(builder: LimiterBuilder, names: &[&str]) -> Limiter {
    let with = |builder: LimiterBuilder, name: &&str| builder.policy(policy(name));
    let builder = names.iter().fold(builder, with);
    builder.build().expect("a limiter")
}

#[tokio::test]
async fn units_go_on_in_a_limiter_with_another_store() {
    let observed = Observed::new();
    let on = |store: Stub| with_policies(observed.limiter().store(store), &["api", "other"]);
    let first = on(Stub::with_state(|| state(&["api"], 7)));
    let api = || units(&observed.exposition(), "api");
    assert_eq!(api(), ([70.0, 42.0, 14.0, 7.0], 7.0));
    assert_eq!(units(&observed.exposition(), "other"), ([0.0; 4], 0.0));

    // The counts of the next store begin anew.
    let second = on(Stub::with_state(|| state(&["api"], 2)));
    assert_eq!(api(), ([90.0, 54.0, 18.0, 9.0], 2.0));
    drop(first);
    assert_eq!(api(), ([90.0, 54.0, 18.0, 9.0], 2.0));

    // Those of one that has leased nothing yet, too, and soon has leased more than the one before.
    let leased = Arc::new(AtomicBool::new(false));
    let leases = leased.clone();
    let third = on(Stub::with_state(move || match leases.load(Relaxed) {
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
    let observed = Observed::new();
    let store = Stub::with_state(|| state(&["api", "of another limiter"], 7));
    let _limiter = with_policies(observed.limiter().store(store), &["api"]);
    let exposition = observed.exposition();
    let series = exposition.find("tollgate_lease_units_held", &[]).count();
    assert_eq!((series, units(&exposition, "api").1), (1, 7.0));
}
