//! A full store in process: which keys it evicts, which it keeps, and what becomes of a key without room.

use std::num::NonZeroUsize;

use crate::http::support::*;

/// A store of one shard, and one of several.
const SIZES: [usize; 2] = [64, 4_096];

/// A store in process that holds a number of keys, and its clock.
pub(crate) struct Scene {
    pub(crate) store: MemoryStore,
    pub(crate) clock: ManualClock,
    max_keys: usize,
}

impl Scene {
    pub(crate) fn new(max_keys: usize) -> Self {
        let clock = ManualClock::default();
        let keys = NonZeroUsize::new(max_keys).expect("at least one");
        let store = MemoryStore::builder()
            .max_keys(keys)
            .clock(clock.clone())
            .build();
        Self {
            store,
            clock,
            max_keys,
        }
    }

    pub(crate) fn limiter(&self, policies: impl IntoIterator<Item = Policy>) -> Limiter {
        stores::limiter(Limiter::builder().store(self.store.clone()), policies)
    }

    /// How many keys are stored, and how many were evicted.
    pub(crate) fn keys(&self) -> (usize, u64) {
        (self.store.keys(), self.store.dropped())
    }

    /// A request for each of 1.25 times as many new keys as the store holds.
    async fn flood(&self, limiter: &Limiter) {
        self.clock.advance(secs(1));
        assert!(admits_each(limiter, "made-up", self.max_keys + self.max_keys / 4).await);
        assert!(self.store.keys() <= self.max_keys);
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
pub(crate) fn by_key(name: &str, quota: &str) -> Policy {
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

/// A limiter of logins, and its case.
fn logins(scene: &Scene, strategy: StrategyKind) -> (Limiter, Case) {
    let policy = strategy.policy("logins", "5/h").key(extract::peer());
    let case = Case(format!("{strategy:?} of {}", scene.max_keys));
    (scene.limiter([policy]), case)
}

#[tokio::test]
async fn a_flood_of_its_own_keys_or_another_policys_gives_no_exhausted_key_its_quota_back() {
    let sizes = SIZES
        .into_iter()
        .flat_map(|size| [(size, false), (size, true)]);
    for (max_keys, is_own) in sizes {
        for strategy in StrategyKind::ALL {
            let scene = Scene::new(max_keys);
            let (logins, _case) = logins(&scene, strategy);
            assert_eq!(logins.check("alice").times(9).await.admitted(), 5);
            match is_own {
                true => scene.flood(&logins).await,
                // A fifth used, for longer than the login is.
                false => scene.flood(&scene.limiter([by_key("api", "5/day")])).await,
            }
            assert!(scene.store.dropped() > 0);
            assert!(!admitted_by_store(&logins.check("alice").await), "{is_own}");
        }
    }
}

#[tokio::test]
async fn usage_of_an_earlier_window_does_not_count() {
    for strategy in StrategyKind::ALL {
        let scene = Scene::new(64);
        let (logins, _case) = logins(&scene, strategy);
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
    for n in 0..48 {
        let _ = quiet.check(key("quiet", n)).await;
    }
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
}

#[tokio::test]
async fn a_flood_lifts_no_ban() {
    for max_keys in SIZES {
        let scene = Scene::new(max_keys);
        let abuse = scene.limiter([by_key("api", "100/h"), bans("2/min")]);
        let rejected = async |key: Key| {
            let counted = abuse.charge([("abuse", key)], 1).await;
            counted.expect("a response");
        };
        rejected(Key::new("mallory")).await;
        rejected(Key::new("mallory")).await;
        let other = scene.limiter([by_key("other", "5/day")]);
        scene.flood(&other).await;
        assert!(!admitted_by_store(&abuse.check("mallory").await));
        // A rejection of each of these keys.
        for n in 0..2 * max_keys {
            rejected(key("made-up", n)).await;
        }
        assert!(!admitted_by_store(&abuse.check("mallory").await));
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
async fn permits_that_are_held_and_blocks_by_hand_are_not_evicted() {
    for max_keys in SIZES {
        let scene = Scene::new(max_keys);
        let exports = permits(&scene);
        let held = [exports.admit("alice").await, exports.admit("alice").await];
        let locked = scene.block(3).await;
        for policy in [by_key("api", "5/day"), bans("1/day")] {
            let limiter = scene.limiter([policy]);
            for n in 0..2 * max_keys {
                let charged = limiter.charge(key("made-up", n), 1).await;
                charged.expect("a response");
            }
        }
        assert!(scene.store.dropped() > 0);
        assert!(!admitted_by_store(&exports.check("alice").await));
        for n in 0..3 {
            assert!(!admitted_by_store(&locked.check(key("locked", n)).await));
        }
        drop(held);
        assert!(admitted_by_store(&exports.check("alice").await));
    }
}

#[tokio::test]
async fn permits_that_are_held_leave_room_to_each_policy() {
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
async fn a_key_without_room_is_a_store_error() {
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
}

#[tokio::test]
async fn a_released_permit_makes_room_at_once() {
    let scene = Scene::new(8);
    let exports = permits(&scene);
    let mut held = held(&exports, 8).await;
    assert_eq!(store_error(&exports.check("alice").await).code(), "full");
    assert_eq!(store_error(&exports.check("alice").await).code(), "full");
    held.pop();
    assert!(admitted_by_store(&exports.check("alice").await));
}

#[tokio::test]
async fn without_room_under_one_policy_none_is_charged() {
    let scene = Scene::new(8);
    let _locked = scene.block(7).await;
    let policies = [by_key("a", "9/h"), by_key("b", "9/h")];
    let both = scene.limiter(policies.map(|policy| policy.on_store_error(OnStoreError::Reject)));
    assert_eq!(store_error(&both.check("alice").await).code(), "full");
    assert_eq!(used(&both, "a", Key::new("alice")).await, 0);
    assert_eq!(scene.keys(), (7, 0));
}

#[tokio::test]
async fn a_rejection_without_room_for_its_count_stays_a_rejection() {
    let scene = Scene::new(8);
    let _locked = scene.block(7).await;
    let limiter = scene.limiter([by_key("api", "1/h"), bans("1/day")]);
    assert!(admitted_by_store(&limiter.check("alice").await));
    let (log, start) = (Log::default(), Instant::now());
    let _guard = log.warnings();
    for _ in 0..3 {
        assert!(!admitted_by_store(&limiter.check("alice").await));
    }
    let line = log.throttled("a charge was not counted", start);
    assert!(line.contains(r#"policy "abuse""#), "{line}");
    assert_eq!(scene.store.keys(), 8);
}

#[tokio::test]
async fn a_shadow_policy_without_room_rejects_nothing() {
    let scene = Scene::new(8);
    let _locked = scene.block(7).await;
    let limiter = scene.limiter([by_key("api", "1/h"), by_key("next", "1/h").shadow()]);
    assert!(admitted_by_store(&limiter.check("alice").await));
    assert!(!admitted_by_store(&limiter.check("alice").await));
}

#[tokio::test]
async fn keys_of_several_quotas_are_compared_by_the_share_in_use() {
    for strategy in StrategyKind::ALL {
        let scene = Scene::new(64);
        let (logins, _case) = logins(&scene, strategy);
        assert_eq!(logins.check("alice").times(9).await.admitted(), 5);
        let quota = Quota::requests(1_000).per_hour();
        for n in 0..80 {
            let request = logins.check(key("large", n)).quota_for("logins", quota);
            assert!(admitted_by_store(&request.cost(100).await));
        }
        assert!(!admitted_by_store(&logins.check("alice").await));
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
async fn a_charge_after_the_response_without_room_is_logged() {
    let scene = Scene::new(8);
    let _locked = scene.block(8).await;
    let policy = shared("api", "1/h").charge_after(outcome::success);
    let app = hello(&RateLimitLayer::new(scene.limiter([policy])));
    let (log, start) = (Log::default(), Instant::now());
    let _guard = log.warnings();
    assert_eq!(status(&app, "/").await, 200);
    let line = log.throttled("a charge was not counted", start);
    assert!(line.contains(r#"policy "api""#), "{line}");
}
