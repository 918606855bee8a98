//! Overrides of several processes on one Redis server: each has its own store and limiter here.

use tokio::runtime::Handle;
use tollgate::limiter::OverrideError;
use tollgate_tests::{prelude::*, stores::redis};

use super::support::*;

/// A limiter of a process.
fn limiter(server: &Server) -> Limiter {
    stores::limiter(Limiter::builder().store(redis(server)), [policy("10/day")])
}

/// A process that has sent a request.
async fn process(server: &Server) -> Limiter {
    let limiter = limiter(server);
    assert!(limiter.check("first").cost(0).await.is_admitted());
    limiter
}

async fn until_limit(limiter: &Limiter, key: impl Into<Key>, expected: u64) {
    let key = key.into();
    until("the limit holds", async || {
        let status = limiter.peek(key).await.expect("a status");
        status.count("api").limit() == expected
    })
    .await;
}

#[tokio::test]
async fn what_one_process_sets_holds_there_at_once_and_in_the_others_soon() {
    let server = Server::start();
    let [a, b] = [process(&server).await, process(&server).await];
    assert_eq!(server.immortal_keys(), [""; 0]);
    set(&a, ALICE, of("30/day")).await;
    assert_eq!(limit(&a, ALICE).await, 30);
    until_limit(&b, ALICE, 30).await;
    set(&b, ALICE, of("20/day")).await;
    assert_eq!(limit(&b, ALICE).await, 20);
    until_limit(&a, ALICE, 20).await;
    assert_eq!(remove(&a, ALICE).await, Some(of("20/day")));
    assert_eq!(limit(&a, ALICE).await, 10);
    until_limit(&b, ALICE, 10).await;
    assert_eq!(remove(&b, ALICE).await, None);
    // Counts have TTLs, and overrides none.
    assert_eq!(server.immortal_keys(), ["tg:#overrides:version"]);
    // One form of a key is stored, whatever it is shown as; a process that starts later reads all.
    let uuid = "550e8400-e29b-41d4-a716-446655440000";
    let keys = [
        Key::new(uuid),
        Key::new(uuid.to_uppercase().replace("550E", "550F")),
        Key::secret("sk_1"),
        Key::ip("2001:db8::7".parse().expect("an address")),
        Key::tuple([Key::new("tenant"), Key::new("/ocr")]),
    ];
    for key in keys {
        set(&a, key, of("30/day")).await;
    }
    let late = process(&server).await;
    for key in keys {
        let field = format!("{} api", key.as_str());
        let is_stored = server.command(&["HEXISTS", "tg:#overrides", &field]);
        assert_eq!(is_stored.int(), 1, "{field}");
        for process in [&b, &late] {
            until_limit(process, key, 30).await;
        }
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_logged_and_what_the_server_has_lost_is_gone() {
    let server = Server::start();
    let (log, _guard) = Log::of_errors();
    // What is logged on this thread is kept.
    let process = async || {
        let store = RedisStore::builder().url(server.url());
        let store = store.timeout(TEST_TIMEOUT).runtime(Handle::current());
        let limiter = Limiter::builder().store(store.built());
        let limiter = stores::limiter(limiter, [policy("10/day")]);
        assert!(limiter.check("first").cost(0).await.is_admitted());
        limiter
    };
    let [a, b] = [process().await, process().await];
    for (field, value) in [
        ("no-policy", "1 - 30/day\n\n"),
        ("a{b api", "1 - 30/day\n\n"),
        ("bob api", "2 - 30/day\n\n"),
        ("carol api", "1 - a lot\n\n"),
    ] {
        server.command(&["HSET", "tg:#overrides", field, value]);
    }
    set(&a, ALICE, of("30/day")).await;
    until_limit(&b, ALICE, 30).await;
    for key in ["bob", "carol"] {
        assert_eq!(limit(&b, key).await, 10);
    }
    assert_contains(log.text(), ["an override has no effect"]);
    server.flush();
    set(&b, "bob", of("31/day")).await;
    for process in [&a, &b] {
        until_limit(process, ALICE, 10).await;
        until_limit(process, "bob", 31).await;
    }
}

#[tokio::test]
async fn a_key_gets_no_more_than_the_larger_quota_while_processes_differ() {
    let server = Server::start();
    let processes = [process(&server).await, process(&server).await];
    let mut admitted = 0;
    for requests in [15, 5, 25, 10, 40] {
        set(&processes[0], ALICE, of(&format!("{requests}/day"))).await;
        for _ in 0..30 {
            for process in &processes {
                admitted += u64::from(process.check(ALICE).await.is_admitted());
            }
        }
        let largest = requests.max(25);
        assert!(admitted <= largest, "{admitted} of {largest}");
    }
    until_limit(&processes[1], ALICE, 40).await;
    for process in &processes {
        admitted += process.check(ALICE).times(99).await.admitted();
    }
    assert_eq!(admitted, 40);
}

#[tokio::test]
async fn a_process_that_starts_during_an_outage_has_none_until_the_server_answers() {
    let server = Server::start();
    let a = process(&server).await;
    set(&a, ALICE, of("30/day")).await;
    server.command(&["SAVE"]);
    server.kill();
    let late = limiter(&server);
    assert!(late.check(ALICE).await.is_admitted(), "uncounted");
    // A change is an error, and changes nothing.
    let api = a.policy("api").expect("a policy");
    let failed = api.set_override(ALICE, of("50/day")).await;
    assert!(
        matches!(
            failed,
            Err(OverrideError::Store(
                StoreError::Connection { .. } | StoreError::Timeout { .. }
            ))
        ),
        "{failed:?}"
    );
    server.restart();
    until("both have read it", async || {
        let limits = [&a, &late].map(async |process| {
            let status = process.peek(ALICE).await.ok()?;
            Some(status.policy("api")?.limit())
        });
        let [first, second] = limits;
        (first.await, second.await) == (Some(30), Some(30))
    })
    .await;
}
