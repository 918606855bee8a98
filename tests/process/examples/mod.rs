//! The examples do what they claim, beside what `examples/README.md` shows, which `printed` runs: each is started as its reader
//! would start it, on a clock that stands still, and called over a socket.

mod axum_full;
mod charging;
mod greeter;
mod llm_client;
mod login;
mod operated;
mod outgoing;
mod proxy;
mod threads;
mod websocket;

use tollgate_tests::{
    example::{Example, HttpResponse, Stage},
    prelude::*,
};

/// A server that is down: nothing listens on this port, and no test gets it.
const DOWN: (&str, &str) = ("REDIS_URL", "redis://127.0.0.1:1");

/// Sends requests until so many were admitted: a refund on Redis may still be in flight when the response is here. Asserts that
/// no more are, and returns the last rejection.
fn admits(quota: usize, ask: impl Fn() -> HttpResponse) -> HttpResponse {
    let (start, mut admitted) = (Instant::now(), 0);
    while admitted < quota {
        let response = ask();
        assert!([200, 429].contains(&response.status), "{response:?}");
        assert!(start.elapsed() < TEST_TIMEOUT, "{admitted}: {response:?}");
        admitted += usize::from(response.status == 200);
    }
    let rejected = [ask(), ask()];
    assert_eq!(
        rejected.each_ref().map(|response| response.status),
        [429; 2]
    );
    let [_, rejected] = rejected;
    rejected
}

#[test]
fn two_quickstarts_on_one_redis_share_the_count() {
    let stage = Stage::on_redis();
    let examples = [(); 2].map(|()| stage.start("quickstart", &[]));
    let ask = |n: usize| examples[n % 2].get("/", &[]).status;
    let statuses: Vec<u16> = (0..12).map(ask).collect();
    assert_eq!(statuses, [&[200; 10][..], &[429; 2]].concat());
    // The client's address is what it counts by.
    let mut keys = stage.server().keys();
    // The key that rejections from memory are held against.
    keys.retain(|key| key != "tg:gen");
    assert_eq!(keys, ["tg:g3:burst:127.0.0.1"]);
    assert_eq!(stage.server().immortal_keys(), [""; 0]);
    for example in examples {
        // Such as that it doesn't know its clients.
        assert!(!example.output().contains("ERROR"), "{}", example.output());
    }
}

#[test]
fn quickstart_logs_that_it_limits_no_client_while_redis_is_down() {
    let example = Example::start("quickstart", &[DOWN]);
    let response = example.get("/", &[]);
    assert_eq!((response.status, response.field("ratelimit")), (200, None));
    let output = example.output_until("rate limit store failed");
    assert!(output.contains("WARN"), "{output}");
}

#[test]
fn custom_key_gives_each_tenant_three_a_minute_on_each_path() {
    let example = Stage::in_process().start("custom_key", &[]);
    let ask = |path: &str, tenant: &str| example.get(path, &[("x-tenant", tenant)]);
    admits(3, || ask("/reports", "acme"));
    for (path, tenant) in [
        ("/search", "acme"),
        ("/reports", "globex"),
        ("/search", "globex"),
    ] {
        let response = ask(path, tenant);
        let left = Some(r#""tenants";r=2;t=40"#);
        assert_eq!((response.status, response.field("ratelimit")), (200, left));
    }
    assert_eq!(ask("/reports", "\u{ff}").status, 400);
    assert_eq!(ask("/nowhere", "acme").status, 404);
}
