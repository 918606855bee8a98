//! Waiters on several threads while the policies are replaced: none is lost, none is admitted twice, and no limit is exceeded.

use tollgate_tests::prelude::*;

use crate::reconfigure::support::*;

/// Longer than any window.
const DAY: Duration = secs(86_400);

fn hourly(quota: u64) -> Policy {
    window("p", &format!("{quota}/h"))
}

/// Replaces the policies again and again until the task is aborted.
fn keep_replacing(
    limiter: &Limiter,
    set: impl Fn(u64) -> Vec<Policy> + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    let limiter = limiter.clone();
    tokio::spawn(async move {
        for n in 0.. {
            replace(&limiter, set(n));
            match n % 5 {
                0 => tokio::time::sleep(ms(1)).await,
                _ => tokio::task::yield_now().await,
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waiters_on_several_threads_are_all_admitted_once() {
    for world in World::both() {
        let limiter = world.limiter([hourly(1)]);
        assert!(limiter.check(KEY).await.is_admitted());
        let mut waiters = JoinSet::new();
        for n in 0..300 {
            let wait = limiter.wait(KEY, DAY).queue(10_000);
            waiters.spawn(async move {
                let wait = wait.into_future();
                // Some leave, also while they lead or are being admitted.
                if n % 7 == 0 {
                    let left = tokio::time::timeout(Duration::from_micros(n * 37), wait);
                    return left.await.is_ok_and(|admitted| admitted.is_ok());
                }
                drop(wait.await.expect("admitted in the end"));
                true
            });
        }
        let raise = Arc::new(AtomicU64::new(1));
        let of_task = raise.clone();
        let replacing = keep_replacing(&limiter, move |n| {
            let quota = hourly(of_task.fetch_add(n % 2, Ordering::Relaxed));
            match n % 3 {
                0 => vec![quota],
                1 => vec![policy("other", "9000000/h"), quota],
                _ => vec![quota, policy("s", "1/h").shadow()],
            }
        });
        let mut admitted = 1;
        while let Some(ended) = waiters.join_next().await {
            admitted += u64::from(ended.expect("no panic"));
        }
        replacing.abort();
        drop(replacing.await);
        replace(&limiter, [hourly(100_000)]);
        // What was charged for one that had left comes back.
        let is_charged = async || used(&limiter, "p").await == admitted;
        until("refunds are made", is_charged).await;
        assert!(admitted >= 257, "{admitted}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_more_permits_are_held_than_the_limit_allows() {
    for world in World::both() {
        let limiter = world.limiter([permits(3)]);
        let (held, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut waiters = JoinSet::new();
        for _ in 0..100 {
            let wait = limiter.wait(KEY, DAY);
            let (held, most) = (held.clone(), most.clone());
            waiters.spawn(async move {
                let admission = wait.await.expect("a permit in the end");
                most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                held.fetch_sub(1, Ordering::SeqCst);
                drop(admission);
            });
        }
        let replacing = keep_replacing(&limiter, move |n| match n % 3 {
            0 => vec![permits(3)],
            1 => vec![policy("other", "9000000/h"), permits(3)],
            _ => vec![permits(3).cost(1), policy("s", "1/h").shadow()],
        });
        while let Some(ended) = waiters.join_next().await {
            ended.expect("no panic");
        }
        replacing.abort();
        drop(replacing.await);
        let most = most.load(Ordering::SeqCst);
        assert!((1..=3).contains(&most), "{most}");
        replace(&limiter, [permits(3)]);
        until("all are released", async || used(&limiter, "p").await == 0).await;
    }
}

#[tokio::test]
async fn waiters_have_their_quotas_by_request_under_the_new_policies() {
    for world in World::both() {
        let of =
            |text: &'static str| window("p", "1/h").quota_with(move |_| Some(stores::quota(text)));
        let limiter = world.limiter([of("2/h")]);
        let parts = Request::new(()).into_parts().0;
        let wait = || limiter.wait(KEY, DAY).parts(&parts).into_future();
        let mut waiters: JoinSet<_> = (0..20).map(|_| wait()).collect();
        let other = policy("other", "99/h").key(extract::header("x"));
        for (set, admits) in [
            (vec![of("2/h")], 2),
            (vec![of("15/h")], 13),
            (vec![of("20/h"), other], 5),
        ] {
            replace(&limiter, set);
            for _ in 0..admits {
                let next = waiters.join_next().await.expect("a waiter");
                drop(next.expect("no panic").expect("admitted"));
            }
        }
        let peek = limiter.peek([("p", KEY)]).parts(&parts).await;
        let peek = peek.expect("a response");
        assert_eq!(peek.left("p"), 0);
    }
}

/// Different queues, each of which goes on by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn queues_of_many_keys_are_all_served() {
    let of = |n: u64| Policy::new("p", Quota::requests(n).per_hour()).strategy(FixedWindow);
    let limiter = World::memory().limiter([of(1)]);
    let keys: Vec<_> = (0..50).map(|_| fresh_key()).collect();
    let mut waiters = JoinSet::new();
    for key in keys.iter().cycle().take(200) {
        waiters.spawn(limiter.wait(*key, DAY).into_future());
    }
    let replacing = keep_replacing(&limiter, move |n| {
        vec![of(1 + n % 4), policy("s", "1/h").shadow()]
    });
    while let Some(ended) = waiters.join_next().await {
        drop(ended.expect("no panic").expect("4 for each"));
    }
    replacing.abort();
    drop(replacing.await);
    replace(&limiter, [of(4)]);
    for key in keys {
        assert!(!limiter.check(key).await.is_admitted());
    }
}
