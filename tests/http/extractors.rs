//! Who is counted: each extractor finds the key that the constructor documented beside it makes.

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, connect_info::MockConnectInfo},
    http::HeaderValue,
    routing::get,
};
use http::{Request, StatusCode, request::Parts};
use tollgate::{
    Key, MissingKey, PeerAddr, Policy, Quota, RateLimitLayer,
    extract::{self, KeyExtractor},
};
use tracing_subscriber::fmt::MakeWriter;

use crate::support::{hello, layer, send, status, to, used, with};

/// A layer whose one policy counts by `extractor`, 100 an hour.
pub(crate) fn counted_by(extractor: impl KeyExtractor) -> RateLimitLayer {
    layer([policy().key(extractor)]).0
}

fn policy() -> Policy {
    Policy::new("p", Quota::requests(100).per_hour())
}

/// How often `key` was counted.
pub(crate) async fn count(layer: &RateLimitLayer, key: Key) -> u64 {
    used(layer.limiter(), "p", key).await
}

/// Sends requests through a layer and asserts which key each was counted under: by that key and no other, since no two
/// of these are the same.
pub(crate) async fn each_counts_as(
    extractor: impl KeyExtractor,
    expected: Vec<(Request<Body>, Key)>,
) {
    let layer = counted_by(extractor);
    let app = hello(&layer);
    for (request, key) in expected {
        let asked = format!("{request:?}");
        let before = count(&layer, key).await;
        assert_ne!(
            send(&app, request).await.status,
            StatusCode::BAD_REQUEST,
            "{asked}"
        );
        assert_eq!(count(&layer, key).await, before + 1, "{key:?} of {asked}");
    }
}

/// Asserts that a request without a key is refused, not failed.
pub(crate) async fn has_no_key(extractor: impl KeyExtractor, request: Request<Body>) {
    let asked = format!("{request:?}");
    let answer = send(&hello(&counted_by(extractor)), request).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{asked}");
}

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().expect(text)
}

pub(crate) fn from(extension: impl Clone + Send + Sync + 'static) -> Request<Body> {
    let request = Request::get("/").extension(extension);
    request.body(Body::empty()).expect("a request")
}

pub(crate) fn ip(text: &str) -> Key {
    Key::ip(text.parse().expect(text))
}

