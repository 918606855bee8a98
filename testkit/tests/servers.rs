//! Servers start, reply, fail and come back as the tests require.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_testkit::{Clock, Connection, Reply, Server, folder, free_port, program};

fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

fn gone(pid: u32) -> bool {
    let start = Instant::now();
    while runs(pid) && start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(5));
    }
    !runs(pid)
}

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
fn drop_ends_the_server_and_removes_its_folder() {
    let server = Server::start();
    let (pid, folder) = (server.pid().unwrap(), server.folder().to_owned());
    assert!(runs(pid));
    drop(server);
    assert!(!runs(pid));
    assert!(!folder.exists());
}

#[test]
fn drop_ends_a_paused_server() {
    let server = Server::start();
    let pid = server.pid().unwrap();
    server.pause();
    drop(server);
    assert!(!runs(pid));
}

#[test]
fn a_panic_ends_the_server() {
    let test = std::thread::spawn(|| {
        let server = Server::start();
        std::panic::panic_any(server.pid().unwrap());
    });
    let pid = *test.join().unwrap_err().downcast::<u32>().unwrap();
    assert!(!runs(pid));
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let server = std::thread::spawn(Server::start).join().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.command(&["PING"]).text(), "PONG");
}

/// Set for the process of its own that the next test runs this one in, and kills.
const HOLDS: &str = "TESTKIT_HOLDS_A_SERVER";

#[test]
fn child_process_that_holds_a_server() {
    if std::env::var_os(HOLDS).is_none() {
        return;
    }
    let server = Server::start();
    println!("pid={}", server.pid().unwrap());
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn killing_the_test_process_ends_its_servers_and_removes_their_folders() {
    let folder = folder();
    let here = std::env::current_exe().unwrap();
    let mut holder = std::process::Command::new(here)
        .args([
            "--exact",
            "child_process_that_holds_a_server",
            "--nocapture",
        ])
        .env(HOLDS, "1")
        .env("TMPDIR", folder.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = String::new();
    let mut stdout = holder.stdout.take().unwrap();
    let pid = loop {
        let mut chunk = [0; 256];
        let len = stdout.read(&mut chunk).unwrap();
        assert_ne!(len, 0, "the helper ended: {output}");
        output += &String::from_utf8_lossy(&chunk[..len]);
        if let Some((pid, _)) = output
            .split_once("pid=")
            .and_then(|(_, pid)| pid.split_once('\n'))
        {
            break pid.parse().unwrap();
        }
    };
    assert!(runs(pid));
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(gone(pid), "server {pid} outlived its test process");
    let start = Instant::now();
    while std::fs::read_dir(folder.path()).unwrap().next().is_some() {
        assert!(start.elapsed() < Duration::from_secs(10), "a folder stays");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_killed_server_accepts_no_connections_and_comes_back_empty_on_its_port() {
    let server = Server::start();
    server.command(&["SET", "a", "1"]).ok();
    let first = server.pid();
    server.kill();
    assert_eq!(server.pid(), None);
    let refused = TcpStream::connect(server.addr()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(server.try_command(&["PING"]).is_err());

    server.restart();
    assert_ne!(server.pid(), first);
    assert!(server.keys().is_empty());
    server.restart();
    assert_eq!(server.command(&["PING"]).text(), "PONG");
}

#[test]
fn a_paused_server_accepts_connections_and_replies_later() {
    let server = Server::start();
    server.pause();
    let mut client = Connection::open(server.addr(), Duration::from_millis(200)).unwrap();
    let silent = client.call(&["PING"]).unwrap_err();
    assert!(
        matches!(silent.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        "{silent}"
    );
    server.resume();
    assert_eq!(server.command(&["PING"]).text(), "PONG");
    server.pause();
    server.stop();
    assert_eq!(server.pid(), None);
}

#[test]
fn the_helper_survives_a_lost_connection() {
    let server = Server::start();
    server.command(&["SET", "a", "1"]).ok();
    let mut other = server.connect().unwrap();
    assert!(
        other
            .call(&["CLIENT", "KILL", "TYPE", "normal"])
            .unwrap()
            .int()
            > 0
    );
    assert_eq!(server.command(&["GET", "a"]).text(), "1");
}

#[test]
fn options_reach_the_server() {
    let server = Server::builder()
        .arg("maxmemory", "5mb")
        .arg("save", "60 1")
        .start();
    let maxmemory = server.command(&["CONFIG", "GET", "maxmemory"]).list();
    assert_eq!(maxmemory[1], Reply::Text("5242880".into()));
    let save = server.command(&["CONFIG", "GET", "save"]).list();
    assert_eq!(save[1], Reply::Text("60 1".into()));
}

#[test]
fn a_password_is_needed_and_part_of_the_url() {
    let server = Server::builder().password("p@ss \"w\\rd").start();
    let url = format!("redis://:p%40ss%20%22w%5Crd@127.0.0.1:{}", server.port());
    assert_eq!(server.url(), url);
    assert_eq!(server.command(&["PING"]).text(), "PONG");
    let mut stranger = Connection::open(server.addr(), Duration::from_secs(5)).unwrap();
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
fn the_total_counts_the_helpers_own_commands() {
    let server = Server::start();
    server.reset_stats();
    assert_eq!(server.total_commands(), 1);
    assert_eq!(server.total_commands(), 2);
    server
        .command(&[
            "EVAL",
            "redis.call('incr', 'a') return redis.call('incr', 'a')",
            "0",
        ])
        .ok();
    assert_eq!(server.total_commands(), 6);
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

#[test]
fn many_servers_start_at_once() {
    let start = |_| std::thread::spawn(Server::start);
    let threads: Vec<_> = (0..8).map(start).collect();
    let servers: Vec<_> = threads
        .into_iter()
        .map(|thread| Arc::new(thread.join().unwrap()))
        .collect();
    for server in &servers {
        server
            .command(&["SET", &server.port().to_string(), ""])
            .ok();
    }
    for server in &servers {
        assert_eq!(server.keys(), [server.port().to_string()]);
    }
}

#[test]
fn free_ports_differ() {
    assert_ne!(free_port(), free_port());
}

#[test]
#[should_panic(expected = "no-such-server is not installed; `cargo xtask test` installs it")]
fn a_missing_program_is_named() {
    Server::builder().program("no-such-server").start();
}

#[test]
#[should_panic(expected = "Bad directive")]
fn a_wrong_option_shows_the_log() {
    Server::builder().arg("no-such-option", "1").start();
}

#[test]
fn no_other_server_on_the_port_is_taken_for_this_one() {
    let server = Server::start();
    server.kill();
    let mut squatter = std::process::Command::new(program())
        .args([
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--port",
            &server.port().to_string(),
        ])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while TcpStream::connect(server.addr()).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        squatter.kill().unwrap();
        squatter.wait().unwrap();
    });
    let start = Instant::now();
    server.restart();
    let waited = start.elapsed();
    release.join().unwrap();
    assert!(waited > Duration::from_millis(400));
    let id = server.info("server", "process_id").unwrap();
    assert_eq!(id, server.pid().unwrap().to_string());
}
