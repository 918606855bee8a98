//! What the tests share.

use tollgate_tests::prelude::*;

/// Permits for requests in flight.
pub(crate) const MAX_PERMITS: u64 = 10;

/// The TTL of an unrenewed permit, by the store's clock.
pub(crate) const PERMIT_TTL: Duration = ms(300);

/// A TTL that no test outlasts: a permit that is free within it was released.
pub(crate) const LONG_TTL: Duration = secs(3_600);

pub(crate) const MICRO: Duration = Duration::from_micros(1);

/// A limit of [`MAX_PERMITS`] on all requests together.
pub(crate) fn permit_policy(life: Duration) -> Policy {
    permit_policy_of(MAX_PERMITS, life)
}

pub(crate) fn permit_policy_of(n: u64, life: Duration) -> Policy {
    let policy = Policy::new("permits", Quota::concurrent(n)).key(extract::global());
    policy.strategy(Concurrency::with_ttl(life))
}

/// Waits for the heartbeats of `n` requests in flight that begin after this is called. In process there are none.
pub(crate) async fn until_heartbeats(world: &World, n: u64) {
    let Some(server) = world.redis_server() else {
        return;
    };
    // The server's count of what is done to each permit. One round may have begun before.
    let renewals = || server.calls("zmscore");
    let enough = renewals() + 2 * n;
    until("heartbeats come", async || renewals() >= enough).await;
}

pub(crate) fn store(url: String) -> RedisStore {
    // Rejections are cached by this process's clock, and only the server's is set.
    let store = RedisStore::builder().rejection_cache_staleness(Duration::ZERO);
    store.url(url).timeout(TEST_TIMEOUT).built()
}

pub(crate) fn build(
    builder: LimiterBuilder,
    policies: impl IntoIterator<Item = Policy>,
) -> Limiter {
    stores::limiter(builder.on_store_error(OnStoreError::Reject), policies)
}

pub(crate) async fn admit(limiter: &Limiter) -> Result<Admission, Rejected> {
    limiter.admit(KEY).await
}

/// Takes one permit after the other until rejected.
pub(crate) async fn fill(limiter: &Limiter) -> Vec<Admission> {
    let mut held = Vec::new();
    loop {
        let result = admit(limiter).await;
        if !admitted_by_store(&result) {
            return held;
        }
        held.extend(result);
        assert!(held.len() <= 2 * MAX_PERMITS as usize, "no end to it");
    }
}

/// How many permits are free.
pub(crate) async fn free(limiter: &Limiter) -> u64 {
    let seen = limiter.peek(KEY).await.expect("a response");
    assert_eq!(seen.source(), DecisionSource::Store, "{seen:?}");
    seen.left("permits")
}

/// Waits until this many permits are free: a release is not awaited where it is made.
#[track_caller]
pub(crate) fn until_free(limiter: &Limiter, permits: u64) -> impl Future<Output = ()> {
    until("permits are free", async move || {
        free(limiter).await == permits
    })
}

/// Takes `n` permits that are neither renewed nor released, as those of a process that was killed.
pub(crate) async fn leak_permits(world: &World, n: u64, ttl: Duration) {
    for _ in 0..n {
        world.leak_permit("permits", (KEY, MAX_PERMITS), ttl).await;
    }
}

/// How many permits the server stores, expired ones included.
#[track_caller]
pub(crate) fn stored_permits(server: &Server) -> u64 {
    let units = server.command(&["ZSCORE", &server.only_key(), "="]).text();
    units
        .trim_start_matches('-')
        .parse()
        .expect("a whole number")
}

/// The requests that hold permits, and when these expire, in microseconds, the next first.
#[track_caller]
pub(crate) fn holders(server: &Server) -> Vec<(String, u64)> {
    let key = server.only_key();
    let range = ["ZRANGEBYSCORE", &key, "0", "+inf", "WITHSCORES"];
    let texts = server.command(&range).list().into_iter();
    let texts: Vec<_> = texts.map(testkit::Reply::text).collect();
    let pairs = texts.chunks(2);
    let holder = |pair: &[String]| (pair[0].clone(), pair[1].parse().expect("microseconds"));
    pairs.map(holder).collect()
}
