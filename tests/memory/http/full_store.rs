//! The store in process: bounded, self-cleaning, and exact under threads. Which keys a full one evicts, which it keeps, and what becomes
//! of a key without room.

use std::num::NonZeroUsize;

use crate::http::support::*;

/// A store of one shard, and one of several.
const SIZES: [usize; 2] = [64, 4_096];

/// A store in process that holds a number of keys, and its clock.
struct Scene {
    store: MemoryStore,
    clock: ManualClock,
    max_keys: usize,
}

impl Scene {
    fn new(max_keys: usize) -> Self {
        let clock = ManualClock::default();
        let keys = NonZeroUsize::new(max_keys).expect("at least one");
        let store = MemoryStore::builder().max_keys(keys);
        Self {
            store: store.clock(clock.clone()).build(),
            clock,
            max_keys,
        }
    }

    fn limiter(&self, policies: impl IntoIterator<Item = Policy>) -> Limiter {
        stores::limiter(Limiter::builder().store(self.store.clone()), policies)
    }

    /// How many keys are stored, and how many were evicted.
    fn keys(&self) -> (usize, u64) {
        (self.store.keys(), self.store.dropped())
    }

    /// A request for each of 1.25 times as many new keys as the store holds.
    async fn flood(&self, limiter: &Limiter) {
        self.clock.advance(secs(1));
        assert!(admits_each(limiter, "made-up", self.max_keys + self.max_keys / 4).await);
        assert!(self.store.keys() <= self.max_keys);
        assert!(self.store.dropped() > 0);
    }

    /// Blocks so many keys by hand.
    async fn block(&self, keys: usize) -> Limiter {
        let limiter = self.limiter([Policy::block_list("locked").key(extract::peer())]);
        for n in 0..keys {
            let blocked = limiter.block(key("locked", n), secs(60)).await;
            blocked.expect("a block");
        }
        limiter
    }
}

/// A policy that counts each key of a call by itself.
fn by_key(name: &str, quota: &str) -> Policy {
    shared(name, quota).key(extract::peer())
}

/// Two permits for each key.
fn permits(scene: &Scene) -> Limiter {
    let policy = Policy::new("exports", Quota::concurrent(2)).key(extract::peer());
    scene.limiter([policy.on_store_error(OnStoreError::Reject)])
}

/// A permit of each of so many keys, which are held.
async fn held(exports: &Limiter, keys: usize) -> Vec<Admission> {
    let mut held = Vec::new();
    for n in 0..keys {
        held.push(exports.admit(key("user", n)).await.expect("a permit"));
    }
    held
}

fn bans(quota: &str) -> Policy {
    by_key("abuse", quota).strategy(Ban::for_duration(secs(600)))
}

fn key(kind: &str, n: usize) -> Key {
    Key::new(format!("{kind}-{n}"))
}

/// Whether the store admits a request for each of so many keys.
async fn admits_each(limiter: &Limiter, kind: &str, keys: usize) -> bool {
    let mut all = true;
    for n in 0..keys {
        all &= admitted_by_store(&limiter.check(key(kind, n)).await);
    }
    all
}

#[tokio::test]
async fn a_flood_of_its_own_keys_or_another_policys_gives_no_exhausted_key_its_quota_back() {
    for max_keys in SIZES {
        for strategy in StrategyKind::ALL {
            let _case = Case(format!("{strategy:?} of {max_keys}"));
            let policy = strategy.policy("logins", "5/h").key(extract::peer());
            let exhausted = async || {
                let scene = Scene::new(max_keys);
                let logins = scene.limiter([policy.clone()]);
                assert_eq!(logins.check("alice").times(9).await.admitted(), 5);
                (scene, logins)
            };
            let (scene, logins) = exhausted().await;
            scene.flood(&logins).await;
            assert!(!admitted_by_store(&logins.check("alice").await));
            // A fifth used, for longer than the login is.
            let (scene, logins) = exhausted().await;
            scene.flood(&scene.limiter([by_key("api", "5/day")])).await;
            assert!(!admitted_by_store(&logins.check("alice").await));
            // Keys of several quotas are compared by the share in use.
            let (scene, logins) = exhausted().await;
            let quota = Quota::requests(1_000).per_hour();
            for n in 0..max_keys + 16 {
                let request = logins.check(key("large", n)).quota_for("logins", quota);
                assert!(admitted_by_store(&request.cost(100).await));
            }
            assert!(scene.store.dropped() > 0);
            assert!(!admitted_by_store(&logins.check("alice").await));
        }
    }
}

