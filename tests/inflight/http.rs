//! Five hundred requests over real connections, of all the kinds that end badly.

use std::{
    collections::HashSet,
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    error_handling::HandleErrorLayer,
    extract::{Path, State},
    response::Response,
    routing::get,
};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body::Frame;
use testkit::Server;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Sleep, sleep},
};
use tollgate::{Limiter, MemoryStore, RateLimitLayer};
use tower::{ServiceBuilder, service_fn};
use tower_http::timeout::TimeoutLayer;

use crate::support::{
    MAX_PERMITS, TEST_TIMEOUT, admitted_by_store, build, check, free, permit_policy, store,
};

/// Long enough that a busy machine keeps its heartbeats: a permit is lost after two thirds of it without one.
const PERMIT_TTL: Duration = Duration::from_millis(1_500);

const REQUESTS: usize = 500;
const CLIENTS: usize = 25;

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// A plain response.
    Plain,
    /// The handler panics.
    Panic,
    /// The client hangs up while the handler works.
    HangUp,
    /// The client hangs up in the middle of a stream.
    HangUpInStream,
    /// The response streams for longer than a permit's TTL.
    Stream,
    /// The service inside has an error.
    Error,
    /// A timeout outside of the limit gives it up.
    Timeout,
}

impl Kind {
    fn of(request: usize) -> Self {
        const OFTEN: [Kind; 6] = [
            Kind::Plain,
            Kind::Panic,
            Kind::HangUp,
            Kind::HangUpInStream,
            Kind::Error,
            Kind::Timeout,
        ];
        match request % 20 {
            7 => Self::Stream,
            _ => OFTEN[(request + request / 20) % OFTEN.len()],
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Plain => "/plain",
            Self::Panic => "/panic",
            Self::HangUp => "/endless",
            Self::HangUpInStream => "/endless-stream",
            Self::Stream => "/stream",
            Self::Error => "/error",
            Self::Timeout => "/timeout/endless",
        }
    }
}

/// What is at work, by a count of the test's own.
#[derive(Debug, Default)]
struct Work {
    now: AtomicUsize,
    most: AtomicUsize,
    ran: Mutex<HashSet<usize>>,
    streams: AtomicUsize,
}

/// One at work, until it is dropped.
#[derive(Debug)]
struct AtWork(Arc<Work>);

impl Work {
    fn begin(self: &Arc<Self>, request: usize) -> AtWork {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        assert!(self.ran.lock().expect("no panic").insert(request));
        AtWork(self.clone())
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A body of this many bytes, one at a time.
struct Trickle {
    left: u32,
    pause: Pin<Box<Sleep>>,
    at_work: Option<AtWork>,
}

const PAUSE: Duration = Duration::from_millis(50);

impl Trickle {
    fn body(left: u32, at_work: AtWork) -> Body {
        Body::new(Self {
            left,
            pause: Box::pin(sleep(PAUSE)),
            at_work: Some(at_work),
        })
    }
}

impl http_body::Body for Trickle {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            if let Some(at_work) = self.at_work.take() {
                at_work.0.streams.fetch_add(1, Ordering::SeqCst);
            }
            return Poll::Ready(None);
        }
        ready!(self.pause.as_mut().poll(cx));
        self.pause = Box::pin(sleep(PAUSE));
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b".")))))
    }
}

async fn plain(State(work): State<Arc<Work>>, Path(request): Path<usize>) -> &'static str {
    let _at_work = work.begin(request);
    sleep(Duration::from_millis(3)).await;
    "plain"
}

async fn panics(State(work): State<Arc<Work>>, Path(request): Path<usize>) -> &'static str {
    let _at_work = work.begin(request);
    tokio::task::yield_now().await;
    // Not `panic!`, which would write to the test's output some hundred times.
    std::panic::resume_unwind(Box::new("as planned"))
}

async fn endless(State(work): State<Arc<Work>>, Path(request): Path<usize>) {
    let _at_work = work.begin(request);
    std::future::pending().await
}

async fn endless_stream(State(work): State<Arc<Work>>, Path(request): Path<usize>) -> Body {
    Trickle::body(u32::MAX, work.begin(request))
}

/// Two and a half TTLs of a permit.
async fn stream(State(work): State<Arc<Work>>, Path(request): Path<usize>) -> Body {
    let length = (PERMIT_TTL * 5 / 2).as_millis() / PAUSE.as_millis();
    Trickle::body(length as u32, work.begin(request))
}

