//! The example that is operated: what a client and Prometheus get, and what its operators do.

use std::process::{Command, Stdio};

use testkit::Server;

use crate::examples::process::{Example, HttpResponse, program};

const TOKEN: &str = "a-token-of-the-operators";

fn admin(example: &Example, method: &str, path: &str, body: &str) -> HttpResponse {
    let authorization = format!("Bearer {TOKEN}");
    let length = body.len().to_string();
    let headers = [
        ("authorization", &*authorization),
        ("content-type", "application/json"),
        ("content-length", &length),
    ];
    example.ask(method, &format!("/admin/{path}"), &headers, body)
}

fn is_operated(example: &Example) {
    let statuses =
        |n: usize| -> Vec<u16> { (0..n).map(|_| example.get("/", &[]).status).collect() };
    let sent = statuses(12);
    assert_eq!(sent[..10], [200; 10]);
    assert_eq!(sent[11], 429);

    let exposition = example.get("/metrics", &[]);
    assert_eq!(
        exposition.field("content-type"),
        Some("text/plain; charset=utf-8")
    );
    let line = exposition.body.lines().find(|line| {
        line.starts_with("tollgate_policy_requests_total")
            && line.contains("\"over\"")
            && line.contains("\"api\"")
    });
    let over = line.unwrap_or_else(|| panic!("{exposition:?}"));
    assert!(!over.ends_with(" 0"), "{over}");

    for page in ["/admin", "/admin/"] {
        let page = example.get(page, &[]);
        assert_eq!(
            page.field("content-type"),
            Some("text/html; charset=utf-8"),
            "{page:?}"
        );
    }
    assert_eq!(example.get("/admin/policies", &[]).status, 401);
    let top = admin(example, "GET", "top", "");
    assert!(top.body.contains("127.0.0.1"), "{top:?}");
    let reset = admin(
        example,
        "POST",
        "reset",
        r#"{"policy":"api","key":"127.0.0.1"}"#,
    );
    assert_eq!(reset.status, 200, "{reset:?}");
    let block = r#"{"policy":"blocked","key":"127.0.0.1","seconds":600}"#;
    assert_eq!(admin(example, "POST", "block", block).status, 200);
    assert_eq!(statuses(1), [429]);
    let unblock = r#"{"policy":"blocked","key":"127.0.0.1"}"#;
    assert_eq!(admin(example, "POST", "unblock", unblock).status, 200);
    assert_eq!(statuses(1), [200]);
    let output = example.output_until("unblock");
    assert!(
        output.contains("tollgate::admin") && !output.contains(TOKEN),
        "{output}"
    );
}

#[test]
fn operated_limits_clients_reports_metrics_and_is_steered_by_its_admin_api() {
    is_operated(&Example::start("operated", &[("ADMIN_TOKEN", TOKEN)]));
    let server = Server::start();
    let variables = [("ADMIN_TOKEN", TOKEN), ("REDIS_URL", &server.url())];
    is_operated(&Example::start("operated", &variables));
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
