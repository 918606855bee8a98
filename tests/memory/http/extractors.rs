//! Keys of requests: each extractor finds the key that the constructor documented beside it makes.

use crate::http::support::*;
use tollgate::extract::Extracted;

/// A layer whose one policy counts by `extractor`, 100 an hour.
pub(crate) fn counted_by(extractor: impl KeyExtractor) -> RateLimitLayer {
    layer([policy().key(extractor)]).0
}

pub(crate) fn policy() -> Policy {
    Policy::new("p", quota("100/h"))
}

/// How often `key` was counted.
pub(crate) async fn count(layer: &RateLimitLayer, key: Key) -> u64 {
    used(layer.limiter(), "p", key).await
}

/// Sends requests through a layer and asserts which key each was counted under: by that key and no other, since no two
/// of these are the same.
pub(crate) async fn each_counts_as(
    extractor: impl KeyExtractor,
    expected: impl IntoIterator<Item = (Request<Body>, Key)>,
) {
    let layer = counted_by(extractor);
    let app = hello(&layer);
    for (request, key) in expected {
        let sent = format!("{request:?}");
        let before = count(&layer, key).await;
        assert_ne!(send(&app, request).await.status, 400, "{sent}");
        assert_eq!(count(&layer, key).await, before + 1, "{key:?} of {sent}");
    }
}

/// Asserts that a request without a key is rejected, not failed.
pub(crate) async fn has_no_key(extractor: impl KeyExtractor, request: Request<Body>) {
    let sent = format!("{request:?}");
    let response = send(&hello(&counted_by(extractor)), request).await;
    assert_eq!(response.status, 400, "{sent}");
}

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().expect(text)
}

pub(crate) fn from(extension: impl Clone + Send + Sync + 'static) -> Request<Body> {
    empty(Request::get("/").extension(extension))
}

/// A request from this address and port.
pub(crate) fn from_peer(text: &str) -> Request<Body> {
    from(PeerAddr(address(text)))
}

pub(crate) fn ip(text: &str) -> Key {
    Key::ip(text.parse().expect(text))
}

#[tokio::test]
async fn a_header_is_a_key_by_its_value_of_any_bytes() {
    let requests = [
        (with("x-tenant", "alice"), Key::new("alice")),
        (with("X-TENANT", "Alice"), Key::new("Alice")),
        (with("x-tenant", b"\xff\xfe\x80"), Key::new(b"\xff\xfe\x80")),
        (with("x-tenant", "{slot}\t+#*?"), Key::new("{slot}\t+#*?")),
        (
            with("x-tenant", "a".repeat(5_000)),
            Key::new("a".repeat(5_000)),
        ),
        (with("x-tenant", "*"), Key::new("*")),
        (with("x-tenant", "?"), Key::new("?")),
    ];
    each_counts_as(extract::header("X-Tenant"), requests).await;
}

#[tokio::test]
async fn no_header_and_an_empty_one_are_no_key() {
    has_no_key(extract::header("x-api-key"), to("/")).await;
    has_no_key(extract::header("x-api-key"), with("x-api-key", "")).await;
    has_no_key(extract::header("x-api-key"), with("x-other", "alice")).await;
}

#[tokio::test]
async fn no_header_value_is_the_global_key_or_that_of_missing_keys() {
    let layer = counted_by(extract::header("x-tenant"));
    let app = hello(&layer);
    for value in ["*", "?", "#", "global", "missing"] {
        send(&app, with("x-tenant", value)).await;
    }
    assert_eq!(count(&layer, Key::global()).await, 0);
    assert_eq!(count(&layer, Key::missing()).await, 0);
}

#[tokio::test]
async fn a_secret_header_counts_by_its_hash() {
    for secret in [
        extract::header("x-api-key"),
        extract::header("x-tenant").secret(),
    ] {
        let name = format!("{secret:?}");
        let name = ["x-api-key", "x-tenant"]
            .into_iter()
            .find(|n| name.contains(n));
        let layer = counted_by(secret);
        send(&hello(&layer), with(name.expect("a name"), "sk-1")).await;
        assert_eq!(count(&layer, Key::secret("sk-1")).await, 1);
        assert_eq!(count(&layer, Key::new("sk-1")).await, 0);
    }
    assert!(!format!("{:?}", Key::secret("sk-1")).contains("sk-1"));
}

