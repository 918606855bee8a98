//! The example behind a proxy, with nginx as that proxy: the client address comes from the proxy alone.

use std::net::Ipv4Addr;

use testkit::{Program, free_port};
use tollgate_tests::{
    example::{HttpResponse, Stage, connect_from},
    prelude::*,
};

/// Where nginx calls from, which no client does.
const PROXY: &str = "127.0.0.9";

const TRUSTED: [(&str, &str); 1] = [("TRUSTED_PROXIES", " 127.0.0.9/32, ,10.0.0.0/8")];

const ALICE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const BOB: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// What clients make up, a request each. More is among the library's tests of forged fields.
const FORGED: [&[u8]; 9] = [
    b"",
    b"X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-For: 198.51.100.7, 10.0.0.1\r\n",
    // Another client's, and the proxy's own.
    b"X-Forwarded-For: 127.0.0.1\r\n",
    b"X-Forwarded-For: 127.0.0.9\r\nx-forwarded-for: 127.0.0.9, 127.0.0.9\r\n",
    b"X-Forwarded-For: 2001:db8::1, [2001:db8::2]:4711, ::ffff:203.0.113.9\r\n",
    b"X-Forwarded-For: \xff\xfe, ,,;=\\\", for=203.0.113.9\r\n",
    b"Forwarded: for=203.0.113.9\r\nForwarded: for=\"[2001:db8::1]\";by=127.0.0.9\r\nX-Real-IP: 203.0.113.9\r\n",
    b"CF-Connecting-IP: 203.0.113.9\r\nX_Forwarded_For: 203.0.113.9\r\nX-Client-IP: 203.0.113.9\r\n",
    b"Connection: X-Forwarded-For\r\nX-Forwarded-For: 203.0.113.9\r\n",
];

struct Nginx {
    address: SocketAddr,
    _program: Program,
}

impl Nginx {
    /// Starts it in front of `upstream`, as its own documentation has it.
    fn before(upstream: SocketAddr) -> Self {
        for _ in 0..20 {
            let port = free_port();
            let mut program = Program::start(&["nginx"], |command, folder| {
                // One process that stays in the foreground, with nothing outside of its folder.
                let configuration = format!(
                    "daemon off; master_process off; pid pid; error_log stderr;
                    events {{}}
                    http {{
                        access_log off;
                        client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
                        uwsgi_temp_path uwsgi; scgi_temp_path scgi;
                        underscores_in_headers on;
                        server {{
                            listen 127.0.0.1:{port};
                            location / {{
                                proxy_pass http://{upstream};
                                proxy_bind {PROXY};
                                proxy_set_header Host $host;
                                proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
                            }}
                        }}
                    }}"
                );
                let file = folder.join("nginx.conf");
                fs::write(&file, configuration).expect("its configuration");
                command
                    .args(["-e", "stderr", "-p"])
                    .arg(folder)
                    .arg("-c")
                    .arg(file);
            });
            let address = SocketAddr::from((ALICE, port));
            let start = Instant::now();
            loop {
                // It is there once nginx listens. On the port another program may be.
                if program.folder().join("pid").exists() {
                    return Self {
                        address,
                        _program: program,
                    };
                }
                if program.exited().is_some() {
                    // Another program may have taken the port.
                    assert!(program.log().contains("in use"), "{}", program.log());
                    break;
                }
                assert!(start.elapsed() < TEST_TIMEOUT, "{}", program.log());
                thread::sleep(ms(5));
            }
        }
        panic!("20 free ports in a row were taken by others");
    }
}

/// Sends a request over a connection from `client`, with forged header lines.
fn ask(client: Ipv4Addr, server: SocketAddr, lines: &[u8]) -> HttpResponse {
    let request = [
        &b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"[..],
        lines,
        b"\r\n",
    ];
    HttpResponse::to(connect_from(client, server), &request.concat())
}

/// Uses a client's budget up, each request with something else made up: all of them are counted by `address`.
fn use_up(client: Ipv4Addr, server: SocketAddr, address: &str) {
    for (n, lines) in FORGED.iter().enumerate() {
        let response = ask(client, server, lines);
        if n < 5 {
            assert_eq!(response.body, format!("{address}\n"), "request {n}");
        } else {
            assert_eq!(response.status, 429, "request {n}: {response:?}");
        }
    }
}

/// Asserts that nothing of a client's budget is used yet.
fn assert_untouched(client: Ipv4Addr, server: SocketAddr) {
    let response = ask(client, server, b"");
    assert_eq!(
        (response.status, response.body.trim()),
        (200, &*client.to_string())
    );
    let left = response.field("ratelimit").expect("how it stands");
    assert!(left.starts_with(r#""clients";r=4;"#), "{left}");
}

#[test]
fn behind_nginx_no_client_can_choose_its_key() {
    let stage = Stage::on_redis();
    let example = stage.start("behind_proxy", &TRUSTED);
    let nginx = Nginx::before(example.address());
    // Among others in the other's name.
    use_up(BOB, nginx.address, "127.0.0.2");
    assert_eq!(stage.server().keys(), ["tg:g3:clients:127.0.0.2"]);
    assert_untouched(ALICE, nginx.address);
    assert_eq!(stage.server().immortal_keys(), [""; 0]);
}

#[test]
fn a_client_that_bypasses_the_proxy_is_counted_by_its_own_address() {
    let example = Stage::in_process().start("behind_proxy", &TRUSTED);
    use_up(BOB, example.address(), "127.0.0.2");
    assert_untouched(ALICE, example.address());
    // A health check of the proxy, which names no client, and a request that names one.
    let proxy: Ipv4Addr = PROXY.parse().expect("an address");
    let named = b"X-Forwarded-For: 203.0.113.9\r\n";
    for (lines, address) in [(&b""[..], PROXY), (named, "203.0.113.9")] {
        let response = ask(proxy, example.address(), lines);
        assert_eq!(response.body.trim(), address);
    }
}
