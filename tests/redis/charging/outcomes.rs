//! What a request is charged by its outcome, however it ends, and when that is evaluated.

use std::{future::pending, io};

use http_body::Body as _;
use http_body_util::Full;
use tokio::{
    net::TcpListener,
    sync::{Notify, mpsc},
};
use tollgate::outcome::{Outcome, RequestEnd};
use tollgate_tests::{plain_http, prelude::*};

use crate::charging::support::*;

type OutcomeFn = fn(&Outcome<'_>) -> bool;

/// The policy under both modes that go by the outcome.
pub(crate) fn both_modes(
    policy: &Policy,
    outcome: impl Fn(&Outcome<'_>) -> bool + Clone + Send + Sync + 'static,
) -> [Policy; 2] {
    let charges = policy.clone().charge_after(outcome.clone());
    [charges, policy.clone().refund_unless(outcome)]
}

async fn charged(layer: &RateLimitLayer) -> u64 {
    used(layer.limiter(), "p").await
}

/// The outcome is not known: it is charged whatever it would have been, unless the policy says otherwise.
const UNKNOWN: &str = "unknown";

/// What a handler does, and what becomes of its response; how its outcome describes that, and the outcomes that it is charged by.
///
/// A response has a status or is one of gRPC (`=7` with a code in its head). Its body is a text, `empty`, or a stream of `nothing`
/// or of pieces: `data`, `broken`, and a number, which is the code in its trailers.
const ENDS: [&str; 28] = [
    "200, read: Completed 200, success",
    "404, read: Completed 404, failure client_error",
    "503, read: Completed 503, failure server_error",
    "200 data broken data, read: BodyFailed 200, failure",
    "200 data data, cut: BodyDropped 200, success",
    // HTTP/2 servers read no further than to the trailers, whatever the body reports of its end.
    "200 data 0, trailers: Completed 200 grpc 0, success",
    "error: ServiceFailed, failure server_error",
    "panic: unknown",
    "panic at once: unknown",
    // Its client disconnects.
    "never: unknown",
    // Servers poll no body that is at its end.
    "200 empty, unread: Completed 200, success",
    "204 empty, unread: Completed 204, success",
    "304 empty, unread: Completed 304, success",
    "HEAD 502 empty, unread: Completed 502, failure server_error",
    // Nor one that such a response never has.
    "204 nothing, unread: Completed 204, success",
    "304 nothing, unread: Completed 304, success",
    "HEAD 200 data, unread: Completed 200, success",
    // A tunnel, or a WebSocket over HTTP/2; one that is rejected may have a body.
    "CONNECT 200 nothing, unread: Completed 200, success",
    "CONNECT 403 nothing, unread: BodyDropped 403, failure client_error",
    "grpc data 0, read: Completed 200 grpc 0, success",
    "grpc 0, read: Completed 200 grpc 0, success",
    "grpc data data 14, read: Completed 200 grpc 14, failure",
    "grpc=0 nothing, read: Completed 200 grpc 0, success",
    "grpc=7 nothing, read: Completed 200 grpc 7, failure",
    "grpc data, read: Completed 200, failure",
    "grpc data broken, read: BodyFailed 200, failure",
    "grpc data data 0, cut: unknown",
    "grpc data data 0, unread: unknown",
];

/// The parts of a row.
fn parts(row: &'static str) -> [&'static str; 4] {
    let (what, seen) = row.split_once(": ").expect(row);
    let (what, reading) = what.split_once(", ").unwrap_or((what, ""));
    let (seen, charges) = seen.split_once(", ").unwrap_or((seen, ""));
    [what, reading, seen, charges]
}

fn response(what: &'static str) -> Response<PiecesBody> {
    let (head, body) = what.split_once(' ').unwrap_or((what, "text"));
    let piece = |piece: &'static str| match piece {
        "data" => data(),
        "broken" => broken(),
        number => code(number),
    };
    let mut response = match body {
        "text" => text(200),
        "empty" => Response::new(
            Full::default()
                .map_err(|never| match never {})
                .boxed_unsync(),
        ),
        "nothing" => streamed(Vec::new()),
        pieces => streamed(pieces.split(' ').map(piece).collect()),
    };
    let Some(code) = head.strip_prefix("grpc") else {
        *response.status_mut() = head.parse().expect("a status");
        return response;
    };
    let content_type = HeaderValue::from_static("application/grpc");
    let headers = response.headers_mut();
    headers.insert("content-type", content_type);
    if let Some(code) = code.strip_prefix('=') {
        headers.insert("grpc-status", HeaderValue::from_static(code));
    }
    response
}

/// Sends a request that ends as a row of [`ENDS`] says.
async fn end(layer: RateLimitLayer, what: &'static str, reading: &'static str) {
    let (method, what) = match what.split_once(' ') {
        Some((method @ ("HEAD" | "CONNECT"), what)) => (method, what),
        _ => ("GET", what),
    };
    let mut request = request();
    *request.method_mut() = method.parse().expect("a method");
    let begun = Arc::new(Notify::new());
    let begins = begun.clone();
    let handler = move |_| {
        assert_ne!(what, "panic at once", "on purpose");
        begins.notify_one();
        async move {
            match what {
                "panic" => panic!("on purpose"),
                "never" => pending().await,
                "error" => Err(io::Error::other("down")),
                what => Ok(response(what)),
            }
        }
    };
    let answer = tokio::select! {
        answer = call(&layer, request, handler) => answer,
        () = begun.notified(), if what == "never" => return,
    };
    let Ok(answer) = answer else { return };
    if reading == "read" {
        return drop(read(answer).await);
    }
    let mut body = answer.into_body();
    assert!(body.is_end_stream() || !what.ends_with("empty"));
    if reading == "unread" {
        return;
    }
    loop {
        let frame = body.frame().await.expect("a frame").expect("no error");
        if reading == "cut" || frame.is_trailers() {
            break;
        }
    }
    assert!(!body.is_end_stream());
}

#[tokio::test]
async fn a_request_is_charged_by_its_outcome_however_it_ends() {
    let outcomes: [(&str, OutcomeFn); 4] = [
        ("success", outcome::success),
        ("failure", outcome::failure),
        ("client_error", outcome::client_error),
        ("server_error", outcome::server_error),
    ];
    for world in World::both() {
        for ((name, outcome), is_free) in outcomes
            .into_iter()
            .flat_map(|one| [(one, false), (one, true)])
        {
            for policy in both_modes(&window("p", "5/min"), outcome) {
                let policy = match is_free {
                    true => policy.charge_dropped(false),
                    false => policy,
                };
                let layer = world.layer([policy.clone()]);
                for row in ENDS {
                    let _case = Case(format!("{row:?} by {name}, {policy:?}"));
                    let [what, reading, seen, charges] = parts(row);
                    let is_charged = match seen {
                        UNKNOWN => !is_free,
                        _ => charges.split(' ').any(|charges| charges == name),
                    };
                    forget(&layer).await;
                    let ended = tokio::spawn(end(layer.clone(), what, reading)).await;
                    assert_eq!(ended.is_err(), what.starts_with("panic"));
                    assert_eq!(charged(&layer).await, u64::from(is_charged));
                }
            }
        }
    }
}

fn described(outcome: &Outcome<'_>) -> String {
    let status = outcome
        .status()
        .map(|status| format!(" {}", status.as_u16()));
    let code = outcome.grpc_status().map(|code| format!(" grpc {code}"));
    let [status, code] = [status, code].map(Option::unwrap_or_default);
    format!("{:?}{status}{code}", outcome.end())
}

#[tokio::test]
async fn an_outcome_has_the_status_the_code_and_the_end_and_is_evaluated_once() {
    let (describe, mut described) = mpsc::unbounded_channel();
    let layer = World::memory().layer([window("p", "5/min")
        .charge_after(move |outcome| describe.send(self::described(outcome)).is_ok())]);
    for row in ENDS {
        let [what, reading, expected, _] = parts(row);
        forget(&layer).await;
        let _ = tokio::spawn(end(layer.clone(), what, reading)).await;
        let seen = described.try_recv().unwrap_or(UNKNOWN.to_owned());
        assert_eq!(seen, expected, "{row}");
        assert!(described.try_recv().is_err(), "{row}");
    }
}

#[tokio::test]
async fn an_outcome_is_evaluated_only_when_the_stream_has_ended() {
    for world in World::both() {
        let evaluations = Arc::new(AtomicU64::new(0));
        let evaluated = evaluations.clone();
        let outcome = move |_: &Outcome<'_>| evaluated.fetch_add(1, Ordering::Relaxed) == 0;
        let layer = world.layer([window("p", "5/min").charge_after(outcome)]);
        let response = respond(&layer, response("grpc data data 5")).await;
        let mut body = response.into_body();
        let seen = async || (evaluations.load(Ordering::Relaxed), charged(&layer).await);
        for _ in 0..3 {
            assert_eq!(seen().await, (0, 0));
            body.frame().await.expect("a frame").expect("no error");
        }
        assert!(body.frame().await.is_none());
        assert_eq!(seen().await, (1, 1));
        drop(body);
        assert_eq!(seen().await, (1, 1));
    }
}

#[tokio::test]
async fn a_body_that_is_never_sent_keeps_its_permit_until_it_is_dropped() {
    for world in World::both() {
        for charges in [false, true] {
            let permits = Policy::new("permits", Quota::concurrent(1)).key(extract::global());
            let settled = window("p", "5/min").refund_unless(outcome::success);
            let policies = [permits, settled].into_iter();
            let layer = world.layer(policies.take(1 + usize::from(charges)));
            let head = Request::head("/").body(()).expect("a request");
            let handler = |_| async { Ok::<_, Infallible>(streamed(vec![data()])) };
            let Ok(response) = call(&layer, head, handler).await;
            assert_eq!(used(layer.limiter(), "permits").await, 1, "{charges}");
            drop(response);
            assert_eq!(used(layer.limiter(), "permits").await, 0, "{charges}");
        }
    }
}

#[tokio::test]
async fn a_charge_on_response_charges_nothing_on_arrival_and_a_reservation_at_once() {
    for world in World::both() {
        let policies = both_modes(&window("p", "8/min").cost(4), outcome::success);
        for (policy, on_arrival) in policies.into_iter().zip([0, 4]) {
            let layer = world.layer([policy]);
            forget(&layer).await;
            pass_all(&layer, [500]).await;
            assert_eq!(charged(&layer).await, 0);
            let handled = async |_| assert_eq!(charged(&layer).await, on_arrival);
            let response = serve(&layer, 200, handled).await;
            assert_eq!(
                charged(&layer).await,
                on_arrival,
                "the body is not sent yet"
            );
            read(response).await.expect("a body");
            pass_all(&layer, [200]).await;
            assert_eq!(charged(&layer).await, 8);
            let handler = |_| async { unreachable!("a rejected request has a handler") };
            let Ok(rejected) = call::<_, _, Infallible>(&layer, request(), handler).await;
            assert_eq!(rejected.status(), 429);
            assert!(rejected.headers().contains_key("retry-after"));
            read(rejected).await.expect("a body");
            assert_eq!(charged(&layer).await, 8);
        }
    }
}

#[tokio::test]
async fn a_request_that_one_policy_rejects_is_settled_under_none() {
    for world in World::both() {
        let any: OutcomeFn = |_| true;
        let layer = world.layer([
            window("response", "9/min").charge_after(any),
            window("reserve", "9/min").refund_unless(any),
            window("full", "1/min"),
        ]);
        pass_all(&layer, [200, 429, 429, 429]).await;
        let names = ["response", "reserve", "full"];
        assert_eq!(all_used(layer.limiter(), names).await, [1, 1, 1]);
    }
}

#[tokio::test]
async fn a_charge_on_response_admits_all_that_is_under_way_and_ends_in_a_debt_of_one_capacity() {
    for world in World::both() {
        let layer = world.layer([window("p", "5/min").charge_after(outcome::success)]);
        let under_way = join_all((0..64).map(|_| respond(&layer, text(200)))).await;
        for response in under_way {
            assert_eq!(read(response).await.expect("a body"), 200);
        }
        pass_all(&layer, [429]).await;
        let (wait, _) = waits(layer.limiter(), "p").await;
        assert!(wait <= secs(60), "{wait:?}");
        if let Some(server) = world.redis_server() {
            let count = server.command(&["GET", &server.only_key()]).text();
            assert_eq!(count, "10", "twice the capacity");
        }
        world.no_key_is_immortal();
        world.advance(wait + secs(1));
        pass_all(&layer, [200]).await;
    }
}

#[tokio::test]
async fn a_response_that_a_real_server_sent_in_full_is_completed() {
    let (saw, mut sees) = mpsc::unbounded_channel();
    let policy = window("p", "50/min").charge_after(move |outcome| saw.send(outcome.end()).is_ok());
    let pieces = || Body::new(streamed(vec![data(), data()]).into_body());
    let length = async move || ([("content-length", "8")], pieces());
    let app = Router::new()
        .route("/text", get(async || "text"))
        .route("/stream", get(async move || pieces()))
        .route("/stream-with-length", get(length))
        .route("/status", get(async || StatusCode::ACCEPTED))
        .route("/none", get(async || StatusCode::NO_CONTENT))
        .layer(World::memory().layer([policy]));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let _server = tokio::spawn(axum::serve(listener, app).into_future());
    let client = plain_http::client();
    for method in [Method::GET, Method::HEAD] {
        for path in ["text", "stream", "stream-with-length", "status", "none"] {
            let request = client.request(method.clone(), format!("http://{address}/{path}"));
            let response = request.send().await.expect("a response");
            response.bytes().await.expect("a body");
            let end = sees.recv().await.expect("an outcome");
            assert_eq!(end, RequestEnd::Completed, "{method} {path}");
        }
    }
}
