//! Servers end with their tests, and fail and come back as the tests require.

use std::{
    io::{ErrorKind, Read},
    net::TcpStream,
    time::Duration,
};

use tollgate_testkit::{Connection, Server, TIMEOUT, folder, program, until};

fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn drop_ends_even_a_paused_server_and_removes_its_folder() {
    let server = Server::start();
    let (pid, folder) = (server.pid().unwrap(), server.folder().to_owned());
    server.pause();
    drop(server);
    assert!(!runs(pid));
    assert!(!folder.exists());
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
    std::thread::sleep(TIMEOUT);
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
    until("the server ends with its test process", || {
        (!runs(pid)).then_some(())
    });
    until("its folder is removed", || {
        let mut files = std::fs::read_dir(folder.path()).unwrap();
        files.next().is_none().then_some(())
    });
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
    until("the other server listens", || {
        TcpStream::connect(server.addr()).ok()
    });
    std::thread::scope(|scope| {
        let restarted = scope.spawn(|| server.restart());
        until("the server finds its port taken", || {
            let log = server.log();
            log.contains("Address already in use").then_some(())
        });
        assert!(!restarted.is_finished());
        squatter.kill().unwrap();
        squatter.wait().unwrap();
    });
    let id = server.info("server", "process_id").unwrap();
    assert_eq!(id, server.pid().unwrap().to_string());
}