fn app(layer: &RateLimitLayer, work: &Arc<Work>) -> Router {
    let failing = {
        let work = work.clone();
        service_fn(move |request: Request<Body>| {
            let number = request.uri().path().rsplit('/').next().map(str::parse);
            let at_work = work.begin(number.expect("a path").expect("a number"));
            async move {
                sleep(Duration::from_millis(1)).await;
                drop(at_work);
                Err::<Response, std::io::Error>(std::io::Error::other("broken"))
            }
        })
    };
    let failing = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(async |error: std::io::Error| {
            assert_eq!(error.to_string(), "broken");
            StatusCode::BAD_GATEWAY
        }))
        .layer(layer.clone())
        .service(failing);
    let timeout =
        TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_millis(40));
    let limited = Router::new()
        .route("/plain/{request}", get(plain))
        .route("/panic/{request}", get(panics))
        .route("/endless/{request}", get(endless))
        .route("/endless-stream/{request}", get(endless_stream))
        .route("/stream/{request}", get(stream))
        .layer(layer.clone());
    let timed = Router::new()
        .route("/timeout/endless/{request}", get(endless))
        .layer(layer.clone())
        .layer(timeout);
    let routes = limited.merge(timed).with_state(work.clone());
    routes.route_service("/error/{request}", failing)
}

/// What a client received.
#[derive(Debug)]
enum Saw {
    Status(u16, Vec<u8>),
    /// The server closed the connection without a word.
    Nothing,
    /// It hung up itself, while it had been admitted.
    HungUp,
}

async fn send(address: SocketAddr, kind: Kind, request: usize, work: &Work) -> Saw {
    let mut connection = TcpStream::connect(address).await.expect("a connection");
    let head = format!(
        "GET {}/{request} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n",
        kind.path()
    );
    connection
        .write_all(head.as_bytes())
        .await
        .expect("a request");
    let mut response = Vec::new();
    let mut piece = [0; 4096];
    loop {
        tokio::select! {
            read = connection.read(&mut piece) => match read {
                Ok(0) | Err(_) => break,
                Ok(n) => response.extend_from_slice(&piece[..n]),
            },
            // It hangs up when the handler is at work for it.
            () = at_work(work, request), if kind == Kind::HangUp => {
                return Saw::HungUp;
            }
        }
        if kind == Kind::HangUpInStream && response.ends_with(b"\r\n1\r\n.\r\n") {
            return Saw::HungUp;
        }
    }
    let status = response
        .get(9..12)
        .and_then(|status| std::str::from_utf8(status).ok());
    match status.and_then(|status| status.parse().ok()) {
        Some(status) => Saw::Status(status, response),
        None => Saw::Nothing,
    }
}

/// For how long, in milliseconds, this process was kept from its work at most.
static STALL: AtomicUsize = AtomicUsize::new(0);

/// Whether it lost permits as documented for a process that is stopped for longer than their TTL: on a machine under
/// such load the count proves nothing.
fn stood_still() -> bool {
    let stall = Duration::from_millis(STALL.load(Ordering::SeqCst) as u64);
    println!("kept from its work for {stall:?} at most");
    stall > PERMIT_TTL / 2
}

async fn longest_stall() {
    loop {
        let began = Instant::now();
        sleep(Duration::from_millis(10)).await;
        STALL.fetch_max(began.elapsed().as_millis() as usize, Ordering::SeqCst);
    }
}

