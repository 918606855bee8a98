//! Tokens: which requests are answered, and which configurations are errors.

use tollgate::admin::{Admin, AdminError, AdminUser};
use tollgate_tests::prelude::*;

use crate::admin::{
    openapi,
    support::{self, *},
};

/// The method and path of each route that needs a token.
fn protected() -> impl Iterator<Item = (Method, &'static str)> {
    let routes = openapi::operations().into_iter();
    let routes = routes.filter(|(.., operation)| operation.get("security").is_none());
    routes.map(|(method, path, _)| (method, path))
}

/// Each protected route answers a request with this `Authorization` by this status.
async fn all_answer(api: &Api, authorization: &str, expected: StatusCode) {
    for (method, path) in protected() {
        let _case = Case(format!("{method} {path} with {authorization:?}"));
        let body = match method {
            Method::GET => String::new(),
            _ => good_body_of(&method, path).to_string(),
        };
        let request = request(method, path);
        let request = match authorization {
            "" => request,
            value => request.header("authorization", value),
        };
        let request = request.body(body.into()).expect("a request");
        let answer = api.send(request).await;
        assert_eq!(answer.status, expected);
        assert_eq!(answer.headers["cache-control"], "no-store");
        if expected == StatusCode::UNAUTHORIZED {
            let challenge = answer.headers["www-authenticate"].to_str();
            let challenge = challenge.expect("text");
            assert!(challenge.starts_with("Bearer "), "{challenge}");
            let has_token = authorization.to_ascii_lowercase().starts_with("bearer ");
            let is_wrong = challenge.contains("error=\"invalid_token\"");
            assert_eq!(is_wrong, has_token, "{challenge}");
        }
    }
}

#[tokio::test]
async fn every_route_but_health_needs_the_whole_token() {
    let api = support::observed().0;
    assert!(protected().count() > 10);
    let right = format!("Bearer {TOKEN}");
    for authorization in [&right, &right.replace("Bearer", "bearer")] {
        all_answer(&api, authorization, StatusCode::OK).await;
    }
    for authorization in [
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        &format!("Basic {TOKEN}"),
        &format!("Digest {TOKEN}"),
        &right[..right.len() - 1],
        &format!("{right}x"),
        &right.to_uppercase(),
        &format!("Bearer x{TOKEN}"),
    ] {
        all_answer(&api, authorization, StatusCode::UNAUTHORIZED).await;
    }
}

#[tokio::test]
async fn a_request_with_two_tokens_is_rejected_and_one_without_for_a_path_that_no_route_has() {
    let twice = signed(Method::GET, "/policies", TOKEN);
    let twice = twice.header("authorization", format!("Bearer {TOKEN}"));
    for request in [twice, request(Method::GET, "/nothing")] {
        let request = request.body(Body::empty()).expect("a request");
        let answer = support::api().send(request).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test]
async fn health_tells_anonymous_requests_nothing_but_whether_the_store_is_healthy() {
    let healthy = support::api();
    let failing = Api::of(support::unreachable());
    for (api, status, is_healthy) in [(healthy, 200, true), (failing, 503, false)] {
        let anonymous = request(Method::GET, "/health").body(Body::empty());
        let answer = api.send(anonymous.expect("a request")).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.json, json!({"healthy": is_healthy}));
        let answer = api.get("/health").await;
        assert_eq!(answer.status, status);
        let issues = answer.json["issues"].as_array().expect("issues");
        assert_eq!(issues.is_empty(), is_healthy, "{issues:?}");
        let wrong = signed(Method::GET, "/health", "x").body(Body::empty());
        let answer = api.send(wrong.expect("a request")).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test]
async fn several_tokens_are_valid_at_once_and_the_log_names_the_one_that_was_used() {
    const NEXT: &str = "the-next-token-of-the-operators=";
    let (limiter, _) = support::in_process();
    let admin = Admin::new(&limiter).token("old", TOKEN).token("next", NEXT);
    let api = Api::with(admin);
    let (log, _guard) = Log::of_info();
    for (token, name) in [(TOKEN, "old"), (NEXT, "next")] {
        let body = about("api", "sk_1").to_string().into();
        let request = signed(Method::POST, "/reset", token).body(body);
        let answer = api.send(request.expect("a request")).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_logged(&log, &format!("user=\"{name}\""), []);
    }
    let text = log.text();
    assert!(!text.contains(TOKEN) && !text.contains(NEXT), "{text}");
}

#[test]
fn the_debug_text_of_an_admin_api_has_the_names_of_tokens_alone() {
    let admin = Admin::new(&support::in_process().0).token("ops", TOKEN);
    let text = format!("{admin:?}");
    assert!(text.contains("ops") && !text.contains(TOKEN), "{text}");
    assert!(!text.contains("hash"), "{text}");
}

#[tokio::test]
async fn behind_a_middleware_of_the_application_the_log_names_the_user_that_it_found() {
    let (limiter, _) = support::in_process();
    let admin = Admin::new(&limiter).unprotected_behind_own_middleware();
    let router = admin.router().expect("an admin API");
    let (log, _guard) = Log::of_info();
    let request = || request(Method::POST, "/reset");
    let of_alice = request().extension(AdminUser::new("alice\nforged"));
    for (request, name) in [(of_alice, r#"alice\nforged"#), (request(), "application")] {
        let body = Body::from(about("api", "sk_1").to_string());
        let request = request.body(body).expect("a request");
        let response = router.clone().oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), StatusCode::OK);
        assert_logged(&log, &format!("user=\"{name}\""), []);
    }
}

