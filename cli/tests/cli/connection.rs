//! What is called, with which token, and how failures end.

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
};

use crate::{
    program::{command, run, tollgate, write},
    served::{TOKEN, World, admin_command},
};

#[test]
fn one_of_two_ways_is_required() {
    for arguments in [
        &["policies"][..],
        &[
            "policies",
            "--admin",
            "http://localhost",
            "--config",
            "limits.toml",
        ],
        &["policies", "--admin", "localhost:8080/admin"],
        &["policies", "--admin", "http://ops:secret-part@localhost"],
    ] {
        let mut command = command(arguments);
        command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
        let run = run(command);
        assert_eq!(run.code, Some(2), "{arguments:?}: {}", run.stderr);
        assert!(!run.stderr.contains("secret-part"));
    }
}

#[test]
fn a_token_is_required_and_never_printed() {
    let world = World::start();
    let service = world.service();
    let folder = testkit::folder();
    let call = |token: Option<&str>, file: Option<&str>| {
        let mut command = service.command(&["policies"]);
        match token {
            Some(token) => command.env("TOLLGATE_ADMIN_TOKEN", token),
            None => command.env_remove("TOLLGATE_ADMIN_TOKEN"),
        };
        if let Some(text) = file {
            let file = write(folder.path(), "token", text);
            command.args(["--token-file", &file]);
        }
        let run = run(command);
        for secret in ["wrong-part", "token-of"] {
            assert!(!run.stderr.contains(secret), "{}", run.stderr);
        }
        run.code
    };
    assert_eq!(call(None, None), Some(4));
    assert_eq!(call(Some(" "), None), Some(4));
    assert_eq!(call(None, Some("\n")), Some(4));
    assert_eq!(call(Some("wrong-part-of-a-token"), None), Some(4));
    assert_eq!(call(Some("not a\nheader wrong-part"), None), Some(4));
    assert_eq!(call(None, Some(&format!("{TOKEN}\n"))), Some(0));
    assert_eq!(call(Some("wrong-part-of-a-token"), Some(TOKEN)), Some(0));
    let run = service.run(&["policies", "--token-file", "no-such-file"]);
    assert_eq!(run.code, Some(4), "{}", run.stderr);
}

#[test]
fn a_token_is_sent_through_no_proxy() {
    let world = World::start();
    let service = world.service();
    let mut command = service.command(&["policies"]);
    let proxy = format!("http://127.0.0.1:{}", testkit::free_port());
    for variable in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        command.env(variable, &proxy);
    }
    command.env_remove("NO_PROXY").env_remove("no_proxy");
    let run = run(command);
    assert_eq!((run.code, &*run.stderr), (Some(0), ""));
}

/// The URL of a server that has no admin API, and responds to one request.
fn other_server() -> String {
    server_of("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned())
}

/// The URL of a server that responds to one request.
fn server_of(response: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = [0; 4_096];
        let read = stream.read(&mut request).expect("a request");
        assert!(read > 0);
        stream.write_all(response.as_bytes()).expect("a response");
    });
    format!("http://{address}")
}

#[test]
fn no_control_character_of_an_answer_reaches_the_terminal() {
    let hostile = r"\u001b[2J\u009b1m\nb";
    for (command, fields) in [
        (&["top"][..], &["since"][..]),
        (&["explain", "GET", "/"], &["outcome", "reason", "hint"]),
    ] {
        let fields: Vec<_> = fields
            .iter()
            .map(|field| format!("\"{field}\":\"{hostile}\""))
            .collect();
        let body = format!("{{{}}}", fields.join(","));
        let length = body.len();
        let url = server_of(format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        ));
        let run = run(admin_command(&url, command));
        run.assert_stdout(r"\u{1b}[2J\u{9b}1m\u{a}b");
        let mut others = run.stdout.chars().filter(|c| *c != '\n');
        assert!(!others.any(char::is_control), "{:?}", run.stdout);
    }
}

#[test]
fn failures_have_exit_codes() {
    let world = World::start();
    let service = world.service();
    let unknown = service.run(&["peek", "none", "alice"]);
    assert_eq!((unknown.code, &*unknown.stdout), (Some(2), ""));
    unknown.assert_stderr("no policy \"none\"");

    let nowhere = format!("http://127.0.0.1:{}/admin", testkit::free_port());
    let elsewhere = run(admin_command(&nowhere, &["policies"]));
    assert_eq!((elsewhere.code, &*elsewhere.stdout), (Some(3), ""));

    let other = run(admin_command(&other_server(), &["policies"]));
    assert_eq!(other.code, Some(3), "{}", other.stderr);
    other.assert_stderr("no admin API at this URL");
}

#[test]
fn counts_that_only_a_process_has_are_not_looked_for_in_a_file() {
    let folder = testkit::folder();
    let text = "[policies.api]\nquota = '3/day'\n";
    let file = write(folder.path(), "limits.toml", text);
    let run = tollgate(&["policies", "--config", &file]);
    assert_eq!(run.code, Some(2));
    run.assert_stderr("use --admin URL");

    let text =
        "[store]\nurl = 'redis://localhost:1'\n[policies.api]\nquota = '3/day'\nstrategy = 'own'\n";
    let file = write(folder.path(), "own.toml", text);
    let run = tollgate(&["policies", "--assume-registered", "--config", &file]);
    assert_eq!(run.code, Some(2));
    run.assert_stderr("strategy \"own\"");
}

#[test]
fn a_closed_output_changes_no_exit_code() {
    let folder = testkit::folder();
    let file = write(folder.path(), "wrong.toml", "[policies.api]\nquota = 'x'\n");
    for (arguments, code) in [(&["schema"][..], 0), (&["check", &file], 1)] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = command(arguments);
        let errors = folder.path().join("errors");
        command.stdout(writer);
        command.stderr(std::fs::File::create(&errors).expect("a file"));
        let status = command.status().expect("the program");
        assert_eq!(status.code(), Some(code), "{arguments:?}");
        assert_eq!(std::fs::read_to_string(errors).expect("a file"), "");
    }
}

#[test]
fn a_closed_standard_error_changes_no_exit_code() {
    let folder = testkit::folder();
    let file = |name: &str, text: &str| write(folder.path(), name, text);
    let text = "[policies.api]\nquota = '1/h'\nkey = 'own'\n";
    let own = file("registered.toml", text);
    for (arguments, code) in [
        (&["policies", "--admin", "localhost"][..], 2),
        (&["check", &own], 1),
        (&["diff", "--assume-registered", &own, &own], 0),
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = command(arguments);
        command.stdout(std::process::Stdio::null()).stderr(writer);
        let status = command.status().expect("the program");
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
}
