//! What becomes of requests without a key.

use crate::http::{extractors::*, support::*};

#[tokio::test]
async fn a_missing_key_does_what_the_policy_says() {
    let by_tenant = || policy().key(extract::header("x-tenant"));
    for (missing, expected, shared) in [
        (MissingKey::Skip, 200, 0),
        (MissingKey::Reject, 400, 0),
        (MissingKey::Shared, 200, 1),
    ] {
        let (layer, _) = layer([by_tenant().missing_key(missing)]);
        let app = hello(&layer);
        let response = send(&app, to("/")).await;
        assert_eq!(response.status, expected, "{missing:?}");
        assert_eq!(response.field("ratelimit").is_empty(), shared == 0);
        assert_eq!(count(&layer, Key::missing()).await, shared, "{missing:?}");
        // Requests that have one are still counted by it.
        assert_eq!(send(&app, with("x-tenant", "t")).await.status, 200);
        assert_eq!(count(&layer, Key::new("t")).await, 1, "{missing:?}");
    }
}

#[tokio::test]
async fn a_policy_that_no_request_has_a_key_for_warns_unless_such_requests_are_to_be_skipped() {
    let by_tenant = || policy().key(extract::header("x-tenant"));
    for (missing, warnings) in [(MissingKey::Skip, 0), (MissingKey::Reject, 1)] {
        let (log, _guard) = Log::of_warnings();
        let (layer, _) = layer([by_tenant().missing_key(missing)]);
        statuses(&hello(&layer), 9).await;
        let suspicions = log.lines("all had no key");
        assert_eq!(suspicions.len(), warnings, "{missing:?}: {}", log.text());
    }
}

#[tokio::test]
async fn a_missing_address_does_what_the_policy_says() {
    for (missing, expected) in [(MissingKey::Skip, 200), (MissingKey::Reject, 400)] {
        let (layer, _) = layer([policy().missing_key(missing)]);
        assert_eq!(status(&hello(&layer), "/").await, expected, "{missing:?}");
        assert_eq!(count(&layer, Key::missing()).await, 0, "{missing:?}");
    }
}

#[tokio::test]
async fn a_policy_skipped_for_a_missing_key_leaves_the_others_in_force() {
    let quota = Quota::requests(1).per_hour();
    let tenants = Policy::new("tenants", quota).key(extract::header("x-tenant"));
    let all = Policy::new("all", quota).key(extract::global());
    let app = app([tenants.missing_key(MissingKey::Skip), all]);
    assert_eq!(statuses(&app, 2).await, [200, 429]);
}

/// The detail in the response to a request without the key of `extractor`.
async fn detail_of(extractor: impl KeyExtractor, request: Request<Body>) -> String {
    let internal = Policy::new("internal-name", quota("9/h"));
    let (layer, _) = layer([internal.key(extractor).missing_key(MissingKey::Reject)]);
    let response = send(&hello(&layer), request).await;
    assert_eq!(response.status, 400);
    let body = String::from_utf8_lossy(&response.body);
    assert!(!body.contains("internal-name"), "{body}");
    let detail = response.json()["detail"].clone();
    detail.as_str().expect("text").to_owned()
}

#[tokio::test]
async fn a_response_names_the_missing_key_and_no_policy() {
    #[derive(Clone)]
    struct User;
    fn any(extractor: impl KeyExtractor) -> Arc<dyn KeyExtractor> {
        Arc::new(extractor)
    }
    let key = || extract::header("X-API-Key");
    let user = || extract::extension::<User>(|_| Key::global());
    let by_code = || extract::from_fn(|_| None);
    let (api_key, token) = (
        "the header x-api-key",
        "a bearer token (Authorization header)",
    );
    let either = format!("{api_key} or {token}");
    let tuple = || (extract::path(), key(), extract::bearer());
    for (extractor, what) in [
        (any(key()), api_key),
        (
            any(extract::query("api_key")),
            "the query parameter api_key",
        ),
        (any(extract::cookie("SID")), "the cookie SID"),
        (any(extract::bearer()), token),
        (any(extract::peer()), "a client address"),
        (any(extract::client_ip()), "a client address"),
        (any(extract::host()), "a host (Host header)"),
        (any(extract::grpc_method()), "a gRPC method in its path"),
        (any(user()), "a key for this limit"),
        (any(by_code()), "a key for this limit"),
        (any(user().named("a signed-in user")), "a signed-in user"),
        (any(by_code().named("a tenant")), "a tenant"),
        // One of several, and the part of a tuple that isn't there.
        (any(key().or_else(extract::bearer())), &either),
        (any(tuple()), api_key),
        // A name that has to be escaped in JSON.
        (
            any(extract::query("a\"\\\n")),
            "the query parameter a\"\\\n",
        ),
    ] {
        let detail = detail_of(extractor, to("/")).await;
        assert_eq!(detail, format!("The request lacks {what}."));
    }
    let detail = detail_of(tuple(), with("x-api-key", "sk")).await;
    assert_eq!(detail, format!("The request lacks {token}."));
}

#[test]
fn a_tuple_reports_its_first_missing_part_and_has_no_shared_bucket() {
    let shared = (extract::peer(), extract::header("x-a"));
    let parts = to("/").into_parts().0;
    assert_eq!(shared.missing_key_name(Some(&parts)), "the header x-a");
    // Without a request it is any.
    assert_eq!(shared.missing_key_name(None), "the header x-a");
}

#[tokio::test]
async fn responses_to_browsers_and_grpc_clients_name_the_missing_key_too() {
    let internal = Policy::new("internal-name", quota("9/h"));
    let app = app([internal.key(extract::header("x-api-key"))]);
    let response = send(&app, with("accept", "text/html")).await;
    assert_eq!(response.status, 400);
    let expected = "400 Bad Request\n\nThe request lacks the header x-api-key.";
    assert_eq!(response.text().trim_end(), expected);
    let mut call = with("content-type", "application/grpc");
    *call.method_mut() = http::Method::POST;
    let response = send(&app, call).await;
    assert_eq!(response.field("grpc-status"), "3");
    let message = response.field("grpc-message");
    assert_eq!(message, "The request lacks the header x-api-key.");
}
