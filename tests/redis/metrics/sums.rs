//! Counts add up to the unit.

use std::sync::atomic::Ordering::Relaxed;

use tokio::task::unconstrained;
use tollgate_tests::prelude::*;

use crate::metrics::support::*;

/// What the callers saw.
#[derive(Debug, Default)]
struct Seen {
    asked: AtomicU64,
    admitted: AtomicU64,
    rejected: AtomicU64,
    cancelled: AtomicU64,
    invalid: AtomicU64,
}

fn policies(names: [&str; 2]) -> [Policy; 2] {
    names.map(|name| Policy::new(name, Quota::requests(20).per_hour()))
}

/// Requests of all kinds by some tasks at once, while the policies are replaced.
async fn load(limiter: &Limiter) -> Seen {
    let seen = Arc::new(Seen::default());
    let mut tasks = JoinSet::new();
    for seed in 0..16 {
        let (limiter, seen) = (limiter.clone(), seen.clone());
        tasks.spawn(async move {
            let mut rng = Rng::new(seed);
            for _ in 0..300 {
                request(&limiter, &seen, &mut rng).await;
            }
        });
    }
    for names in [["two", "three"], ["three", "one"], ["one", "two"]] {
        tokio::time::sleep(ms(1)).await;
        let next = policies(names).into_iter();
        let next = next.fold(Limiter::builder(), LimiterBuilder::policy);
        limiter.reconfigure(next).expect("valid policies");
    }
    tasks.join_all().await;
    Arc::try_unwrap(seen).expect("the only reference")
}

async fn request(limiter: &Limiter, seen: &Seen, rng: &mut Rng) {
    let key = Key::new(format!("caller-{}", rng.below(100)));
    let times = 1 + rng.below(3);
    let one = |outcome: &AtomicU64| {
        seen.asked.fetch_add(1, Relaxed);
        outcome.fetch_add(1, Relaxed);
    };
    match rng.below(10) {
        // Dropped after its first poll, which a task that has run for long would not begin.
        0 => match unconstrained(limiter.check(key).into_future()).now_or_never() {
            None => one(&seen.cancelled),
            Some(decision) if decision.is_admitted() => one(&seen.admitted),
            Some(_) => one(&seen.rejected),
        },
        1 => {
            drop(limiter.check([("unknown", key)]).await);
            one(&seen.invalid);
        }
        2 => match limiter.wait(key, ms(2)).await {
            Ok(_) => one(&seen.admitted),
            Err(_) => one(&seen.rejected),
        },
        _ => {
            let admitted = limiter.check(key).times(times).await.admitted();
            seen.asked.fetch_add(times, Relaxed);
            seen.admitted.fetch_add(admitted, Relaxed);
            seen.rejected.fetch_add(times - admitted, Relaxed);
        }
    }
}

/// Sends requests under `load`, and compares what is exposed with what the callers saw.
async fn outcomes_add_up(observed: &Observed, limiter: &Limiter) {
    let (seen, exposition) = (load(limiter).await, observed.exposition());
    let of = |series: &str| value(&exposition, series) as u64;
    for (outcome, expected) in [
        ("admitted", &seen.admitted),
        ("rejected", &seen.rejected),
        ("cancelled", &seen.cancelled),
        ("invalid", &seen.invalid),
    ] {
        let expected = expected.load(Relaxed);
        let found = of(&format!("requests_total outcome={outcome}"));
        assert_eq!(found, expected, "{outcome}: {seen:?}");
    }
    assert_eq!(of("requests_total"), seen.asked.load(Relaxed), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcomes_add_up_to_the_requests_in_process_and_on_redis() {
    let observed = Observed::default();
    let limiter = in_process(&observed, policies(["one", "two"]));
    outcomes_add_up(&observed, &limiter).await;
    let (server, observed) = (Server::start(), Observed::default());
    let limiter = on(&server, &observed, policies(["one", "two"]));
    outcomes_add_up(&observed, &limiter).await;
}

#[tokio::test]
async fn units_charged_less_those_given_back_are_those_in_use() {
    let observed = Observed::default();
    let policy = Policy::new("tokens", Quota::units(1_000).per_day());
    let limiter = in_process(&observed, [policy]);
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
        let series = format!("policy_units_total policy=tokens kind={kind}");
        value_now(&observed, &series)
    };
    let (more, less) = (units("settled_more"), units("settled_less"));
    let (charged, refunded, credited) = (units("charged"), units("refunded"), units("credited"));
    let status = limiter.peek("alice").await.expect("a status");
    let used = status.used("tokens");
    assert_eq!((charged + more - less - refunded - credited) as u64, used);
    assert_eq!((more, less, credited), (30.0, 50.0, 12.0));
}

#[tokio::test]
async fn units_that_rejected_requests_are_charged_are_not_counted() {
    let server = Server::start();
    let strict = || daily("strict", 5).charge_rejected(true);
    for is_on_redis in [false, true] {
        let observed = Observed::default();
        let limiter = match is_on_redis {
            true => on(&server, &observed, [strict()]),
            false => in_process(&observed, [strict()]),
        };
        send(&limiter, 8).await;
        let charged = value_now(&observed, "policy_units_total policy=strict kind=charged");
        let over = value_now(&observed, "policy_requests_total policy=strict result=over");
        assert_eq!((charged, over), (5.0, 3.0));
        // They are in the store, and hold the key back for longer.
        let status = limiter.peek("alice").await.expect("a status");
        let wait = status.count("strict").retry_after();
        let wait = wait.duration().expect("a wait");
        assert!(wait > 3 * secs(86_400 / 5), "{wait:?}");
    }
}
