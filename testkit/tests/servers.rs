//! Servers start with their options, reply, and say what they hold and were asked.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
};

use tollgate_testkit::{Clock, Connection, Server, TIMEOUT};

#[test]
fn a_server_replies_and_keeps_nothing_on_disk() {
    let server = Server::start();
    assert_ne!(server.port(), 6379);
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    server.command(&["SET", "a", "1"]).ok();
    assert_eq!(server.command(&["INCR", "a"]).int(), 2);
    assert_eq!(server.command(&["GET", "a"]).text(), "2");
    assert!(server.command(&["GET", "b"]).is_nil());
    assert!(
        server
            .command(&["INCR"])
            .error()
            .starts_with("ERR wrong number")
    );
    server.stop();
    assert!(!server.folder().join("dump.rdb").exists());
}

#[test]
fn a_password_is_needed_and_part_of_the_url() {
    let server = Server::builder().password("p@ss \"w\\rd").start();
    let url = format!("redis://:p%40ss%20%22w%5Crd@127.0.0.1:{}", server.port());
    assert_eq!(server.url(), url);
    assert_eq!(server.command(&["PING"]).text(), "PONG");
    let mut stranger = Connection::open(server.addr(), TIMEOUT).unwrap();
    assert!(
        stranger
            .call(&["PING"])
            .unwrap()
            .error()
            .starts_with("NOAUTH")
    );
    server.restart();
    assert_eq!(server.command(&["PING"]).text(), "PONG");
}

#[test]
fn a_unix_socket_replies() {
    let server = Server::builder().unix_socket().start();
    let url = server.url();
    let mut client = UnixStream::connect(url.strip_prefix("redis+unix://").unwrap()).unwrap();
    client.write_all(b"PING\r\n").unwrap();
    let mut reply = [0; 7];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}

#[test]
fn a_replica_has_a_copy_and_starts_empty_without_its_primary() {
    let primary = Server::builder().password("secret").start();
    primary.command(&["SET", "a", "1"]).ok();
    let replica = Server::builder().replica_of(&primary).start();
    assert_eq!(replica.command(&["GET", "a"]).text(), "1");
    assert!(
        replica
            .command(&["SET", "a", "2"])
            .error()
            .starts_with("READONLY")
    );
    primary.kill();
    replica.restart();
    assert!(replica.keys().is_empty());
}

#[test]
fn a_user_has_its_rights_only() {
    let server = Server::start();
    server.acl("gate", "secret", "~t:* +@all -incrby");
    assert_eq!(
        server.url_as("gate", "secret"),
        format!("redis://gate:secret@127.0.0.1:{}", server.port())
    );
    let mut user = server.connect().unwrap();
    user.call(&["AUTH", "gate", "secret"]).unwrap().ok();
    user.call(&["SET", "t:a", "1"]).unwrap().ok();
    assert!(
        user.call(&["SET", "u:a", "1"])
            .unwrap()
            .error()
            .starts_with("NOPERM")
    );
    assert!(
        user.call(&["INCRBY", "t:a", "1"])
            .unwrap()
            .error()
            .starts_with("NOPERM")
    );
    assert_eq!(server.calls("incrby"), 0);
}

#[test]
fn commands_are_counted_also_in_scripts() {
    let server = Server::start();
    server.reset_stats();
    assert_eq!(server.calls("incr"), 0);
    server.command(&["INCR", "a"]).ok();
    server
        .command(&[
            "EVAL",
            "redis.call('incr', 'a') return redis.call('incr', 'a')",
            "0",
        ])
        .ok();
    server.command(&["EVALSHA", &"0".repeat(40), "0"]).error();
    assert_eq!(server.calls("incr"), 3);
    assert_eq!(server.calls("eval"), 1);
    assert_eq!(server.calls("EVALSHA"), 1);
    let reset = match server.version() {
        (..7, _) => "config",
        _ => "config|resetstat",
    };
    assert_eq!(server.calls(reset), 1);
    server.reset_stats();
    assert_eq!(server.calls("incr"), 0);
}

#[test]
fn the_expiry_of_a_key_is_known_from_every_version() {
    let clock = Clock::at(1_800_000_000_123_456);
    let server = Server::builder().clock(&clock).start();
    assert!(server.version() >= (6, 2), "{:?}", server.version());
    server.command(&["SET", "key", "1", "PX", "1000"]).ok();
    assert_eq!(server.expires_at("key"), 1_800_000_001_123);
    server.command(&["PERSIST", "key"]).ok();
    assert_eq!(server.expires_at("key"), -1);
    assert_eq!(server.expires_at("none"), -2);
}

#[test]
fn keys_are_listed_with_their_lifetimes() {
    let server = Server::start();
    let names: Vec<_> = (0..3000).map(|number| format!("k{number:04}")).collect();
    for name in &names {
        server.command(&["SET", name, "", "EX", "1000"]).ok();
    }
    assert_eq!(server.keys(), names);
    assert!(server.immortal_keys().is_empty());
    server.command(&["PERSIST", "k0007"]).ok();
    assert_eq!(server.immortal_keys(), ["k0007"]);
    server.flush();
    assert!(server.keys().is_empty());
}
