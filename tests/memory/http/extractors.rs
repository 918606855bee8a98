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

/// An application's user, left by a middleware.
#[derive(Clone)]
struct User(&'static str);

fn by_user() -> impl KeyExtractor {
    extract::extension::<User>(|User(name)| Key::new(name))
}

#[tokio::test]
async fn a_field_counts_by_its_value_and_a_credential_by_its_hash() {
    let header = extract::header;
    let (cookie, bearer) = (|| extract::cookie("SID"), extract::bearer);
    let (lang, of_hash) = (|| extract::cookie("lang"), bearer().hash_key([7; 32]));
    let [alice, hashed] = [Key::new("alice"), Key::secret("alice")];
    let token = Key::secret("mF_9.B5f-4.1JqM");
    let session = Key::secret("31d4d96e407aad42");
    let [a, v6] = ["a.example", "[2001:db8::1]"].map(Key::new);
    let long = "a".repeat(5_000);
    #[rustfmt::skip]
    let rows = [
        (arc(header("X-Tenant")), "x-TENANT", &b"alice"[..], alice),
        (arc(header("x-tenant")), "x-tenant", b"Alice", Key::new("Alice")),
        (arc(header("x-tenant")), "x-tenant", b"\xff\xfe\x80", Key::new(b"\xff\xfe\x80")),
        (arc(header("x-tenant")), "x-tenant", b"{slot}\t+#*?", Key::new("{slot}\t+#*?")),
        (arc(header("x-tenant")), "x-tenant", long.as_bytes(), Key::new(&long)),
        (arc(header("x-tenant").secret()), "x-tenant", b"alice", hashed),
        (arc(header("x-api-key")), "x-api-key", b"alice", hashed),
        (arc(header("x-key-id").readable()), "x-key-id", b"alice", alice),
        (arc(lang()), "cookie", b"lang=alice", hashed),
        (arc(lang().readable()), "cookie", b"lang=alice", alice),
        (arc(lang().readable().secret()), "cookie", b"lang=alice", hashed),
        (arc(bearer()), "authorization", b"Bearer mF_9.B5f-4.1JqM", token),
        (arc(bearer()), "authorization", b"BEARER   mF_9.B5f-4.1JqM ", token),
        // Applications that split the header at white space read the same token.
        (arc(bearer()), "authorization", b" bearer \t mF_9.B5f-4.1JqM\t", token),
        (arc(bearer()), "authorization", b"Bearer MF_9.B5F-4.1JQM", Key::secret("MF_9.B5F-4.1JQM")),
        (arc(bearer()), "authorization", b"Bearer \xff\xfe", Key::secret(b"\xff\xfe")),
        (arc(of_hash), "authorization", b"Bearer abc", Key::secret_with(&[7; 32], "abc")),
        // RFC 6265, section 4.2.1 and 3.1.
        (arc(cookie()), "cookie", b"SID=31d4d96e407aad42", session),
        (arc(cookie()), "cookie", b"lang=en-US;SID=31d4d96e407aad42;", session),
        (arc(cookie()), "cookie", b"sid=other; XSID=other; =; ;;SID = 31d4d96e407aad42 ", session),
        (arc(cookie()), "cookie", b"SID=a=b==", Key::secret("a=b==")),
        // Some frameworks drop the quotes, before or after they decode the value.
        (arc(cookie()), "cookie", b"SID=\"31d4d96e407aad42\"", session),
        (arc(cookie()), "cookie", b"SID=%2231d4d96e407aad42%22", session),
        (arc(cookie()), "cookie", b"SID=\"", Key::secret("\"")),
        (arc(cookie()), "cookie", b"S%49D=%331d4d96e407aad42", session),
        (arc(cookie()), "cookie", b"SID=100%", Key::secret("100%")),
        (arc(cookie()), "cookie", b"SID=\xff\xfe", Key::secret(b"\xff\xfe")),
        (arc(extract::host()), "host", b"A.Example:8080", a),
        (arc(extract::host()), "host", b"a.example.:80", a),
        (arc(extract::host()), "host", b"192.0.2.1:80", Key::new("192.0.2.1")),
        (arc(extract::host()), "host", b"[2001:DB8::1]:80", v6),
    ];
    for (extractor, name, value, key) in rows {
        each_value_counts_as(extractor, name, [(value, key)]).await;
    }
    let printed = format!("{:?} {token:?} {token}", bearer().hash_key([7; 32]));
    assert!(!printed.contains("7, 7") && !printed.contains("mF_9"));
}

#[tokio::test]
async fn a_target_counts_by_its_part_that_is_named() {
    let named = || extract::query("a name");
    let (service, method) = (extract::grpc_service, extract::grpc_method);
    let [alice, a] = ["alice", "a.example"].map(Key::new);
    let greeter = Key::new("helloworld.Greeter");
    #[rustfmt::skip]
    let rows = [
        (arc(named()), "/?a%20name=alice", alice),
        (arc(named()), "/x?a=b&a+name=%61lice", alice),
        (arc(named()), "/?&&=&a+name=a+b%26c%3D", Key::new("a b&c=")),
        (arc(named()), "/?a+name=a=b", Key::new("a=b")),
        (arc(named()), "/?a+name=%ff", Key::new("\u{fffd}")),
        (arc(named()), "/?a+name=%zz%", Key::new("%zz%")),
        (arc(extract::query("q").secret()), "/?q=alice", Key::secret("alice")),
        (arc(extract::query("key").readable()), "/?key=alice", alice),
        // HTTP/2's :authority.
        (arc(extract::host()), "https://user@a.example:81/path", a),
        (arc(service()), "/helloworld.Greeter/SayHello", greeter),
        (arc(service()), "http://a.example/prefix/helloworld.Greeter/SayGoodbye", greeter),
        (arc(method()), "/prefix/helloworld.Greeter/SayHello", Key::new("helloworld.Greeter/SayHello")),
    ];
    for (extractor, uri, key) in rows {
        each_counts_as(extractor, [(to(uri), key)]).await;
    }
    let request = |method: &str| empty(Request::builder().method(method).uri("/"));
    let methods = ["GET", "POST", "PURGE", "get"].map(|name| (request(name), Key::new(name)));
    each_counts_as(extract::method(), methods).await;
    let users = ["alice", "bob"].map(|name| (from(User(name)), Key::new(name)));
    each_counts_as(by_user(), users).await;
}

#[tokio::test]
async fn what_is_absent_or_malformed_is_no_key() {
    let (cookie, host) = (|| extract::cookie("SID"), extract::host);
    let tenant = || extract::header("x-tenant");
    let tokens = "|Bearer|Bearer |Bearertoken|Basic YWxpY2U6c2VzYW1l|Token abc";
    let hosts = "|.|:80|a@b|a b|a/b|a.example:80:80|[::1";
    #[rustfmt::skip]
    let rows = [
        (arc(tenant()), "x-tenant", ""),
        (arc(tenant()), "x-other", "alice"),
        (arc((tenant(), extract::path())), "x-other", "alice"),
        (arc((extract::path(), tenant())), "x-other", "alice"),
        (arc(extract::bearer()), "authorization", tokens),
        (arc(cookie()), "cookie", "|SID|SID=|sid=x|SID=; SID=second|a=SID=b|XSID=x"),
        (arc(host()), "host", hosts),
        // Nor is it what a proxy sends, or a client that poses as one.
        (arc(host()), "x-forwarded-host", "a.example"),
        (arc(by_user()), "x-user", "alice"),
    ];
    for (extractor, name, values) in rows {
        for value in values.split('|') {
            has_no_key(extractor.clone(), with(name, value)).await;
        }
    }
    has_no_key(extract::bearer(), with("authorization", [0xff_u8; 8])).await;
    has_no_key(host(), with("host", b"\xff")).await;
    let calls = "/ /a /a/ // //a /a//";
    #[rustfmt::skip]
    let rows = [
        (arc(extract::query("key")), "/ /? /?key /?key= /?key=&key=second /?Key=x /key=x"),
        (arc(extract::grpc_service()), calls),
        (arc(extract::grpc_method()), calls),
    ];
    for (extractor, uris) in rows {
        for uri in uris.split(' ') {
            has_no_key(extractor.clone(), to(uri)).await;
        }
    }
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

/// A router with `/api/users/{id}` in a nested router, and a layer inside or outside of this.
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
async fn a_path_is_the_one_that_the_client_sent_and_a_matched_path_its_route() {
    for inside in [true, false] {
        let path = counted_by(extract::path());
        let route = counted_by(extract::matched_path());
        let query = counted_by(extract::query("page"));
        for layer in [&path, &route, &query] {
            let app = Router::new().nest("/v1", nested(layer, inside));
            for uri in ["/v1/api/users/1?page=2", "/v1/api/users/2?page=2"] {
                assert_eq!(status(&app, uri).await, 200, "{uri}");
            }
        }
        assert_eq!(count(&path, Key::new("/v1/api/users/1")).await, 1);
        assert_eq!(count(&route, Key::new("/v1/api/users/{id}")).await, 2);
        assert_eq!(count(&query, Key::new("2")).await, 2);
    }
    // Requests that match no route share one bucket.
    let layer = counted_by(extract::matched_path());
    for (app, uri) in [(nested(&layer, true), "/api/a"), (hello(&layer), "/b")] {
        assert_eq!(status(&app, uri).await, 404, "{uri}");
    }
    assert_eq!(count(&layer, Key::new("")).await, 2);
}

fn first(key: Key) -> Key {
    Key::tuple([Key::new("1"), key])
}

fn second(key: Key) -> Key {
    Key::tuple([Key::new("2"), key])
}

#[tokio::test]
async fn a_tuple_counts_by_all_of_its_parts() {
    let tenant = || extract::header("x-tenant");
    let (path, method) = (extract::path, extract::method);
    let [t, get, root] = ["t", "GET", "/"].map(Key::new);
    for (extractor, key) in [
        (arc((tenant(), path())), Key::tuple([t, root])),
        (
            arc((tenant(), method(), path())),
            Key::tuple([t, get, root]),
        ),
        (
            arc((extract::global(), tenant(), method(), path())),
            Key::tuple([Key::global(), t, get, root]),
        ),
        (
            arc(((tenant(), method()), path())),
            Key::tuple([Key::tuple([t, get]), root]),
        ),
    ] {
        each_counts_as(extractor, [(with("x-tenant", "t"), key)]).await;
    }
}

#[tokio::test]
async fn keys_of_different_alternatives_are_never_equal() {
    let both = |value: &str| {
        let mut request = with("x-api-key", value);
        let peer = PeerAddr(address("192.0.2.1:1"));
        request.extensions_mut().insert(peer);
        request
    };
    let key = || extract::header("x-api-key").readable();
    let requests = [
        // A key that reads like an address is no address.
        (both("192.0.2.1"), first(Key::new("192.0.2.1"))),
        (from_peer("192.0.2.1:1"), second(ip("192.0.2.1"))),
        // An empty one is none.
        (both(""), second(ip("192.0.2.1"))),
    ];
    each_counts_as(key().or_else(extract::peer()), requests).await;
    // Nor is a third's a second's, however they are grouped.
    let [a, b, c] = ["x-a", "x-b", "x-c"].map(extract::header);
    let same = Key::new("same");
    let third = Key::tuple([Key::new("3"), same]);
    let flat = a.clone().or_else(b.clone()).or_else(c.clone());
    let last = a.clone().or_else(b.clone().or_else(c.clone()));
    let inner = arc(a.or_else(b)).or_else(c);
    for (choice, keys) in [
        (arc(flat), [first(same), second(same), third]),
        (
            arc(last),
            [first(same), second(first(same)), second(second(same))],
        ),
        (
            arc(inner),
            [first(first(same)), first(second(same)), second(same)],
        ),
    ] {
        let requests = ["x-a", "x-b", "x-c"].map(|name| with(name, "same"));
        each_counts_as(choice, requests.into_iter().zip(keys)).await;
    }
    // A request with neither is handled as the last extractor says. Without an address: one bucket. Without a header: rejected.
    let layer = counted_by(key().or_else(extract::peer()));
    assert_eq!(status(&hello(&layer), "/").await, 200);
    assert_eq!(count(&layer, Key::missing()).await, 1);
    has_no_key(extract::peer().or_else(key()), to("/")).await;
}

#[tokio::test]
async fn a_credential_has_one_bucket_in_either_of_two_headers() {
    let either = || extract::header("x-api-key").or_same(extract::bearer());
    let key = Key::secret("sk_1");
    let token = with("authorization", "Bearer sk_1");
    each_counts_as(either(), [(with("x-api-key", "sk_1"), key), (token, key)]).await;
    // The first of both is used.
    let request = Request::get("/").header("x-api-key", "sk_1");
    let request = empty(request.header("authorization", "Bearer sk_2"));
    each_counts_as(either(), [(request, key)]).await;
    assert_eq!(either().key_from_text(&["sk_1"]), Some(key));
    let lacks = send(&hello(&counted_by(either())), to("/")).await;
    assert_eq!(lacks.status, 400);
    assert_contains(lacks.detail(), ["x-api-key", " or ", "uthorization"]);
    let address = extract::header("x-api-key").or_same(extract::peer());
    assert_eq!(address.on_missing_key(), MissingKey::Shared);
    let global = extract::global().or_same(extract::bearer());
    assert_eq!(global.fixed_key(), Some(Key::global()));
    let invalid = extract::bearer().or_same(extract::header("a b"));
    assert!(invalid.validate().is_err());
}

/// The same text, in a request and by hand.
#[test]
fn a_policy_handle_builds_the_key_of_a_request_with_the_same_text() {
    let with = |name: &str, value: &str| head(Request::get("/").header(name, value));
    let at = |uri: &str| head(Request::get(uri));
    let from = |peer: &str| {
        let peer: SocketAddr = format!("{peer}:1").parse().expect("an address");
        head(Request::get("/").extension(PeerAddr(peer)))
    };
    let (tenant, secret) = (|| extract::header("x-tenant"), || extract::header("x-key"));
    let of_hash = arc(extract::bearer().hash_key([7; 32]));
    let token = || with("authorization", "Bearer  sk_1 ");
    let network = arc(extract::peer().ipv4_prefix(24));
    let large = arc(extract::client_ip().ipv6_prefix(48));
    let choice = || secret().or_else(extract::peer());
    let both = head(
        Request::get("/")
            .header("x-tenant", "acme")
            .header("x-key", "sk_1"),
    );
    #[rustfmt::skip]
    let rows = [
        (arc(tenant()), with("x-tenant", "acme"), &["acme"][..]),
        (arc(secret()), with("x-key", "sk_1"), &["sk_1"]),
        (arc(extract::bearer()), token(), &[" sk_1 "]),
        (of_hash, token(), &["sk_1"]),
        (arc(extract::cookie("id")), with("cookie", "a=b; id= 1 ;c=d"), &[" 1 "]),
        (arc(extract::query("q")), at("/?q=a+b%C3%A9"), &["a bé"]),
        (arc(extract::host()), with("host", "example.com.:80"), &["Example.COM"]),
        (arc(extract::grpc_method()), at("/a.B/C"), &["a.B/C"]),
        (arc(extract::peer()), from("[2001:db8::1]"), &["2001:db8::2"]),
        (network, from("192.0.2.1"), &["192.0.2.9"]),
        (large, from("[2001:db8::1]"), &["2001:db8:0:1::1"]),
        (arc((tenant(), secret())), both, &["acme", "sk_1"]),
        (arc(choice()), with("x-key", "sk_1"), &["1", "sk_1"]),
        (arc(choice()), from("192.0.2.1"), &["2", "192.0.2.1"]),
    ];
    let handle = |extractor| {
        let policy = Policy::new("p", quota("1/h")).key(extractor);
        limiter([policy]).policy("p").expect("a policy")
    };
    for (extractor, parts, texts) in rows {
        let name = format!("{extractor:?} {texts:?}");
        let found = extractor.extract(&parts).key();
        assert!(found.is_some(), "{name}");
        let handle = handle(extractor);
        assert_eq!(handle.keys(texts.iter().copied()), found, "{name}");
        let none = handle.key("").or(handle.keys([texts[0]; 3]));
        assert_eq!(none, None, "{name}");
    }
    assert_eq!(
        handle(arc(extract::global())).keys([""; 0]),
        Some(Key::global())
    );
    // No request has such texts there.
    for (extractor, text) in [
        (arc(extract::peer()), "no address"),
        (arc((tenant(), secret())), "acme"),
        (arc(extract::from_fn(|_| None)), "alice"),
        (arc(extract::host()), "a@b"),
        (arc(extract::grpc_method()), "a.B"),
    ] {
        assert_eq!(handle(extractor).key(text), None, "{text}");
    }
}
