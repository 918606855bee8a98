//! What an override does to the requests of its key. The differential test sets them among random requests; here is what it has no
//! model of.

use tollgate::{
    clock::Clock,
    limiter::{Override, OverrideError},
};
use tollgate_tests::{
    prelude::*,
    servers,
    stores::{frozen, limiter, redis},
};

use super::support::*;

fn head(user: &str) -> Parts {
    let request = Request::get("/").header("x-user", user).body(());
    request.expect("a request").into_parts().0
}

/// How many of 20 requests are admitted.
async fn admitted(limiter: &Limiter, key: &str) -> u64 {
    limiter.check(Key::new(key)).times(20).await.admitted()
}

#[tokio::test]
async fn it_ends_by_the_stores_clock() {
    for world in World::both_with_overrides() {
        let limiter = world.limiter([policy("2/h")]);
        let api = limiter.policy("api").expect("a policy");
        assert_eq!(admitted(&limiter, ALICE).await, 2);
        let end = Timestamp::from_micros(world.now() as i64) + secs(600);
        let end = system_time(end);
        set(&limiter, ALICE, of("5/h").until(end)).await;
        world.advance(secs(599));
        assert_eq!(limiter.check(ALICE).times(1).await.admitted(), 1);
        world.advance(secs(1));
        // On Redis the first response says what the time is.
        assert!(limiter.peek("bob").await.is_ok());
        assert_eq!(admitted(&limiter, ALICE).await, 0, "{}", world.name());
        assert_eq!(limit(&limiter, ALICE).await, 2);
        assert!(limiter.overrides().await.expect("a list").is_empty());
        let ended = api.set_override(ALICE, of("5/h").until(end)).await;
        assert!(matches!(ended, Err(OverrideError::Ended)), "{ended:?}");
    }
}

