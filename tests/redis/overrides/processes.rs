//! Overrides of several processes on one Redis server: each has its own store and limiter here.

use std::time::SystemTime;

use testkit::Clock;
use tollgate::{limiter::OverrideError, store::HealthWarning};
use tollgate_tests::{prelude::*, stores::redis, world::START};

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

/// A server whose clock stands still, and ten minutes later.
fn on_a_clock(start: u64) -> (Clock, Server, SystemTime) {
    let clock = Clock::at(start);
    let server = Server::builder().clock(&clock).start();
    let end = Timestamp::from_micros(start as i64) + secs(600);
    (clock, server, system_time(end))
}

async fn until_limit(limiter: &Limiter, key: &str, expected: u64) {
    let holds = async || limit(limiter, key).await == expected;
    until("the limit holds", holds).await;
}

fn lost(warnings: &[HealthWarning]) -> Option<usize> {
    warnings.iter().find_map(|warning| match warning {
        HealthWarning::OverridesLost { overrides } => Some(*overrides),
        _ => None,
    })
}

/// The keys whose overrides this process has restored.
async fn restored(limiter: &Limiter) -> Vec<Key> {
    let restored = limiter.restore_overrides().await.expect("restored");
    restored.iter().map(|(_, key, _)| *key).collect()
}

/// The keys without a TTL, but for a part of their names that all have.
fn immortal(server: &Server) -> Vec<String> {
    let keys = server.immortal_keys().into_iter();
    keys.map(|key| key.replace("tg:#overrides", "")).collect()
}

/// As a test's store waits for its server.
#[tokio::test]
async fn a_call_waits_for_a_server_that_is_held_up_for_less_than_the_timeout() {
    let server = Server::start();
    let limiter = process(&server).await;
    set(&limiter, ALICE, of("30/day")).await;
    server.pause();
    let resume = async {
        tokio::time::sleep(ms(2_500)).await;
        server.resume();
    };
    let (before, ()) = tokio::join!(set(&limiter, ALICE, of("20/day")), resume);
    assert_eq!(before, Some(of("30/day")));
}

