//! Values of a request as keys: cookies, query parameters, hosts, gRPC names, paths and routes.

use crate::http::{extractors::*, support::*};

#[tokio::test]
async fn a_cookie_counts_by_the_hash_of_its_value() {
    let session = Key::secret("31d4d96e407aad42");
    #[rustfmt::skip]
    let values = [
        // RFC 6265, section 4.2.1 and 3.1.
        (&b"SID=31d4d96e407aad42"[..], session),
        (b"SID=31d4d96e407aad42; lang=en-US", session),
        (b"lang=en-US;SID=31d4d96e407aad42;", session),
        (b"sid=other; XSID=other; SID = 31d4d96e407aad42 ", session),
        (b"junk; =; ;;SID=31d4d96e407aad42", session),
        (b"SID=a=b==", Key::secret("a=b==")),
        // Some frameworks drop the quotes, before or after they decode the value.
        (b"SID=\"31d4d96e407aad42\"", session),
        (b"SID=%2231d4d96e407aad42%22", session),
        (b"SID=\"", Key::secret("\"")),
        (b"S%49D=%331d4d96e407aad42", session),
        (b"SID=100%", Key::secret("100%")),
        (b"SID=\xff\xfe", Key::secret(b"\xff\xfe")),
    ];
    each_value_counts_as(extract::cookie("SID"), "cookie", values).await;
    for none in "|SID|SID=|sid=x|SID=; SID=second|a=SID=b|XSID=x".split('|') {
        has_no_key(extract::cookie("SID"), with("cookie", none)).await;
    }
    has_no_key(extract::cookie("SID"), to("/")).await;
}

#[tokio::test]
async fn a_query_parameter_counts_by_its_decoded_value() {
    let requests = [
        (to("/?a%20name=alice"), Key::new("alice")),
        (to("/x?a=b&a+name=%61lice"), Key::new("alice")),
        (to("/?&&=&a+name=a+b%26c%3D"), Key::new("a b&c=")),
        (to("/?a+name=a=b"), Key::new("a=b")),
        (to("/?a+name=%ff"), Key::new("\u{fffd}")),
        (to("/?a+name=%zz%"), Key::new("%zz%")),
        (to("/?a+name=%C3%A9"), Key::new("\u{e9}")),
    ];
    each_counts_as(extract::query("a name"), requests).await;
    let requests = [(to("/?q=alice"), Key::secret("alice"))];
    each_counts_as(extract::query("q").secret(), requests).await;
    let nones = "/ /? /?key /?key= /?key=&key=second /?Key=x /key=x";
    for none in nones.split(' ') {
        has_no_key(extract::query("key"), to(none)).await;
    }
}

#[tokio::test]
async fn a_query_parameter_is_found_in_a_nested_router() {
    let layer = counted_by(extract::query("key"));
    let app = nested(&layer, true);
    assert_eq!(status(&app, "/api/users/1?key=alice").await, 200);
    assert_eq!(count(&layer, Key::secret("alice")).await, 1);
}

#[tokio::test]
async fn a_host_counts_by_its_name_in_lower_case_without_its_port() {
    let a = Key::new("a.example");
    #[rustfmt::skip]
    let values = [
        ("a.example", a),
        ("A.Example:8080", a),
        ("a.example.", a),
        ("a.example.:80", a),
        ("192.0.2.1:80", Key::new("192.0.2.1")),
        ("[2001:DB8::1]:80", Key::new("[2001:db8::1]")),
    ];
    each_value_counts_as(extract::host(), "host", values).await;
    // HTTP/2's :authority, and the absolute form, beside a Host header.
    let absolute = Request::get("http://user@A.example:81/path").header("host", "a.example");
    let requests = [(to("https://a.example/path"), a), (empty(absolute), a)];
    each_counts_as(extract::host(), requests).await;
    let connect = head(Request::connect("a.example:443"));
    assert_eq!(extract::host().extract(&connect).key(), Some(a));
    for none in "|.|:80|a@b|a b|a/b|a.example:80:80|[::1".split('|') {
        has_no_key(extract::host(), with("host", none)).await;
    }
    has_no_key(extract::host(), with("host", b"\xff")).await;
    has_no_key(extract::host(), to("/")).await;
    has_no_key(extract::host(), lines("host", &["a.example", "b.example"])).await;
    // Nor is it what a proxy sends, or a client that poses as one.
    has_no_key(extract::host(), with("x-forwarded-host", "a.example")).await;
}

#[tokio::test]
async fn a_grpc_call_counts_by_its_service_or_its_method() {
    let call = "/helloworld.Greeter/SayHello";
    let [service, method] = ["helloworld.Greeter", "helloworld.Greeter/SayHello"].map(Key::new);
    let requests = [
        (to(call), service),
        (to("/helloworld.Greeter/SayGoodbye"), service),
        (to(&format!("http://a.example{call}")), service),
        (to(&format!("/prefix{call}")), service),
        (to("/Plain/M"), Key::new("Plain")),
    ];
    each_counts_as(extract::grpc_service(), requests).await;
    let requests = [(to(call), method), (to(&format!("/prefix{call}")), method)];
    each_counts_as(extract::grpc_method(), requests).await;
    for none in ["/", "/a", "/a/", "//", "//a", "/a//"] {
        has_no_key(extract::grpc_service(), to(none)).await;
        has_no_key(extract::grpc_method(), to(none)).await;
    }
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
async fn a_path_is_the_one_that_the_client_sent_inside_and_outside_a_nested_router() {
    let layer = counted_by(extract::path());
    for inside in [true, false] {
        let app = nested(&layer, inside);
        assert_eq!(status(&app, "/api/users/1?page=2").await, 200);
        assert_eq!(status(&app, "/api/users/1").await, 200);
    }
    let twice = Router::new().nest_service("/inner", nested(&layer, true));
    let twice = Router::new().nest("/v1", twice);
    assert_eq!(status(&twice, "/v1/inner/api/users/1").await, 200);
    // Without axum too.
    let around = layer.layer(Router::new().fallback(async || "a fallback"));
    assert_eq!(status(&around, "/a/path").await, 200);
    let once = ["/v1/inner/api/users/1", "/a/path"].map(|path| (path, 1));
    for (path, times) in [("/api/users/1", 4), ("/users/1", 0)]
        .into_iter()
        .chain(once)
    {
        assert_eq!(count(&layer, Key::new(path)).await, times, "{path}");
    }
}

#[tokio::test]
async fn a_matched_path_is_the_route_whatever_its_parameters() {
    for inside in [true, false] {
        let layer = counted_by(extract::matched_path());
        let app = nested(&layer, inside);
        for uri in ["/api/users/1", "/api/users/2", "/api/users/3?x"] {
            assert_eq!(status(&app, uri).await, 200, "{uri}");
        }
        assert_eq!(count(&layer, Key::new("/api/users/{id}")).await, 3);
    }
}

#[tokio::test]
async fn requests_that_match_no_route_share_one_bucket() {
    // Also in a nested router with a layer of its own.
    for is_nested in [false, true] {
        let layer = counted_by(extract::matched_path());
        let app = match is_nested {
            true => nested(&layer, true),
            false => hello(&layer),
        };
        for uri in ["/api/a", "/api/b", "/api/c"] {
            assert_eq!(status(&app, uri).await, 404, "{uri}");
        }
        assert_eq!(count(&layer, Key::new("")).await, 3);
        assert_eq!(count(&layer, Key::new("/")).await, 0);
    }
}
