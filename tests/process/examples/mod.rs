//! The examples do what they claim: each is started as its reader would start it, and called over a socket.

mod axum_full;
mod charging;
mod greeter;
mod login;
mod operated;
mod outgoing;
use tollgate_tests::example as process;
mod proxy;
mod websocket;

use std::{
    process::Command,
    time::{Duration, Instant},
};

use process::{Example, HttpResponse};
use testkit::Server;

/// What was admitted before the first rejection.
struct Passed {
    /// By the limit.
    counted: u64,
    /// Because the store did not reply in time, on a machine that is busy.
    uncounted: u64,
    /// How long it took.
    within: Duration,
    rejected: HttpResponse,
}

/// Sends requests until one is rejected.
fn send_until_rejected(mut ask: impl FnMut(u64) -> HttpResponse) -> Passed {
    let start = Instant::now();
    let (mut counted, mut uncounted) = (0, 0);
    for n in 0..1_000 {
        let response = ask(n);
        match (response.status, response.field("ratelimit")) {
            (200, Some(_)) => counted += 1,
            (200, None) => uncounted += 1,
            (429, _) => {
                let within = start.elapsed();
                return Passed {
                    counted,
                    uncounted,
                    within,
                    rejected: response,
                };
            }
            _ => panic!("neither let in nor rejected: {response:?}"),
        }
    }
    panic!(
        "1000 requests in {:?}, and none was rejected",
        start.elapsed()
    );
}

/// Asserts that as many passed as may pass at once, and those that were regained meanwhile.
fn assert_quota(passed: &Passed, quota: u64, regained_every: Duration) {
    let Passed {
        counted,
        uncounted,
        within,
        ..
    } = passed;
    let regained = (within.as_micros() / regained_every.as_micros()) as u64;
    assert!(*counted <= quota + regained, "{counted} in {within:?}");
    assert!(
        counted + uncounted >= quota,
        "{counted} and {uncounted} in {within:?}"
    );
}

#[test]
fn quickstart_admits_ten_and_rejects_the_others_with_a_retry_after() {
    let example = Example::start("quickstart", &[]);
    let passed = send_until_rejected(|n| {
        let response = example.get("/", &[]);
        if n == 0 {
            assert_eq!(response.body, "Hello! 9 more now.\n");
            assert_eq!(
                response.field("ratelimit-policy"),
                Some(r#""burst";q=10;w=10"#)
            );
        }
        response
    });
    assert_eq!(passed.uncounted, 0);
    assert_quota(&passed, 10, Duration::from_secs(1));
    let rejected = passed.rejected;
    assert_eq!(rejected.field("retry-after"), Some("1"));
    assert_eq!(
        rejected.field("content-type"),
        Some("application/problem+json")
    );
    assert!(
        rejected.body.contains(r#""violated-policies":["burst"]"#),
        "{rejected:?}"
    );
    // Such as that it doesn't know its clients.
    assert!(!example.output().contains("ERROR"), "{}", example.output());
}

#[test]
fn quickstart_prints_a_shell_loop_to_try() {
    let example = Example::start("quickstart", &[]);
    let address = example.address();
    let the_loop = format!(
        "for i in $(seq 12); do curl -s -o /dev/null -w '%{{http_code}} ' http://{address}/; done; echo"
    );
    let output = example.output_until("done; echo");
    assert!(
        output.lines().any(|line| line.trim() == the_loop),
        "{output}"
    );
    assert!(output.contains("Counting in process"), "{output}");
}

#[test]
fn two_quickstarts_on_one_redis_share_the_count() {
    let server = Server::start();
    let url = server.url();
    let examples = [(); 2].map(|()| Example::start("quickstart", &[("REDIS_URL", &url)]));
    let passed = send_until_rejected(|n| examples[n as usize % 2].get("/", &[]));
    assert_quota(&passed, 10, Duration::from_secs(1));
    // The client's address is what it counts by.
    let mut keys = server.keys();
    // The key that rejections from memory are held against.
    keys.retain(|key| key != "tg:gen");
    assert_eq!(keys, ["tg:g3:burst:127.0.0.1"]);
    assert_eq!(server.immortal_keys(), [""; 0]);
}

#[test]
fn quickstart_logs_that_it_limits_no_client_while_redis_is_down() {
    let url = format!("redis://127.0.0.1:{}", testkit::free_port());
    let example = Example::start("quickstart", &[("REDIS_URL", &url)]);
    let response = example.get("/", &[]);
    assert_eq!((response.status, response.field("ratelimit")), (200, None));
    let output = example.output_until("rate limit store failed");
    assert!(output.contains("WARN"), "{output}");
}

#[test]
fn custom_key_gives_each_tenant_three_a_minute_on_each_path() {
    let example = Example::start("custom_key", &[]);
    let ask = |path: &str, tenant: &str| example.get(path, &[("x-tenant", tenant)]);
    let passed = send_until_rejected(|n| match n % 2 {
        0 => ask("/reports", "acme"),
        // The same tenant in other letters.
        _ => ask("/reports", "ACME"),
    });
    assert_quota(&passed, 3, Duration::from_secs(20));

    for (path, tenant) in [
        ("/search", "acme"),
        ("/reports", "globex"),
        ("/search", "globex"),
    ] {
        let response = ask(path, tenant);
        assert_eq!(response.status, 200, "{tenant} on {path}");
        assert_eq!(
            response.field("ratelimit"),
            Some(r#""tenants";r=2;t=40"#),
            "{tenant} on {path}"
        );
    }
    assert_eq!(example.get("/reports", &[]).status, 400);
    assert_eq!(ask("/reports", "\u{ff}").status, 400);
    assert_eq!(ask("/nowhere", "acme").status, 404);
}

#[test]
fn custom_strategy_prints_what_the_list_of_examples_says() {
    let mut program = Command::new(process::program("custom_strategy"));
    let output = program.env_remove("REDIS_URL").output();
    let printed = String::from_utf8(output.expect("it starts").stdout).expect("a text");
    let (admitted, rejected): (Vec<_>, Vec<_>) =
        printed.lines().partition(|line| line.contains("admitted"));
    let list = include_str!("../../../examples/README.md");
    assert_eq!(admitted.len(), 5, "{printed}");
    assert!(list.contains(&admitted.join("\n")), "{printed}");
    // Their waits differ.
    assert_eq!(rejected.len(), 2, "{printed}");
    for (n, line) in (6..).zip(rejected) {
        let start = format!(r#"request {n}: quota exceeded: "trial"; retry after 3153"#);
        assert!(line.starts_with(&start) && list.contains(&start), "{line}");
    }
}
