//! The example that is operated: what a client and Prometheus get, and what its operators do.

use std::process::{Command, Stdio};

use tollgate_tests::example::{Stage, program};

use crate::examples::admits;

const TOKEN: &str = "a-token-of-the-operators";

#[test]
fn operated_counts_on_redis_reports_metrics_and_is_steered_by_its_admin_api() {
    let stage = Stage::on_redis();
    let example = stage.start("operated", &[("ADMIN_TOKEN", TOKEN), ("NO_COLOR", "1")]);
    let authorization = format!("Bearer {TOKEN}");
    let change_by_admin = |change: &str, body: &str| {
        let json = ("content-type", "application/json");
        let headers = [("authorization", &*authorization), json];
        example.ask("POST", &format!("/admin/{change}"), &headers, body)
    };
    admits(10, || example.get("/", &[]));
    let exposition = example.get("/metrics", &[]);
    let text = exposition.field("content-type");
    assert_eq!(text, Some("text/plain; charset=utf-8"));
    for page in ["/admin", "/admin/"] {
        let page = example.get(page, &[]);
        let html = page.field("content-type");
        assert_eq!(html, Some("text/html; charset=utf-8"), "{page:?}");
    }
    for (change, body, then) in [
        ("reset", r#"{"policy":"api","key":"127.0.0.1"}"#, 200),
        (
            "block",
            r#"{"policy":"blocked","key":"127.0.0.1","seconds":600}"#,
            429,
        ),
        ("unblock", r#"{"policy":"blocked","key":"127.0.0.1"}"#, 200),
    ] {
        assert_eq!(change_by_admin(change, body).status, 200, "{change}");
        assert_eq!(example.get("/", &[]).status, then, "{change}");
        let output = example.output_until(&format!("change=\"{change}\""));
        assert!(!output.contains(TOKEN), "{output}");
    }
}

#[test]
fn operated_does_not_start_without_a_token() {
    for (token, message) in [
        (None, "ADMIN_TOKEN is not set"),
        (Some("short"), "ADMIN_TOKEN cannot be used"),
    ] {
        let mut command = Command::new(program("operated"));
        command.env_remove("ADMIN_TOKEN").env_remove("REDIS_URL");
        if let Some(token) = token {
            command.env("ADMIN_TOKEN", token);
        }
        let ended = command.env("PORT", "0").stdin(Stdio::null()).output();
        let ended = ended.expect("the example is built");
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{errors}");
        assert!(errors.contains(message), "{errors}");
    }
}
