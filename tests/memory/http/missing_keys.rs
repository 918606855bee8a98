//! What becomes of requests without a key.

use crate::http::{extractors::*, support::*};

#[tokio::test]
async fn a_missing_key_does_what_the_policy_says() {
    for (missing, expected, shared) in [
        (MissingKey::Skip, 200, 0),
        (MissingKey::Reject, 400, 0),
        (MissingKey::Shared, 200, 1),
    ] {
        let _case = Case(format!("{missing:?}"));
        let by_tenant = policy().key(extract::header("x-tenant"));
        let (layer, _) = layer([by_tenant.missing_key(missing)]);
        let app = hello(&layer);
        let response = send(&app, to("/")).await;
        assert_eq!(response.status, expected);
        assert_eq!(response.field("ratelimit").is_empty(), shared == 0);
        assert_eq!(count(&layer, Key::missing()).await, shared);
        // Requests that have one are still counted by it.
        assert_eq!(send(&app, with("x-tenant", "t")).await.status, 200);
        assert_eq!(count(&layer, Key::new("t")).await, 1);
    }
    for (missing, expected) in [(MissingKey::Skip, 200), (MissingKey::Reject, 400)] {
        let (layer, _) = layer([policy().missing_key(missing)]);
        // The client's address.
        assert_eq!(status(&hello(&layer), "/").await, expected, "{missing:?}");
        assert_eq!(count(&layer, Key::missing()).await, 0);
    }
}

#[tokio::test]
async fn a_policy_skipped_for_a_missing_key_leaves_the_others_in_force() {
    let tenants = Policy::new("tenants", quota("1/h")).key(extract::header("x-tenant"));
    let app = app([tenants.missing_key(MissingKey::Skip), shared("all", "1/h")]);
    assert_eq!(statuses(&app, 2).await, [200, 429]);
}

/// The detail in the response to a request without the key of `extractor`.
async fn detail_of(extractor: impl KeyExtractor, request: Request<Body>) -> String {
    let internal = Policy::new("internal-name", quota("9/h"));
    let (layer, _) = layer([internal.key(extractor).missing_key(MissingKey::Reject)]);
    let response = send(&hello(&layer), request).await;
    assert_eq!(response.status, 400);
    assert!(!response.text().contains("internal-name"), "{response:?}");
    response.detail()
}

#[tokio::test]
async fn a_response_names_the_missing_key_and_no_policy() {
    #[derive(Clone)]
    struct User;
    let key = || extract::header("X-API-Key");
    let user = || extract::extension::<User>(|_| Key::global());
    let by_code = || extract::from_fn(|_| None);
    let (api_key, token) = (
        "the header x-api-key",
        "a bearer token (Authorization header)",
    );
    let either = format!("{api_key} or {token}");
    let tuple = || (extract::path(), key(), extract::bearer());
    #[rustfmt::skip]
    let rows = [
        (arc(key()), api_key),
        (arc(extract::query("api_key")), "the query parameter api_key"),
        (arc(extract::cookie("SID")), "the cookie SID"),
        (arc(extract::bearer()), token),
        (arc(extract::peer()), "a client address"),
        (arc(extract::client_ip()), "a client address"),
        (arc(extract::host()), "a host (Host header)"),
        (arc(extract::grpc_method()), "a gRPC method in its path"),
        (arc(user()), "a key for this limit"),
        (arc(by_code()), "a key for this limit"),
        (arc(user().named("a signed-in user")), "a signed-in user"),
        (arc(by_code().named("a tenant")), "a tenant"),
        // One of several, and the part of a tuple that isn't there.
        (arc(key().or_else(extract::bearer())), &either),
        (arc(tuple()), api_key),
        // A name that has to be escaped in JSON.
        (arc(extract::query("a\"\\\n")), "the query parameter a\"\\\n"),
    ];
    for (extractor, what) in rows {
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
    let response = send(&app, grpc_call()).await;
    assert_eq!(response.field("grpc-status"), "3");
    let message = response.field("grpc-message");
    assert_eq!(message, "The request lacks the header x-api-key.");
}