#[tokio::test]
async fn usage_of_an_earlier_window_does_not_count() {
    for strategy in StrategyKind::ALL {
        let _case = Case(format!("{strategy:?}"));
        let scene = Scene::new(64);
        let logins = scene.limiter([strategy.policy("logins", "5/h").key(extract::peer())]);
        for n in 0..60 {
            assert_eq!(logins.check(key("old", n)).times(5).await.admitted(), 5);
        }
        // Almost nothing of it counts, and not all of the keys have expired.
        scene.clock.advance(secs(2 * 3_600 - 60));
        for n in 0..4 {
            assert_eq!(logins.check(key("new", n)).times(2).await.admitted(), 2);
        }
        assert!(admits_each(&logins, "flood", 8).await);
        for n in 0..4 {
            assert_eq!(used(&logins, "logins", key("new", n)).await, 2);
        }
    }
}

#[tokio::test]
async fn a_policy_keeps_its_equal_share() {
    let scene = Scene::new(64);
    let quiet = scene.limiter([by_key("quiet", "1000/s")]);
    let count = async || {
        let mut keys = 0;
        for n in 0..64 {
            keys += used(&quiet, "quiet", key("quiet", n)).await;
        }
        keys
    };
    // More than its share, while there is room.
    assert!(admits_each(&quiet, "quiet", 48).await);
    assert_eq!(count().await, 48);
    for (others, share) in [("one", 32), ("another", 21)] {
        let loud = scene.limiter([by_key(others, "1/day")]);
        assert!(admits_each(&loud, "loud", 640).await);
        assert_eq!(count().await, share);
    }
}

#[tokio::test]
async fn a_policy_whose_keys_stay_takes_none_of_anothers_share() {
    let scene = Scene::new(8);
    let locked = scene.block(4).await;
    let api = scene.limiter([by_key("api", "9/h")]);
    for n in 0..4 {
        assert!(admitted_by_store(&api.check(key("user", n)).cost(2).await));
    }
    let blocked = locked.block(Key::new("one too many"), secs(60));
    let full = matches!(blocked.await, Err(CallError::Store(error)) if error.code() == "full");
    assert!(full && scene.store.dropped() == 0);
    // A key of its own is evicted for another one, and no more than that.
    assert!(admitted_by_store(&api.check("alice").await));
    assert!(admitted_by_store(&api.check("bob").await));
    assert_eq!(scene.keys(), (8, 2));
    assert_eq!(used(&api, "api", Key::new("alice")).await, 0);

    let scene = Scene::new(64);
    let exports = permits(&scene);
    let _held = held(&exports, 40).await;
    // Each has no more than a fourth, and together they have all the rest.
    for (name, keys) in [("api", 16), ("search", 8)] {
        let limiter = scene.limiter([by_key(name, "9/h")]);
        assert!(admits_each(&limiter, "user", keys).await);
    }
    assert_eq!(scene.keys(), (64, 0));
    let logins = scene.limiter([by_key("logins", "3/h")]);
    assert_eq!(logins.check("alice").times(9).await.admitted(), 3);
    for n in 0..100 {
        assert!(admitted_by_store(&logins.check(key("made-up", n)).await));
        assert!(!admitted_by_store(&logins.check("alice").await));
    }
}

#[tokio::test]
async fn a_flood_lifts_no_ban_and_no_block_and_frees_no_permit() {
    for max_keys in SIZES {
        let scene = Scene::new(max_keys);
        let exports = permits(&scene);
        let held = [exports.admit("alice").await, exports.admit("alice").await];
        let locked = scene.block(3).await;
        let abuse = scene.limiter([by_key("api", "100/h"), bans("2/min")]);
        let rejected = async |key: Key| {
            let counted = abuse.charge([("abuse", key)], 1).await;
            counted.expect("a response");
        };
        rejected(Key::new("mallory")).await;
        rejected(Key::new("mallory")).await;
        scene
            .flood(&scene.limiter([by_key("other", "5/day")]))
            .await;
        assert!(!admitted_by_store(&abuse.check("mallory").await));
        // A rejection of each of these keys.
        for n in 0..2 * max_keys {
            rejected(key("made-up", n)).await;
        }
        assert!(!admitted_by_store(&abuse.check("mallory").await));
        assert!(!admitted_by_store(&exports.admit("alice").await));
        for n in 0..3 {
            assert!(!admitted_by_store(&locked.check(key("locked", n)).await));
        }
        drop(held);
        assert!(admitted_by_store(&exports.admit("alice").await));
    }
}

