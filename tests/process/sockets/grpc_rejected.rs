//! What a gRPC client learns from a rejection, by a real client and on the wire.

use axum::extract::State;
use http_body_util::BodyExt;
use tollgate::access::AccessList;
use tonic::{Code, Status, body::Body, transport::Channel};
use tonic_types::{QuotaViolation, StatusExt};

use crate::sockets::{
    grpc::{
        BIDI, CLIENT_STREAMING, Client, Host, SERVER_STREAMING, UNARY, channel, client_of, one,
        router, serve, word_channel,
    },
    support::*,
};

/// Calls a method of each kind.
async fn call_all(client: &mut Client) -> [Result<(), Status>; 4] {
    // A stream that is still open on the client's side is rejected too.
    let (_say, open) = word_channel();
    [
        client.open(UNARY, one("word")).await.map(drop),
        client.open(SERVER_STREAMING, one("word")).await.map(drop),
        client.open(CLIENT_STREAMING, one("word")).await.map(drop),
        client.open(BIDI, tonic::Request::new(open)).await.map(drop),
    ]
}

fn pushback(status: &Status) -> Option<&str> {
    let value = status.metadata().get("grpc-retry-pushback-ms")?;
    Some(value.to_str().expect("ASCII"))
}

fn violations(status: &Status) -> Vec<QuotaViolation> {
    let failure = status.get_details_quota_failure();
    failure.map_or_else(Vec::new, |failure| failure.violations)
}

fn retry_delay(status: &Status) -> Option<Duration> {
    status.get_details_retry_info()?.retry_delay
}

#[tokio::test]
async fn a_call_of_any_kind_is_rejected_with_all_details() {
    for (host, world) in Host::on_both_stores() {
        let wide = Policy::new("wide", quota("100/h")).key(extract::global());
        // `%` has to be encoded in a message.
        let limiter = world.limiter([hourly("50% off", 4), wide]);
        let mut client = client_of(host, &limiter).await;
        for response in call_all(&mut client).await {
            response.expect("admitted");
        }
        for response in call_all(&mut client).await {
            let status = response.expect_err("rejected");
            let name = world.name();
            assert_eq!(status.code(), Code::ResourceExhausted, "{host:?} {name}");
            assert!(status.message().contains("Exceeded: 50% off."), "{status}");
            assert!(status.message().contains("3600 seconds"), "{status}");
            assert_eq!(retry_delay(&status), Some(secs(3_600)));
            assert_eq!(pushback(&status), Some("3600000"));
            let violations = violations(&status);
            assert_eq!(violations.len(), 1, "{violations:?}");
            assert_eq!(violations[0].subject, "50% off");
            assert_eq!(violations[0].description, "quota exceeded: 4/h");
            assert_eq!(violations[0].quota_id, "50% off");
            assert_eq!(violations[0].quota_value, 4);
            // The fields of HTTP are metadata.
            let limit = status.metadata().get("ratelimit").expect("a limit");
            let limit = limit.to_str().expect("ASCII");
            let start = r#""50% off";r=0;t=3600, "wide";r=96"#;
            assert!(limit.starts_with(start), "{limit}");
            let retry_after = status.metadata().get("retry-after");
            assert_eq!(retry_after.expect("a time"), "3600");
        }
        assert_eq!(used(&limiter, "wide").await, 4, "a rejection costs nothing");
    }
}

#[tokio::test]
async fn a_retry_is_admitted_after_its_pushback_and_not_a_microsecond_earlier() {
    for (host, world) in Host::on_both_stores() {
        let evenly = Policy::new("evenly", quota("7/min burst 1"));
        let limiter = world.limiter([evenly.key(extract::global())]);
        let mut client = client_of(host, &limiter).await;
        client.unary("word").await.expect("admitted");
        let status = client.unary("word").await.expect_err("rejected");
        let wait = retry_delay(&status).expect("a delay");
        let ms: u64 = pushback(&status).expect("a pushback").parse().expect("ms");
        // Rounded up by less than a millisecond.
        assert!(Duration::from_millis(ms) >= wait, "{ms} {wait:?}");
        assert!(Duration::from_millis(ms - 1) < wait, "{ms} {wait:?}");
        world.advance(wait - Duration::from_micros(1));
        client.unary("word").await.expect_err("too early");
        world.advance(Duration::from_micros(1));
        client.unary("word").await.expect("in time");
    }
}