#[tokio::test]
async fn headers_have_its_quota_and_an_explanation_names_it() {
    let (store, clock) = frozen();
    let by_user = policy("2/h")
        .key(extract::header("x-user"))
        .quota_with(|_| Some(quota("3/h")));
    let builder = RateLimitLayer::builder().store(store).policy(by_user);
    let layer = builder.build().expect("a layer");
    let limiter = layer.limiter().clone();
    let api = limiter.policy("api").expect("a policy");
    let key = api.key(ALICE).expect("a key");
    let seen = limiter.explain(&head(ALICE)).await.expect("an explanation");
    let seen = seen.policy("api").and_then(|api| api.status());
    assert_eq!(seen.map(|api| api.limit()), Some(3));
    let end = system_time(clock.now() + secs(60));
    let raised = of("50/h").until(end).note("ticket\n4711");
    set(&limiter, key, raised.clone()).await;
    let explanation = limiter.explain(&head(ALICE)).await.expect("an explanation");
    let explained = explanation.policy("api").and_then(|api| api.status());
    let explained = explained.expect("it applies");
    assert_eq!(explained.quota(), quota("50/h"));
    assert_eq!(explained.applied_override(), Some(&raised));
    let text = raised.to_string();
    assert!(
        text.starts_with("50/h until 20") && text.ends_with(r"Z (ticket\n4711)"),
        "{text}"
    );
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let Ok(response) = service.oneshot(Request::from_parts(head(ALICE), ())).await;
    let headers = response.headers();
    assert_eq!(headers["ratelimit-policy"], r#""api";q=50;w=3600"#);
    set(&limiter, key, Override::exempt()).await;
    let explanation = limiter.explain(&head(ALICE)).await.expect("an explanation");
    let reason = explanation.policy("api").and_then(|api| api.not_applied());
    let reason = reason.expect("it does not apply").to_string();
    assert_eq!(reason, "override: exempt");
}

#[tokio::test]
async fn what_cannot_be_set_is_an_error_and_changes_nothing() {
    for world in World::both_with_overrides() {
        let locked = Policy::block_list("locked");
        let limiter = world.limiter([policy("2/h"), locked]);
        let api = limiter.policy("api").expect("a policy");
        let set = async |setting: Override| api.set_override(ALICE, setting).await.unwrap_err();
        // Another period, under a window.
        for uncountable in ["20/min", "8 concurrent"] {
            let error = set(of(uncountable)).await;
            assert!(matches!(error, OverrideError::Uncountable(_)), "{error}");
        }
        let error = set(of("3/h").note("x".repeat(201))).await;
        let expected = "the note of an override has 201 bytes; expected at most 200";
        assert_eq!(error.to_string(), expected);
        let locked = limiter.policy("locked").expect("a policy");
        let error = locked.set_override(ALICE, of("3/h")).await;
        assert!(matches!(error, Err(OverrideError::Uncountable(_))));
        assert!(limiter.overrides().await.expect("a list").is_empty());
        assert!(locked.set_override(ALICE, Override::exempt()).await.is_ok());
        assert_eq!(admitted(&limiter, ALICE).await, 2, "{}", world.name());
    }
    let off = World::redis();
    let without = Limiter::builder().store(StubStore::without_admin());
    for builder in [off.builder(), without] {
        let limiter = limiter(builder, [policy("2/h")]);
        let api = limiter.policy("api").expect("a policy");
        let error = api.set_override(ALICE, of("3/h")).await;
        let unsupported = |error| matches!(error, OverrideError::Store(StoreError::Unsupported(_)));
        assert!(error.is_err_and(unsupported));
        assert!(limiter.overrides().await.is_err_and(unsupported));
        assert_eq!(admitted(&limiter, ALICE).await, 2);
    }
}

/// A cached rejection, and the units that a process has leased, are of the quota before.
#[tokio::test]
async fn a_cached_rejection_of_the_quota_before_does_not_apply() {
    let server = Server::start();
    let limiter = limiter(Limiter::builder().store(redis(&server)), [policy("2/day")]);
    assert_eq!(admitted(&limiter, ALICE).await, 2);
    until("a rejection is cached", async || {
        limiter.check(ALICE).await.source() == DecisionSource::RejectionCache
    })
    .await;
    set(&limiter, ALICE, of("3/day")).await;
    assert!(limiter.check(ALICE).await.is_admitted());
    assert!(!limiter.check(ALICE).await.is_admitted());
    set(&limiter, ALICE, of("4/day")).await;
    assert!(limiter.check(ALICE).await.is_admitted());
}

#[tokio::test]
async fn units_that_were_leased_under_the_quota_before_are_not_spent() {
    let server = Server::start();
    let lease = Lease::max_units(500).ttl(secs(10));
    let leased = policy("10000000/day").lease(lease);
    let limiter = limiter(Limiter::builder().store(redis(&server)), [leased]);
    tollgate_tests::world::until_leased(&limiter, ALICE, 1).await;
    set(&limiter, ALICE, of("5/day")).await;
    for _ in 0..100 {
        let decision = limiter.check(ALICE).await;
        assert!(!decision.is_admitted() && decision.source() != DecisionSource::Lease);
    }
}

#[tokio::test]
async fn the_local_share_is_that_of_the_override_while_the_store_fails() {
    let server = Server::start();
    let shared = policy("2/day").on_store_error(LocalFallback::shared_by(1));
    let limiter = limiter(Limiter::builder().store(redis(&server)), [shared]);
    set(&limiter, ALICE, of("6/day")).await;
    set(&limiter, "carol", Override::exempt()).await;
    server.kill();
    until("the store has failed", async || {
        limiter.check("bob").await.source() == DecisionSource::Fallback
    })
    .await;
    assert_eq!(admitted(&limiter, ALICE).await, 6);
    assert!(limiter.check("carol").times(99).await.is_admitted());
    let listed = limiter.overrides().await;
    assert!(matches!(listed, Err(OverrideError::Store(_))));
}

#[tokio::test]
async fn a_user_without_the_permissions_counts_without_overrides() {
    let server = Server::start();
    set(
        &limiter(Limiter::builder().store(redis(&server)), [policy("2/h")]),
        "bob",
        of("5/h"),
    )
    .await;
    let few = servers::of_a_limiter(&server).replace(" +hgetall", "");
    server.acl("few", "s3cret", &few);
    let builder = RedisStore::builder().url(server.url_as("few", "s3cret"));
    let builder = Limiter::builder().store(builder.timeout(TEST_TIMEOUT).built());
    let limiter = limiter(builder, [policy("2/h")]);
    assert_eq!(admitted(&limiter, ALICE).await, 2);
    let listed = limiter.overrides().await;
    let denied = |error: OverrideError| error.to_string().contains("NOPERM");
    assert!(listed.is_err_and(denied));
}

#[tokio::test]
async fn a_reload_keeps_them_and_lists_what_it_makes_uncountable() {
    let (store, _) = frozen();
    let limiter = limiter(Limiter::builder().store(store), [policy("2/h")]);
    set(&limiter, ALICE, of("5/h")).await;
    let reload = |quota: &str| {
        let changed = limiter.reconfigure(Limiter::builder().policy(policy(quota)));
        changed.expect("it is replaced");
    };
    reload("3/h");
    assert_eq!(limit(&limiter, ALICE).await, 5);
    reload("100/day");
    assert_eq!(limit(&limiter, ALICE).await, 100);
    let unused = async || {
        let listed = limiter.overrides().await.expect("a list");
        let first = listed.first().expect("one");
        first.unused.clone().unwrap_or_default()
    };
    assert_contains(unused().await, ["a tier whose period is not that of"]);
    reload("4/h");
    assert_eq!(limit(&limiter, ALICE).await, 5);
    assert_eq!(unused().await, "");
    // Those of a policy that the limiter does not have stay.
    let other = Policy::new("other", quota("1/h"));
    let changed = limiter.reconfigure(Limiter::builder().policy(other));
    changed.expect("it is replaced");
    assert_eq!(unused().await, r#"the limiter has no policy "api""#);
}

/// The most overrides of a store.
const MAX: usize = 10_000;

#[tokio::test]
async fn a_store_has_no_more_than_it_may_have_and_those_that_have_ended_make_room() {
    for world in World::both_with_overrides() {
        let limiter = world.limiter(["a", "b"].map(|name| Policy::new(name, quota("1/h"))));
        let [a, b] = ["a", "b"].map(|name| limiter.policy(name).expect("a policy"));
        let end = Timestamp::from_micros(world.now() as i64) + secs(600);
        let ending = of("2/h").until(system_time(end));
        assert!(a.set_override("alice", ending).await.is_ok());
        match world.redis_server() {
            Some(server) => {
                let fields = (1..MAX).map(|number| format!("k{number} b"));
                let fields = fields.flat_map(|field| [field, "1 - 3/h\n\n".to_owned()]);
                let command = ["HSET", "tg:#overrides"].map(str::to_owned);
                let command: Vec<_> = command.into_iter().chain(fields).collect();
                let command: Vec<&str> = command.iter().map(String::as_str).collect();
                server.command(&command);
            }
            None => {
                for number in 1..MAX {
                    let set = b.set_override(format!("k{number}"), of("3/h")).await;
                    assert!(set.is_ok());
                }
            }
        }
        let error = a.set_override("bob", of("4/h")).await;
        assert!(matches!(
            error,
            Err(OverrideError::TooMany { max: MAX, .. })
        ));
        // One that is there may be replaced or removed.
        assert!(b.set_override("k1", of("5/h")).await.is_ok());
        assert!(b.remove_override("k1").await.is_ok());
        assert!(a.set_override("bob", of("4/h")).await.is_ok());
        assert!(a.set_override("carol", of("4/h")).await.is_err());
        world.advance(secs(600));
        assert!(a.set_override("carol", of("4/h")).await.is_ok());
        let listed = limiter.overrides().await.expect("a list");
        assert_eq!(listed.len(), MAX);
        // By policy and key.
        let texts: Vec<_> = listed.iter().take(3).map(ToString::to_string).collect();
        let expected = ["a key:bob: 4/h", "a key:carol: 4/h", "b key:k10: 3/h"];
        assert_eq!(texts, expected);
        assert_eq!(limiter.stats().policies[0].overrides, 2, "{}", world.name());
    }
}