#[tokio::test]
async fn a_value_that_looks_like_a_credential_stays_readable_if_configured() {
    let [alice, hashed] = [Key::new("alice"), Key::secret("alice")];
    let readable = extract::header("x-key-id").readable();
    each_counts_as(readable, [(with("x-key-id", "alice"), alice)]).await;
    let readable = extract::query("key").readable();
    each_counts_as(readable, [(to("/?key=alice"), alice)]).await;
    let language = || extract::cookie("lang");
    let line = || with("cookie", "lang=alice");
    each_counts_as(language(), [(line(), hashed)]).await;
    each_counts_as(language().readable(), [(line(), alice)]).await;
    each_counts_as(language().readable().secret(), [(line(), hashed)]).await;
}

#[tokio::test]
async fn a_bearer_token_counts_by_its_hash_whatever_the_case_of_its_scheme() {
    let token = || Key::secret("mF_9.B5f-4.1JqM");
    let requests = [
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
    ];
    each_counts_as(extract::bearer(), requests).await;
    assert!(!format!("{:?} {}", token(), token()).contains("mF_9"));
}

#[tokio::test]
async fn a_bearer_token_counts_under_the_applications_own_hash_key() {
    let extractor = extract::bearer().hash_key([7; 32]);
    let printed = format!("{extractor:?} {:?}", policy().key(extractor.clone()));
    assert!(!printed.contains("7, 7"), "{printed}");
    each_counts_as(
        extractor,
        [(
            with("authorization", "Bearer abc"),
            Key::secret_with(&[7; 32], "abc"),
        )],
    )
    .await;
}

#[tokio::test]
async fn an_invalid_bearer_token_is_no_key() {
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

#[tokio::test]
async fn a_method_counts_by_itself() {
    let request = |method: &str| empty(Request::builder().method(method).uri("/"));
    let methods = ["GET", "POST", "HEAD", "PURGE", "get"];
    let requests = methods.map(|method| (request(method), Key::new(method)));
    each_counts_as(extract::method(), requests).await;
}

#[tokio::test]
async fn a_closure_reads_what_a_middleware_set() {
    #[derive(Clone)]
    struct User(u64);

    let by_user = || {
        extract::from_fn(|parts| {
            let User(id) = parts.extensions.get()?;
            Some(Key::new(id.to_string()))
        })
    };
    let requests = [
        (from(User(7)), Key::new("7")),
        (from(User(8)), Key::new("8")),
    ];
    each_counts_as(by_user(), requests).await;
    has_no_key(by_user(), to("/")).await;
}

#[tokio::test]
async fn a_custom_extractor_and_one_in_an_arc_count() {
    #[derive(Debug)]
    struct Host;

    impl KeyExtractor for Host {
        fn extract(&self, parts: &Parts) -> Extracted {
            parts.headers.get("host").map(Key::new).into()
        }
    }

    let chosen_at_run_time: Arc<dyn KeyExtractor> = Arc::new(Host);
    let requests = [(with("host", "a.example"), Key::new("a.example"))];
    each_counts_as(chosen_at_run_time.clone(), requests).await;
    has_no_key(chosen_at_run_time, to("/")).await;
}

#[tokio::test]
async fn a_tuple_counts_by_all_of_its_parts() {
    let tenant = || extract::header("x-tenant");
    let [t, get, root] = ["t", "GET", "/"].map(Key::new);
    let request = || with("x-tenant", "t");
    let requests = [(request(), Key::tuple([t, root]))];
    each_counts_as((tenant(), extract::path()), requests).await;
    let requests = [(request(), Key::tuple([t, get, root]))];
    each_counts_as((tenant(), extract::method(), extract::path()), requests).await;
    each_counts_as(
        (
            extract::global(),
            tenant(),
            extract::method(),
            extract::path(),
        ),
        [(request(), Key::tuple([Key::global(), t, get, root]))],
    )
    .await;
    let requests = [(request(), Key::tuple([Key::tuple([t, get]), root]))];
    each_counts_as(((tenant(), extract::method()), extract::path()), requests).await;
    has_no_key((tenant(), extract::path()), to("/")).await;
    has_no_key((extract::path(), tenant()), to("/")).await;
}

#[tokio::test]
async fn no_header_values_make_two_tuples_equal() {
    let layer = counted_by((extract::header("x-a"), extract::header("x-b")));
    let app = hello(&layer);
    for (a, b) in [("x+y", "z"), ("x", "y+z"), ("x", "yz"), ("xy", "z")] {
        let request = Request::get("/").header("x-a", a).header("x-b", b);
        send(&app, empty(request)).await;
        let key = Key::tuple([a, b].map(Key::new));
        assert_eq!(count(&layer, key).await, 1, "{a} {b}");
    }
}