#[tokio::test]
async fn a_wait_that_the_pushback_cannot_hold_and_one_without_end_have_a_pushback_not_to_retry() {
    let rare = Policy::new("rare", quota("1/90d"));
    let rare = rare.strategy(FixedWindow).key(extract::global());
    let small = hourly("small", 5).cost_with(|_| 6);
    for (policy, admitted, wait) in [(rare, 1, true), (small, 0, false)] {
        let limiter = Limiter::builder().policy(policy).built();
        let mut client = client_of(Host::Tonic, &limiter).await;
        for _ in 0..admitted {
            client.unary("word").await.expect("admitted");
        }
        let status = client.unary("word").await.expect_err("rejected");
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(pushback(&status), Some("-1"));
        assert_eq!(retry_delay(&status) > Some(secs(89 * 86_400)), wait);
        assert_eq!(retry_delay(&status).is_some(), wait);
        assert_eq!(violations(&status).len(), 1);
    }
}

/// A limiter whose store is a port without a listener, which no test gets.
fn closed() -> Limiter {
    let store = RedisStore::open("redis://127.0.0.1:1").expect("a store");
    let limiter = Limiter::builder().store(store);
    let limiter = limiter.policy(hourly("calls", 9));
    limiter.on_store_error(OnStoreError::Reject).built()
}

/// A limiter that denies this list.
fn denying(list: impl Into<AccessList>) -> Limiter {
    Limiter::builder()
        .policy(hourly("calls", 9))
        .deny(list)
        .built()
}

/// Clients learn no more than that: neither the store's address and what is wrong with it, nor how a denied key stands.
#[tokio::test]
async fn other_rejections_have_codes_and_texts_of_their_own() {
    let tenants = hourly("tenants", 9).key(extract::header("x-tenant"));
    let keyless = Limiter::builder().policy(tenants.missing_key(MissingKey::Reject));
    let down = "Request cannot be satisfied due to temporary server capacity constraints. Try again in a second.";
    let lacks = "The request lacks the header x-tenant.";
    let by_key = denying(KeyList::new("calls", [Key::global()]));
    for (limiter, code, message, wait) in [
        (closed(), Code::Unavailable, down, Some(secs(1))),
        (keyless.built(), Code::InvalidArgument, lacks, None),
        (by_key, Code::PermissionDenied, "Forbidden.", None),
    ] {
        for host in Host::ALL {
            let mut client = client_of(host, &limiter).await;
            for response in call_all(&mut client).await {
                let status = response.expect_err("rejected");
                assert_eq!((status.code(), status.message()), (code, message));
                assert_eq!(retry_delay(&status), wait);
                assert_eq!(pushback(&status), wait.map(|_| "1000"));
                assert!(violations(&status).is_empty());
                for field in ["ratelimit", "ratelimit-policy"] {
                    assert!(!status.metadata().contains_key(field), "{field}");
                }
            }
        }
    }
    // By the address of tonic's connection.
    for (list, is_denied) in [("127.0.0.0/8", true), ("192.0.2.0/24", false)] {
        let limiter = denying(AddressList::new([list]).expect("a list"));
        let mut client = client_of(Host::Tonic, &limiter).await;
        let denied = client.unary("word").await.err();
        let code = is_denied.then_some(Code::PermissionDenied);
        assert_eq!(denied.map(|status| status.code()), code);
    }
}

/// A handler's rejection as tonic's status.
#[tokio::test]
async fn a_handlers_rejection_becomes_the_same_status_as_the_layers() {
    let used_up = Limiter::builder().policy(hourly("calls", 1)).built();
    let mut client = client_of(Host::Tonic, &used_up).await;
    client.unary("word").await.expect("admitted");
    for limiter in [
        used_up,
        closed(),
        denying(KeyList::new("calls", [Key::global()])),
    ] {
        let mut client = client_of(Host::Tonic, &limiter).await;
        let layers = client.unary("word").await.expect_err("rejected");
        let rejected = limiter.admit(Key::global()).await;
        let status = Status::from(rejected.expect_err("rejected"));
        assert_eq!(status.code(), layers.code());
        let subjects = |status| violations(status).into_iter().map(|it| it.subject);
        assert!(subjects(&status).eq(subjects(&layers)));
        assert!(retry_delay(&status) <= retry_delay(&layers));
        assert_eq!(pushback(&status).is_some(), pushback(&layers).is_some());
        assert!(!status.message().contains("127.0.0.1"), "{status:?}");
        let source = std::error::Error::source(&status).expect("a source");
        assert!(source.downcast_ref::<Rejected>().is_some());
    }
}

