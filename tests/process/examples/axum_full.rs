//! The example with everything at once: each part does its work, and none gets into another's way.

use std::time::{Duration, Instant};

use testkit::Server;

use crate::examples::{
    assert_quota,
    process::{Example, HttpResponse},
    send_until_rejected,
};

const ORIGIN: (&str, &str) = ("origin", "https://a.example");
const PREFLIGHT: (&str, &str) = ("access-control-request-method", "GET");

fn list<'a>(response: &'a HttpResponse, name: &str) -> Vec<&'a str> {
    response
        .fields(name)
        .flat_map(|line| line.split(", "))
        .collect()
}

/// Both in process and on Redis, which may be late on a busy machine.
fn each_store(test: impl Fn(&Example, bool)) {
    test(&Example::start("axum_full", &[]), false);
    let server = Server::start();
    let url = server.url();
    test(&Example::start("axum_full", &[("REDIS_URL", &url)]), true);
    assert_eq!(server.immortal_keys(), [""; 0]);
}

#[test]
fn axum_full_shares_each_addresss_burst_among_all_routes() {
    each_store(|example, _| {
        let passed = send_until_rejected(|_| example.get("/api/items", &[]));
        assert_quota(&passed, 20, Duration::from_millis(500));
        let rejected = passed.rejected;
        assert!(
            rejected.body.contains(r#""violated-policies":["burst"]"#),
            "{rejected:?}"
        );
        assert_eq!(rejected.field("retry-after"), Some("1"));
        // Health checks aren't limited, and their responses show no limits.
        for _ in 0..30 {
            let health = example.get("/health", &[]);
            assert_eq!((health.status, &*health.body), (200, "ok\n"));
            assert_eq!(health.field("ratelimit"), None);
        }
        assert!(!example.output().contains("ERROR"), "{}", example.output());
    });
}

/// Whether `policy` was evaluated, and the store replied in time.
fn is_counted(response: &HttpResponse, policy: &str) -> bool {
    let name = format!("{policy:?};");
    let mut members = list(response, "ratelimit").into_iter();
    members.any(|member| member.starts_with(&name))
}

/// Sends requests until `policy` rejects, having admitted `quota` a minute; `lost` of them may be missing, because the
/// store was late.
fn send_until_used_up(
    policy: &str,
    quota: u64,
    lost: u64,
    ask: impl Fn() -> HttpResponse,
) -> HttpResponse {
    let start = Instant::now();
    let (mut counted, mut uncounted) = (0, lost);
    loop {
        let response = ask();
        match response.status {
            200 if is_counted(&response, policy) => counted += 1,
            200 => uncounted += 1,
            // A refund on Redis may still be in flight.
            429 if counted + uncounted < quota && start.elapsed().as_secs() < 10 => {}
            429 => {
                let elapsed = start.elapsed();
                assert!(counted <= quota || elapsed.as_secs() >= 60, "{counted}");
                assert!(counted + uncounted >= quota, "{counted} in {elapsed:?}");
                let violated = format!(r#""violated-policies":["{policy}"]"#);
                assert!(response.body.contains(&violated), "{response:?}");
                return response;
            }
            _ => panic!("neither let in nor rejected: {response:?}"),
        }
        assert!(counted + uncounted < 1_000, "none is rejected");
    }
}

#[test]
fn axum_full_also_limits_a_nested_route() {
    let example = Example::start("axum_full", &[]);
    let response = example.get("/api/search", &[]);
    assert_eq!(response.body, "nothing found; 4 searches left\n");
    let policies = [r#""searches";q=5;w=60"#, r#""burst";q=2;w=1"#];
    assert_eq!(list(&response, "ratelimit-policy"), policies);

    each_store(|example, _| {
        let search = || example.get("/api/search", &[]);
        let rejected = send_until_used_up("searches", 5, 0, search);
        let wait = rejected.field("retry-after").expect("a time");
        let wait: u64 = wait.parse().expect("seconds");
        assert!((2..=60).contains(&wait), "{wait}");
        // Other routes go on.
        assert_eq!(example.get("/api/items", &[]).status, 200);
    });
}

#[test]
fn axum_full_charges_nothing_in_the_outer_layer_for_a_rejection_by_a_route() {
    let example = Example::start("axum_full", &[]);
    let search = || example.get("/api/search", &[]);
    send_until_used_up("searches", 5, 0, search);
    // More than would pass if they counted.
    for _ in 0..50 {
        assert!(
            search()
                .body
                .contains(r#""violated-policies":["searches"]"#)
        );
    }
}

#[test]
fn axum_full_counts_successful_reports_by_key() {
    each_store(|example, may_be_late| {
        let report = |ms: u64, key: &str| {
            let path = format!("/api/reports?ms={ms}");
            example.ask("POST", &path, &[("x-api-key", key)], "")
        };
        let mut lost = 0;
        for _ in 0..2 {
            let late = report(60_000, "alice");
            assert_eq!(late.status, 504);
            lost += u64::from(!is_counted(&late, "reports"));
        }
        assert!(lost == 0 || may_be_late, "the limit didn't see its answer");
        send_until_used_up("reports", 3, lost, || report(0, "alice"));
        assert_eq!(report(0, "bob").status, 200);
        assert_eq!(example.ask("POST", "/api/reports", &[], "").status, 400);
    });
}

#[test]
fn axum_full_exposes_its_headers_to_pages_of_other_origins() {
    let example = Example::start("axum_full", &[]);
    let exposed = |response: &HttpResponse| {
        let names = list(response, "access-control-expose-headers").join(",");
        for name in ["retry-after", "ratelimit", "ratelimit-policy"] {
            assert!(
                names.split(',').any(|other| other.trim() == name),
                "{names}"
            );
        }
        assert_eq!(response.field("access-control-allow-origin"), Some("*"));
    };
    // More than would pass if they counted.
    for _ in 0..100 {
        let response = example.ask("OPTIONS", "/api/search", &[ORIGIN, PREFLIGHT], "");
        assert_eq!(response.status, 200);
        let allowed = response.field("access-control-allow-headers");
        assert_eq!(allowed, Some("x-api-key"));
    }
    let passed = send_until_rejected(|_| {
        let response = example.get("/api/search", &[ORIGIN]);
        exposed(&response);
        response
    });
    assert_quota(&passed, 5, Duration::from_secs(60));
}

#[test]
fn axum_full_gives_no_route_more_than_its_timeout() {
    let example = Example::start("axum_full", &[]);
    let response = example.get("/api/search?ms=60000", &[ORIGIN]);
    assert_eq!(response.status, 504);
    // The layers around the timeout add their headers.
    assert_eq!(response.field("access-control-allow-origin"), Some("*"));
    assert_eq!(
        response.field("ratelimit-policy"),
        Some(r#""burst";q=2;w=1"#)
    );
}

#[test]
fn axum_full_compresses_and_traces() {
    let example = Example::start("axum_full", &[("NO_COLOR", "1")]);
    let plain = example.get("/api/items", &[]);
    assert!(plain.body.starts_with(r#"["item 1","item 2""#), "{plain:?}");
    assert_eq!(plain.field("content-encoding"), None);
    let packed = example.ask("GET", "/api/items", &[("accept-encoding", "gzip")], "");
    assert_eq!(packed.field("content-encoding"), Some("gzip"));
    assert!(packed.field("ratelimit").is_some());

    for _ in 0..6 {
        example.get("/api/search", &[]);
    }
    // Rejections too.
    example.output_until("status=429");
}