#[tokio::test]
async fn what_one_process_sets_holds_there_at_once_and_in_the_others_soon() {
    let server = Server::start();
    let [a, b] = [process(&server).await, process(&server).await];
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
    // A process that starts later.
    set(&a, ALICE, of("40/day")).await;
    until_limit(&process(&server).await, ALICE, 40).await;
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
async fn what_the_server_has_lost_stays_in_force_and_can_be_restored() {
    let server = Server::start();
    let [a, b] = [process(&server).await, process(&server).await];
    for (key, requests) in [(ALICE, 30), ("bob", 31), ("carol", 32)] {
        set(&a, key, of(&format!("{requests}/day"))).await;
        until_limit(&b, key, requests).await;
    }
    server.flush();
    let health = a.health_check().await;
    assert_eq!(lost(health.warnings()), Some(3), "{health:?}");
    assert!(health.is_healthy());
    // Another one is set, which makes new data. The first ones stay in force.
    set(&b, "dave", of("33/day")).await;
    until_limit(&a, "dave", 33).await;
    assert_eq!(limit(&a, ALICE).await, 30);
    assert_eq!(lost(a.health_check().await.warnings()), Some(3));
    let listed = a.overrides(9).await.expect("a list");
    let stored = listed.iter().map(|listed| listed.is_stored());
    assert_eq!(stored.collect::<Vec<_>>(), [false, false, false, true]);
    // One is removed by another process.
    assert_eq!(remove(&b, "carol").await, Some(of("32/day")));
    until_limit(&a, "carol", 10).await;
    assert_eq!(restored(&a).await.len(), 2);
    assert_eq!(lost(a.health_check().await.warnings()), None);
    let has_read = async || lost(b.health_check().await.warnings()).is_none();
    until("the other process has read them", has_read).await;
    let c = process(&server).await;
    for (key, requests) in [(ALICE, 30), ("bob", 31), ("carol", 10), ("dave", 33)] {
        until_limit(&c, key, requests).await;
        assert_eq!(limit(&b, key).await, requests);
    }
}

/// The first process takes what it knows for lost, until it reads that it was removed.
#[tokio::test]
async fn what_another_process_removes_after_a_loss_ends_everywhere() {
    let server = Server::start();
    let (first, second) = (process(&server).await, process(&server).await);
    for key in [ALICE, "bob"] {
        set(&first, key, of("100/day")).await;
        until_limit(&second, key, 100).await;
    }
    server.flush();
    assert!(remove(&second, ALICE).await.is_some());
    until_limit(&first, ALICE, 10).await;
    assert_eq!(limit(&first, "bob").await, 100);
    assert_eq!(restored(&first).await, [Key::new("bob")]);
    assert_eq!(limit(&first, ALICE).await, 10);
}

#[tokio::test]
async fn the_first_change_of_a_process_takes_nothing_of_the_others_for_lost() {
    let server = Server::start();
    let first = process(&server).await;
    set(&first, ALICE, of("100/day")).await;
    let second = limiter(&server);
    set(&second, "bob", of("50/day")).await;
    assert!(remove(&first, ALICE).await.is_some());
    until_limit(&second, ALICE, 10).await;
    assert_eq!(restored(&second).await, []);
}

/// Copies the overrides to keys of another prefix.
fn copy(server: &Server, from: &str, to: &str) {
    for name in ["overrides", "overrides:changes", "overrides:version"] {
        let [from, to] = [from, to].map(|prefix| format!("{prefix}{name}"));
        server.command(&["COPY", &from, &to, "REPLACE"]).ok();
    }
}

#[tokio::test]
async fn what_a_failover_has_lost_stays_in_force_and_can_be_restored() {
    let server = Server::start();
    let a = process(&server).await;
    set(&a, ALICE, of("100/day")).await;
    copy(&server, "tg:#", "replica:");
    set(&a, "bob", of("50/day")).await;
    // A replica that lacks the last change becomes the master.
    copy(&server, "replica:", "tg:#");
    assert_eq!(lost(a.health_check().await.warnings()), Some(1));
    assert_eq!(limit(&a, "bob").await, 50);
    assert_eq!(restored(&a).await, [Key::new("bob")]);
    until_limit(&process(&server).await, "bob", 50).await;
}

/// A process that begins reads the changes, and then all overrides.
#[tokio::test]
async fn what_is_removed_while_a_process_begins_is_not_lost() {
    let server = Server::start();
    let first = process(&server).await;
    set(&first, ALICE, of("100/day")).await;
    let proxy = Proxy::to(server.addr());
    let through_proxy = RedisStore::builder().url(format!("redis://{}", proxy.addr()));
    let through_proxy = through_proxy.timeout(TEST_TIMEOUT).built();
    let builder = Limiter::builder().store(through_proxy);
    let second = stores::limiter(builder, [policy("10/day")]);
    let (log, _guard) = Log::of_errors();
    proxy.delay(ms(100));
    let before = server.calls("eval");
    let listed = tokio::spawn({
        let second = second.clone();
        async move { second.overrides(9).await }
    });
    let are_read = async || server.calls("eval") > before;
    until("the changes are read", are_read).await;
    assert!(remove(&first, ALICE).await.is_some());
    proxy.pass();
    drop(listed.await.expect("no panic"));
    until_limit(&second, ALICE, 10).await;
    assert_eq!(log.text(), "");
    // Though the overrides have changed meanwhile.
    assert_eq!(server.calls("hscan"), 1, "all overrides are read once");
}

/// The number of a change is not given again, though the server has lost it.
#[tokio::test]
async fn changes_that_follow_a_failover_are_read_by_all() {
    let server = Server::start();
    let (first, second) = (process(&server).await, process(&server).await);
    set(&first, ALICE, of("100/day")).await;
    copy(&server, "tg:#", "replica:");
    set(&first, "bob", of("50/day")).await;
    until_limit(&second, "bob", 50).await;
    // A replica that lacks the last change becomes the master.
    copy(&server, "replica:", "tg:#");
    set(&first, ALICE, of("7/day")).await;
    set(&first, "carol", of("70/day")).await;
    until_limit(&second, "carol", 70).await;
    until_limit(&second, ALICE, 7).await;
}

/// Removes an override as an hour later: the change of the removed field can't be read any more.
fn remove_an_hour_ago(server: &Server, key: &str) {
    let version = server.command(&["GET", "tg:#overrides:version"]).text();
    let mut parts = version.split(' ');
    let id = parts.next().expect("an id");
    let last: u64 = parts.next().expect("a number").parse().expect("one");
    let script = "redis.call('HDEL', KEYS[1], ARGV[1])
        redis.call('ZREM', KEYS[2], ARGV[1])
        redis.call('SET', KEYS[3], ARGV[2])";
    let keys = [
        "tg:#overrides",
        "tg:#overrides:changes",
        "tg:#overrides:version",
    ];
    let version = format!("{id} {} {} later", last + 2, last + 1);
    let field = format!("{key} api");
    let mut call = vec!["EVAL", script, "3"];
    call.extend(keys);
    call.extend([&*field, &*version]);
    server.command(&call);
}

#[tokio::test]
async fn a_process_that_has_missed_removals_reads_all() {
    let server = Server::start();
    let [a, b] = [process(&server).await, process(&server).await];
    set(&a, ALICE, of("30/day")).await;
    set(&a, "bob", of("31/day")).await;
    until_limit(&b, ALICE, 30).await;
    until_limit(&b, "bob", 31).await;
    remove_an_hour_ago(&server, ALICE);
    for process in [&a, &b] {
        until_limit(process, ALICE, 10).await;
        assert_eq!(limit(process, "bob").await, 31);
        assert_eq!(lost(process.health_check().await.warnings()), None);
    }
}

#[tokio::test]
async fn a_process_that_has_missed_removals_keeps_what_the_server_had_lost_before() {
    let server = Server::start();
    let a = process(&server).await;
    set(&a, ALICE, of("30/day")).await;
    server.flush();
    set(&a, "bob", of("31/day")).await;
    remove_an_hour_ago(&server, "bob");
    until_limit(&a, "bob", 10).await;
    assert_eq!(limit(&a, ALICE).await, 30);
    assert_eq!(lost(a.health_check().await.warnings()), Some(1));
}

#[tokio::test]
async fn many_changes_are_read_in_pages() {
    let server = Server::start();
    let a = process(&server).await;
    set(&a, ALICE, of("30/day")).await;
    // Made elsewhere, so that they appear all at once.
    copy(&server, "tg:#", "elsewhere:#");
    let elsewhere = RedisStore::builder().url(server.url()).prefix("elsewhere:");
    let elsewhere = Limiter::builder().store(elsewhere.timeout(TEST_TIMEOUT).built());
    let elsewhere = stores::limiter(elsewhere, [policy("10/day")]);
    for number in 0..1_200 {
        let quota = format!("{}/day", 20 + number);
        set(&elsewhere, &format!("k{number}"), of(&quota)).await;
    }
    copy(&server, "elsewhere:#", "tg:#");
    until_limit(&a, "k1199", 1_219).await;
    let b = process(&server).await;
    until_limit(&b, "k1199", 1_219).await;
    for process in [&a, &b] {
        assert_eq!(process.overrides(9).await.expect("a list").total(), 1_201);
    }
}

#[tokio::test]
async fn one_that_has_ended_is_removed_from_the_server() {
    let (clock, server, end) = on_a_clock(START);
    let [a, b] = [process(&server).await, process(&server).await];
    set(&a, ALICE, of("30/day").until(end)).await;
    until_limit(&b, ALICE, 30).await;
    clock.advance(secs(601));
    for process in [&a, &b] {
        until_limit(process, ALICE, 10).await;
    }
    let is_removed = async || server.command(&["HLEN", "tg:#overrides"]).int() == 0;
    until("it is removed", is_removed).await;
}

/// A process whose clock is ahead would end it for all.
#[tokio::test]
async fn none_is_removed_before_its_end_by_the_servers_clock() {
    let (clock, server, end) = on_a_clock(START);
    let a = process(&server).await;
    set(&a, ALICE, of("30/day").until(end)).await;
    let value = stored(&server);
    assert_eq!(change(&server, "end", &value), 0);
    assert_eq!(limit(&a, ALICE).await, 30);
    clock.advance(secs(600));
    assert_eq!(change(&server, "end", &value), 1);
}

/// The value of the first key's override.
fn stored(server: &Server) -> String {
    let found = server.command(&["HGET", "tg:#overrides", "alice api"]);
    found.text()
}

/// Runs the script of changes for the first key, as a process does that knows nothing of the others; returns whether it changed
/// something.
fn change(server: &Server, operation: &str, value: &str) -> i64 {
    let script = include_str!("../../../src/store/redis/overrides/change.lua");
    let keys = ["", ":changes", ":removed", ":version"];
    let keys = keys.map(|part| format!("tg:#overrides{part}"));
    let mut call = vec!["EVAL", script, "4"];
    call.extend(keys.iter().map(String::as_str));
    call.extend([operation, "alice api", value, "9", "random", "3600000000"]);
    server.command(&call).list()[0].clone().int()
}

/// Another process has replaced it since its end was noticed.
#[tokio::test]
async fn the_end_of_one_that_was_replaced_changes_nothing() {
    let (clock, server, end) = on_a_clock(START);
    let a = process(&server).await;
    set(&a, ALICE, of("30/day").until(end)).await;
    let value = stored(&server);
    set(&a, ALICE, of("50/day")).await;
    clock.advance(secs(601));
    assert_eq!(change(&server, "end", &value), 0);
    assert_eq!(limit(&a, ALICE).await, 50);
}

#[tokio::test]
async fn one_that_was_removed_meanwhile_is_not_restored() {
    let server = Server::start();
    let a = process(&server).await;
    set(&a, ALICE, of("30/day")).await;
    let value = stored(&server);
    remove(&a, ALICE).await;
    assert_eq!(change(&server, "restore", &value), 0);
    server.flush();
    assert_eq!(change(&server, "restore", &value), 1);
    until_limit(&a, ALICE, 30).await;
}

#[tokio::test]
async fn a_process_that_has_not_read_a_removal_of_an_hour_ago_has_to_read_all() {
    let (clock, server, _) = on_a_clock(START);
    let a = process(&server).await;
    set(&a, ALICE, of("30/day")).await;
    remove(&a, ALICE).await;
    let version = || {
        let text = server.command(&["GET", "tg:#overrides:version"]).text();
        let numbers = text.split(' ').skip(1).take(2);
        let numbers: Vec<u64> = numbers
            .map(|number| number.parse().expect("a number"))
            .collect();
        (numbers[0], numbers[1])
    };
    let (removal, before) = version();
    assert!(before < removal);
    clock.advance(secs(3_601));
    set(&a, "bob", of("31/day")).await;
    assert_eq!(version().1, removal);
    assert_eq!(server.command(&["ZCARD", "tg:#overrides:removed"]).int(), 0);
}

#[tokio::test]
async fn ends_are_judged_by_the_servers_clock_before_the_first_request() {
    // Long before this machine's time.
    let start = START - secs(10 * 365 * 86_400).as_micros() as u64;
    let (clock, server, end) = on_a_clock(start);
    let new = limiter(&server);
    set(&new, ALICE, of("30/day").until(end)).await;
    assert_eq!(limit(&new, ALICE).await, 30);
    clock.advance(secs(601));
    until_limit(&new, ALICE, 10).await;
    let api = new.policy("api").expect("a policy");
    let ended = api.set_override(ALICE, of("30/day").until(end)).await;
    assert!(matches!(ended, Err(OverrideError::Ended)), "{ended:?}");
}

#[tokio::test]
async fn the_only_keys_without_a_ttl_are_those_of_overrides() {
    let server = Server::start();
    let a = process(&server).await;
    assert!(a.check(ALICE).await.is_admitted());
    assert_eq!(server.immortal_keys(), [""; 0]);
    set(&a, ALICE, of("30/day")).await;
    remove(&a, "bob").await;
    assert_eq!(immortal(&server), ["", ":changes", ":version"]);
    remove(&a, ALICE).await;
    assert_eq!(immortal(&server), [":changes", ":removed", ":version"]);
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
    let health = late.health_check().await;
    let unread = |warning: &HealthWarning| matches!(warning, HealthWarning::OverridesUnread);
    assert!(health.warnings().iter().any(unread), "{health:?}");
    // A change is an error, and changes nothing.
    let api = a.policy("api").expect("a policy");
    let failed = api.set_override(ALICE, of("50/day")).await;
    assert!(
        matches!(
            failed,
            Err(OverrideError::Store(
                StoreError::Connection(_) | StoreError::Timeout
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
    assert!(!late.health_check().await.warnings().iter().any(unread));
}

#[tokio::test]
async fn a_store_whose_overrides_are_off_polls_nothing() {
    let server = Server::start();
    let store = RedisStore::builder().url(server.url()).max_overrides(0);
    let builder = Limiter::builder().store(store.timeout(TEST_TIMEOUT).built());
    let limiter = stores::limiter(builder, [policy("10/day")]);
    assert!(limiter.check(ALICE).await.is_admitted());
    let api = limiter.policy("api").expect("a policy");
    let error = api.set_override(ALICE, of("20/day")).await;
    let is_off = |error| matches!(error, OverrideError::Store(StoreError::Unsupported(_)));
    assert!(error.is_err_and(is_off));
    assert!(limiter.health_check().await.is_healthy());
}
