//! Values of a request as keys: cookies, query parameters, hosts, gRPC names.

use crate::http::{extractors::*, support::*};

#[tokio::test]
async fn a_cookie_counts_by_the_hash_of_its_value() {
    let session = || Key::secret("31d4d96e407aad42");
    let line = |value: &str| with("cookie", value);
    let requests = [
        // RFC 6265, section 4.2.1 and 3.1.
        (line("SID=31d4d96e407aad42"), session()),
        (line("SID=31d4d96e407aad42; lang=en-US"), session()),
        (line("lang=en-US;SID=31d4d96e407aad42;"), session()),
        (
            line("sid=other; XSID=other; SID = 31d4d96e407aad42 "),
            session(),
        ),
        (line("junk; =; ;;SID=31d4d96e407aad42"), session()),
        (line("SID=a=b=="), Key::secret("a=b==")),
        // Some frameworks drop the quotes, before or after they decode the value.
        (line("SID=\"31d4d96e407aad42\""), session()),
        (line("SID=%2231d4d96e407aad42%22"), session()),
        (line("SID=\""), Key::secret("\"")),
        (line("S%49D=%331d4d96e407aad42"), session()),
        (line("SID=100%"), Key::secret("100%")),
        (with("cookie", b"SID=\xff\xfe"), Key::secret(b"\xff\xfe")),
        // HTTP/2 splits it into lines.
        (
            lines("cookie", &["lang=en-US", "SID=31d4d96e407aad42"]),
            session(),
        ),
    ];
    each_counts_as(extract::cookie("SID"), requests).await;
    for none in [
        "",
        "SID",
        "SID=",
        "sid=x",
        "SID=; SID=second",
        "a=SID=b",
        "XSID=x",
    ] {
        has_no_key(extract::cookie("SID"), line(none)).await;
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
    let inner = Router::new()
        .route("/x", get(async || ""))
        .layer(layer.clone());
    let app = Router::new().nest("/api", inner);
    assert_eq!(status(&app, "/api/x?key=alice").await, 200);
    assert_eq!(count(&layer, Key::secret("alice")).await, 1);
}

#[tokio::test]
async fn a_host_counts_by_its_name_in_lower_case_without_its_port() {
    let (a, line) = (|| Key::new("a.example"), |value: &str| with("host", value));
    let mut absolute = to("http://user@A.example:81/path");
    absolute
        .headers_mut()
        .insert("host", http::HeaderValue::from_static("a.example"));
    let mut connect = to("a.example:443");
    *connect.method_mut() = http::Method::CONNECT;
    let requests = [
        (line("a.example"), a()),
        (line("A.Example:8080"), a()),
        (line("a.example."), a()),
        (line("a.example.:80"), a()),
        (line("192.0.2.1:80"), Key::new("192.0.2.1")),
        (line("[2001:DB8::1]:80"), Key::new("[2001:db8::1]")),
        // HTTP/2's :authority, and the absolute form, beside a Host header.
        (to("https://a.example/path"), a()),
        (absolute, a()),
    ];
    each_counts_as(extract::host(), requests).await;
    use tollgate::KeyExtractor;
    assert_eq!(
        extract::host().extract(&connect.into_parts().0).key(),
        Some(a())
    );
    for none in [
        "",
        ".",
        ":80",
        "a@b",
        "a b",
        "a/b",
        "a.example:80:80",
        "[::1",
    ] {
        has_no_key(extract::host(), line(none)).await;
    }
    has_no_key(extract::host(), with("host", b"\xff")).await;
    has_no_key(extract::host(), to("/")).await;
    has_no_key(extract::host(), lines("host", &["a.example", "b.example"])).await;
    // Nor is it what a proxy sends, or a client that poses as one.
    has_no_key(extract::host(), with("x-forwarded-host", "a.example")).await;
}

#[tokio::test]
async fn a_grpc_call_counts_by_its_service_or_its_method() {
    let (call, service) = (
        "/helloworld.Greeter/SayHello",
        Key::new("helloworld.Greeter"),
    );
    let requests = [
        (to(call), service),
        (to("/helloworld.Greeter/SayGoodbye"), service),
        (to("http://a.example/helloworld.Greeter/SayHello"), service),
        (to("/prefix/helloworld.Greeter/SayHello"), service),
        (to("/Plain/M"), Key::new("Plain")),
    ];
    each_counts_as(extract::grpc_service(), requests).await;
    let requests = [
        (to(call), Key::new("helloworld.Greeter/SayHello")),
        (
            to("/prefix/helloworld.Greeter/SayHello"),
            Key::new("helloworld.Greeter/SayHello"),
        ),
    ];
    each_counts_as(extract::grpc_method(), requests).await;
    for none in ["/", "/a", "/a/", "//", "//a", "/a//"] {
        has_no_key(extract::grpc_service(), to(none)).await;
        has_no_key(extract::grpc_method(), to(none)).await;
    }
}

#[test]
fn impossible_names_of_extractors_are_config_errors() {
    let policy = || Policy::new("p", quota("1/s"));
    for (policy, valid) in [
        (policy().key(extract::cookie("")), "a token of RFC 6265"),
        (policy().key(extract::cookie("a b")), "a token of RFC 6265"),
        (policy().key(extract::cookie("a=b")), "a token of RFC 6265"),
        (
            policy().key(extract::cookie("\u{e9}")),
            "a token of RFC 6265",
        ),
        (policy().key(extract::query("")), "a parameter's name"),
    ] {
        let error = Limiter::builder()
            .policy(policy)
            .build()
            .expect_err("a mistake");
        assert_eq!(error.policy(), Some("p"));
        assert!(error.expected().contains(valid), "{error}");
    }
    for name in ["__Host-SID", "a.b", "!#$%&'*+-.^_`|~"] {
        let policy = policy().key(extract::cookie(name));
        assert!(Limiter::builder().policy(policy).build().is_ok());
    }
}
