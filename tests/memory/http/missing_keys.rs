//! What becomes of requests without a key, and of clients whose address is not known.

use crate::http::{extractors::*, support::*};

#[tokio::test]
async fn a_missing_key_does_what_the_policy_says() {
    let tenant = || policy().key(extract::header("x-tenant"));
    for (policy, missing, expected, shared) in [
        (tenant(), MissingKey::Skip, 200, 0),
        (tenant(), MissingKey::Reject, 400, 0),
        (tenant(), MissingKey::Shared, 200, 1),
        // The client's address.
        (policy(), MissingKey::Skip, 200, 0),
        (policy(), MissingKey::Reject, 400, 0),
    ] {
        let _case = Case(format!("{policy:?} {missing:?}"));
        let (layer, _) = layer([policy.missing_key(missing)]);
        let app = hello(&layer);
        let response = send(&app, to("/")).await;
        assert_eq!(response.status, expected);
        assert_eq!(response.field("ratelimit").is_empty(), shared == 0);
        assert_eq!(count(&layer, Key::missing()).await, shared);
    }
    // A policy that is skipped leaves the others in force.
    let tenants = shared("tenants", "1/h").key(extract::header("x-tenant"));
    let app = app([tenants.missing_key(MissingKey::Skip), shared("all", "1/h")]);
    assert_eq!(statuses(&app, 2).await, [200, 429]);
}

#[tokio::test]
async fn a_response_names_the_missing_key_and_no_policy() {
    let key = || extract::header("X-API-Key");
    let by_code = || extract::from_fn(|_| None);
    let (api_key, token) = (
        "the header x-api-key",
        "a bearer token (Authorization header)",
    );
    let either = format!("{api_key} or {token}");
    let sent = || with("x-sent", "1");
    let tuple = || (extract::header("x-sent"), key(), extract::bearer());
    #[rustfmt::skip]
    let rows = [
        (arc(key()), api_key),
        (arc(extract::query("api_key")), "the query parameter api_key"),
        (arc(extract::cookie("SID")), "the cookie SID"),
        (arc(extract::bearer()), token),
        (arc(extract::client_ip()), "a client address"),
        (arc(extract::host()), "a host (Host header)"),
        (arc(extract::grpc_method()), "a gRPC method in its path"),
        (arc(by_code()), "a key for this limit"),
        (arc(by_code().named("a tenant")), "a tenant"),
        // One of several, and the part of a tuple that isn't there.
        (arc(key().or_else(extract::bearer())), &either),
        (arc(tuple()), api_key),
        // A name that has to be escaped in JSON.
        (arc(extract::query("a\"\\\n")), "the query parameter a\"\\\n"),
    ];
    for (extractor, what) in rows {
        let internal = Policy::new("internal-name", quota("9/h")).key(extractor);
        let internal = internal.missing_key(MissingKey::Reject);
        let (layer, _) = layer([shared("other", "9/h"), internal]);
        let response = send(&hello(&layer), sent()).await;
        assert_eq!(response.status, 400);
        assert!(!response.text().contains("internal-name"), "{response:?}");
        response.is_problem_that_no_cache_stores();
        assert_eq!(response.retry_after(), None);
        assert_eq!(response.json()["type"], "about:blank");
        assert_eq!(charged(&layer, "other").await, 0);
        assert_eq!(response.detail(), format!("The request lacks {what}."));
    }
    // To browsers and gRPC clients too.
    let app = app([Policy::new("internal-name", quota("9/h")).key(key())]);
    let page = send(&app, with("accept", "text/html")).await;
    let expected = "400 Bad Request\n\nThe request lacks the header x-api-key.";
    assert_eq!(page.text().trim_end(), expected);
    let response = send(&app, grpc_call()).await;
    assert_eq!(response.field("grpc-status"), "3");
    let message = response.field("grpc-message");
    assert_eq!(message, "The request lacks the header x-api-key.");
}

#[tokio::test]
async fn clients_without_an_address_share_one_bucket_and_the_reason_is_reported() {
    let (log, _guard) = Log::of_errors();
    let (layer, _) = layer([Policy::new("p", quota("3/h"))]);
    let app = hello(&layer);
    let warnings = async || {
        let health = layer.limiter().health_check().await;
        assert!(health.is_healthy(), "{health:?}");
        let warnings = health.warnings().iter();
        warnings.map(ToString::to_string).collect::<String>()
    };
    assert_eq!(warnings().await, "");
    assert_eq!(statuses(&app, 4).await, [200, 200, 200, 429]);
    assert_eq!(count(&layer, Key::missing()).await, 3);
    let text = log.text();
    let server = "into_make_service_with_connect_info";
    assert_contains(&text, ["ERROR", "policy=\"p\"", server, "`PeerAddr`"]);
    // Logged once, not for each request.
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_contains(warnings().await, ["\"p\"", "share one bucket"]);
    let rejected = send(&app, to("/")).await;
    assert_contains(rejected.detail(), ["policy p", "debug builds only"]);
    assert_eq!(send(&app, from_peer("192.0.2.1:1")).await.status, 200);
    assert_eq!(warnings().await, "");
    assert_eq!(log.text(), text, "a known address logs nothing");
    // A tuple counts by its other parts.
    let layer = counted_by((extract::peer(), extract::path()));
    assert_eq!(status(&hello(&layer), "/").await, 200);
    let key = Key::tuple([Key::missing(), Key::new("/")]);
    assert_eq!(count(&layer, key).await, 1);
    assert_eq!(log.lines("no ConnectInfo").len(), 2);
    // A Unix socket, and a proxy that adds nothing.
    status(&hello(&counted_by(extract::client_ip().hops(1))), "/").await;
    assert_eq!(log.lines("$proxy_add_x_forwarded_for").len(), 1);
}

#[tokio::test]
async fn a_proxy_that_is_not_named_logs_one_warning() {
    let via = |peer: &str, header: Option<&'static str>| {
        let mut request = header.map_or(to("/"), |header| with(header, "198.51.100.7"));
        request.extensions_mut().insert(PeerAddr(address(peer)));
        request
    };
    let list = Some("x-forwarded-for");
    let client = extract::client_ip;
    // A proxy beside the named ones.
    let beside = client().trusted_proxies(["10.1.0.0/16"]).forwarded();
    let named = client().trusted_proxies(["10.0.0.0/8"]);
    for (extractor, peer, header, is_suspect) in [
        (client(), "10.0.0.7:1", list, true),
        (client(), "[::ffff:192.168.0.1]:1", list, true),
        (beside, "10.2.0.1:1", Some("forwarded"), true),
        // A public address may write what it likes, and a private one without the header is a client.
        (client(), "192.0.2.1:1", list, false),
        (client(), "10.0.0.7:1", None, false),
        (named, "10.0.0.7:1", list, false),
    ] {
        let (log, _guard) = Log::of_warnings();
        let app = hello(&counted_by(extractor));
        for _ in 0..3 {
            assert_eq!(send(&app, via(peer, header)).await.status, 200);
        }
        let text = log.text();
        assert_eq!(text.lines().count(), usize::from(is_suspect), "{peer}");
        if is_suspect {
            assert_contains(&text, ["WARN", header.expect("one"), "trusted_proxies"]);
        }
    }
}
