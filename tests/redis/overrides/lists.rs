//! Lists of overrides, and how many there may be.

use tollgate::limiter::{Override, OverrideError};
use tollgate_tests::{prelude::*, stores::limiter};

use super::support::system_time;

fn of(requests: u64) -> Override {
    Override::quota(Quota::requests(requests).per_hour())
}

fn policies() -> [Policy; 2] {
    ["a", "b"].map(|name| Policy::new(name, Quota::requests(1).per_hour()))
}

/// The most overrides of a store.
const MAX: usize = 10_000;

#[tokio::test]
async fn a_store_has_no_more_than_it_may_have_and_those_that_have_ended_make_room() {
    for world in World::both_with_overrides() {
        let limiter = world.limiter(policies());
        let [a, b] = ["a", "b"].map(|name| limiter.policy(name).expect("a policy"));
        let end = Timestamp::from_micros(world.now() as i64) + secs(600);
        let ending = of(2).until(system_time(end));
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
                    let set = b.set_override(format!("k{number}"), of(3)).await;
                    assert!(set.is_ok());
                }
            }
        }
        let error = a.set_override("bob", of(4)).await;
        assert!(matches!(
            error,
            Err(OverrideError::TooMany { max: MAX, .. })
        ));
        // One that is there may be replaced or removed.
        assert!(b.set_override("k1", of(5)).await.is_ok());
        assert!(b.remove_override("k1").await.is_ok());
        assert!(a.set_override("bob", of(4)).await.is_ok());
        assert!(a.set_override("carol", of(4)).await.is_err());
        world.advance(secs(600));
        assert!(a.set_override("carol", of(4)).await.is_ok());
        assert_eq!(limiter.overrides().await.expect("a list").len(), MAX);
        assert_eq!(limiter.stats().policies[0].overrides, 2, "{}", world.name());
    }
}

#[tokio::test]
async fn a_list_is_ordered_by_policy_and_key() {
    let limiter = limiter(Limiter::builder(), policies());
    for (policy, key) in [("b", "carol"), ("a", "bob"), ("b", "alice")] {
        let policy = limiter.policy(policy).expect("a policy");
        let set = policy.set_override(Key::new(key), of(9).set_by("ops"));
        set.await.expect("it is set");
    }
    let listed = limiter.overrides().await.expect("a list");
    let texts: Vec<_> = listed.iter().map(ToString::to_string).collect();
    let expected = ["a key:bob: 9/h", "b key:alice: 9/h", "b key:carol: 9/h"];
    assert_eq!(texts, expected);
    assert_eq!(listed[0].setting.set_by.as_deref(), Some("ops"));
    assert_eq!(listed[1].key, Key::new("alice"));
}
