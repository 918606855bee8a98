//! A service whose requests end in all kinds of ways.

use std::task::{Context, Poll, ready};

use axum::{
    body::Body,
    error_handling::HandleErrorLayer,
    extract::{Path, State},
    response::Response,
    routing::get,
};
use bytes::Bytes;
use http_body::Frame;
use tokio::time::{Sleep, sleep};
use tollgate_tests::prelude::*;
use tower_http::timeout::TimeoutLayer;

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
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
    pub(super) fn of(request: usize) -> Self {
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

    pub(super) fn path(self) -> &'static str {
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
pub(super) struct Work {
    pub(super) now: AtomicUsize,
    pub(super) most: AtomicUsize,
    pub(super) ran: Mutex<HashSet<usize>>,
    /// Whether streams go on although all of their bytes are sent.
    pub(super) hold_streams: AtomicBool,
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

/// A body of this many bytes, one at a time, and of more while streams are held.
struct Trickle {
    left: u32,
    pause: Pin<Box<Sleep>>,
    at_work: Option<AtWork>,
}

const PAUSE: Duration = ms(5);

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
        let is_held = |at_work: &AtWork| at_work.0.hold_streams.load(Ordering::SeqCst);
        if self.left == 0 && !self.at_work.as_ref().is_some_and(is_held) {
            self.at_work = None;
            return Poll::Ready(None);
        }
        ready!(self.pause.as_mut().poll(cx));
        self.pause = Box::pin(sleep(PAUSE));
        self.left = self.left.saturating_sub(1);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b".")))))
    }
}

async fn plain(State(work): State<Arc<Work>>, Path(request): Path<usize>) -> &'static str {
    let _at_work = work.begin(request);
    sleep(ms(3)).await;
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

async fn stream(State(work): State<Arc<Work>>, Path(request): Path<usize>) -> Body {
    Trickle::body(4, work.begin(request))
}

pub(super) fn app(layer: &RateLimitLayer, work: &Arc<Work>) -> Router {
    let failing = {
        let work = work.clone();
        service_fn(move |request: Request<Body>| {
            let number = request.uri().path().rsplit('/').next().map(str::parse);
            let at_work = work.begin(number.expect("a path").expect("a number"));
            async move {
                sleep(ms(1)).await;
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
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, ms(200));
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
