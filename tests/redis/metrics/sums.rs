//! Counts add up to the unit.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use testkit::Server;
use tollgate::{Key, Limiter, LimiterBuilder, Policy, Quota, RedisStore};

use crate::metrics::{
    support::{Exposition, Observed, random},
    until::TEST_TIMEOUT,
};

/// What the callers saw.
#[derive(Debug, Default)]
struct Seen {
    asked: AtomicU64,
    admitted: AtomicU64,
    rejected: AtomicU64,
    cancelled: AtomicU64,
    invalid: AtomicU64,
}

fn policies(builder: LimiterBuilder, names: &[&str]) -> LimiterBuilder {
    let quota = Quota::requests(20).per_hour();
    let with = |builder: LimiterBuilder, name: &&str| builder.policy(Policy::new(*name, quota));
    names.iter().fold(builder, with)
}

/// Requests of all kinds by some tasks at once, while the policies are replaced.
async fn load(limiter: &Limiter) -> Seen {
    let seen = std::sync::Arc::new(Seen::default());
    let mut tasks = tokio::task::JoinSet::new();
    for seed in 0..16 {
        let (limiter, seen) = (limiter.clone(), seen.clone());
        tasks.spawn(async move {
            let mut state = seed;
            for _ in 0..300 {
                request(&limiter, &seen, &mut state).await;
            }
        });
    }
    for names in [&["two", "three"][..], &["three", "one"], &["one", "two"]] {
        tokio::time::sleep(Duration::from_millis(1)).await;
        limiter
            .reconfigure(policies(Limiter::builder(), names))
            .expect("valid policies");
    }
    tasks.join_all().await;
    std::sync::Arc::try_unwrap(seen).expect("the only reference")
}

async fn request(limiter: &Limiter, seen: &Seen, state: &mut u64) {
    let key = Key::new(format!("caller-{}", random(state) % 100));
    let times = 1 + random(state) % 3;
    match random(state) % 10 {
        // Dropped after its first poll, which a task that has run for long would not begin.
        0 => {
            let check = tokio::task::unconstrained(limiter.check(key).into_future());
            let mut check = std::pin::pin!(check);
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            seen.asked.fetch_add(1, Relaxed);
            match check.as_mut().poll(&mut context) {
                std::task::Poll::Pending => &seen.cancelled,
                std::task::Poll::Ready(decision) if decision.is_admitted() => &seen.admitted,
                std::task::Poll::Ready(_) => &seen.rejected,
            }
            .fetch_add(1, Relaxed);
        }
        1 => {
            drop(limiter.check([("unknown", key)]).await);
            seen.asked.fetch_add(1, Relaxed);
            seen.invalid.fetch_add(1, Relaxed);
        }
        2 => {
            let waited = limiter.wait(key, Duration::from_millis(2)).await;
            seen.asked.fetch_add(1, Relaxed);
            let count = if waited.is_ok() {
                &seen.admitted
            } else {
                &seen.rejected
            };
            count.fetch_add(1, Relaxed);
        }
        _ => {
            let decision = limiter.check(key).times(times).await;
            seen.asked.fetch_add(times, Relaxed);
            seen.admitted.fetch_add(decision.admitted(), Relaxed);
            seen.rejected
                .fetch_add(times - decision.admitted(), Relaxed);
        }
    }
}

fn assert_sums(seen: &Seen, exposition: &Exposition) {
    let of =
        |outcome: &str| exposition.value("tollgate_requests_total", &[("outcome", outcome)]) as u64;
    assert_eq!(of("admitted"), seen.admitted.load(Relaxed), "{seen:?}");
    assert_eq!(of("rejected"), seen.rejected.load(Relaxed), "{seen:?}");
    assert_eq!(of("cancelled"), seen.cancelled.load(Relaxed), "{seen:?}");
    assert_eq!(of("invalid"), seen.invalid.load(Relaxed), "{seen:?}");
    let all = exposition.value("tollgate_requests_total", &[]) as u64;
    assert_eq!(all, seen.asked.load(Relaxed), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcomes_in_process_add_up_to_the_requests() {
    let observed = Observed::new();
    let limiter = policies(observed.limiter(), &["one", "two"])
        .build()
        .expect("a limiter");
    let seen = load(&limiter).await;
    assert_sums(&seen, &observed.exposition());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcomes_on_redis_add_up_to_the_requests_and_units_to_those_in_use() {
    let server = Server::start();
    let observed = Observed::new();
    let store = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    let builder = observed.limiter().store(store.build().expect("a store"));
    let limiter = policies(builder, &["one", "two"])
        .build()
        .expect("a limiter");
    let seen = load(&limiter).await;
    assert_sums(&seen, &observed.exposition());
}

#[tokio::test]
async fn units_charged_less_those_given_back_are_those_in_use() {
    let observed = Observed::new();
    let policy = Policy::new("tokens", Quota::units(1_000).per_day());
    let limiter = observed
        .limiter()
        .policy(policy)
        .build()
        .expect("a limiter");
    let admission = limiter.admit("alice").cost(100).await.expect("admitted");
    let tokens = admission.policy("tokens").expect("the policy");
    tokens.settle(130).await.expect("settled");
    tokens.settle(80).await.expect("settled");
    tokens.charge(7).await.expect("charged");
    tokens.refund(5).await.expect("refunded");
    limiter.charge("alice", 30).await.expect("charged");
    let handle = limiter.policy("tokens").expect("the policy");
    handle.credit("alice", 12).await.expect("credited");
    let units = |kind| {
        observed.value(
            "tollgate_policy_units_total",
            &[("policy", "tokens"), ("kind", kind)],
        )
    };
    let kinds = [
        "charged",
        "settled_more",
        "settled_less",
        "refunded",
        "credited",
    ]
    .map(units);
    let [charged, more, less, refunded, credited] = kinds;
    let status = limiter.peek("alice").await.expect("a status");
    let used = 1_000 - status.policy("tokens").expect("the policy").remaining();
    assert_eq!(
        (charged + more - less - refunded - credited) as u64,
        used,
        "{kinds:?}"
    );
    assert_eq!((more, less, credited), (30.0, 50.0, 12.0));
}

#[tokio::test]
async fn units_that_rejected_requests_are_charged_are_not_counted() {
    let server = Server::start();
    let redis = RedisStore::builder()
        .url(server.url())
        .timeout(TEST_TIMEOUT);
    let redis = redis.build().expect("a store");
    let observed = [Observed::new(), Observed::new()];
    let builders = [observed[0].limiter(), observed[1].limiter().store(redis)];
    for (observed, builder) in observed.iter().zip(builders) {
        let policy = Policy::new("strict", Quota::requests(5).per_day()).charge_rejected(true);
        let limiter = builder.policy(policy).build().expect("a limiter");
        for _ in 0..8 {
            drop(limiter.check("alice").await);
        }
        let by = |name, label, value| observed.value(name, &[("policy", "strict"), (label, value)]);
        assert_eq!(by("tollgate_policy_units_total", "kind", "charged"), 5.0);
        assert_eq!(by("tollgate_policy_requests_total", "result", "over"), 3.0);
        // They are in the store, and hold the key back for longer.
        let status = limiter.peek("alice").await.expect("a status");
        let strict = status.policy("strict").expect("the policy");
        let retry_after = strict.retry_after().duration().expect("a wait");
        assert!(
            retry_after > 3 * Duration::from_secs(86_400 / 5),
            "{retry_after:?}"
        );
    }
}