/// A response as it comes over the wire.
struct Raw {
    status: StatusCode,
    headers: HeaderMap,
    /// Whether the head is all there is.
    trailers_only: bool,
    body: Vec<u8>,
}

async fn raw(channel: &mut Channel, method: Method, path: &str, headers: &[(&str, &str)]) -> Raw {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).expect("a request");
    let service = channel.ready().await.expect("a connection");
    let response = service.call(request).await.expect("a response");
    let (head, body) = response.into_parts();
    Raw {
        status: head.status,
        headers: head.headers,
        trailers_only: http_body::Body::is_end_stream(&body),
        body: body.collect().await.expect("a body").to_bytes().to_vec(),
    }
}

const GRPC: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];

#[tokio::test]
async fn a_rejection_is_trailers_only_on_the_wire() {
    // A quota of one digit more is a detail of one byte more: each length that base64 could pad.
    for (host, quota) in [(Host::Tonic, 1), (Host::Axum, 10), (Host::Tonic, 100)] {
        let limiter =
            Limiter::builder().policy(hourly("none left", quota).cost_with(move |_| quota + 1));
        let layer = RateLimitLayer::new(limiter.built());
        let mut channel = channel(host.serve(layer).await).await;
        for path in [
            UNARY,
            SERVER_STREAMING,
            CLIENT_STREAMING,
            BIDI,
            "/no.Service/At",
        ] {
            let response = raw(&mut channel, Method::POST, path, &GRPC).await;
            assert_eq!(response.status, 200);
            assert!(response.trailers_only, "{host:?} {path}");
            assert!(response.body.is_empty());
            for (name, value) in [
                ("content-type", "application/grpc"),
                ("grpc-status", "8"),
                ("grpc-retry-pushback-ms", "-1"),
            ] {
                let values = response.headers.get_all(name).iter();
                assert_eq!(values.collect::<Vec<_>>(), [value], "{host:?} {name}");
            }
            for name in ["grpc-message", "grpc-status-details-bin"] {
                assert_eq!(response.headers.get_all(name).iter().count(), 1, "{name}");
            }
            let details = response.headers["grpc-status-details-bin"].as_bytes();
            assert!(!details.contains(&b'='), "binary metadata is not padded");
        }
    }
}

async fn checked(State(limiter): State<Limiter>) -> Result<&'static str, Rejected> {
    let _ = limiter.admit(Key::global()).await?;
    Ok("hello")
}

#[tokio::test]
async fn http_and_grpc_on_one_port_each_get_their_own_kind_of_rejection() {
    let limiter = Limiter::builder().policy(hourly("both", 2)).built();
    let web = Router::new().route("/", get(async || "hello"));
    let layer = RateLimitLayer::new(limiter.clone());
    let address = serve(router().merge(web).layer(layer)).await;
    let mut client = Client::connect(address).await;
    let mut wire = channel(address).await;

    client.unary("word").await.expect("admitted");
    let page = raw(&mut wire, Method::GET, "/", &[]).await;
    assert_eq!((page.status, &*page.body), (StatusCode::OK, &b"hello"[..]));

    let status = client.unary("word").await.expect_err("rejected");
    assert_eq!(status.code(), Code::ResourceExhausted);
    for headers in [&[][..], &GRPC[..], &[("content-type", "application/json")]] {
        // Whatever its content type, a GET is no gRPC call: caches may keep a response of 200 to it.
        let page = raw(&mut wire, Method::GET, "/", headers).await;
        assert_eq!(page.status, 429);
        assert_eq!(page.headers["content-type"], "application/problem+json");
        assert!(!page.headers.contains_key("grpc-status"));
    }
    let text = [("content-type", "text/plain")];
    let post = raw(&mut wire, Method::POST, "/", &text).await;
    assert_eq!(post.status, 429);

    // A handler's own rejection is an HTTP response.
    let app = Router::new().route("/", get(checked)).with_state(limiter);
    let mut wire = channel(serve(app).await).await;
    let page = raw(&mut wire, Method::GET, "/", &[]).await;
    assert_eq!(page.status, 429);
}
