//! Permits that are held, and renewed.

use super::*;
use crate::{store::KeepAlive, strategy::Concurrency};

const RENEW: i64 = 5;

const TTL: Duration = Duration::from_secs(12);

/// A policy whose permits have this TTL.
fn permits(scene: &Scene, ttl: Duration) -> LimitHandle {
    register(
        &scene.store,
        "permits",
        Concurrency::with_ttl(ttl),
        "9 concurrent",
    )
}

/// Holds a permit under each of so many keys.
fn hold(scene: &Scene, limit: &LimitHandle, keys: u32) -> Vec<KeepAlive> {
    let hold = |key| {
        let permit = CounterOp::new(limit, key_of(key));
        scene.store.keep_alive(&[permit]).expect("a registration")
    };
    (0..keys).map(hold).collect()
}

/// When each key was renewed.
fn renewals(scene: &Scene) -> BTreeMap<String, Vec<Instant>> {
    let mut renewals = BTreeMap::<_, Vec<_>>::new();
    let calls = scene.calls().into_iter();
    for call in calls.filter(|call| call.fate == Fate::Executed) {
        for entry in call.entries.iter().filter(|entry| entry.op == RENEW) {
            let of_key = renewals.entry(entry.keys[0].clone()).or_default();
            of_key.push(call.at);
        }
    }
    renewals
}

/// All of them at once would pass the timeout, and so would the requests behind them.
#[tokio::test(start_paused = true)]
async fn permits_are_renewed_a_few_at_a_time() {
    let scene = Scene::new();
    scene.answer_all(Answer::Reply(ms(1)));
    let limit = permits(&scene, TTL);
    let held = hold(&scene, &limit, 1_000);
    sleep(TTL / 2).await;
    let renewals = renewals(&scene);
    assert_eq!(renewals.len(), held.len());
    let mut at_once = BTreeMap::<_, usize>::new();
    for renewed_at in renewals.values() {
        let [renewed_at] = renewed_at[..] else {
            panic!("renewed at {renewed_at:?}");
        };
        *at_once.entry(renewed_at).or_default() += 1;
    }
    assert!(at_once.values().all(|some| *some <= 128), "{at_once:?}");
}

#[tokio::test(start_paused = true)]
async fn permits_survive_outages_of_half_their_ttl() {
    for begins in 0..24 {
        let scene = Scene::new();
        let limit = permits(&scene, TTL);
        let taken_at = Instant::now();
        let held = hold(&scene, &limit, 5);
        sleep(TTL * begins / 24).await;
        scene.answer_all(Answer::Error("BUSY a script runs", Duration::ZERO));
        sleep(TTL / 2).await;
        scene.answer_all(Answer::Reply(Duration::ZERO));
        sleep(TTL).await;
        let renewals = renewals(&scene);
        assert_eq!(renewals.len(), held.len());
        for renewed_at in renewals.values() {
            let instants = [&[taken_at], &renewed_at[..], &[Instant::now()]].concat();
            let longest = instants.windows(2).map(|pair| pair[1] - pair[0]).max();
            assert!(longest < Some(TTL), "{begins}: {longest:?}");
        }
    }
}

/// A renewal that failed is not sent again for a released permit.
#[tokio::test(start_paused = true)]
async fn released_permits_are_not_renewed_again() {
    let scene = Scene::new();
    let limit = permits(&scene, TTL);
    let mut held = hold(&scene, &limit, 5);
    scene.answer_all(Answer::Error("BUSY a script runs", Duration::ZERO));
    sleep(TTL / 2).await;
    held.truncate(1);
    scene.answer_all(Answer::Reply(Duration::ZERO));
    sleep(TTL).await;
    assert_eq!(renewals(&scene).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_shorter_ttl_is_in_force_at_once() {
    let scene = Scene::new();
    let limit = permits(&scene, Duration::from_secs(86_400));
    let _held = hold(&scene, &limit, 1);
    sleep(TTL).await;
    assert!(renewals(&scene).is_empty());
    permits(&scene, TTL);
    settle().await;
    assert_eq!(renewals(&scene).len(), 1);
}
