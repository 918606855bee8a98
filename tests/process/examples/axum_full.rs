//! The example with everything at once: each part does its work, and none gets into another's way.

use tollgate_tests::{
    example::{HttpResponse, Stage},
    prelude::*,
};

use crate::examples::admits;

const ORIGIN: (&str, &str) = ("origin", "https://a.example");

fn list<'a>(response: &'a HttpResponse, name: &str) -> Vec<&'a str> {
    let lines = response.fields(name);
    lines.flat_map(|line| line.split(", ")).collect()
}

#[test]
fn axum_full_limits_all_routes_together_and_one_of_them_more() {
    for stage in Stage::both() {
        let example = stage.start("axum_full", &[]);
        let search = || example.get("/api/search", &[]);
        let response = search();
        let policies = [r#""searches";q=5;w=60"#, r#""burst";q=2;w=1"#];
        assert_eq!(list(&response, "ratelimit-policy"), policies);
        let rejected = admits(4, search);
        assert!(rejected.body.contains(r#"["searches"]"#), "{rejected:?}");
        assert_eq!(rejected.field("retry-after"), Some("60"));
        // More than would pass if the outer layer kept the charge of what a route rejects.
        for _ in 0..20 {
            assert!(search().body.contains(r#"["searches"]"#));
        }
        let rejected = admits(15, || example.get("/api/items", &[]));
        assert!(rejected.body.contains(r#"["burst"]"#), "{rejected:?}");
        assert_eq!(rejected.field("retry-after"), Some("1"));
        // Health checks aren't limited, and their responses show no limits.
        let health = example.get("/health", &[]);
        assert_eq!((health.status, &*health.body), (200, "ok\n"));
        assert_eq!(health.field("ratelimit"), None);
        assert!(!example.output().contains("ERROR"), "{}", example.output());
    }
}

#[test]
fn axum_full_ends_slow_requests_and_counts_only_reports_that_were_made() {
    // Time passes by its timeouts alone.
    let example = Stage::in_process().start_with(Timers::Advance, "axum_full", &[]);
    let report = |path: &str, key: &str| example.ask("POST", path, &[("x-api-key", key)], "");
    let late = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(report("/api/reports?ms=60000", "alice").status, 504));
        }
        example.get("/api/search?ms=60000", &[ORIGIN])
    });
    assert_eq!(late.status, 504);
    // The layers around the timeout add their headers.
    assert_eq!(late.field("access-control-allow-origin"), Some("*"));
    let policy = late.field("ratelimit-policy");
    assert_eq!(policy, Some(r#""burst";q=2;w=1"#));

    admits(3, || report("/api/reports", "alice"));
    assert_eq!(report("/api/reports", "bob").status, 200);
}

#[test]
fn axum_full_exposes_its_headers_to_pages_of_other_origins_compresses_and_traces() {
    let example = Stage::in_process().start("axum_full", &[("NO_COLOR", "1")]);
    let preflight = [ORIGIN, ("access-control-request-method", "GET")];
    // More than would pass if they counted.
    for _ in 0..25 {
        let response = example.ask("OPTIONS", "/api/search", &preflight, "");
        assert_eq!(response.status, 200);
        let allowed = response.field("access-control-allow-headers");
        assert_eq!(allowed, Some("x-api-key"));
    }
    let rejected = admits(5, || {
        let response = example.get("/api/search", &[ORIGIN]);
        let exposed = list(&response, "access-control-expose-headers").join(",");
        for name in ["retry-after", "ratelimit", "ratelimit-policy"] {
            assert!(exposed.split(',').any(|other| other == name), "{exposed}");
        }
        assert_eq!(response.field("access-control-allow-origin"), Some("*"));
        response
    });
    assert_eq!(rejected.status, 429);
    example.output_until("status=429");

    let plain = example.get("/api/items", &[]);
    assert!(plain.body.starts_with(r#"["item 1","item 2""#), "{plain:?}");
    assert_eq!(plain.field("content-encoding"), None);
    let packed = example.get("/api/items", &[("accept-encoding", "gzip")]);
    assert_eq!(packed.field("content-encoding"), Some("gzip"));
    assert!(packed.field("ratelimit").is_some());
}