#[tokio::test]
async fn a_peer_counts_by_its_address_without_the_port() {
    each_counts_as(
        extract::peer(),
        vec![
            (
                from(ConnectInfo(address("192.0.2.1:1234"))),
                ip("192.0.2.1"),
            ),
            (from(ConnectInfo(address("192.0.2.1:9"))), ip("192.0.2.1")),
            (
                from(MockConnectInfo(address("192.0.2.2:1"))),
                ip("192.0.2.2"),
            ),
            (from(PeerAddr(address("192.0.2.3:1"))), ip("192.0.2.3")),
            // The same client over IPv6's mapping, and a subscriber's whole network.
            (
                from(PeerAddr(address("[::ffff:192.0.2.3]:1"))),
                ip("192.0.2.3"),
            ),
            (from(PeerAddr(address("[2001:db8::1]:1"))), ip("2001:db8::")),
            (
                from(PeerAddr(address("[2001:db8::ffff:1]:1"))),
                ip("2001:db8::"),
            ),
            (
                from(PeerAddr(address("[2001:db8:0:1::1]:1"))),
                ip("2001:db8:0:1::"),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_peer_of_ones_own_is_believed_before_the_servers() {
    let layer = counted_by(extract::peer());
    let request = Request::get("/")
        .extension(ConnectInfo(address("192.0.2.1:1")))
        .extension(PeerAddr(address("192.0.2.2:1")))
        .extension(MockConnectInfo(address("192.0.2.3:1")));
    send(
        &hello(&layer),
        request.body(Body::empty()).expect("a request"),
    )
    .await;
    assert_eq!(count(&layer, ip("192.0.2.2")).await, 1);
}

#[tokio::test]
async fn no_header_changes_who_the_peer_is() {
    let layer = counted_by(extract::peer());
    let app = hello(&layer).layer(MockConnectInfo(address("192.0.2.1:1")));
    for header in [
        "x-forwarded-for",
        "x-real-ip",
        "forwarded",
        "cf-connecting-ip",
        "true-client-ip",
    ] {
        send(&app, with(header, "198.51.100.7")).await;
    }
    assert_eq!(count(&layer, ip("192.0.2.1")).await, 5);
}

#[tokio::test]
async fn axums_mock_of_the_connection_is_enough_for_tests() {
    let layer = counted_by(extract::peer());
    let app = hello(&layer).layer(MockConnectInfo(address("192.0.2.1:1")));
    assert_eq!(status(&app, "/").await, 200);
    assert_eq!(count(&layer, ip("192.0.2.1")).await, 1);
}

#[tokio::test]
async fn a_peer_counts_by_as_much_of_its_address_as_is_asked_for() {
    let [v4, v6] = ["198.51.100.7", "2001:db8:1:2::3"].map(|ip| ip.parse().expect(ip));
    each_counts_as(
        extract::peer().ipv4_prefix(24).ipv6_prefix(48),
        vec![
            (
                from(PeerAddr(SocketAddr::new(v4, 1))),
                Key::network(v4, 24, 48),
            ),
            (
                from(PeerAddr(SocketAddr::new(v6, 1))),
                Key::network(v6, 24, 48),
            ),
            (
                from(PeerAddr(address("[2001:db8:1:3::3]:1"))),
                Key::network(v6, 24, 48),
            ),
        ],
    )
    .await;
}

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("the log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    /// Keeps what this thread logs at level error until the guard is dropped.
    fn errors(&self) -> tracing::subscriber::DefaultGuard {
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(self.clone());
        let subscriber = subscriber.with_max_level(tracing::Level::ERROR);
        tracing::subscriber::set_default(subscriber.finish())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("the log")).into_owned()
    }
}

#[tokio::test]
async fn clients_without_an_address_share_one_bucket_and_the_log_says_why() {
    let log = Log::default();
    let _guard = log.errors();
    let quota = Quota::requests(3).per_hour();
    let (layer, _) = layer([Policy::new("p", quota)]);
    let app = hello(&layer);
    for expected in [200, 200, 200, 429, 429] {
        assert_eq!(status(&app, "/").await, expected);
    }
    assert_eq!(count(&layer, Key::missing()).await, 3);
    let text = log.text();
    assert!(
        text.contains("ERROR") && text.contains("into_make_service_with_connect_info"),
        "{text}"
    );
    assert!(
        text.contains("ConnectInfo") && text.contains("policy=\"p\""),
        "{text}"
    );
    // Said once, not for each request.
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[tokio::test]
async fn a_tuple_with_an_unknown_address_counts_by_its_other_parts_and_the_log_says_why() {
    let log = Log::default();
    let _guard = log.errors();
    let layer = counted_by((extract::peer(), extract::path()));
    assert_eq!(status(&hello(&layer), "/").await, 200);
    assert_eq!(
        count(&layer, Key::tuple([Key::missing(), Key::new("/")])).await,
        1
    );
    assert!(log.text().contains("ConnectInfo"), "{}", log.text());
}

#[tokio::test]
async fn a_known_address_is_nothing_to_log() {
    let log = Log::default();
    let _guard = log.errors();
    let app = hello(&counted_by(extract::peer()));
    assert_eq!(
        send(&app, from(PeerAddr(address("192.0.2.1:1"))))
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(log.text(), "");
}

#[tokio::test]
async fn a_header_counts_by_its_value_of_any_bytes() {
    let twice = Request::get("/")
        .header("x-api-key", "first")
        .header("x-api-key", "second");
    each_counts_as(
        extract::header("X-API-Key"),
        vec![
            (with("x-api-key", "alice"), Key::new("alice")),
            (with("X-Api-Key", "Alice"), Key::new("Alice")),
            (
                with("x-api-key", b"\xff\xfe\x80"),
                Key::new(b"\xff\xfe\x80"),
            ),
            (with("x-api-key", "{slot}\t+#*?"), Key::new("{slot}\t+#*?")),
            (
                with("x-api-key", "a".repeat(5_000)),
                Key::new("a".repeat(5_000)),
            ),
            (with("x-api-key", "*"), Key::new("*")),
            (with("x-api-key", "?"), Key::new("?")),
            (
                twice.body(Body::empty()).expect("a request"),
                Key::new("first"),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn no_header_and_an_empty_one_are_no_key() {
    has_no_key(extract::header("x-api-key"), to("/")).await;
    has_no_key(extract::header("x-api-key"), with("x-api-key", "")).await;
    has_no_key(extract::header("x-api-key"), with("x-other", "alice")).await;
}

#[tokio::test]
async fn no_header_names_the_bucket_of_everybody_or_of_those_without_a_key() {
    let layer = counted_by(extract::header("x-api-key"));
    let app = hello(&layer);
    for value in ["*", "?", "#", "global", "missing"] {
        send(&app, with("x-api-key", value)).await;
    }
    assert_eq!(count(&layer, Key::global()).await, 0);
    assert_eq!(count(&layer, Key::missing()).await, 0);
}

#[tokio::test]
async fn a_secret_header_counts_by_its_hash() {
    let layer = counted_by(extract::header("x-api-key").secret());
    send(&hello(&layer), with("x-api-key", "sk-1")).await;
    assert_eq!(count(&layer, Key::secret("sk-1")).await, 1);
    assert_eq!(count(&layer, Key::new("sk-1")).await, 0);
    assert!(!format!("{:?}", Key::secret("sk-1")).contains("sk-1"));
}

#[tokio::test]
async fn a_bearer_token_counts_by_its_hash_whatever_the_case_of_its_scheme() {
    let token = || Key::secret("mF_9.B5f-4.1JqM");
    each_counts_as(
        extract::bearer(),
        vec![
            (with("authorization", "Bearer mF_9.B5f-4.1JqM"), token()),
            (with("authorization", "bearer mF_9.B5f-4.1JqM"), token()),
            (with("authorization", "BEARER   mF_9.B5f-4.1JqM "), token()),
            (
                with("authorization", "Bearer MF_9.B5F-4.1JQM"),
                Key::secret("MF_9.B5F-4.1JQM"),
            ),
            (
                with("authorization", b"Bearer \xff\xfe"),
                Key::secret(b"\xff\xfe"),
            ),
        ],
    )
    .await;
    assert!(!format!("{:?} {}", token(), token()).contains("mF_9"));
}

#[tokio::test]
async fn a_bearer_token_counts_under_the_applications_own_hash_key() {
    let extractor = extract::bearer().hash_key([7; 32]);
    let printed = format!("{extractor:?} {:?}", policy().key(extractor.clone()));
    assert!(!printed.contains("7, 7"), "{printed}");
    each_counts_as(
        extractor,
        vec![(
            with("authorization", "Bearer abc"),
            Key::secret_with(&[7; 32], "abc"),
        )],
    )
    .await;
}

#[tokio::test]
async fn what_is_no_bearer_token_is_no_key() {
    has_no_key(extract::bearer(), to("/")).await;
    for value in [
        &b""[..],
        b"Bearer",
        b"Bearer ",
        b"Bearer    ",
        b"Bearertoken",
        b"Basic YWxpY2U6c2VzYW1l",
        b"Token abc",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        has_no_key(extract::bearer(), with("authorization", value)).await;
    }
}

/// A router with a layer at `where_`, over `/api/users/{id}` in a nested router.
fn nested(layer: &RateLimitLayer, inside: bool) -> Router {
    let users = Router::new()
        .route("/users/{id}", get(async || ""))
        .fallback(async || StatusCode::NOT_FOUND);
    match inside {
        true => Router::new().nest("/api", users.layer(layer.clone())),
        false => Router::new().nest("/api", users).layer(layer.clone()),
    }
}

#[tokio::test]
async fn a_path_is_what_the_client_sent_on_both_sides_of_a_nest() {
    let layer = counted_by(extract::path());
    for inside in [true, false] {
        let app = nested(&layer, inside);
        assert_eq!(status(&app, "/api/users/1?page=2").await, 200);
        assert_eq!(status(&app, "/api/users/1").await, 200);
    }
    let service = nested(&layer, true);
    let twice = Router::new().nest("/v1", Router::new().nest_service("/inner", service));
    assert_eq!(status(&twice, "/v1/inner/api/users/1").await, 200);
    assert_eq!(count(&layer, Key::new("/api/users/1")).await, 4);
    assert_eq!(count(&layer, Key::new("/v1/inner/api/users/1")).await, 1);
    assert_eq!(count(&layer, Key::new("/users/1")).await, 0);
}

#[tokio::test]
async fn a_path_is_found_without_axum_too() {
    let layer = counted_by(extract::path());
    let around = tower::ServiceBuilder::new()
        .layer(layer.clone())
        .service(Router::new().fallback(async || "a fallback"));
    assert_eq!(status(&around, "/a/path").await, 200);
    assert_eq!(count(&layer, Key::new("/a/path")).await, 1);
}

#[tokio::test]
async fn a_matched_path_is_the_route_whatever_its_parameters() {
    for inside in [true, false] {
        let layer = counted_by(extract::matched_path());
        let app = nested(&layer, inside);
        for uri in ["/api/users/1", "/api/users/2", "/api/users/3?x"] {
            assert_eq!(status(&app, uri).await, 200);
        }
        assert_eq!(count(&layer, Key::new("/api/users/{id}")).await, 3);
    }
}

#[tokio::test]
async fn requests_that_match_no_route_share_one_bucket() {
    let layer = counted_by(extract::matched_path());
    let app = hello(&layer);
    for uri in ["/a", "/b", "/c"] {
        assert_eq!(status(&app, uri).await, 404);
    }
    assert_eq!(count(&layer, Key::new("")).await, 3);
    assert_eq!(count(&layer, Key::new("/")).await, 0);

    // And so they do in a nested router with a layer of its own.
    let layer = counted_by(extract::matched_path());
    let app = nested(&layer, true);
    for uri in ["/api/a", "/api/b", "/api/c"] {
        assert_eq!(status(&app, uri).await, 404);
    }
    assert_eq!(count(&layer, Key::new("")).await, 3);
}

#[tokio::test]
async fn a_method_counts_by_itself() {
    let request = |method: &str| {
        let request = Request::builder().method(method).uri("/");
        request.body(Body::empty()).expect("a request")
    };
    each_counts_as(
        extract::method(),
        ["GET", "POST", "HEAD", "PURGE", "get"]
            .map(|method| (request(method), Key::new(method)))
            .into(),
    )
    .await;
}

#[tokio::test]
async fn everybody_counts_together() {
    let layer = counted_by(extract::global());
    let app = hello(&layer);
    for n in 0..3 {
        status(&app, &format!("/{n}")).await;
    }
    assert_eq!(count(&layer, Key::global()).await, 3);
}

#[tokio::test]
async fn a_closure_finds_what_a_middleware_left() {
    #[derive(Clone)]
    struct User(u64);

    let by_user = || {
        extract::from_fn(|parts| {
            let User(id) = parts.extensions.get()?;
            Some(Key::new(id.to_string()))
        })
    };
    each_counts_as(
        by_user(),
        vec![
            (from(User(7)), Key::new("7")),
            (from(User(8)), Key::new("8")),
        ],
    )
    .await;
    has_no_key(by_user(), to("/")).await;
}

#[tokio::test]
async fn a_type_of_ones_own_and_an_extractor_in_an_arc_count() {
    #[derive(Debug)]
    struct Host;

    impl KeyExtractor for Host {
        fn key(&self, parts: &Parts) -> Option<Key> {
            parts.headers.get("host").map(Key::new)
        }
    }

    let chosen_at_run_time: Arc<dyn KeyExtractor> = Arc::new(Host);
    each_counts_as(
        chosen_at_run_time.clone(),
        vec![(with("host", "a.example"), Key::new("a.example"))],
    )
    .await;
    has_no_key(chosen_at_run_time, to("/")).await;
}

#[tokio::test]
async fn a_tuple_counts_by_all_of_its_parts() {
    let tenant = || extract::header("x-tenant");
    let [t, get, root] = ["t", "GET", "/"].map(Key::new);
    let request = || with("x-tenant", "t");
    each_counts_as(
        (tenant(), extract::path()),
        vec![(request(), Key::tuple([t, root]))],
    )
    .await;
    each_counts_as(
        (tenant(), extract::method(), extract::path()),
        vec![(request(), Key::tuple([t, get, root]))],
    )
    .await;
    each_counts_as(
        (
            extract::global(),
            tenant(),
            extract::method(),
            extract::path(),
        ),
        vec![(request(), Key::tuple([Key::global(), t, get, root]))],
    )
    .await;
    each_counts_as(
        ((tenant(), extract::method()), extract::path()),
        vec![(request(), Key::tuple([Key::tuple([t, get]), root]))],
    )
    .await;
    has_no_key((tenant(), extract::path()), to("/")).await;
    has_no_key((extract::path(), tenant()), to("/")).await;
}

#[tokio::test]
async fn no_choice_of_header_makes_two_tuples_meet() {
    let layer = counted_by((extract::header("x-a"), extract::header("x-b")));
    let app = hello(&layer);
    for (a, b) in [("x+y", "z"), ("x", "y+z"), ("x", "yz"), ("xy", "z")] {
        let request = Request::get("/").header("x-a", a).header("x-b", b);
        send(&app, request.body(Body::empty()).expect("a request")).await;
        assert_eq!(
            count(&layer, Key::tuple([Key::new(a), Key::new(b)])).await,
            1,
            "{a} {b}"
        );
    }
}

#[tokio::test]
async fn a_missing_key_does_what_the_policy_says() {
    let by_tenant = || policy().key(extract::header("x-tenant"));
    for (missing, expected, shared) in [
        (MissingKey::Skip, 200, 0),
        (MissingKey::Refuse, 400, 0),
        (MissingKey::Shared, 200, 1),
    ] {
        let (layer, _) = layer([by_tenant().missing_key(missing)]);
        let app = hello(&layer);
        assert_eq!(status(&app, "/").await, expected, "{missing:?}");
        assert_eq!(count(&layer, Key::missing()).await, shared, "{missing:?}");
        // Those who have one are counted by it all the same.
        assert_eq!(
            send(&app, with("x-tenant", "t")).await.status,
            StatusCode::OK
        );
        assert_eq!(count(&layer, Key::new("t")).await, 1, "{missing:?}");
    }
}

#[tokio::test]
async fn a_missing_address_does_what_the_policy_says() {
    for (missing, expected) in [(MissingKey::Skip, 200), (MissingKey::Refuse, 400)] {
        let (layer, _) = layer([policy().missing_key(missing)]);
        assert_eq!(status(&hello(&layer), "/").await, expected, "{missing:?}");
        assert_eq!(count(&layer, Key::missing()).await, 0, "{missing:?}");
    }
}

#[tokio::test]
async fn a_skipped_policy_leaves_the_others_in_force() {
    let quota = Quota::requests(1).per_hour();
    let tenants = Policy::new("tenants", quota).key(extract::header("x-tenant"));
    let all = Policy::new("all", quota).key(extract::global());
    let (layer, _) = layer([tenants.missing_key(MissingKey::Skip), all]);
    let app = hello(&layer);
    assert_eq!(
        [status(&app, "/").await, status(&app, "/").await],
        [200, 429]
    );
}

#[test]
fn a_header_value_is_a_key_as_it_is() {
    let value = HeaderValue::from_static("alice");
    assert_eq!(Key::new(&value), Key::new("alice"));
}
