//! Keys of requests: each extractor finds the key that the constructor documented beside it makes.

use crate::http::support::*;

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

/// For each of these: a header's value, and the key that it is counted as.
pub(crate) async fn each_value_counts_as<V: AsRef<[u8]>>(
    extractor: impl KeyExtractor,
    header: &str,
    expected: impl IntoIterator<Item = (V, Key)>,
) {
    let requests = expected.into_iter();
    each_counts_as(
        extractor,
        requests.map(|(value, key)| (with(header, value), key)),
    )
    .await;
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
    let long = "a".repeat(5_000);
    let odd = [
        &b"\xff\xfe\x80"[..],
        b"{slot}\t+#*?",
        long.as_bytes(),
        b"*",
        b"?",
    ];
    let values = [&b"alice"[..], b"Alice"].into_iter().chain(odd);
    let keys = values.map(|value: &[u8]| (value, Key::new(value)));
    each_value_counts_as(extract::header("X-Tenant"), "x-TENANT", keys).await;
}

#[tokio::test]
async fn no_header_and_an_empty_one_are_no_key() {
    has_no_key(extract::header("x-api-key"), to("/")).await;
    has_no_key(extract::header("x-api-key"), with("x-api-key", "")).await;
    has_no_key(extract::header("x-api-key"), with("x-other", "alice")).await;
}

#[tokio::test]
async fn a_secret_header_counts_by_its_hash() {
    for (name, secret) in [
        ("x-api-key", extract::header("x-api-key")),
        ("x-tenant", extract::header("x-tenant").secret()),
    ] {
        each_value_counts_as(secret, name, [("sk-1", Key::secret("sk-1"))]).await;
    }
    assert!(!format!("{:?}", Key::secret("sk-1")).contains("sk-1"));
}

#[tokio::test]
async fn a_value_that_looks_like_a_credential_stays_readable_if_configured() {
    let [alice, hashed] = [Key::new("alice"), Key::secret("alice")];
    let readable = extract::header("x-key-id").readable();
    each_value_counts_as(readable, "x-key-id", [("alice", alice)]).await;
    let readable = extract::query("key").readable();
    each_counts_as(readable, [(to("/?key=alice"), alice)]).await;
    let language = || extract::cookie("lang");
    let secret = language().readable().secret();
    for (cookie, key) in [
        (language(), hashed),
        (language().readable(), alice),
        (secret, hashed),
    ] {
        each_value_counts_as(cookie, "cookie", [("lang=alice", key)]).await;
    }
}

#[tokio::test]
async fn a_bearer_token_counts_by_its_hash_however_its_scheme_is_spelled() {
    let token = Key::secret("mF_9.B5f-4.1JqM");
    #[rustfmt::skip]
    let values = [
        (&b"Bearer mF_9.B5f-4.1JqM"[..], token),
        (b"bearer  mF_9.B5f-4.1JqM", token),
        (b"BEARER   mF_9.B5f-4.1JqM ", token),
        // Applications that split the header at white space read the same token from each.
        (b"Bearer\tmF_9.B5f-4.1JqM", token),
        (b" Bearer \t mF_9.B5f-4.1JqM\t", token),
        (b"Bearer MF_9.B5F-4.1JQM", Key::secret("MF_9.B5F-4.1JQM")),
        (b"Bearer \xff\xfe", Key::secret(b"\xff\xfe")),
    ];
    each_value_counts_as(extract::bearer(), "authorization", values).await;
    assert!(!format!("{token:?} {token}").contains("mF_9"));

    let own = extract::bearer().hash_key([7; 32]);
    let printed = format!("{own:?} {:?}", policy().key(own.clone()));
    assert!(!printed.contains("7, 7"), "{printed}");
    let key = Key::secret_with(&[7; 32], "abc");
    each_value_counts_as(own, "authorization", [("Bearer abc", key)]).await;
}

#[tokio::test]
async fn an_invalid_bearer_token_is_no_key() {
    has_no_key(extract::bearer(), to("/")).await;
    let values = "|Bearer|Bearer |Bearer    |Bearertoken|Basic YWxpY2U6c2VzYW1l|Token abc";
    for value in values.split('|') {
        has_no_key(extract::bearer(), with("authorization", value)).await;
    }
    has_no_key(extract::bearer(), with("authorization", [0xff_u8; 8])).await;
}

#[tokio::test]
async fn a_method_counts_by_itself() {
    let request = |method: &str| empty(Request::builder().method(method).uri("/"));
    let methods = ["GET", "POST", "HEAD", "PURGE", "get"];
    let requests = methods.map(|method| (request(method), Key::new(method)));
    each_counts_as(extract::method(), requests).await;
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
    let (method, path) = (extract::method(), extract::path());
    let four = (extract::global(), tenant(), method, path);
    let requests = [(request(), Key::tuple([Key::global(), t, get, root]))];
    each_counts_as(four, requests).await;
    let requests = [(request(), Key::tuple([Key::tuple([t, get]), root]))];
    each_counts_as(((tenant(), extract::method()), extract::path()), requests).await;
    has_no_key((tenant(), extract::path()), to("/")).await;
    has_no_key((extract::path(), tenant()), to("/")).await;
}

#[test]
fn a_value_that_looks_like_a_credential_is_hashed() {
    let secrets = "authorization Proxy-Authorization X-API-Key api-key apikey x-apikey \
        api_key key x-auth-token access_token accesstoken client_secret \
        password passwd x-session sessionid x-auth jwt sid x-credentials";
    let others = "x-tenant x-user user-agent accept-language x-author monkey keyboard \
        side account";
    let parts = |request: Request<Body>| request.into_parts().0;
    let by_query = |name: &str| {
        let request = to(&format!("/?{name}=alice"));
        extract::query(name).extract(&parts(request)).key()
    };
    for (names, key) in [(secrets, Key::secret("alice")), (others, Key::new("alice"))] {
        for name in names.split(' ') {
            let by_header = extract::header(name).extract(&parts(with(name, "alice")));
            let found = [by_header.key(), by_query(name)];
            assert_eq!(found, [Some(key); 2], "{name}");
        }
    }
    // Headers' names have no case.
    assert_eq!(by_query("signingKey"), Some(Key::secret("alice")));
}
