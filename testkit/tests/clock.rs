//! Servers follow the clock at once, in every direction.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollgate_testkit::{Clock, Server, until};

const START: u64 = 1_700_000_000_123_456;
const DAY: Duration = Duration::from_secs(86_400);

fn started() -> (Clock, Server) {
    let clock = Clock::at(START);
    let server = Server::builder().clock(&clock).start();
    (clock, server)
}

fn micros(parts: Vec<tollgate_testkit::Reply>) -> u64 {
    let parts: Vec<u64> = parts
        .into_iter()
        .map(|part| part.text().parse().unwrap())
        .collect();
    parts[0] * 1_000_000 + parts[1]
}

fn time(server: &Server) -> u64 {
    micros(server.command(&["TIME"]).list())
}

fn time_in_script(server: &Server) -> u64 {
    micros(
        server
            .command(&["EVAL", "return redis.call('time')", "0"])
            .list(),
    )
}

#[test]
fn the_servers_time_is_frozen_and_follows_each_step() {
    let (clock, server) = started();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(time(&server), START);
    assert_eq!(time_in_script(&server), START);
    for step in 1..=1000 {
        clock.advance(Duration::from_micros(step));
        assert_eq!(time_in_script(&server), clock.micros());
        assert_eq!(time(&server), clock.micros());
    }
    clock.rewind(10 * DAY);
    assert_eq!(time_in_script(&server), clock.micros());
    assert!(clock.micros() < START);
}

#[test]
fn a_key_lives_to_its_last_millisecond() {
    let (clock, server) = started();
    for (key, script) in [("plain", false), ("script", true)] {
        let get = || match script {
            false => server.command(&["GET", key]),
            true => server.command(&["EVAL", "return redis.call('get', KEYS[1])", "1", key]),
        };
        server.command(&["SET", key, "1", "PX", "60000"]).ok();
        assert_eq!(server.command(&["PTTL", key]).int(), 60_000);
        clock.advance(Duration::from_millis(59_999));
        assert_eq!(server.command(&["PTTL", key]).int(), 1);
        assert_eq!(get().text(), "1");
        clock.advance(Duration::from_millis(1));
        assert_eq!(server.command(&["PTTL", key]).int(), 0);
        assert_eq!(get().text(), "1");
        clock.advance(Duration::from_millis(1));
        assert!(get().is_nil());
    }
}

#[test]
fn expired_keys_are_deleted_in_the_background_and_stay_deleted() {
    let (clock, server) = started();
    for number in 0..1000 {
        server
            .command(&["SET", &format!("k{number}"), "1", "PX", "60000"])
            .ok();
    }
    clock.advance(Duration::from_secs(61));
    until("expired keys are deleted", || {
        (server.command(&["DBSIZE"]).int() == 0).then_some(())
    });
    clock.rewind(Duration::from_secs(61));
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
}

#[test]
fn a_replica_stays_linked_through_a_step() {
    let clock = Clock::at(START);
    let primary = Server::builder()
        .clock(&clock)
        .arg("repl-ping-replica-period", "1")
        .start();
    let replica = Server::builder().clock(&clock).replica_of(&primary).start();
    let copies = primary.info("stats", "sync_full");
    clock.advance(10 * DAY);
    // Both look for links that have timed out before the primary pings, and before the replica acknowledges that.
    let offset = || -> i64 {
        let offset = primary.info("replication", "master_repl_offset");
        offset.unwrap().parse().unwrap()
    };
    let before = offset();
    until("the replica acknowledges a later ping", || {
        let replica = primary.info("replication", "slave0")?;
        let field = replica
            .split(',')
            .find_map(|field| field.strip_prefix("offset="));
        (field?.parse::<i64>().unwrap() > before).then_some(())
    });
    primary.command(&["SET", "a", "1"]).ok();
    assert_eq!(
        primary
            .command(&["INFO", "replication"])
            .text()
            .matches("state=online")
            .count(),
        1
    );
    assert_eq!(
        replica.info("replication", "master_link_status").unwrap(),
        "up"
    );
    assert_eq!(primary.info("stats", "sync_full"), copies);
    assert_eq!(primary.info("stats", "sync_partial_ok").unwrap(), "0");
}

#[test]
fn zero_is_the_real_time() {
    let clock = Clock::at(0);
    let server = Server::builder().clock(&clock).start();
    let real = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        u64::try_from(now.as_micros()).unwrap()
    };
    let before = real();
    let there = time(&server);
    assert!((before..=real()).contains(&there));
    clock.set(START);
    assert_eq!(time(&server), START);
    clock.set(0);
    assert!(time(&server) >= there);
}