#[test]
fn an_api_that_would_be_open_and_tokens_that_can_not_be_used_are_errors() {
    let (limiter, _) = support::in_process();
    let admin = || Admin::new(&limiter);
    let error = |admin: Admin| admin.router().expect_err("an error");
    assert_eq!(error(admin()), AdminError::Unprotected);
    let ops = || admin().token("ops", TOKEN);
    let both = ops().unprotected_behind_own_middleware();
    assert_eq!(error(both), AdminError::TokensAndOwnMiddleware);
    // What is behind the letters only fills up.
    for short in ["fifteen-letters", "fifteen-letters="] {
        let error = error(admin().token("ops", short));
        let is_too_short = matches!(&error, AdminError::TokenTooShort { length: 15, .. });
        assert!(is_too_short, "{error:?}");
    }
    assert!(admin().token("ops", "sixteen-letters-").router().is_ok());
    let line = format!("{TOKEN}\n");
    for invalid in [
        &*line,
        "a token of the operators",
        "ein-Schlüssel-für-alle",
        "a=token=of=the=operators",
    ] {
        let error = error(admin().token("ops", invalid));
        let is_invalid = matches!(&error, AdminError::InvalidToken { .. });
        assert!(is_invalid, "{invalid:?}: {error:?}");
        assert!(!error.to_string().contains(invalid.trim()), "{error}");
    }
    assert_eq!(error(admin().token(" ", TOKEN)), AdminError::EmptyName);
    let same_name = error(ops().token("ops", "another-token-of-them"));
    assert!(matches!(same_name, AdminError::DuplicateName { .. }));
    let same_token = error(ops().token("dev", TOKEN));
    assert!(matches!(same_token, AdminError::DuplicateToken { .. }));
}

#[tokio::test]
async fn a_nested_router_answers_below_its_path_alone() {
    let app = Router::new().route("/policies", get(async || "the application's"));
    let app = app.nest("/admin", support::api().0);
    let get = async |path: &str| {
        let request = signed(Method::GET, path, TOKEN).body(Body::empty());
        let Ok(response) = app.clone().oneshot(request.expect("a request")).await;
        let body = response.into_body().collect().await.expect("a body");
        String::from_utf8(body.to_bytes().to_vec()).expect("text")
    };
    assert_eq!(get("/policies").await, "the application's");
    assert_eq!(get("/nothing").await, "");
    let policies: Value = serde_json::from_str(&get("/admin/policies").await).expect("JSON");
    assert_eq!(policies["generation"], 0);
    let problem: Value = serde_json::from_str(&get("/admin/nothing").await).expect("JSON");
    assert_eq!(problem["status"], 404);
}
