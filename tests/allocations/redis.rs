use testkit::Server;
use tollgate::{Key, RedisStore};

use super::*;

#[test]
fn a_decision_on_redis_allocates_little() {
    let server = Server::start();
    let runtime = runtime();
    for (policies, most) in [
        (&["one"][..], MAX_ONE),
        (&["one", "two", "three"], MAX_OF_THREE),
    ] {
        let with = |limiter: tollgate::LimiterBuilder, name: &&str| {
            limiter.policy(Policy::new(*name, ample()))
        };
        let store = RedisStore::open(server.url()).expect("a store");
        let builder = policies.iter().fold(Limiter::builder().store(store), with);
        let limiter = builder.build().expect("a limiter");
        let check = async || assert!(limiter.check(Key::new("alice")).await.is_admitted());
        // The worker is on the same thread, so what it does for the decision counts too.
        let each = each(
            &runtime,
            &format!("on Redis, {} policies", policies.len()),
            check,
        );
        assert!(each <= most, "{each}");
    }
}

#[test]
fn a_cached_rejection_allocates_nothing() {
    let server = Server::start();
    let runtime = runtime();
    let store = RedisStore::open(server.url()).expect("a store");
    let policy = Policy::new("one", Quota::requests(1).per_week());
    let builder = Limiter::builder().store(store).policy(policy);
    let limiter = builder.build().expect("a limiter");
    let check = async || limiter.check(Key::new("alice")).await;
    assert!(runtime.block_on(check()).is_admitted());
    let rejected = async || assert!(!check().await.is_admitted());
    let each = each(&runtime, "on Redis, known to be denied", rejected);
    // Not none: now and then Redis is called to confirm the cached rejection.
    assert!(each < 1.0, "{each}");
}

/// Measured, with a little room for what other dependencies may do.
const MAX_ONE: f64 = 11.0;
const MAX_OF_THREE: f64 = 18.0;