async fn at_work(work: &Work, request: usize) {
    while !work.ran.lock().expect("no panic").contains(&request) {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Whether it ended as its kind does; false if it was rejected.
#[track_caller]
fn admitted(kind: Kind, saw: &Saw) -> bool {
    match (kind, saw) {
        (_, Saw::Status(429, _)) => return false,
        (Kind::Plain, Saw::Status(200, _))
        | (Kind::Panic, Saw::Nothing)
        | (Kind::HangUp | Kind::HangUpInStream, Saw::HungUp)
        | (Kind::Error, Saw::Status(502, _))
        | (Kind::Timeout, Saw::Status(504, _)) => {}
        (Kind::Stream, Saw::Status(200, response)) if response.ends_with(b"0\r\n\r\n") => {}
        _ => panic!("{kind:?} ended in {saw:?}"),
    }
    true
}

async fn five_hundred_requests(limiter: Limiter) {
    let work = Arc::new(Work::default());
    let app = app(&RateLimitLayer::new(limiter.clone()), &work);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let stall = tokio::spawn(longest_stall());
    let tickets = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (work, tickets) = (work.clone(), tickets.clone());
            tokio::spawn(async move {
                let mut rejected = Vec::new();
                let mut passed = Vec::new();
                loop {
                    let request = tickets.fetch_add(1, Ordering::SeqCst);
                    if request >= REQUESTS {
                        return (rejected, passed);
                    }
                    let kind = Kind::of(request);
                    let sent = send(address, kind, request, &work);
                    let saw = tokio::time::timeout(TEST_TIMEOUT, sent).await;
                    match admitted(
                        kind,
                        &saw.unwrap_or_else(|_| panic!("{kind:?} never ended")),
                    ) {
                        true => passed.push((request, kind)),
                        // It retries no sooner than another request may be over.
                        false => {
                            rejected.push(request);
                            sleep(Duration::from_millis(10)).await;
                        }
                    }
                }
            })
        })
        .collect();
    let (mut rejected, mut passed) = (Vec::new(), Vec::new());
    for client in clients {
        let (no, yes) = client.await.expect("a client that ends well");
        rejected.extend(no);
        passed.extend(yes);
    }
    let ended = Instant::now();
    while free(&limiter).await < MAX_PERMITS {
        assert!(
            ended.elapsed() < PERMIT_TTL,
            "{} permits are not back",
            MAX_PERMITS - free(&limiter).await
        );
        sleep(Duration::from_millis(5)).await;
    }

    stall.abort();
    let (most, ran) = (
        work.most.load(Ordering::SeqCst),
        work.ran.lock().expect("no panic"),
    );
    println!(
        "{most} at work at most; {} rejected, {} passed",
        rejected.len(),
        passed.len()
    );
    assert!(
        most <= MAX_PERMITS as usize || stood_still(),
        "{most} at work at once"
    );
    assert!(
        most >= MAX_PERMITS as usize,
        "it never came to that, and the test says nothing"
    );
    assert!(
        rejected.iter().all(|request| !ran.contains(request)),
        "rejected, and run"
    );
    assert_eq!(rejected.len() + passed.len(), REQUESTS);
    for (request, kind) in &passed {
        // The time may have been up before the store's result came.
        assert!(
            ran.contains(request) || *kind == Kind::Timeout,
            "{kind:?} passed and did not run"
        );
    }
    assert!(
        work.streams.load(Ordering::SeqCst) > 0,
        "a stream that outlasts its permit"
    );
    let kinds = passed.iter().filter(|(request, _)| ran.contains(request));
    let kinds: HashSet<_> = kinds.map(|(_, kind)| kind).collect();
    assert_eq!(kinds.len(), 7, "of every kind some passed: {kinds:?}");
    assert_eq!(work.now.load(Ordering::SeqCst), 0);
    drop(ran);
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_ten_holds_under_five_hundred_requests_in_process() {
    let store = Limiter::builder().store(MemoryStore::new());
    five_hundred_requests(build(store, [permit_policy(PERMIT_TTL)])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_ten_holds_under_five_hundred_requests_on_redis() {
    let server = Server::start();
    let store = Limiter::builder().store(store(server.url()));
    five_hundred_requests(build(store, [permit_policy(PERMIT_TTL)])).await;
    assert_eq!(server.keys(), [""; 0]);
}

/// Longer than its TTL in a stream, while others wait for its permit.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_outlasts_its_permits_ttl_keeps_the_permit_to_the_end() {
    let server = Server::start();
    for builder in [
        Limiter::builder().store(MemoryStore::new()),
        Limiter::builder().store(store(server.url())),
    ] {
        let limiter = build(builder, [permit_policy(PERMIT_TTL)]);
        let work = Arc::new(Work::default());
        let app = app(&RateLimitLayer::new(limiter.clone()), &work);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        let streams: Vec<_> = (0..MAX_PERMITS as usize)
            .map(|request| {
                let work = work.clone();
                tokio::spawn(async move { send(address, Kind::Stream, request, &work).await })
            })
            .collect();
        while work.now.load(Ordering::SeqCst) < MAX_PERMITS as usize {
            sleep(Duration::from_millis(1)).await;
        }
        let stall = tokio::spawn(longest_stall());
        let mut sent = 0;
        while work.streams.load(Ordering::SeqCst) == 0 {
            let decision = check(&limiter).await;
            let ended = work.streams.load(Ordering::SeqCst) > 0;
            assert!(
                !admitted_by_store(&decision) || ended || stood_still(),
                "a permit of a stream that goes on"
            );
            sent += 1;
            sleep(Duration::from_millis(5)).await;
        }
        stall.abort();
        assert!(sent > 10);
        for stream in streams {
            assert!(admitted(Kind::Stream, &stream.await.expect("a client")));
        }
        crate::support::until_free(&limiter, MAX_PERMITS).await;
        server.abort();
    }
}