#[tokio::test]
async fn of_bans_the_one_that_ends_first_is_evicted() {
    let scene = Scene::new(16);
    let abuse = scene.limiter([by_key("api", "100/h"), bans("1/day")]);
    let ban = async |key: Key| {
        let counted = abuse.charge([("abuse", key)], 1).await;
        counted.expect("a response");
        scene.clock.advance(secs(1));
    };
    // The second ban of the first key begins last but one, and lasts twice as long.
    ban(key("banned", 0)).await;
    scene.clock.advance(secs(600));
    for n in (1..15).chain([0, 15]) {
        ban(key("banned", n)).await;
    }
    assert_eq!(scene.keys(), (16, 0));
    ban(key("banned", 16)).await;
    assert_eq!(scene.store.dropped(), 2);
    for n in 0..17 {
        let status = abuse.peek([("abuse", key("banned", n))]).await;
        let is_banned = !status.expect("a response").would_admit();
        assert_eq!(is_banned, n != 1 && n != 2, "key {n}");
    }
}

#[tokio::test]
async fn a_key_without_room_is_a_store_error_until_another_is_free() {
    let scene = Scene::new(8);
    let locked = scene.block(8).await;
    let limiter = |on_error: OnStoreError| {
        let policy = by_key("api", "2/h").on_store_error(on_error);
        scene.limiter([policy])
    };
    let (log, start) = (Log::default(), Instant::now());
    let guard = log.warnings();
    let admits = limiter(OnStoreError::Admit);
    for _ in 0..5 {
        let decision = admits.check("alice").await;
        assert!(matches!(decision.kind(), DecisionKind::Admitted));
        assert_eq!(decision.source(), DecisionSource::Fallback);
    }
    let line = log.throttled("rate limit store failed", start);
    assert_contains(&line, [r#"no room for another key of policy "api""#]);
    drop(guard);

    let rejects = limiter(OnStoreError::Reject);
    let error = store_error(&rejects.check("alice").await);
    assert_eq!((error.code(), error.is_misconfiguration()), ("full", false));
    let charged = rejects.charge("alice", 1).await;
    assert_eq!(store_error(&charged).code(), "full");

    let shares = limiter(LocalFallback::shared_by(1).into());
    let decision = shares.check("alice").times(5).await;
    assert_eq!(decision.admitted(), 2);
    assert_eq!(decision.source(), DecisionSource::Fallback);

    // Keys that are held are counted, and one that is free makes room at once.
    assert!(!admitted_by_store(&locked.check(key("locked", 0)).await));
    let unblocked = locked.unblock(key("locked", 0)).await;
    unblocked.expect("a response");
    assert!(admitted_by_store(&rejects.check("alice").await));

    let scene = Scene::new(8);
    let exports = permits(&scene);
    let mut held = held(&exports, 8).await;
    assert_eq!(store_error(&exports.admit("alice").await).code(), "full");
    held.pop();
    assert!(admitted_by_store(&exports.admit("alice").await));
}

#[tokio::test]
async fn without_room_under_one_policy_none_is_charged_and_a_rejection_stays_one() {
    let scene = Scene::new(8);
    let _locked = scene.block(7).await;
    let policies = [by_key("a", "9/h"), by_key("b", "9/h")];
    let both = scene.limiter(policies.map(|policy| policy.on_store_error(OnStoreError::Reject)));
    assert_eq!(store_error(&both.check("alice").await).code(), "full");
    assert_eq!(used(&both, "a", Key::new("alice")).await, 0);
    assert_eq!(scene.keys(), (7, 0));
    // A ban that has no room for its count, and a shadow that has none.
    for (name, other) in [
        ("abuse", bans("1/day")),
        ("", by_key("next", "1/h").shadow()),
    ] {
        let scene = Scene::new(8);
        let _locked = scene.block(7).await;
        let limiter = scene.limiter([by_key("api", "1/h"), other]);
        assert!(admitted_by_store(&limiter.check("alice").await));
        let (log, start) = (Log::default(), Instant::now());
        let _guard = log.warnings();
        for _ in 0..3 {
            assert!(!admitted_by_store(&limiter.check("alice").await));
        }
        if !name.is_empty() {
            let line = log.throttled("a charge was not counted", start);
            assert_contains(line, [&*format!("policy \"{name}\"")]);
        }
        assert_eq!(scene.store.keys(), 8);
    }
}

#[tokio::test]
async fn a_request_evicts_none_of_its_own_keys() {
    let scene = Scene::new(64);
    let policies = [by_key("a", "100/h"), by_key("b", "100/h")];
    let limiter = scene.limiter(policies);
    let alice = Key::new("alice");
    // The least used key of all.
    let _ = limiter.check([("a", alice)]).await;
    for n in 0..63 {
        let _ = limiter.check([("a", key("other", n))]).cost(9).await;
    }
    let keys = [("a", alice), ("b", alice)];
    assert!(admitted_by_store(&limiter.check(keys).await));
    assert_eq!(used(&limiter, "a", alice).await, 2);
}

#[tokio::test]
async fn a_flood_of_keys_never_holds_more_than_the_maximum_and_peeks_store_none() {
    for max_keys in [2, 7, 100, 5_000] {
        let scene = Scene::new(max_keys);
        let limiter = scene.limiter([by_key("a", "10/h"), by_key("b", "1000/h")]);
        for n in 0..500 {
            let _ = limiter.peek(key("k", n)).await.expect("a response");
            let _ = limiter.check(key("k", n)).cost(0).await;
            let _ = limiter.check(key("k", n)).cost(11).await;
            let _ = limiter.reset(key("k", n)).await.expect("a response");
        }
        assert_eq!(scene.keys(), (0, 0));
        for n in 0..6_000 {
            let keys = [("a", key("k", n)), ("b", key("k", n % 50))];
            assert!(limiter.check(keys).await.policy("a").is_some());
            // Counting them locks every shard, so not each time.
            if n % 7 == 0 {
                assert!(scene.store.keys() <= max_keys, "{:?}", scene.keys());
            }
        }
        assert!(scene.store.dropped() > 0);
    }
}

#[tokio::test]
async fn keys_nearest_to_their_full_quota_are_evicted_first() {
    let scene = Scene::new(16);
    let limiter = scene.limiter([by_key("a", "100/h")]);
    // Key n has used 5 n + 5 of its 100, in no order.
    for n in (0..16).map(|n| n * 7 % 16) {
        let _ = limiter.check(key("k", n)).cost(5 * n as u64 + 5).await;
    }
    assert_eq!(scene.keys(), (16, 0));
    let _ = limiter.check(Key::new("one too many")).await;
    assert!(scene.store.keys() <= 16);
    let dropped = scene.store.dropped() as usize;
    assert!((1..=4).contains(&dropped), "{dropped}");
    for n in 0..16 {
        let left = if n < dropped { 0 } else { 5 * n as u64 + 5 };
        let used = used(&limiter, "a", key("k", n)).await;
        assert_eq!(used, left, "key {n}, {dropped} dropped");
    }
}

#[tokio::test]
async fn keys_at_their_full_quota_are_removed_as_others_are_added_and_no_others() {
    let scene = Scene::new(1_000_000);
    let limiter = scene.limiter([by_key("slow", "10/day"), by_key("fast", "10/s")]);
    let slow = Key::new("slow");
    assert_eq!(limiter.check([("slow", slow)]).times(9).await.admitted(), 9);
    for round in 0..10 {
        for n in 0..8_000 {
            let _ = limiter.check([("fast", key("k", round * 8_000 + n))]).await;
        }
        // A unit is regained in 100 ms.
        scene.clock.advance(ms(100));
        let keys = scene.store.keys();
        assert!(keys <= 25_000, "{keys} in round {round}");
    }
    assert_eq!(scene.store.dropped(), 0);
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
                0 => (key("k", task % 4), Key::global()),
                _ => (Key::global(), key("k", task % 4)),
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
        charged[0] += used(&limiter, "each", key("k", n)).await;
        charged[1] += used(&limiter, "all", key("k", n)).await;
    }
    for (n, policy) in [(2, "all"), (3, "each")] {
        charged[n] = used(&limiter, policy, Key::global()).await;
    }
    assert_eq!(charged, [500, 300, 500, 300]);
}
