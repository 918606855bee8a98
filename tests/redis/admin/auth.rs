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
async fn the_log_names_the_token_of_several_or_the_user_that_the_applications_middleware_found() {
    const NEXT: &str = "the-next-token-of-the-operators=";
    let (limiter, _) = support::in_process();
    let tokens = Admin::new(&limiter).token("old", TOKEN).token("next", NEXT);
    let own = || Admin::new(&limiter).unprotected_behind_own_middleware();
    let signed = |token| signed(Method::POST, "/reset", token);
    let unsigned = || request(Method::POST, "/reset");
    let of_alice = unsigned().extension(AdminUser::new("alice\nforged"));
    let text = format!("{tokens:?}");
    assert!(text.contains("old") && !text.contains("hash"), "{text}");
    let (log, _guard) = Log::of_info();
    for (admin, request, name) in [
        (tokens.clone(), signed(TOKEN), "old"),
        (tokens, signed(NEXT), "next"),
        (own(), of_alice, r#"alice\nforged"#),
        (own(), unsigned(), "application"),
    ] {
        let body = Body::from(about("api", "sk_1").to_string());
        let request = request.body(body).expect("a request");
        let answer = Api::with(admin).send(request).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_logged(&log, &format!("user=\"{name}\""), []);
    }
    let text = text + &log.text();
    assert!(!text.contains(TOKEN) && !text.contains(NEXT), "{text}");
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
