//! The store in process: bounded, self-cleaning, and exact under threads.

use std::sync::mpsc;

use crate::http::{
    full_store::{Scene, by_key},
    support::*,
};

fn key(n: usize) -> Key {
    Key::new(format!("key-{n}"))
}

#[tokio::test]
async fn a_flood_of_keys_never_holds_more_than_the_maximum() {
    for max_keys in [2, 7, 100, 3_000, 5_000] {
        let scene = Scene::new(max_keys);
        let limiter = scene.limiter([by_key("a", "10/h"), by_key("b", "1000/h")]);
        let is_bounded = || assert!(scene.store.keys() <= max_keys, "{:?}", scene.keys());
        for n in 0..6_000 {
            let keys = [("a", key(n)), ("b", key(n % 50))];
            assert!(limiter.check(keys).await.policy("a").is_some());
            // Counting them locks every shard, so not each time.
            if n % 7 == 0 {
                is_bounded();
            }
        }
        is_bounded();
        assert!(scene.store.dropped() > 0);
    }
}

#[tokio::test]
async fn peeking_stores_no_keys() {
    let scene = Scene::new(100);
    let limiter = scene.limiter([by_key("a", "10/h")]);
    for n in 0..500 {
        let _ = limiter.peek(key(n)).await.expect("a response");
        let _ = limiter.check(key(n)).cost(0).await;
        let _ = limiter.check(key(n)).cost(11).await;
        let _ = limiter.reset(key(n)).await.expect("a response");
    }
    assert_eq!(scene.keys(), (0, 0));
}

#[tokio::test]
async fn keys_nearest_to_their_full_quota_are_evicted_first_and_counted() {
    let scene = Scene::new(16);
    let limiter = scene.limiter([by_key("a", "100/h")]);
    // Key n has used 5 n + 5 of its 100, in no order.
    for n in (0..16).map(|n| n * 7 % 16) {
        let _ = limiter.check(key(n)).cost(5 * n as u64 + 5).await;
    }
    assert_eq!(scene.keys(), (16, 0));
    let _ = limiter.check(Key::new("one too many")).await;
    assert!(scene.store.keys() <= 16);
    let dropped = scene.store.dropped() as usize;
    assert!((1..=4).contains(&dropped), "{dropped}");
    for n in 0..16 {
        let left = if n < dropped { 0 } else { 5 * n as u64 + 5 };
        let used = used(&limiter, "a", key(n)).await;
        assert_eq!(used, left, "key {n}, {dropped} dropped");
    }
}

#[tokio::test]
async fn keys_that_refill_at_the_same_instant_are_evicted_after_those_that_refill_earlier() {
    const KEYS: usize = 64;
    let scene = Scene::new(KEYS);
    let limiter = scene.limiter([by_key("a", "100/h")]);
    // Every twelfth key has used little, all others have used the same.
    let cost = |n: usize| if n.is_multiple_of(12) { 1 } else { 5 };
    for n in 0..KEYS {
        let _ = limiter.check(key(n)).cost(cost(n)).await;
    }
    let _ = limiter.check(Key::new("one too many")).await;
    let dropped = scene.store.dropped();
    assert!((7..KEYS as u64).contains(&dropped), "{dropped}");
    let mut missing = 0;
    for n in 0..KEYS {
        let used = used(&limiter, "a", key(n)).await;
        assert!(used == 0 || used == 5, "key {n} has used {used}");
        missing += u64::from(used == 0);
    }
    assert_eq!(missing, dropped);
}

#[tokio::test]
async fn keys_at_their_full_quota_are_removed_as_others_are_added() {
    let scene = Scene::new(1_000_000);
    let limiter = scene.limiter([by_key("a", "10/s")]);
    for round in 0..10 {
        for n in 0..8_000 {
            let _ = limiter.check(key(round * 8_000 + n)).await;
        }
        // A unit is regained in 100 ms.
        scene.clock.advance(ms(100));
        assert!(
            scene.store.keys() <= 25_000,
            "{} in round {round}",
            scene.store.keys()
        );
    }
    assert_eq!(scene.store.dropped(), 0);
}

#[tokio::test]
async fn no_key_below_its_full_quota_is_evicted_while_there_is_room() {
    let scene = Scene::new(100_000);
    let limiter = scene.limiter([by_key("slow", "10/day"), by_key("fast", "1000/s")]);
    let slow = Key::new("slow");
    assert_eq!(limiter.check(slow).times(9).await.admitted(), 9);
    for n in 0..20_000 {
        let keys = [("slow", key(n % 10)), ("fast", key(n))];
        let _ = limiter.check(keys).cost_for("slow", 0).await;
        if n % 1_000 == 0 {
            scene.clock.advance(ms(1));
        }
    }
    assert!(scene.store.keys() < 10_000, "{}", scene.store.keys());
    assert_eq!(used(&limiter, "slow", slow).await, 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_several_policies_all_are_charged_or_none_with_concurrent_threads() {
    let limiter = limiter([by_key("each", "300/h"), by_key("all", "500/h")]);
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            // Half of them name the same two keys the other way round: locks in no order would stand still here.
            let (each, all) = match task % 2 {
                0 => (key(task % 4), Key::global()),
                _ => (Key::global(), key(task % 4)),
            };
            let mut admitted = [0_u64; 2];
            for _ in 0..40 {
                let decision = limiter.check([("each", each), ("all", all)]).await;
                admitted[task % 2] += u64::from(decision.is_admitted());
                tokio::task::yield_now().await;
            }
            admitted
        });
    }
    let admitted = tasks.join_all().await;
    let sum = |side: usize| admitted.iter().map(|a| a[side]).sum::<u64>();
    // The even tasks have two keys of 300 and share 500; the odd ones share 300 and have two keys of 500.
    assert_eq!([sum(0), sum(1)], [500, 300]);
    let mut charged = [0; 4];
    for n in 0..4 {
        charged[0] += used(&limiter, "each", key(n)).await;
        charged[1] += used(&limiter, "all", key(n)).await;
    }
    for (n, policy) in [(2, "all"), (3, "each")] {
        charged[n] = used(&limiter, policy, Key::global()).await;
    }
    assert_eq!(charged, [500, 300, 500, 300]);
}

/// Requests that lock the same shards in another order: a deadlock has no other sign than that a thread does not end.
#[test]
fn swapped_keys_of_two_policies_never_deadlock() {
    let limiter = limiter([by_key("a", "10/h"), by_key("b", "1000/h")]);
    let (sender, done) = mpsc::channel();
    for thread in 0..8 {
        let (limiter, sender) = (limiter.clone(), sender.clone());
        thread::spawn(move || {
            for n in 0..20_000 {
                // Some of them are in different shards.
                let (x, y) = (key(n % 16), key(n % 16 + 1));
                let (a, b) = if thread % 2 == 0 { (x, y) } else { (y, x) };
                let check = limiter.check([("a", a), ("b", b)]).into_future();
                let _ = check.now_or_never().expect("a result at once");
            }
            let _ = sender.send(());
        });
    }
    for _ in 0..8 {
        let ended = done.recv_timeout(TEST_TIMEOUT);
        ended.expect("no thread waits for another for ever");
    }
}
